"""targets.cuda.basic_blocks: the statements of an entry -> instructions in one sequence, basic blocks and loops."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...errors import BuildError
from .ptx import Directive, Entry, Instruction, Label, RegisterDeclaration, Scope, Statement

_WORD = re.compile(r"(?<![\w$%.])%?[A-Za-z_$][\w$]*", re.ASCII)
_ENDS = ("ret", "exit", "trap")


@dataclass(frozen=True)
class PlacedInstruction:
    """An instruction of an entry; names that a scope declares are made unique by a suffix such as `$scope2`."""

    instruction: Instruction
    statement: int  # the index of the top-level statement that holds it

    @property
    def line(self) -> int:
        return self.instruction.line


@dataclass(frozen=True)
class BasicBlock:
    """instructions[begin:end] run one after the other."""

    begin: int
    end: int
    successors: tuple[int, ...]  # numbers of blocks
    leaves: bool  # the entry may end behind it


@dataclass(frozen=True)
class ControlFlowGraph:
    instructions: tuple[PlacedInstruction, ...]
    blocks: tuple[BasicBlock, ...]  # block 0 comes first; in the order of the text

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        found: list[list[int]] = [[] for _ in self.blocks]
        for number, block in enumerate(self.blocks):
            for successor in block.successors:
                found[successor].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def block_of(self) -> tuple[int, ...]:
        """The number of the block of every instruction."""
        return tuple(number for number, block in enumerate(self.blocks) for _ in range(block.begin, block.end))

    @cached_property
    def reachable(self) -> frozenset[int]:
        return self.reached(())

    def reached(self, barred: Iterable[int], begin: int = 0) -> frozenset[int]:
        """The blocks that control reaches from one, the entry, without running through a barred block."""
        stop, seen, ahead = frozenset(barred), {begin}, [begin]
        while ahead:
            number = ahead.pop()
            if number in stop:
                continue
            for successor in self.blocks[number].successors:
                if successor not in seen:
                    seen.add(successor)
                    ahead.append(successor)
        return frozenset(seen)

    def on_every_path(self, block: int) -> bool:
        """Whether control cannot end without having run through the block."""
        without = self.reached([block])
        return all(number == block or not self.blocks[number].leaves for number in without)

    @cached_property
    def loops(self) -> tuple[frozenset[int], ...]:
        """For every jump backwards the blocks of its loop, the smallest loop first.

        A jump backwards in the text from where its target does not lead is no loop: compilers move blocks.
        """
        found = set()
        for number in sorted(self.reachable):
            for head in self.blocks[number].successors:
                if head <= number and number in (behind := self.reached((), head)):
                    found.add(self._natural_loop(head, number, behind))
        return tuple(sorted(found, key=lambda loop: (len(loop), sorted(loop))))

    def _natural_loop(self, head: int, tail: int, behind: frozenset[int]) -> frozenset[int]:
        body, ahead = {head, tail}, [tail] if tail != head else []
        while ahead:
            for previous in self.predecessors[ahead.pop()]:
                if previous not in body and previous in behind and previous in self.reachable:
                    body.add(previous)
                    ahead.append(previous)
        return frozenset(body)

    def in_blocks(self, numbers: Iterable[int]) -> list[PlacedInstruction]:
        """The instructions of some blocks, in the order of the text."""
        return [
            placed
            for number in sorted(numbers)
            for placed in self.instructions[self.blocks[number].begin : self.blocks[number].end]
        ]


class _Flattener:
    """Collects instructions, and the places of labels among them."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.instructions: list[PlacedInstruction] = []
        self.labels: dict[str, int] = {}
        self.targets: dict[str, tuple[str, ...]] = {}  # of .branchtargets, by label
        self._scopes = 0
        self._last_label = ""

    def add(self, statements: Sequence[Statement], names: Mapping[str, str], top: int | None = None) -> None:
        for number, statement in enumerate(statements):
            index = number if top is None else top
            if isinstance(statement, Instruction):
                self.instructions.append(PlacedInstruction(_renamed(statement, names), index))
            elif isinstance(statement, Label):
                self._last_label = names.get(statement.name, statement.name)
                if self._last_label in self.labels:
                    raise BuildError(f"{self.where}:{statement.line}: a second label is called {statement.name}")
                self.labels[self._last_label] = len(self.instructions)
            elif isinstance(statement, Directive) and statement.name == "branchtargets":
                listed = statement.text.split(maxsplit=1)[1].rstrip(";").split(",")
                self.targets[self._last_label] = tuple(names.get(name.strip(), name.strip()) for name in listed)
            elif isinstance(statement, Scope):
                self._scopes += 1
                declared = _declared(statement.statements)
                inner = {**names, **{name: f"{name}$scope{self._scopes}" for name in declared}} if declared else names
                self.add(statement.statements, inner, index)


def _declared(statements: Sequence[Statement]) -> list[str]:
    """The names that a scope declares for itself."""
    names: list[str] = []
    for statement in statements:
        if isinstance(statement, RegisterDeclaration):
            names += statement.names
        elif isinstance(statement, Label):
            names.append(statement.name)
    return names


def _renamed(instruction: Instruction, names: Mapping[str, str]) -> Instruction:
    if not names:
        return instruction
    operands = tuple(_WORD.sub(lambda word: names.get(word[0], word[0]), operand) for operand in instruction.operands)
    guard = instruction.guard and _WORD.sub(lambda word: names.get(word[0], word[0]), instruction.guard)
    if (operands, guard) == (instruction.operands, instruction.guard):
        return instruction
    return replace(instruction, operands=operands, guard=guard)


def control_flow(entry: Entry, origin: str) -> ControlFlowGraph:
    """The control-flow graph of an entry; errors call its file `origin`."""
    flat = _Flattener(origin)
    flat.add(entry.statements, {})
    instructions = flat.instructions
    count = len(instructions)

    def jumps_to(placed: PlacedInstruction) -> tuple[int, ...]:
        """The indices of the instructions to which a branch may go."""
        instruction = placed.instruction
        if instruction.name not in ("bra", "brx"):
            return ()
        label = instruction.operands[-1] if instruction.operands else ""
        names = flat.targets.get(label) if instruction.name == "brx" else (label,)
        unknown = [name for name in names or (label,) if name not in flat.labels]
        if names is None or unknown:
            raise BuildError(
                f"{origin}:{placed.line}: the branch target {(unknown or [label])[0]!r} is not in the entry"
            )
        return tuple(flat.labels[name] for name in names)

    jumps = {index: jumps_to(placed) for index, placed in enumerate(instructions)}
    leaders = {0, count, *(target for targets in jumps.values() for target in targets)}
    leaders |= {
        index + 1 for index, placed in enumerate(instructions) if placed.instruction.name in ("bra", "brx", *_ENDS)
    }
    begins = sorted(leaders - {count})
    number_at = {begin: number for number, begin in enumerate(begins)}
    blocks = []
    for begin, end in zip(begins, [*begins[1:], count], strict=True):
        if begin == end:
            continue
        last = instructions[end - 1].instruction
        following = [] if last.name in ("brx", "bra", *_ENDS) and last.guard is None else [end]
        targets = [*jumps[end - 1], *following]
        leaves = last.name in ("ret", "exit") or count in targets
        successors = dict.fromkeys(number_at[target] for target in targets if target < count)
        blocks.append(BasicBlock(begin, end, tuple(successors), leaves))
    return ControlFlowGraph(tuple(instructions), tuple(blocks) or (BasicBlock(0, 0, (), True),))
