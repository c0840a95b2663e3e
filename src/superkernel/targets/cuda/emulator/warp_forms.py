"""targets.cuda.emulator.warp_forms: barriers, branches, exchanges between lanes and matrix instructions -> steps."""

from __future__ import annotations

import re

from ..ptx import Instruction, address, vector_elements
from .arithmetic_forms import Form
from .lowering import InstructionLowering
from .program import NONE

_SHUFFLES = ("up", "down", "bfly", "idx")  # the orders of warp.cpp
_VOTES = ("all", "any", "uni", "ballot")
_REDUCTIONS = ("add", "min", "max", "and", "or", "xor")
_BARRIERS = {"sync": 0, "arrive": 1, "popc": 2, "and": 3, "or": 4}  # as BarrierKind in control.cpp
_ELEMENTS = {"f16": 0, "bf16": 1, "tf32": 2, "s8": 3, "u8": 4, "e4m3": 5, "e5m2": 6, "f64": 7}  # as in matrix.cpp
_ACCUMULATORS = {"f32": 0, "f16": 1, "s32": 2, "f64": 3}
_SHAPE = re.compile(r"m(\d+)n8k(\d+)")


def _shuffle(lowering: InstructionLowering, i: Instruction) -> None:
    mode = next(word for word in i.modifiers if word in _SHUFFLES)
    first, _, second = i.operands[0].partition("|")
    sources = [lowering.source(operand, 4) for operand in i.operands[1:4]]
    members = lowering.source(i.operands[4], 4) if len(i.operands) > 4 else NONE
    inside = lowering.predicate_destination(second) if second else NONE
    target = lowering.destination(first, 4)
    lowering.emit("shfl.sync", target, inside, *sources, members, detail=_SHUFFLES.index(mode), meets=True)


def _vote(lowering: InstructionLowering, i: Instruction) -> None:
    mode = next(word for word in i.modifiers if word in _VOTES)
    source = lowering.predicate(i.operands[1])
    members = lowering.source(i.operands[2], 4) if len(i.operands) > 2 else NONE
    ballot = mode == "ballot"
    target = lowering.destination(i.operands[0], 4) if ballot else lowering.predicate_destination(i.operands[0])
    lowering.emit("vote.sync", target, source, members, detail=_VOTES.index(mode), meets=True)


def _active(lowering: InstructionLowering, i: Instruction) -> None:
    lowering.emit("activemask", lowering.destination(i.operands[0], 4))


def _match(lowering: InstructionLowering, i: Instruction) -> None:
    first, _, second = i.operands[0].partition("|")
    nbytes = 8 if i.modifiers[-1] == "b64" else 4
    source, members = lowering.source(i.operands[1], nbytes), lowering.source(i.operands[2], 4)
    all_equal = lowering.predicate_destination(second) if second else NONE
    detail = ("all" in i.modifiers) | (nbytes == 8) << 1
    target = lowering.destination(first, 4)
    lowering.emit("match.sync", target, all_equal, source, members, detail=detail, meets=True)


def _reduce(lowering: InstructionLowering, i: Instruction) -> None:
    operation, kind = i.modifiers[1], i.modifiers[-1]
    if operation not in _REDUCTIONS or kind not in ("u32", "s32", "b32"):
        raise lowering.unsupported(i)
    source, members = lowering.source(i.operands[1], 4), lowering.source(i.operands[2], 4)
    detail = _REDUCTIONS.index(operation) | (kind == "s32") << 3
    lowering.emit("redux.sync", lowering.destination(i.operands[0], 4), source, members, detail=detail, meets=True)


def _elect(lowering: InstructionLowering, i: Instruction) -> None:
    first, _, second = i.operands[0].partition("|")
    members = lowering.source(i.operands[1], 4)
    target = NONE if first.strip() == "_" else lowering.destination(first.strip(), 4)
    lowering.emit("elect.sync", target, lowering.predicate_destination(second), members, meets=True)


def _cluster_barrier(lowering: InstructionLowering, i: Instruction) -> None:
    """Only with the order of memory that it has by default, and by whole warps."""
    kinds = {("arrive",), ("arrive", "release"), ("wait",), ("wait", "acquire")}
    words = tuple(word for word in i.modifiers if word not in ("cluster", "aligned"))
    if words not in kinds or "aligned" not in i.modifiers:
        raise lowering.unsupported(i)
    lowering.emit(f"barrier.cluster.{words[0]}", meets=True)


def _barrier(lowering: InstructionLowering, i: Instruction) -> None:
    words = [word for word in i.modifiers if word not in ("cta", "aligned", "u32", "pred")]
    if "cluster" in words:
        return _cluster_barrier(lowering, i)
    if words[0] == "warp":
        return lowering.emit("bar.warp.sync", lowering.source(i.operands[0], 4), meets=True)
    if words[0] != "red":
        count = lowering.source(i.operands[1], 4) if len(i.operands) > 1 else NONE
        barrier = lowering.source(i.operands[0], 4)
        return lowering.emit("bar", barrier, count, detail=_BARRIERS[words[0]], meets=True)
    operation = words[1]
    vote = lowering.predicate(i.operands[-1])
    count = lowering.source(i.operands[2], 4) if len(i.operands) > 3 else NONE
    barrier = lowering.source(i.operands[1], 4)
    place = (
        lowering.destination(i.operands[0], 4) if operation == "popc" else lowering.predicate_destination(i.operands[0])
    )
    return lowering.emit("bar", barrier, count, place, vote, detail=_BARRIERS[operation], meets=True)


def _branch(lowering: InstructionLowering, i: Instruction) -> None:
    label = lowering.names.labels.get(i.operands[0])
    if label is None:
        raise lowering.unsupported(i, f" to {i.operands[0]}")
    lowering.emit("bra", label=label)


def _branch_indexed(lowering: InstructionLowering, i: Instruction) -> None:
    table = lowering.tables.get(lowering.names.labels.get(i.operands[1], ""))
    if table is None:
        raise lowering.unsupported(i, f" by the table {i.operands[1]}")
    first, count = table
    lowering.emit("brx.idx", lowering.source(i.operands[0], 4), immediate=first, detail=count)


def _named(handler: str) -> Form:
    return lambda lowering, i: lowering.emit(handler)


def _product(lowering: InstructionLowering, i: Instruction) -> None:
    shape = next((found for word in i.modifiers if (found := _SHAPE.fullmatch(word))), None)
    kinds = [word for word in i.modifiers[-5:] if word in _ELEMENTS or word in _ACCUMULATORS]
    if shape is None or len(kinds) < 4 or kinds[-4] != kinds[-1] or "sp" in i.opcode:
        raise lowering.unsupported(i)
    result, left, right, _ = kinds[-4:]
    rows, k = int(shape[1]), int(shape[2])
    known = left in _ELEMENTS and right in _ELEMENTS and result in _ACCUMULATORS and (left == right or "8" in left)
    if not known or rows not in (8, 16) or (rows == 8 and left != "f64") or k > 64:
        raise lowering.unsupported(i)
    wide = 8 if left == "f64" else 4
    places = [lowering.destination(name, wide) for name in vector_elements(i.operands[0])]
    places += [lowering.source(name, wide, True) for operand in i.operands[1:4] for name in vector_elements(operand)]
    detail = rows | k << 5 | _ELEMENTS[left] << 12 | _ELEMENTS[right] << 16 | _ACCUMULATORS[result] << 20
    lowering.emit("mma.sync", *places, detail=detail | ("satfinite" in i.modifiers) << 22, meets=True)


def _matrices(lowering: InstructionLowering, i: Instruction) -> None:
    stores = i.name == "stmatrix"
    if "m8n8" not in i.modifiers or i.modifiers[-1] != "b16":
        raise lowering.unsupported(i)
    values, place = (i.operands[1], i.operands[0]) if stores else (i.operands[0], i.operands[1])
    names = vector_elements(values)
    registers = [lowering.source(name, 4) if stores else lowering.destination(name, 4) for name in names]
    where = address(place)
    base = lowering.names.registers.get(where.base)
    wide = base is None or base.lane_bytes == 8
    register = lowering.source(where.base, 8 if wide else 4)
    detail = ("trans" in i.modifiers) | stores << 1 | wide << 2
    lowering.emit("matrix", *registers, register, immediate=where.offset, detail=detail, meets=True)


def _register_hint(lowering: InstructionLowering, i: Instruction) -> None:
    lowering.emit("nop")


FORMS: dict[str, Form] = {
    "shfl": _shuffle, "vote": _vote, "activemask": _active, "match": _match, "redux": _reduce, "elect": _elect,
    "bar": _barrier, "barrier": _barrier, "bra": _branch, "brx": _branch_indexed, "ret": _named("exit"),
    "exit": _named("exit"), "trap": _named("trap"), "brkpt": _named("trap"), "nanosleep": _named("nanosleep"),
    "mma": _product, "ldmatrix": _matrices, "stmatrix": _matrices, "setmaxnreg": _register_hint,
}  # fmt: skip
