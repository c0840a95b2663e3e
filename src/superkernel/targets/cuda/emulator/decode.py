"""targets.cuda.emulator.decode: an entry of a PTX module -> DecodedProgram; what cannot run here is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ....errors import UnsupportedError
from ..ptx import (
    TYPE_BYTES,
    Directive,
    Entry,
    Instruction,
    Label,
    Module,
    RegisterDeclaration,
    Scope,
    Statement,
    Variable,
)
from . import arithmetic_forms, bulk_forms, conversion_forms, memory_forms, warp_forms
from .arithmetic_forms import WINDOW, Form
from .lowering import EmulatorStep, InstructionLowering, ScopeNames
from .program import ENCODED, NONE, OPERANDS, DecodedProgram, DeviceVariable, InstructionFlag
from .registers import Register, RegisterFile, declared_bytes, number_bits

FORMS: dict[str, Form] = {
    **arithmetic_forms.FORMS, **conversion_forms.FORMS, **memory_forms.FORMS, **bulk_forms.FORMS, **warp_forms.FORMS,
}  # fmt: skip
VARIABLES = WINDOW + (1 << 20)  # the address of the first .global variable
BUFFERS = WINDOW + (1 << 40)  # the address of the first buffer
SHARED_BUFFERS = WINDOW + (1 << 41)  # the same of what several devices see
_SCALAR = re.compile(r"[^{},\s]+(?:\([^()]*\))?")


def decode(module: Module, name: str, handlers: Mapping[str, int]) -> DecodedProgram:
    """Registers get places, variables addresses, and every instruction the handlers that carry it out."""
    entry = module.entry(name)
    if entry is None:
        known = ", ".join(entry.name for entry in module.entries)
        raise UnsupportedError(f"{module.origin}: no entry is called {name!r}; there are {known or 'none'}")
    return _Decoder(module, entry, handlers).program()


@dataclass
class _Decoder:
    module: Module
    entry: Entry
    handlers: Mapping[str, int]
    symbols: dict[str, int] = field(default_factory=dict)
    constants: dict[str, tuple[int, int]] = field(default_factory=dict)
    constant_bank: bytearray = field(default_factory=bytearray)
    variables: list[DeviceVariable] = field(default_factory=list)
    params: dict[str, tuple[int, int]] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)  # unique label -> step
    tables: dict[str, list[str]] = field(default_factory=dict)  # of brx.idx, by unique label
    static_shared: int = 0
    local_bytes: int = 0
    param_bytes: int = 0
    outer_registers: dict[str, int] = field(default_factory=dict)  # of the entry, by name
    dynamic: list[str] = field(default_factory=list)  # shared variables without a size
    scopes: int = 0

    def program(self) -> DecodedProgram:
        self._lay_out_params()
        for variable in self.module.variables:
            self._place(variable)
        for statement in self.entry.statements:
            if isinstance(statement, Variable):
                self._place(statement)
        for variable in _nested_variables(self.entry.statements):
            self._place(variable)
        for name in self.dynamic:
            self.symbols[name] = self.static_shared
        self._initialise()
        registers = RegisterFile(declared_bytes(self.entry.statements))
        ranges: dict[str, tuple[int, int]] = {}
        lowering = InstructionLowering(self.handlers, registers, self.module.origin, ranges)
        self._find_tables(self.entry.statements, ranges)
        self._lower(lowering, self.entry.statements, ScopeNames({}, self.symbols, {}))
        lowering.steps.append(EmulatorStep(self.handlers["exit"], self.entry.line, 0, NONE, 0, 0, ()))
        targets = [self.places[label] for labels in self.tables.values() for label in labels]
        return DecodedProgram(
            self.entry.name, self._encode(lowering.steps, targets), np.array(targets, np.uint32), registers.image(),
            registers.specials(), self.outer_registers,
            self.params, self.param_bytes, self.constants, bytes(self.constant_bank),
            tuple(self.variables), self.static_shared, self.local_bytes, tuple(self.module.text.splitlines()),
        )  # fmt: skip

    # memory

    def _lay_out_params(self) -> None:
        offset = 0
        for param in self.entry.params:
            offset = -(-offset // param.align) * param.align
            self.params[param.name] = offset, param.nbytes
            self.symbols[param.name] = offset
            offset += param.nbytes
        self.param_bytes = offset

    def _place(self, variable: Variable) -> None:
        if variable.name in self.symbols:
            return
        nbytes = variable.nbytes
        if variable.space == "shared":
            if nbytes is None:
                self.dynamic.append(variable.name)
                self.static_shared = _aligned(self.static_shared, max(variable.align, 16))
                self.symbols[variable.name] = self.static_shared
                return
            offset = self.static_shared = _aligned(self.static_shared, variable.align)
            self.static_shared += nbytes
        elif variable.space == "local" and nbytes is not None:
            offset = self.local_bytes = _aligned(self.local_bytes, variable.align)
            self.local_bytes += nbytes
        elif variable.space == "const" and nbytes is not None:
            offset = _aligned(len(self.constant_bank), variable.align)
            self.constant_bank.extend(bytes(offset - len(self.constant_bank) + nbytes))
            self.constants[variable.name] = offset, nbytes
        elif variable.space == "global" and nbytes is not None:
            last = self.variables[-1] if self.variables else None
            behind = VARIABLES if last is None else last.address + len(last.content) + 256
            offset = _aligned(behind, max(variable.align, 256))
            self.variables.append(DeviceVariable(variable.name, offset, bytes(nbytes)))
        else:
            return  # an argument of a call, which is refused where it stands
        self.symbols[variable.name] = offset

    def _initialise(self) -> None:
        """Initial values, which may name other variables."""
        texts = {v.name: v for v in self.module.variables if v.initializer and v.space in ("const", "global")}
        contents = {name: self._content(variable) for name, variable in texts.items()}
        for name, content in contents.items():
            if name in self.constants:
                offset, _ = self.constants[name]
                self.constant_bank[offset : offset + len(content)] = content
        self.variables = [
            DeviceVariable(v.name, v.address, contents.get(v.name, b"").ljust(len(v.content), b"\0"))
            for v in self.variables
        ]

    def _content(self, variable: Variable) -> bytes:
        size, content = TYPE_BYTES[variable.type], bytearray()
        if variable.initializer.startswith('"'):
            return variable.initializer[1:-1].encode("latin-1", "replace")
        for piece in _SCALAR.findall(variable.initializer):
            bits = number_bits(piece, size, variable.type.startswith(("f", "bf")))
            if bits is None:
                inner = piece.partition("(")[2].rstrip(")") or piece
                base, _, offset = inner.partition("+")
                if base not in self.symbols:
                    raise UnsupportedError(
                        f"{self.module.origin}:{variable.line}: the emulator cannot read {piece} in the initial value "
                        f"of {variable.name}"
                    )
                bits = self.symbols[base] + int(offset or "0", 0)
            content += bits.to_bytes(8, "little")[:size]
        return bytes(content)

    # instructions

    def _find_tables(
        self, statements: Sequence[Statement], ranges: dict[str, tuple[int, int]], depth: str = ""
    ) -> None:
        """Tables of branch targets: a label and .branchtargets behind it. Scopes count in the order of _lower."""
        number = self.scopes
        self.scopes += 1
        previous: Statement | None = None
        for statement in statements:
            if isinstance(statement, Scope):
                self._find_tables(statement.statements, ranges, f"{depth}.{number}")
            elif isinstance(statement, Directive) and statement.name == "branchtargets":
                assert isinstance(previous, Label)
                names = statement.text.partition("branchtargets")[2].strip(" \t\n;").split(",")
                labels = [f"{number}:{name.strip()}" for name in names]
                ranges[f"{number}:{previous.name}"] = sum(map(len, self.tables.values())), len(labels)
                self.tables[f"{number}:{previous.name}"] = labels
            previous = statement
        if not depth:
            self.scopes = 0

    def _lower(self, lowering: InstructionLowering, statements: Sequence[Statement], outer: ScopeNames) -> None:
        number = self.scopes
        self.scopes += 1
        registers: dict[str, Register] = dict(outer.registers)
        opened = lowering.registers.scoped
        for statement in statements:
            if isinstance(statement, RegisterDeclaration):
                registers |= lowering.registers.declare(statement)
        if number == 0:
            self.outer_registers = {name: register.offset for name, register in registers.items()}
        labels = {s.name: f"{number}:{s.name}" for s in statements if isinstance(s, Label)}
        names = ScopeNames(registers, outer.symbols, {**outer.labels, **labels})
        for statement in statements:
            lowering.names = names
            if isinstance(statement, Label):
                self.places[labels[statement.name]] = len(lowering.steps)
            elif isinstance(statement, Scope):
                self._lower(lowering, statement.statements, names)
            elif isinstance(statement, Instruction):
                form = FORMS.get(statement.name)
                if form is None:
                    raise lowering.unsupported(statement)
                lowering.lower(statement, form)
        lowering.registers.scoped = opened

    def _encode(
        self, steps: Sequence[EmulatorStep], targets: Sequence[int]
    ) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        for place in (*self.places.values(), *targets):
            steps[place].flags |= InstructionFlag.LEADER
        rows = []
        for step in steps:
            immediate = step.immediate if step.label is None else self.places[step.label]
            count = len(step.operands)
            operands = (*step.operands, *(NONE,) * (OPERANDS - count))
            rows.append((step.handler, step.line, step.flags, step.guard, immediate, step.detail, count, operands))
        return np.array(rows, ENCODED)


def _aligned(offset: int, align: int) -> int:
    return -(-offset // align) * align


def _nested_variables(statements: Sequence[Statement]) -> Iterator[Variable]:
    for statement in statements:
        if isinstance(statement, Scope):
            yield from (inner for inner in statement.statements if isinstance(inner, Variable))
            yield from _nested_variables(statement.statements)
