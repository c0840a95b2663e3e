"""targets.cuda.memory_operands: an instruction -> how it accesses global memory, by which operand, how many bytes."""

from __future__ import annotations

from enum import Enum

from .ptx import TYPE_BYTES, Instruction, vector_elements


class AccessKind(Enum):
    READ = "reads"
    WRITE = "writes"
    UPDATE = "updates"  # atomically


def element_bytes(instruction: Instruction) -> int:
    """The bytes of one element of an access."""
    return next((TYPE_BYTES[modifier] for modifier in reversed(instruction.modifiers) if modifier in TYPE_BYTES), 0)


def is_shared(modifiers: tuple[str, ...]) -> bool:
    return any(modifier.partition("::")[0] == "shared" for modifier in modifiers)


def access_bytes(instruction: Instruction) -> int:
    """The bytes that one thread accesses; 0: a number of bytes that is only known at run time."""
    modifiers = instruction.modifiers
    if instruction.name == "cp":
        size = instruction.operands[2] if "bulk" not in modifiers and len(instruction.operands) > 2 else ""
        return int(size, 0) if size[:1].isdigit() else 0
    width = element_bytes(instruction)
    vector = next((int(modifier[1:]) for modifier in modifiers if modifier in ("v2", "v4", "v8")), 1)
    if instruction.operands and vector == 1 and instruction.operands[0].startswith("{"):
        vector = len(vector_elements(instruction.operands[0]))
    return width * vector


def may_be_global(modifiers: tuple[str, ...]) -> bool:
    """Whether an access with these modifiers may be to global memory: it says so, or names no space."""
    spaces = {modifier.partition("::")[0] for modifier in modifiers}
    return "global" in spaces or not spaces & {"shared", "local", "const", "param"}


def global_operands(instruction: Instruction) -> list[tuple[AccessKind, str, bool]]:
    """How an instruction accesses global memory, by which operand, and whether by the async proxy."""
    name, modifiers, operands = instruction.name, instruction.modifiers, instruction.operands
    read, write, update = AccessKind.READ, AccessKind.WRITE, AccessKind.UPDATE
    if name in ("ld", "ldu") and may_be_global(modifiers):
        return [(read, operands[1], False)]
    if name == "st" and may_be_global(modifiers):
        return [(write, operands[0], False)]
    if name == "discard":
        return [(write, operands[0], False)]
    if name == "atom" and may_be_global(modifiers):
        return [(update, operands[1], False)]
    if name == "red" and may_be_global(modifiers) and "async" not in modifiers:
        return [(update, operands[0], False)]
    if name == "cp" and "async" in modifiers:
        return _copy_operands(modifiers, operands)
    if name == "tensormap" and modifiers[:1] == ("cp_fenceproxy",):
        return [(write, operands[0], False)]
    if name == "multimem":
        return [(read if "ld_reduce" in modifiers else update, operands[1 if "ld_reduce" in modifiers else 0], False)]
    return []


def _copy_operands(modifiers: tuple[str, ...], operands: tuple[str, ...]) -> list[tuple[AccessKind, str, bool]]:
    spaces = [
        modifier.partition("::")[0] for modifier in modifiers if modifier.partition("::")[0] in ("shared", "global")
    ]
    bulk = "bulk" in modifiers
    if bulk and "prefetch" in modifiers:
        return []  # a hint: it brings memory into the L2 cache
    if spaces[:2] == ["shared", "global"]:
        return [(AccessKind.READ, operands[1], bulk)]
    if spaces[:2] == ["global", "shared"]:
        return [(AccessKind.UPDATE if "reduce" in modifiers else AccessKind.WRITE, operands[0], bulk)]
    return []  # commit_group, wait_group, mbarrier.arrive
