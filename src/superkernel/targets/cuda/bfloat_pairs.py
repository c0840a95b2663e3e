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
    """Pairs whose halves are written once, and converted in the same basic block, before the pair is written again."""
    instructions = [placed.instruction for placed in graph.instructions]
    writes = Counter(name for i in instructions for name in written_registers(i))
    unpacking: dict[str, tuple[int, str, int]] = {}  # half register -> where it is unpacked, its pair, which half
    conversions: dict[Instruction, str] = {}
    kept: set[int] = set()  # places of instructions whose halves are needed for something else
    last_write: dict[str, int] = {}
    for index, i in enumerate(instructions):
        converts = i.opcode == "cvt.f32.bf16" and i.guard is None and "$scope" not in i.operands[0]
        for half in (name for name in read_registers(i) if name in unpacking):
            place, pair, upper = unpacking[half]
            same = graph.block_of[place] == graph.block_of[index] and last_write.get(pair, -1) < place
            if converts and same:
                conversions[i] = (
                    f"and.b32 {i.operands[0]}, {pair}, 0xffff0000;"
                    if upper
                    else f"shl.b32 {i.operands[0]}, {pair}, 16;"
                )
            else:
                kept.add(place)
        for name in written_registers(i):
            last_write[name] = index
        halves = vector_elements(i.operands[0]) if i.opcode == "mov.b32" and i.guard is None else ()
        if (
            len(halves) == 2
            and all(writes[name] == 1 for name in halves)
            and "$scope" not in f"{halves}{i.operands[1]}"
        ):
            for upper, name in enumerate(halves):
                unpacking[name] = index, i.operands[1], upper
    # a half that is read by an earlier instruction of the text, in a loop, was not seen above
    earlier = {
        name
        for index, i in enumerate(instructions)
        for name in read_registers(i)
        if name in unpacking and index < unpacking[name][0]
    }
    kept |= {unpacking[name][0] for name in earlier}
    left_out = {place for place, _, _ in unpacking.values()} - kept
    return BfloatPairs(frozenset(instructions[place] for place in left_out), conversions)
