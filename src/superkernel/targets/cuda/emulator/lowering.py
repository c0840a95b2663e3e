"""targets.cuda.emulator.lowering: PTX instructions -> steps of the emulator: names to places, one form per handler.

The functions that know the instructions (FORMS of arithmetic_forms, conversion_forms, memory_forms, warp_forms) get a
InstructionLowering, which finds operands and collects steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ....errors import UnsupportedError
from ..ptx import Instruction
from .program import NONE, OPERANDS, InstructionFlag
from .registers import PREDICATE, Register, RegisterFile, clock_of, number_bits

FLOATS = ("f16", "bf16", "f32", "f64", "tf32", "f16x2", "bf16x2")


@dataclass
class EmulatorStep:
    """One handler of the C++ library with its operands."""

    handler: int
    line: int
    flags: int
    guard: int
    immediate: int
    detail: int
    operands: tuple[int, ...]
    label: str | None = None  # to be resolved: the instruction that `immediate` names


@dataclass(frozen=True)
class ScopeNames:
    """What names mean inside of one scope."""

    registers: Mapping[str, Register]
    symbols: Mapping[str, int]  # variables and parameters: addresses in their space
    labels: Mapping[str, str]  # as written -> unique


@dataclass
class InstructionLowering:
    handlers: Mapping[str, int]
    registers: RegisterFile
    origin: str
    tables: Mapping[str, tuple[int, int]]  # of brx.idx: first target, count
    steps: list[EmulatorStep] = field(default_factory=list)
    names: ScopeNames = field(default_factory=lambda: ScopeNames({}, {}, {}))
    _instruction: Instruction | None = None
    _after: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)  # conversions of results
    _temporaries: dict[int, list[int]] = field(default_factory=dict)
    _used: dict[int, int] = field(default_factory=dict)
    _guard: tuple[int, int] = (NONE, 0)

    def lower(self, instruction: Instruction, form: Callable[[InstructionLowering, Instruction], None]) -> None:
        """Append the steps of one instruction."""
        self._instruction = instruction
        self._after.clear()
        self._used.clear()
        self._guard = self._guard_of(instruction)
        first = len(self.steps)
        form(self, instruction)
        for handler, operands in self._after:
            self.emit(handler, *operands)
        self._keep_guard(first)

    def _guard_of(self, instruction: Instruction) -> tuple[int, int]:
        if instruction.guard is None:
            return NONE, 0
        negated = instruction.guard.startswith("!")
        register = self._register(instruction.guard.lstrip("! "))
        return register.offset, int(InstructionFlag.GUARD_NEGATED) if negated else 0

    def _keep_guard(self, first: int) -> None:
        """Steps behind one that writes the guard still follow the guard as it was."""
        guard = self._guard[0]
        written = [step.operands and step.operands[0] == guard for step in self.steps[first:-1]]
        if guard == NONE or not any(written):
            return
        copy = self.temporary(PREDICATE)
        for step in self.steps[first:]:
            step.guard = copy
        head = EmulatorStep(self.handlers["mov.pred"], self.steps[first].line, 0, NONE, 0, 0, (copy, guard))
        self.steps.insert(first, head)

    def emit(
        self, handler: str, *operands: int, immediate: int = 0, detail: int = 0, meets: bool = False, label: str = ""
    ) -> None:
        """`meets`: lanes that parted wait here for the rest of the warp."""
        number = self.handlers.get(handler)
        assert self._instruction is not None
        if number is None:
            raise self.unsupported(self._instruction, f" ({handler})")
        assert len(operands) <= OPERANDS
        guard, negated = self._guard
        flags = negated | (InstructionFlag.LEADER | InstructionFlag.MEETS if meets else 0)
        line = self._instruction.line
        self.steps.append(EmulatorStep(number, line, flags, guard, immediate % 2**64, detail, operands, label or None))

    def unsupported(self, instruction: Instruction, why: str = "") -> UnsupportedError:
        return UnsupportedError(
            f"{self.origin}:{instruction.line}: the emulator has no {instruction.opcode}{why}: run this kernel on a GPU"
        )

    # operands

    def _register(self, name: str) -> Register:
        found = self.names.registers.get(name)
        if found is None:
            assert self._instruction is not None
            raise self.unsupported(self._instruction, f" with operand {name}")
        return found

    def temporary(self, lane_bytes: int) -> int:
        pool = self._temporaries.setdefault(lane_bytes, [])
        used = self._used.get(lane_bytes, 0)
        if used == len(pool):
            pool.append(self.registers.allocate(lane_bytes))
        self._used[lane_bytes] = used + 1
        return pool[used]

    def source(self, operand: str, nbytes: int, is_float: bool = False) -> int:
        """A register with 4 bytes per lane for operands of up to 4 bytes, with 8 for others."""
        lane_bytes = 8 if nbytes == 8 else 4
        register = self.names.registers.get(operand)
        if register is not None:
            return self._resized(register, lane_bytes)
        clock = clock_of(operand)
        if clock is not None:
            place = self.temporary(clock[0])
            self.emit("clock.b64" if clock[0] == 8 else "clock.b32", place, detail=clock[1])
            return self._resized(Register(place, clock[0], 8 * clock[0]), lane_bytes)
        if operand.startswith("%"):
            special = self.registers.special(operand)
            if special is None:
                assert self._instruction is not None
                raise self.unsupported(self._instruction, f" with operand {operand}")
            return self._resized(Register(special, 4, 32), lane_bytes)
        return self.registers.constant(self._value(operand, nbytes, is_float), lane_bytes)

    def _value(self, operand: str, nbytes: int, is_float: bool) -> int:
        if operand == "WARP_SZ":
            return 32
        bits = number_bits(operand, nbytes, is_float)
        if bits is not None:
            return bits
        base, _, offset = operand.partition("+")
        address = self.symbol(base.strip())
        if address is None:
            assert self._instruction is not None
            raise self.unsupported(self._instruction, f" with operand {operand}")
        return address + int(offset or "0", 0)

    def symbol(self, name: str) -> int | None:
        return self.names.symbols.get(name)

    def _resized(self, register: Register, lane_bytes: int) -> int:
        if register.lane_bytes == lane_bytes:
            return register.offset
        assert register.lane_bytes != PREDICATE and self._instruction is not None
        place = self.temporary(lane_bytes)
        self.emit("low.b32" if lane_bytes == 4 else "wide.u32", place, register.offset)
        return place

    def predicate(self, operand: str) -> int:
        """A predicate operand, negated by a step of its own where it says so."""
        operand = operand.strip()
        if operand.startswith("!"):
            place = self.temporary(PREDICATE)
            self.emit("not.pred", place, self.predicate(operand[1:]))
            return place
        register = self.names.registers.get(operand)
        if register is not None and register.lane_bytes == PREDICATE:
            return register.offset
        bits = number_bits(operand, 4, False)
        if bits is None:
            assert self._instruction is not None
            raise self.unsupported(self._instruction, f" with operand {operand}")
        return self.registers.constant(int(bits != 0), PREDICATE)

    def destination(self, operand: str, nbytes: int, signed: bool = False) -> int:
        """Where a result goes; a wider register gets it extended, after the instruction."""
        if operand == "_":
            return self.temporary(8 if nbytes == 8 else 4)
        register = self._register(operand)
        lane_bytes = 8 if nbytes == 8 else 4
        if register.lane_bytes == lane_bytes:
            if signed and nbytes < 4 and register.bits > 8 * nbytes:
                self._after.append((f"low.s{8 * nbytes}", (register.offset, register.offset)))
            return register.offset
        place = self.temporary(lane_bytes)
        if signed and nbytes < 4:
            self._after.append((f"low.s{8 * nbytes}", (place, place)))
        extend = "low.b32" if lane_bytes == 8 else "wide.s32" if signed else "wide.u32"
        self._after.append((extend, (register.offset, place)))
        return place

    def predicate_destination(self, operand: str) -> int:
        if operand.strip() == "_":
            return self.temporary(PREDICATE)
        return self._register(operand.strip()).offset

    def after(self, handler: str, *operands: int) -> None:
        """A step behind those of the instruction, before its result is extended."""
        self._after.insert(0, (handler, operands))
