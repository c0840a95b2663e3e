"""targets.cuda.wait_point: an entry and its accesses -> where it waits for the ops before it, or could wait.

A kernel that was compiled for programmatic dependent launch waits at `griddepcontrol.wait`. In any other kernel the
wait may sink from its beginning to the first access to a buffer that the launch produces: over loads, never over a
store, and only through the code that every thread runs first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from .basic_blocks import ControlFlowGraph
from .memory_operands import AccessKind
from .provenance import ParameterAccesses


class WaitKind(Enum):
    GRIDDEPCONTROL = "griddepcontrol"  # the statement is the wait
    SUNK = "sunk"  # the wait goes in front of the statement


@dataclass(frozen=True)
class WaitPoint:
    kind: WaitKind
    statement: int  # index in Entry.statements
    line: int
    reads_before: tuple[int, ...]  # indices of the parameters that are read before it
    bytes_before: int  # that one thread has asked for by then, as far as that is known


@dataclass(frozen=True)
class EarlyRead:
    """A load from global memory in the straight-line code at the beginning of an entry."""

    statement: int
    line: int
    params: tuple[int, ...]
    nbytes: int  # of one thread


@dataclass(frozen=True)
class EarlyReads:
    """The loads over which a wait may sink, and the statement in front of which it stands at the latest."""

    reads: tuple[EarlyRead, ...]
    limit: int
    limit_line: int

    def sunk_wait(self, produced: Collection[int]) -> WaitPoint:
        """The last place for the wait of an op of which the launch produces these parameters."""
        statement, line = self.limit, self.limit_line
        for read in self.reads:
            if any(param in produced for param in read.params):
                statement, line = read.statement, read.line
                break
        before = [read for read in self.reads if read.statement < statement]
        params = dict.fromkeys(param for read in before for param in read.params)
        return WaitPoint(WaitKind.SUNK, statement, line, tuple(sorted(params)), sum(read.nbytes for read in before))


def find_early_reads(graph: ControlFlowGraph, accesses: ParameterAccesses) -> EarlyReads:
    block = graph.blocks[0]
    if not graph.instructions:
        return EarlyReads((), 0, 0)
    if graph.predecessors[0]:  # the entry begins with a loop
        first = graph.instructions[0]
        return EarlyReads((), 0, first.line)
    last = graph.instructions[block.end - 1]
    branches = last.instruction.name in ("bra", "brx", "ret", "exit", "trap")
    limit, limit_line = last.statement + (0 if branches else 1), last.line
    reads = []
    for access in accesses.accesses:
        if access.index >= block.end:
            continue
        placed = graph.instructions[access.index]
        if access.kind is not AccessKind.READ or access.unknown:
            limit, limit_line = placed.statement, placed.line
            break
        if access.params:
            reads.append(EarlyRead(placed.statement, placed.line, tuple(sorted(access.params)), access.nbytes))
    return EarlyReads(tuple(reads), limit, limit_line)


@dataclass(frozen=True)
class FoundWait:
    """The wait of a kernel that was compiled to wait inside; or why its waits cannot be used."""

    point: WaitPoint | None
    remark: str = ""


def find_wait(graph: ControlFlowGraph, accesses: ParameterAccesses) -> FoundWait:
    """Where an entry waits by griddepcontrol.wait: once, on every path, before it stores."""
    waits = [
        index
        for index, placed in enumerate(graph.instructions)
        if placed.instruction.name == "griddepcontrol" and placed.instruction.modifiers == ("wait",)
    ]
    if not waits:
        return FoundWait(None)
    looped = {number for loop in graph.loops for number in loop}
    for index in waits:
        placed, number = graph.instructions[index], graph.block_of[index]
        if placed.instruction.guard is None and number not in looped and graph.on_every_path(number):
            break
    else:
        line = graph.instructions[waits[0]].line
        return FoundWait(None, f"griddepcontrol.wait in line {line} is not reached on every path: it waits before")
    reached = graph.reached([number])
    before = [
        access
        for access in accesses.accesses
        if (graph.block_of[access.index] in reached - {number})
        or (graph.block_of[access.index] == number and access.index < index)
    ]
    for access in before:
        if access.writes or access.unknown:
            what = access.kind.value if access.params else "accesses unknown memory"
            return FoundWait(None, f"line {access.line} {what} before griddepcontrol.wait: it waits before")
    params = sorted({param for access in before for param in access.params})
    nbytes = sum(access.nbytes for access in before)
    return FoundWait(WaitPoint(WaitKind.GRIDDEPCONTROL, placed.statement, placed.line, tuple(params), nbytes))
