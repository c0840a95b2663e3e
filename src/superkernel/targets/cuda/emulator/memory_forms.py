"""targets.cuda.emulator.memory_forms: loads, stores, atomic operations, fences, asynchronous copies -> steps."""

from __future__ import annotations

from ..ptx import TYPE_BYTES, Address, Instruction, address, vector_elements
from .arithmetic_forms import Form
from .lowering import InstructionLowering
from .program import NONE
from .registers import PREDICATE

# as Space, Semantics, Scope in machine.h
_SPACES = {"global": 1, "shared": 2, "local": 3, "const": 4, "param": 5}
_SHARED_OF_CLUSTER = 6
_SEMANTICS = {"weak": 0, "relaxed": 1, "acquire": 2, "release": 3, "acq_rel": 4}
_SCOPES = {"cta": 0, "cluster": 1, "gpu": 2, "sys": 3, "gl": 2}
_SCOPE_BITS = {0: 0, 1: 1 << 27, 2: 1 << 6, 3: 1 << 27 | 1 << 6}  # of Detail
# as AtomicOperation and AtomicType in memory.cpp
_OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
_ATOMIC_TYPES = {"u32": 0, "b32": 0, "s32": 1, "u64": 2, "b64": 2, "s64": 3, "f32": 4, "f64": 5, "f16": 6, "f16x2": 7,
                 "bf16": 8, "bf16x2": 9, "b16": 10}  # fmt: skip
_ELEMENTS = {"v2": 2, "v4": 4, "v8": 8}
_NO_BULK = "bulk asynchronous copies and TMA"


def _detail(i: Instruction, kind: str, vector: int, wide: bool, operation: int = 0) -> int:
    """The bits that Detail in machine.h takes apart."""
    words = [word.partition("::")[0] for word in i.modifiers]
    space = next((_SPACES[word] for word in words if word in _SPACES), 0)
    if "shared::cluster" in i.modifiers:
        space = _SHARED_OF_CLUSTER
    strong = "relaxed" if i.name in ("atom", "red") or "volatile" in words or "mmio" in words else "weak"
    semantics = _SEMANTICS[next((word for word in words if word in _SEMANTICS), strong)]
    default_scope = "sys" if "volatile" in words else "gpu"
    scope = _SCOPES[next((word for word in words if word in _SCOPES), default_scope)]
    size = {1: 0, 2: 1, 4: 2, 8: 3}[TYPE_BYTES[kind]]
    bits = space | semantics << 3 | _SCOPE_BITS[scope] | size << 7 | kind.startswith("s") << 10 | wide << 11
    return bits | ("nc" in words) << 12 | vector << 13 | operation << 17 | _ATOMIC_TYPES.get(kind, 0) << 21


def _address(lowering: InstructionLowering, operand: str) -> tuple[int, int, bool]:
    """Register, offset, and whether the register has 64 bits."""
    where: Address = address(operand)
    register = lowering.names.registers.get(where.base)
    if register is not None:
        return register.offset, where.offset, register.lane_bytes == 8
    return lowering.source(where.base, 8), where.offset, True


def _access(lowering: InstructionLowering, i: Instruction) -> None:
    """ld and st, of one register or a vector."""
    loads, kind = i.name in ("ld", "ldu"), i.modifiers[-1]
    values, place = (i.operands[0], i.operands[1]) if loads else (i.operands[1], i.operands[0])
    if kind not in TYPE_BYTES or TYPE_BYTES[kind] > 8 or "async" in i.modifiers or "::cluster" in i.opcode:
        raise lowering.unsupported(i)
    vector = next((_ELEMENTS[word] for word in i.modifiers if word in _ELEMENTS), 1)
    names = vector_elements(values)
    nbytes, signed = TYPE_BYTES[kind], kind.startswith("s")
    where, offset, wide = _address(lowering, place)
    if loads:
        registers = [NONE if name == "_" else lowering.destination(name, nbytes, signed) for name in names]
    else:
        registers = [lowering.source(name, nbytes, kind.startswith(("f", "bf"))) for name in names]
    detail = _detail(i, kind, vector, wide)
    lowering.emit("ld" if loads else "st", *registers, where, immediate=offset, detail=detail)


def _atomic(lowering: InstructionLowering, i: Instruction) -> None:
    kind = i.modifiers[-1] if i.modifiers[-1] in TYPE_BYTES else i.modifiers[-2]
    operation = next((word for word in i.modifiers if word in _OPERATIONS), None)
    operands = i.operands if i.name == "atom" else ("_", *i.operands)
    if operation is None or kind not in _ATOMIC_TYPES or "async" in i.modifiers:
        raise lowering.unsupported(i)
    nbytes, is_float = TYPE_BYTES[kind], kind.startswith(("f", "bf"))
    where, offset, wide = _address(lowering, operands[1])
    detail = _detail(i, kind, 1, wide, _OPERATIONS.index(operation))
    results, values = vector_elements(operands[0]), vector_elements(operands[2])
    for place, value in enumerate(values):
        result = results[place] if len(results) > place else "_"
        target = NONE if result == "_" else lowering.destination(result, nbytes, kind.startswith("s"))
        compared = lowering.source(operands[3], nbytes) if operation == "cas" else NONE
        source = lowering.source(value, nbytes, is_float)
        lowering.emit("atom", target, where, source, compared, immediate=offset + nbytes * place, detail=detail)


def _map_address(lowering: InstructionLowering, i: Instruction) -> None:
    if i.modifiers != ("shared::cluster", "u32"):
        raise lowering.unsupported(i)
    sources = lowering.source(i.operands[1], 4), lowering.source(i.operands[2], 4)
    lowering.emit("mapa", lowering.destination(i.operands[0], 4), *sources)


def _fence(lowering: InstructionLowering, i: Instruction) -> None:
    if "proxy" in i.modifiers and "async" in " ".join(i.modifiers):
        return lowering.emit("fence.proxy.async")
    if "proxy" in i.modifiers or "mbarrier_init" in i.modifiers:
        return lowering.emit("nop")  # no other proxy is emulated
    scope = next((_SCOPES[word] for word in i.modifiers if word in _SCOPES), _SCOPES["gpu"])
    return lowering.emit("fence", detail=scope)


def copy(lowering: InstructionLowering, i: Instruction) -> None:
    if i.modifiers[:2] == ("async", "commit_group"):
        return lowering.emit("cp.async.commit_group")
    if i.modifiers[:2] == ("async", "wait_group"):
        return lowering.emit("cp.async.wait_group", immediate=int(i.operands[0], 0))
    if i.modifiers[:2] == ("async", "wait_all"):
        return lowering.emit("cp.async.wait_all")
    if i.modifiers[0] != "async" or i.modifiers[1] not in ("ca", "cg"):
        raise lowering.unsupported(i, f": it has no {_NO_BULK}")
    target, source = (added(lowering, operand, nbytes) for operand, nbytes in ((i.operands[0], 4), (i.operands[1], 8)))
    nbytes = int(i.operands[2], 0)
    filled = ignored = NONE
    policy = "L2::cache_hint" in i.opcode
    if len(i.operands) - policy > 3:
        register = lowering.names.registers.get(i.operands[3].lstrip("! "))
        if register is not None and register.lane_bytes == PREDICATE:
            ignored = lowering.predicate(i.operands[3])
        else:
            filled = lowering.source(i.operands[3], 4)
    return lowering.emit("cp.async", target, source, filled, ignored, detail=nbytes)


def added(lowering: InstructionLowering, operand: str, nbytes: int) -> int:
    """An address with its offset added."""
    where = address(operand)
    base = lowering.source(where.base, nbytes)
    if not where.offset:
        return base
    place = lowering.temporary(nbytes)
    offset = lowering.registers.constant(where.offset % 2 ** (8 * nbytes), nbytes)
    lowering.emit(f"add.b{8 * nbytes}", place, base, offset)
    return place


def _policy(lowering: InstructionLowering, i: Instruction) -> None:
    zero = lowering.registers.constant(0, 8)
    lowering.emit("mov.b64", lowering.destination(i.operands[0], 8), zero)


def _grid_dependency(lowering: InstructionLowering, i: Instruction) -> None:
    """launch_dependents says nothing about stores; wait is what debug-check looks for."""
    lowering.emit("griddepcontrol.wait" if "wait" in i.modifiers else "nop")


def nothing(lowering: InstructionLowering, i: Instruction) -> None:
    """Hints, and what only means something between launches."""
    lowering.emit("nop")


FORMS: dict[str, Form] = {
    "ld": _access, "ldu": _access, "st": _access, "atom": _atomic, "red": _atomic, "mapa": _map_address,
    "membar": _fence, "fence": _fence, "cp": copy, "createpolicy": _policy, "prefetch": nothing, "prefetchu": nothing,
    "applypriority": nothing, "discard": nothing, "griddepcontrol": _grid_dependency, "pmevent": nothing,
}  # fmt: skip
