"""targets.cuda.emulator.arithmetic_forms: arithmetic, logic, comparison and moves -> steps of the emulator."""

from __future__ import annotations

from collections.abc import Callable

from ..ptx import TYPE_BYTES, Instruction, vector_elements
from .lowering import FLOATS, InstructionLowering
from .registers import PREDICATE

Form = Callable[[InstructionLowering, Instruction], None]

_MODES = ("rz", "rm", "rp")
_UNSIGNED_COMPARISONS = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_BOOLEAN = ("and", "or", "xor")
WINDOWS = {"global": 0, "shared": 2, "local": 3, "const": 4, "param": 5}  # as kSharedWindow ... in machine.h
WINDOW = 1 << 44


def plain(kind: str) -> str:
    """u32 -> b32: for instructions that treat signed and unsigned numbers alike."""
    return f"b{8 * TYPE_BYTES[kind]}"


def nbytes_of(kind: str) -> int:
    return TYPE_BYTES.get(kind, 4)  # tf32


def _apply(
    lowering: InstructionLowering, i: Instruction, handler: str, kind: str, count: int, result: str | None = None
) -> None:
    """d, a, b, ...: all of one type, the result perhaps of another."""
    is_float = kind in FLOATS
    sources = [lowering.source(operand, nbytes_of(kind), is_float) for operand in i.operands[1 : 1 + count]]
    target = lowering.destination(i.operands[0], nbytes_of(result or kind), (result or kind).startswith("s"))
    lowering.emit(handler, target, *sources)


def _floating(lowering: InstructionLowering, i: Instruction, base: str, count: int) -> None:
    """An operation on floating-point numbers, with its rounding mode, flushing and saturation."""
    kind, modifiers = i.modifiers[-1], i.modifiers
    mode = next((f".{mode}" for mode in _MODES if mode in modifiers), "")
    half = kind.removesuffix("x2") in ("f16", "bf16")
    flush = "ftz" in modifiers and kind != "f64"
    nan = ".NaN" if "NaN" in modifiers else ""
    if "xorsign" in modifiers or len(i.operands) != 1 + count:
        raise lowering.unsupported(i)
    sources = [lowering.source(operand, nbytes_of(kind), True) for operand in i.operands[1 : 1 + count]]
    if flush and half:
        for place, source in enumerate(sources):
            sources[place] = lowering.temporary(4)
            lowering.emit(f"flush.{kind}", sources[place], source)
    target = lowering.destination(i.operands[0], nbytes_of(kind))
    ftz = ".ftz" if flush and not half else ""
    lowering.emit(f"{base}{nan}{mode}{ftz}.{kind}", target, *sources)
    for also in ("sat", "relu"):
        if also in modifiers:
            lowering.emit(f"{also}.{kind}", target, target)
    if flush and half:
        lowering.emit(f"flush.{kind}", target, target)


def _sum(lowering: InstructionLowering, i: Instruction) -> None:
    kind = i.modifiers[-1]
    if kind in FLOATS:
        return _floating(lowering, i, i.name, 2)
    if "sat" in i.modifiers:
        return _apply(lowering, i, f"{i.name}.sat.{kind}", kind, 2)
    carry = ".cc" if "cc" in i.modifiers else ""
    return _apply(lowering, i, f"{i.name}{carry}.{plain(kind)}", kind, 2)


def _product(lowering: InstructionLowering, i: Instruction) -> None:
    kind, count = i.modifiers[-1], 2 if i.name.startswith("mul") else 3
    if kind in FLOATS:
        return _floating(lowering, i, "mul" if count == 2 else "fma", count)
    part = i.modifiers[0]
    if "cc" in i.modifiers or i.name == "madc":
        return _product_with_carry(lowering, i)
    if part == "wide":
        wide = f"{kind[0]}{16 * nbytes_of(kind)}"
        sources = [lowering.source(operand, nbytes_of(kind)) for operand in i.operands[1:3]]
        sources += [lowering.source(operand, nbytes_of(wide)) for operand in i.operands[3:4]]
        target = lowering.destination(i.operands[0], nbytes_of(wide), kind.startswith("s"))
        return lowering.emit(f"{i.name}.wide.{kind}", target, *sources)
    if part == "hi" or i.name.endswith("24"):
        return _apply(lowering, i, f"{i.name}.{part}.{kind}", kind, count)
    if part != "lo":
        raise lowering.unsupported(i)
    return _apply(lowering, i, f"{i.name}.lo.{plain(kind)}", kind, count)


def _product_with_carry(lowering: InstructionLowering, i: Instruction) -> None:
    """mad and madc whose sum leaves or takes a carry."""
    kind, part = i.modifiers[-1], i.modifiers[0]
    left, right, added = (lowering.source(operand, nbytes_of(kind)) for operand in i.operands[1:4])
    product = lowering.temporary(8 if nbytes_of(kind) == 8 else 4)
    lowering.emit(f"mul.hi.{kind}" if part == "hi" else f"mul.lo.{plain(kind)}", product, left, right)
    leaves, takes = ".cc" if "cc" in i.modifiers else "", "addc" if i.name == "madc" else "add"
    target = lowering.destination(i.operands[0], nbytes_of(kind), kind.startswith("s"))
    lowering.emit(f"{takes}{leaves}.{plain(kind)}", target, product, added)


def _either(count: int) -> Form:
    """The same name for integers, by their type, and for floating-point numbers."""

    def form(lowering: InstructionLowering, i: Instruction) -> None:
        kind = i.modifiers[-1]
        if kind in FLOATS:
            _floating(lowering, i, i.name, count)
        elif len(i.modifiers) > 1:
            raise lowering.unsupported(i)
        else:
            handler = f"neg.{plain(kind)}" if i.name == "neg" else f"{i.name}.{kind}"
            _apply(lowering, i, handler, kind, count)

    return form


def _only_floating(base: str, count: int) -> Form:
    return lambda lowering, i: _floating(lowering, i, base, count)


def _bits(count: int) -> Form:
    def form(lowering: InstructionLowering, i: Instruction) -> None:
        kind = i.modifiers[-1]
        if kind == "pred":
            sources = [lowering.predicate(operand) for operand in i.operands[1:]]
            lowering.emit(f"{i.name}.pred", lowering.predicate_destination(i.operands[0]), *sources)
        else:
            _apply(lowering, i, f"{i.name}.{plain(kind)}", kind, count)

    return form


def _shift(lowering: InstructionLowering, i: Instruction) -> None:
    kind = i.modifiers[-1]
    sources = lowering.source(i.operands[1], nbytes_of(kind)), lowering.source(i.operands[2], 4)
    if i.name == "shl":
        handler = f"shl.{plain(kind)}"
    else:
        handler = f"shr.{'s' if kind.startswith('s') else 'u'}{8 * nbytes_of(kind)}"
    lowering.emit(handler, lowering.destination(i.operands[0], nbytes_of(kind), kind.startswith("s")), *sources)


def _counted(lowering: InstructionLowering, i: Instruction) -> None:
    """popc, clz, bfind: the result has 32 bits."""
    _apply(lowering, i, i.opcode, i.modifiers[-1], 1, "u32")


def _field(lowering: InstructionLowering, i: Instruction) -> None:
    kind, values = i.modifiers[-1], 1 if i.name == "bfe" else 2
    sources = [lowering.source(operand, nbytes_of(kind)) for operand in i.operands[1 : 1 + values]]
    sources += [lowering.source(operand, 4) for operand in i.operands[1 + values :]]
    lowering.emit(i.opcode, lowering.destination(i.operands[0], nbytes_of(kind)), *sources)


def _logic3(lowering: InstructionLowering, i: Instruction) -> None:
    if i.opcode != "lop3.b32":
        raise lowering.unsupported(i)
    sources = [lowering.source(operand, 4) for operand in i.operands[1:4]]
    target = lowering.destination(i.operands[0], 4)
    lowering.emit("lop3.b32", target, *sources, immediate=int(i.operands[4], 0))


def _dot(lowering: InstructionLowering, i: Instruction) -> None:
    sources = [lowering.source(operand, 4) for operand in i.operands[1:4]]
    lowering.emit(i.opcode, lowering.destination(i.operands[0], 4), *sources)


def _same(kind_at: int, count: int) -> Form:
    """The opcode is the name of the handler."""
    return lambda lowering, i: _apply(lowering, i, i.opcode, i.modifiers[kind_at], count)


def _compare(lowering: InstructionLowering, i: Instruction, target: int, operands: tuple[str, str]) -> None:
    """The plain comparison of setp or set into a predicate."""
    kind = i.modifiers[-1]
    comparison = _UNSIGNED_COMPARISONS.get(i.modifiers[0], i.modifiers[0])
    if kind.startswith("b") and kind not in FLOATS:
        kind = f"u{kind[1:]}"
    ftz = ".ftz" if "ftz" in i.modifiers and kind == "f32" else ""
    sources = [lowering.source(operand, nbytes_of(kind), kind in FLOATS) for operand in operands]
    lowering.emit(f"setp.{comparison}{ftz}.{kind}", target, *sources)


def _combined(lowering: InstructionLowering, i: Instruction, boolean: str | None) -> tuple[int, int | None]:
    """The comparison, and its complement, each combined with the predicate operand."""
    compared = lowering.temporary(PREDICATE)
    _compare(lowering, i, compared, (i.operands[1], i.operands[2]))
    other = lowering.temporary(PREDICATE)
    lowering.emit("not.pred", other, compared)
    if boolean is not None:
        with_predicate = lowering.predicate(i.operands[3])
        lowering.emit(f"{boolean}.pred", compared, compared, with_predicate)
        lowering.emit(f"{boolean}.pred", other, other, with_predicate)
    return compared, other


def _set_predicate(lowering: InstructionLowering, i: Instruction) -> None:
    boolean = next((word for word in i.modifiers[1:] if word in _BOOLEAN), None)
    first, _, second = i.operands[0].partition("|")
    if i.modifiers[-1].endswith("x2"):
        raise lowering.unsupported(i)
    if boolean is None and not second:
        _compare(lowering, i, lowering.predicate_destination(first), (i.operands[1], i.operands[2]))
        return
    compared, other = _combined(lowering, i, boolean)
    lowering.emit("mov.pred", lowering.predicate_destination(first), compared)
    if second and other is not None:
        lowering.emit("mov.pred", lowering.predicate_destination(second), other)


def _set(lowering: InstructionLowering, i: Instruction) -> None:
    result = i.modifiers[-2]
    if result not in ("u32", "s32", "f32"):
        raise lowering.unsupported(i)
    boolean = next((word for word in i.modifiers[1:] if word in _BOOLEAN), None)
    compared, _ = _combined(lowering, i, boolean)
    true = lowering.registers.constant(0x3F800000 if result == "f32" else 0xFFFFFFFF, 4)
    lowering.emit("selp.b32", lowering.destination(i.operands[0], 4), true, lowering.registers.constant(0, 4), compared)


def _select(lowering: InstructionLowering, i: Instruction) -> None:
    kind = i.modifiers[-1]
    chooser = lowering.predicate(i.operands[3])
    if kind == "pred":
        sources = [lowering.predicate(operand) for operand in i.operands[1:3]]
        lowering.emit("selp.pred", lowering.predicate_destination(i.operands[0]), *sources, chooser)
        return
    nbytes, is_float = nbytes_of(kind), kind in FLOATS
    sources = [lowering.source(operand, nbytes, is_float) for operand in i.operands[1:3]]
    lowering.emit(
        "selp.b64" if nbytes == 8 else "selp.b32", lowering.destination(i.operands[0], nbytes), *sources, chooser
    )


def _select_by_sign(lowering: InstructionLowering, i: Instruction) -> None:
    kind, by = i.modifiers[-2:]
    chooser = lowering.temporary(PREDICATE)
    source = lowering.source(i.operands[3], nbytes_of(by), by in FLOATS)
    zero = lowering.registers.constant(0, 8 if nbytes_of(by) == 8 else 4)
    lowering.emit(f"setp.ge.{by}", chooser, source, zero)
    nbytes = nbytes_of(kind)
    sources = [lowering.source(operand, nbytes, kind in FLOATS) for operand in i.operands[1:3]]
    lowering.emit(
        "selp.b64" if nbytes == 8 else "selp.b32", lowering.destination(i.operands[0], nbytes), *sources, chooser
    )


def _test(lowering: InstructionLowering, i: Instruction) -> None:
    kind = i.modifiers[-1]
    source = lowering.source(i.operands[1], nbytes_of(kind), True)
    lowering.emit(i.opcode, lowering.predicate_destination(i.operands[0]), source)


def _move(lowering: InstructionLowering, i: Instruction) -> None:
    target, source = i.operands
    kind = i.modifiers[-1]
    if kind == "pred":
        lowering.emit("mov.pred", lowering.predicate_destination(target), lowering.predicate(source))
    elif source.startswith("{"):
        parts = vector_elements(source)
        part = nbytes_of(kind) // len(parts)
        places = [lowering.source(name, part) for name in parts]
        lowering.emit("mov.pack", lowering.destination(target, nbytes_of(kind)), *places, detail=part)
    elif target.startswith("{"):
        parts = vector_elements(target)
        part = nbytes_of(kind) // len(parts)
        whole = lowering.source(source, nbytes_of(kind))
        places = [lowering.destination(name, part) for name in parts]
        lowering.emit("mov.unpack", whole, *places, detail=part)
    else:
        nbytes = nbytes_of(kind)
        if nbytes > 8:
            raise lowering.unsupported(i)
        place = lowering.source(source, nbytes, kind in FLOATS)
        lowering.emit("mov.b64" if nbytes == 8 else "mov.b32", lowering.destination(target, nbytes), place)


def _to_generic(lowering: InstructionLowering, i: Instruction) -> None:
    """cvta: the address of a space as a generic one, or the other way round."""
    space = i.modifiers[1] if i.modifiers[0] == "to" else i.modifiers[0]
    offset = WINDOWS[space.partition("::")[0]] * WINDOW
    if i.modifiers[-1] != "u64":
        raise lowering.unsupported(i)
    place = lowering.source(i.operands[1], 8)
    delta = -offset if i.modifiers[0] == "to" else offset
    lowering.emit("address.add", lowering.destination(i.operands[0], 8), place, immediate=delta)


def _in_space(lowering: InstructionLowering, i: Instruction) -> None:
    window = (WINDOWS[i.modifiers[0].partition("::")[0]] or 1) * WINDOW
    lowering.emit(
        "isspacep", lowering.predicate_destination(i.operands[0]), lowering.source(i.operands[1], 8), immediate=window
    )


FORMS: dict[str, Form] = {
    "add": _sum, "sub": _sum, "addc": _sum, "subc": _sum, "mul": _product, "mad": _product, "madc": _product,
    "fma": _product, "mul24": _product, "mad24": _product,
    "div": _either(2), "rem": _either(2), "min": _either(2), "max": _either(2),
    "abs": _either(1), "neg": _either(1), "sqrt": _only_floating("sqrt", 1), "rcp": _only_floating("rcp", 1),
    "rsqrt": _only_floating("rsqrt", 1), "ex2": _only_floating("ex2", 1), "lg2": _only_floating("lg2", 1),
    "sin": _only_floating("sin", 1), "cos": _only_floating("cos", 1), "tanh": _only_floating("tanh", 1),
    "copysign": _only_floating("copysign", 2), "and": _bits(2), "or": _bits(2), "xor": _bits(2), "not": _bits(1),
    "cnot": _bits(1), "shl": _shift, "shr": _shift, "popc": _counted, "clz": _counted, "bfind": _counted,
    "brev": _same(0, 1), "bfe": _field, "bfi": _field, "lop3": _logic3, "shf": _same(-1, 3), "prmt": _same(0, 3),
    "sad": _same(0, 3), "dp4a": _dot, "setp": _set_predicate, "set": _set, "selp": _select, "slct": _select_by_sign,
    "testp": _test, "mov": _move, "cvta": _to_generic, "isspacep": _in_space,
}  # fmt: skip
