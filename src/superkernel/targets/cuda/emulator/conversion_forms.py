"""targets.cuda.emulator.conversion_forms: cvt between all types that kernels use -> steps of the emulator."""

from __future__ import annotations

from ..ptx import Instruction
from .arithmetic_forms import Form, nbytes_of
from .lowering import FLOATS, InstructionLowering

# the order of conversions.cpp: an odd place is signed, bytes are 1 << place // 2
_INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
_PACKED = ("f16x2", "bf16x2", "e4m3x2", "e5m2x2", "tf32")
_ROUND = ("rn", "rz", "rm", "rp", "rna")
_ROUND_TO_INTEGER = ("rni", "rzi", "rmi", "rpi")
_BYTES = {"e4m3x2": 2, "e5m2x2": 2, "tf32": 4}


def _bytes(kind: str) -> int:
    return _BYTES.get(kind) or nbytes_of(kind)


def _convert(lowering: InstructionLowering, i: Instruction) -> None:
    result, source = i.modifiers[-2:]
    if "pack" in i.modifiers or "rs" in i.modifiers:
        raise lowering.unsupported(i)
    if result in _PACKED or source in _PACKED:
        _packed(lowering, i, result, source)
    elif result in _INTEGERS and source in _INTEGERS:
        _whole(lowering, i, result, source)
    elif result in _INTEGERS:
        _to_integer(lowering, i, result, source)
    elif source in _INTEGERS:
        _from_integer(lowering, i, result, source)
    else:
        _between_floats(lowering, i, result, source)


def _packed(lowering: InstructionLowering, i: Instruction, result: str, source: str) -> None:
    mode = next((word for word in i.modifiers if word in _ROUND), "rn")
    sources = [lowering.source(operand, _bytes(source), source in FLOATS) for operand in i.operands[1:]]
    eight_bits = result.startswith("e")
    if "relu" in i.modifiers and source == "f32":
        for place, operand in enumerate(sources):
            sources[place] = lowering.temporary(4)
            lowering.emit("relu.f32", sources[place], operand)
    if "satfinite" in i.modifiers and not eight_bits:
        raise lowering.unsupported(i)
    lowering.emit(f"cvt.{mode}.{result}.{source}", lowering.destination(i.operands[0], _bytes(result)), *sources)


def _whole(lowering: InstructionLowering, i: Instruction, result: str, source: str) -> None:
    place = lowering.source(i.operands[1], _bytes(source))
    target = lowering.destination(i.operands[0], _bytes(result), result.startswith("s"))
    if "sat" in i.modifiers:
        lowering.emit(f"cvt.sat.{source}", target, place, detail=_INTEGERS.index(result))
    else:
        lowering.emit(f"cvt.b{8 * _bytes(result)}.{source}", target, place)


def _as_single(lowering: InstructionLowering, place: int, source: str) -> tuple[int, str]:
    """16-bit numbers are converted by way of 32 bits, which is exact."""
    if source not in ("f16", "bf16"):
        return place, source
    single = lowering.temporary(4)
    lowering.emit(f"cvt.f32.{source}", single, place)
    return single, "f32"


def _to_integer(lowering: InstructionLowering, i: Instruction, result: str, source: str) -> None:
    mode = next((word for word in i.modifiers if word in _ROUND_TO_INTEGER), None)
    if mode is None:
        raise lowering.unsupported(i)
    place, kind = _as_single(lowering, lowering.source(i.operands[1], _bytes(source), True), source)
    ftz = ".ftz" if "ftz" in i.modifiers and kind == "f32" else ""
    target = lowering.destination(i.operands[0], _bytes(result), result.startswith("s"))
    lowering.emit(f"cvt.{mode}{ftz}.int.{kind}", target, place, detail=_INTEGERS.index(result))


def _from_integer(lowering: InstructionLowering, i: Instruction, result: str, source: str) -> None:
    mode = next((word for word in i.modifiers if word in _ROUND), "rn")
    place = lowering.source(i.operands[1], _bytes(source))
    if _bytes(source) < 4:
        whole = lowering.temporary(4)
        lowering.emit(f"cvt.b32.{source}", whole, place)
        place, source = whole, f"{source[0]}32"
    target = lowering.destination(i.operands[0], _bytes(result))
    lowering.emit(f"cvt.{mode}.{result}.{source}", target, place)
    _finish(lowering, i, result, target)


def _between_floats(lowering: InstructionLowering, i: Instruction, result: str, source: str) -> None:
    place = lowering.source(i.operands[1], _bytes(source), True)
    target = lowering.destination(i.operands[0], _bytes(result))
    to_integer = next((word for word in i.modifiers if word in _ROUND_TO_INTEGER), None)
    flush = "ftz" in i.modifiers
    if flush and source == "f32":
        flushed = lowering.temporary(4)
        lowering.emit("flush.f32", flushed, place)
        place = flushed
    if to_integer is not None:
        kept = place, source
        place, kind = _as_single(lowering, place, source)
        wide = target if result == kind else lowering.temporary(8 if kind == "f64" else 4)
        lowering.emit(f"cvt.{to_integer}.{kind}.{kind}", wide, place)
        if result != kind:
            assert kept[1] == result
            lowering.emit(f"cvt.rn.{result}.f32", target, wide)
    elif result == source:
        lowering.emit("mov.b64" if _bytes(result) == 8 else "mov.b32", target, place)
    else:
        mode = next((word for word in i.modifiers if word in _ROUND), None)
        if _bytes(source) < _bytes(result):
            place, kind = _as_single(lowering, place, source)
            if kind == result:
                lowering.emit("mov.b32", target, place)
            else:
                lowering.emit(f"cvt.{result}.{kind}", target, place)
        else:
            if _bytes(source) == 2:
                place, source = _as_single(lowering, place, source)
            lowering.emit(f"cvt.{mode or 'rn'}.{result}.{source}", target, place)
    _finish(lowering, i, result, target)


def _finish(lowering: InstructionLowering, i: Instruction, result: str, target: int) -> None:
    if "sat" in i.modifiers:
        lowering.emit(f"sat.{result}", target, target)
    if "relu" in i.modifiers:
        lowering.emit(f"relu.{result}", target, target)
    if "ftz" in i.modifiers and result == "f32":
        lowering.emit("flush.f32", target, target)


FORMS: dict[str, Form] = {"cvt": _convert}
