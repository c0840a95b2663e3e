"""targets.cuda.spin_loops: the loops of an entry -> whether its blocks wait for each other, and for which of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from .basic_blocks import ControlFlowGraph, PlacedInstruction
from .memory_operands import may_be_global
from .ptx import Instruction, read_registers, registers_in, special_registers, written_registers

_POLLING_LOADS = ("volatile", "acquire", "relaxed", "mmio")
_CHANGES_NOTHING = {"add": 0, "or": 0, "xor": 0, "and": -1, "exch": None, "cas": None}


class Spin(Enum):
    """Which other blocks of its kernel a block waits for."""

    NONE = "no other block"
    LOWER_BLOCKS = "blocks below it"  # decoupled look-back
    ALL_BLOCKS = "other blocks"  # all blocks of the kernel must be resident at the same time


@dataclass(frozen=True)
class SpinLoop:
    spin: Spin
    line: int  # of the instruction that polls
    opcode: str


class _Loop:
    """The instructions of one loop, and what each register of it is computed from there."""

    def __init__(self, graph: ControlFlowGraph, blocks: frozenset[int]) -> None:
        self.blocks = blocks
        self.body = graph.in_blocks(blocks)
        self.writers: dict[str, list[Instruction]] = {}
        for placed in self.body:
            for register in written_registers(placed.instruction):
                self.writers.setdefault(register, []).append(placed.instruction)
        self.exits = [
            graph.instructions[graph.blocks[number].end - 1].instruction
            for number in blocks
            if any(successor not in blocks for successor in graph.blocks[number].successors)
        ]

    def inputs(self, instruction: Instruction) -> Iterable[str]:
        """What a value depends on in this loop; a load from shared memory on all that the loop stores there."""
        yield from read_registers(instruction)
        if instruction.name == "ld" and "shared" in {m.partition("::")[0] for m in instruction.modifiers}:
            for placed in self.body:
                stores = placed.instruction.name == "st" and "shared" in placed.instruction.opcode
                if stores:
                    yield from read_registers(placed.instruction)

    def slice(self, registers: Iterable[str]) -> set[str]:
        """The registers that some registers are computed from in this loop, themselves included."""
        found, ahead = set(registers), list(registers)
        while ahead:
            for instruction in self.writers.get(ahead.pop(), ()):
                for name in self.inputs(instruction):
                    if name not in found:
                        found.add(name)
                        ahead.append(name)
        return found

    def varies(self, registers: Iterable[str]) -> bool:
        """Whether a value changes from iteration to iteration: it depends on itself, or on memory read in the loop."""
        for register in self.slice(registers):
            for instruction in self.writers.get(register, ()):
                if instruction.name in ("ld", "atom", "ldu") and "param" not in instruction.modifiers:
                    return True
                if register in self.slice(read_registers(instruction)):
                    return True
        return False


def find_spin_loops(graph: ControlFlowGraph) -> tuple[SpinLoop, ...]:
    """Loops that end when a value in global memory changes which the loop itself does not change."""
    constants = _constants(graph)
    if not any(_polls(placed.instruction, constants) for placed in graph.instructions):
        return ()
    loops = [_Loop(graph, blocks) for blocks in graph.loops]
    found: dict[int, SpinLoop] = {}
    for loop in loops:
        decisive = loop.slice([name for branch in loop.exits for name in read_registers(branch)])
        for placed in loop.body:
            instruction = placed.instruction
            if placed.line in found or not _polls(instruction, constants):
                continue
            results = written_registers(instruction)
            if not any(name in decisive for name in results) or loop.varies(_address_registers(instruction)):
                continue
            if "cas" in instruction.modifiers and loop.varies(registers_in(instruction.operands[2])):
                continue  # repeats until its own exchange succeeds: some thread always makes progress
            lower = any(_looks_back(graph, outer, instruction) for outer in loops if outer.blocks > loop.blocks)
            spin = Spin.LOWER_BLOCKS if lower else Spin.ALL_BLOCKS
            found[placed.line] = SpinLoop(spin, placed.line, instruction.opcode)
    return tuple(found[line] for line in sorted(found))


def _polls(instruction: Instruction, constants: Mapping[str, int]) -> bool:
    """Whether it reads global memory that another thread may change, and does not itself move the kernel on."""
    if instruction.name not in ("ld", "atom") or not may_be_global(instruction.modifiers):
        return False
    if instruction.name == "ld":
        return any(modifier in _POLLING_LOADS for modifier in instruction.modifiers)
    operation = next((modifier for modifier in instruction.modifiers if modifier in _CHANGES_NOTHING), None)
    if operation is None:
        return False
    neutral = _CHANGES_NOTHING[operation]
    return neutral is None or _literal(instruction.operands[2], constants) == neutral


def _address_registers(instruction: Instruction) -> Sequence[str]:
    return registers_in(instruction.operands[1])


def _literal(operand: str, constants: Mapping[str, int]) -> int | None:
    try:
        return int(operand, 0)
    except ValueError:
        return constants.get(operand)


def _constants(graph: ControlFlowGraph) -> dict[str, int]:
    """Registers that are only ever set to one literal."""
    found: dict[str, int | None] = {}
    for placed in graph.instructions:
        instruction = placed.instruction
        for register in written_registers(instruction):
            value = _literal(instruction.operands[1], {}) if instruction.name == "mov" else None
            found[register] = value if register not in found or found[register] == value else None
    return {register: value for register, value in found.items() if value is not None}


def _looks_back(graph: ControlFlowGraph, loop: _Loop, poll: Instruction) -> bool:
    """Whether a loop around a poll moves its address down, beginning below the block's number."""
    sources = loop.slice(_address_registers(poll))
    falling = {
        register
        for register in sources
        for instruction in loop.writers.get(register, ())
        if _decreases(instruction) and register in loop.slice(read_registers(instruction))
    }
    if not falling:
        return False
    before = _slice_of(graph.instructions, falling)
    return any(
        name.startswith("%ctaid")
        for placed in graph.instructions
        if any(register in before for register in written_registers(placed.instruction))
        for name in special_registers(placed.instruction)
    )


def _decreases(instruction: Instruction) -> bool:
    if instruction.name not in ("add", "sub") or len(instruction.operands) != 3:
        return False
    step = _literal(instruction.operands[2], {})
    return step is not None and (step < 0 if instruction.name == "add" else step > 0)


def _slice_of(instructions: Sequence[PlacedInstruction], registers: Iterable[str]) -> set[str]:
    """The registers that some registers are computed from anywhere, themselves included."""
    writers: dict[str, list[Instruction]] = {}
    for placed in instructions:
        for register in written_registers(placed.instruction):
            writers.setdefault(register, []).append(placed.instruction)
    found, ahead = set(registers), list(registers)
    while ahead:
        for instruction in writers.get(ahead.pop(), ()):
            for name in read_registers(instruction):
                if name not in found:
                    found.add(name)
                    ahead.append(name)
    return found
