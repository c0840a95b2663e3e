"""targets.cuda.emulator.bulk_forms: mbarriers in shared memory and bulk copies -> steps."""

from __future__ import annotations

from ..ptx import Instruction
from .arithmetic_forms import Form
from .lowering import InstructionLowering
from .memory_forms import added, copy, nothing
from .program import NONE


def _bulk_copy(lowering: InstructionLowering, i: Instruction) -> None:
    """cp.async.bulk from global to shared memory; tensor copies need a descriptor, which is refused."""
    words = [word.partition("::")[0] for word in i.modifiers]
    if words == ["async", "mbarrier", "arrive", "noinc", "shared", "b64"]:
        return lowering.emit("cp.async.mbarrier.arrive", added(lowering, i.operands[0], 4))
    if words[:2] != ["async", "bulk"]:
        return copy(lowering, i)
    if words[2:4] == ["prefetch", "L2"] and "tensor" not in words:
        return nothing(lowering, i)
    if words[2:5] != ["shared", "global", "mbarrier"] or "multicast" in words:
        raise lowering.unsupported(i, ": it copies in bulk from global to shared memory only, without TMA")
    target, source, nbytes, mbarrier = i.operands[:4]
    places = (
        added(lowering, target, 4),
        added(lowering, source, 8),
        lowering.source(nbytes, 4),
        added(lowering, mbarrier, 4),
    )
    return lowering.emit("cp.async.bulk", *places)


def _mbarrier(lowering: InstructionLowering, i: Instruction) -> None:
    words, operands = [word.partition("::")[0] for word in i.modifiers], i.operands
    if words[-1] != "b64" or "noComplete" in words or "remote" in i.opcode:
        raise lowering.unsupported(i)
    if words[0] == "init":
        return lowering.emit("mbarrier.init", added(lowering, operands[0], 4), lowering.source(operands[1], 4))
    if words[0] == "inval":
        return lowering.emit("mbarrier.inval", added(lowering, operands[0], 4))
    if words[0] == "arrive":
        expects = "expect_tx" in words
        if len(operands) != 2 + expects:
            raise lowering.unsupported(i)
        nbytes = lowering.source(operands[2], 4) if expects else NONE
        state = NONE if operands[0] == "_" else lowering.destination(operands[0], 8)
        return lowering.emit("mbarrier.arrive", state, added(lowering, operands[1], 4), nbytes)
    if words[0] in ("try_wait", "test_wait") and "parity" in words:
        done = lowering.predicate_destination(operands[0])
        return lowering.emit("mbarrier.test", done, added(lowering, operands[1], 4), lowering.source(operands[2], 4))
    raise lowering.unsupported(i)


FORMS: dict[str, Form] = {"cp": _bulk_copy, "mbarrier": _mbarrier}
