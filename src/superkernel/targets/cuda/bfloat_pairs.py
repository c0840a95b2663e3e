"""targets.cuda.bfloat_pairs: pairs of bfloat16 in one register, and their conversions -> the same by one instruction.

Compilers write `mov.b32 {%rs1, %rs2}, %r1; cvt.f32.bf16 %f1, %rs1; cvt.f32.bf16 %f2, %rs2;`. A bfloat16 is the upper
half of the float32 of the same value: a shift and a mask give the same bits. The assembler writes half registers by
instructions that keep the other half, which would live from task to task in the loop of a super kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from .basic_blocks import ControlFlowGraph
from .ptx import Instruction, read_registers, vector_elements, written_registers


@dataclass(frozen=True)
class BfloatPairs:
    """The instructions that are replaced."""

    unpacked: frozenset[Instruction]  # that are left out
    conversions: Mapping[Instruction, str]  # what stands for a conversion


def find_bfloat_pairs(graph: ControlFlowGraph) -> BfloatPairs:
    """Pairs whose registers are written once, and whose halves are only converted."""
    instructions = [placed.instruction for placed in graph.instructions]
    writes = Counter(name for i in instructions for name in written_registers(i))
    halves: dict[str, tuple[str, int]] = {}  # half register -> the register of its pair, and which half
    unpacking: dict[str, Instruction] = {}
    for i in instructions:
        elements = vector_elements(i.operands[0]) if i.opcode == "mov.b32" and i.guard is None else ()
        if len(elements) == 2 and all(writes[name] == 1 for name in (*elements, i.operands[1])):
            for upper, name in enumerate(elements):
                halves[name], unpacking[name] = (i.operands[1], upper), i
    conversions: dict[Instruction, str] = {}
    kept: set[Instruction] = set()
    for i in instructions:
        converts = i.opcode == "cvt.f32.bf16" and i.guard is None
        for name in read_registers(i):
            if name not in halves:
                continue
            pair, upper = halves[name]
            if converts and "$" not in f"{name}{pair}{i.operands[0]}":
                target = i.operands[0]
                line = f"and.b32 {target}, {pair}, 0xffff0000;" if upper else f"shl.b32 {target}, {pair}, 16;"
                conversions[i] = line
            else:
                kept.add(unpacking[name])
    return BfloatPairs(frozenset(unpacking.values()) - kept, conversions)
