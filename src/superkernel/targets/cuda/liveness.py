"""targets.cuda.liveness: a control-flow graph -> registers that it may read unwritten, and where to clear them.

A kernel alone may leave a register unwritten on some path and read it there: the value does not matter. Inside the task
loop of a super kernel the assembler must keep such a register from one task to the next, through every other body.
"""

from __future__ import annotations

from collections.abc import Mapping

from .basic_blocks import ControlFlowGraph
from .ptx import Instruction, read_registers, written_registers

Clears = Mapping[Instruction, tuple[str, ...]]  # registers to clear in front of an instruction


def unwritten_registers(graph: ControlFlowGraph, clears: Clears | None = None) -> frozenset[str]:
    """The registers that some path reads before it writes or clears them: live where the entry begins.

    A guarded instruction may leave its destination as it was. Names of variables and labels may be among them.
    """
    read: list[set[str]] = []
    written: list[set[str]] = []
    for block in graph.blocks:
        read_here, written_here = set[str](), set[str]()
        for placed in graph.instructions[block.begin : block.end]:
            instruction = placed.instruction
            written_here.update((clears or {}).get(instruction, ()))
            read_here.update(name for name in read_registers(instruction) if name not in written_here)
            if instruction.guard is None:
                written_here.update(written_registers(instruction))
        read.append(read_here)
        written.append(written_here)
    live = [set(names) for names in read]
    changed = True
    while changed:
        changed = False
        for number in reversed(range(len(graph.blocks))):
            behind = set[str]().union(*(live[successor] for successor in graph.blocks[number].successors))
            found = read[number] | (behind - written[number])
            if found != live[number]:
                live[number], changed = found, True
    return frozenset(live[0])


def places_to_clear(graph: ControlFlowGraph) -> tuple[tuple[str, ...], Clears]:
    """The registers to clear where the entry begins, and those to clear in front of an instruction.

    A register that one basic block writes, first by a guarded instruction, is cleared there: it lives no longer than in
    a kernel alone. Not inside of a loop, where the value of the turn before may be meant.
    """
    unwritten = unwritten_registers(graph)
    writers: dict[str, list[int]] = {}
    for index, placed in enumerate(graph.instructions):
        for name in written_registers(placed.instruction):
            writers.setdefault(name, []).append(index)
    in_loops = frozenset[int]().union(*graph.loops)
    clears: dict[Instruction, tuple[str, ...]] = {}
    for name in sorted(unwritten & writers.keys()):
        blocks = {graph.block_of[index] for index in writers[name]}
        first = graph.instructions[writers[name][0]].instruction
        if first.guard is not None and len(blocks) == 1 and not blocks & in_loops:
            clears[first] = (*clears.get(first, ()), name)
    return tuple(sorted(unwritten_registers(graph, clears) & writers.keys())), clears
