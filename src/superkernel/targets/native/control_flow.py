"""targets.native.control_flow: an object and its functions -> what they may call, and what they call on every path.

The machine code is read by objdump. Only what is understood counts: x86-64, direct jumps, calls of named functions.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import BuildError
from .toolchain import run

_OBJDUMP = ("-d", "-r", "-w", "--no-show-raw-insn")
_SECTION = re.compile(r"Disassembly of section (.+):$")
_INSTRUCTION = re.compile(r" *([0-9a-f]+):\t([^\t]*)(?:\t(.*))?$")
_RELOCATION = re.compile(r"[0-9a-f]+: (R_\w+)\t(.+?)(?:([+-])0x([0-9a-f]+))?$")
_DIRECT = re.compile(r"([0-9a-f]+)(?: <|$)")
_PREFIXES = frozenset({"bnd", "notrack", "rep", "repz", "repnz", "data16", "cs", "ds", "addr32", "rex.W"})
_RETURNS = ("ret", "lret", "iret", "sysret", "sysexit")
_TRAPS = ("ud2", "ud1", "ud0", "hlt")
_BRANCHES = ("j", "loop", "xbegin")  # may also fall through
_CODE_RELOCATIONS = ("R_X86_64_PLT32", "R_X86_64_PC32", "R_X86_64_GOTPCREL", "R_X86_64_GOTPCRELX")
_DISPLACEMENT_BYTES = 4  # a displacement counts from its end
_EXCEPTIONS = ".gcc_except_table"
_NEVER_RETURN = frozenset(
    {"abort", "exit", "_exit", "__stack_chk_fail", "__assert_fail", "_ZSt9terminatev", "__cxa_pure_virtual"}
)


@dataclass(frozen=True)
class CodeAddress:
    section: str
    offset: int


@dataclass(frozen=True)
class Relocation:
    kind: str
    symbol: str
    addend: int


@dataclass(frozen=True)
class MachineInstruction:
    at: CodeAddress
    mnemonic: str
    operand: str
    relocation: Relocation | None
    following: CodeAddress | None  # None: it is the last of its section


@dataclass(frozen=True)
class Destination:
    """Where a jump or a call goes: code of this object, or a function from elsewhere. Neither: it is not known."""

    code: CodeAddress | None = None
    function: str | None = None


@dataclass(frozen=True)
class Transfer:
    """What an instruction does to the flow of control."""

    call: Destination | None = None
    jump: Destination | None = None
    falls_through: bool = False
    returns: bool = False


class ControlFlow:
    """The machine code of one object. Of code that is not understood nothing is said to happen on every path."""

    def __init__(self, path: Path) -> None:
        self._code = _disassemble(path)
        self._symbols: dict[str, CodeAddress] = {}
        self._tables: frozenset[str] = frozenset()  # of exception handlers, by the function that they belong to
        if self._code:
            self._read_symbols(path)
        self._always: dict[tuple[CodeAddress, str], bool] = {}

    def always_calls(self, function: str, called: str) -> bool:
        """Whether every path through `function` calls the undefined symbol `called` before it returns."""
        start = self._symbols.get(function)
        return start is not None and self._always_from(start, called)

    def may_call(self, function: str, called: str) -> bool | None:
        """Whether some path of `function` calls the undefined symbol `called`; None: the code is not understood."""
        start = self._symbols.get(function)
        pending = [start]
        seen = {start}
        while pending:
            at = pending.pop()
            instruction = self._code.get(at) if at is not None else None
            if instruction is None:
                return None
            flow = self._transfer(instruction)
            for destination in (flow.call, flow.jump):
                if destination is not None and destination.function == called:
                    return True
                if destination == Destination():
                    return None
            ahead = [to.code for to in (flow.call, flow.jump) if to is not None and to.code is not None]
            for next_at in [*ahead, *([instruction.following] if flow.falls_through else [])]:
                if next_at not in seen:
                    seen.add(next_at)
                    pending.append(next_at)
        return False

    def _always_from(self, start: CodeAddress, called: str) -> bool:
        key = (start, called)
        if key not in self._always:
            self._always[key] = False  # what a recursive call is taken for
            self._always[key] = self._find_always(start, called)
        return self._always[key]

    def _find_always(self, start: CodeAddress, called: str) -> bool:
        """Follows every path up to the call. One that returns before it, or is not understood, decides."""
        pending, seen = [start], {start}
        while pending:
            instruction = self._code.get(pending.pop())
            if instruction is None:
                return False
            for at in self._before_the_call(instruction, called):
                if at is None:
                    return False
                if at not in seen:
                    seen.add(at)
                    pending.append(at)
        return True

    def _before_the_call(self, instruction: MachineInstruction, called: str) -> Iterator[CodeAddress | None]:
        """Where control goes without having called; None: out of the function, or to a place that is not known."""
        flow = self._transfer(instruction)
        if flow.returns:
            yield None
        if flow.call is not None:
            if flow.call.function == called:
                return
            # what throws may continue in a handler of this function, and no jump leads there
            if self._catches(instruction.at.section) and not (flow.call.function or "").startswith("sk_"):
                yield None
            if flow.call.code is not None and self._always_from(flow.call.code, called):
                return
        if flow.jump is not None and flow.jump.function != called:
            yield flow.jump.code  # a jump to a function of another file is a call and a return
        if flow.falls_through:
            yield instruction.following

    def _transfer(self, instruction: MachineInstruction) -> Transfer:
        mnemonic = instruction.mnemonic
        if mnemonic.startswith(_RETURNS):
            return Transfer(returns=True)
        if mnemonic.startswith(_TRAPS):
            return Transfer()
        if mnemonic == "(bad)":
            return Transfer(jump=Destination())
        if mnemonic.startswith("call"):
            called = self._destination(instruction)
            return Transfer(call=called, falls_through=called.function not in _NEVER_RETURN)
        if mnemonic.startswith("jmp"):
            return Transfer(jump=self._destination(instruction))
        if mnemonic.startswith(_BRANCHES):
            return Transfer(jump=self._destination(instruction), falls_through=True)
        return Transfer(falls_through=True)

    def _destination(self, instruction: MachineInstruction) -> Destination:
        relocation = instruction.relocation
        if relocation is None:
            direct = _DIRECT.match(instruction.operand)
            return Destination(CodeAddress(instruction.at.section, int(direct[1], 16))) if direct else Destination()
        by_table = "GOTPCREL" in relocation.kind
        if relocation.kind not in _CODE_RELOCATIONS or instruction.operand.startswith("*") != by_table:
            return Destination()
        place = self._symbols.get(relocation.symbol)
        if place is None:
            return Destination(function=relocation.symbol)
        return Destination(CodeAddress(place.section, place.offset + relocation.addend + _DISPLACEMENT_BYTES))

    def _catches(self, section: str) -> bool:
        return any(not owner or section.endswith(owner) for owner in self._tables)

    def _read_symbols(self, path: Path) -> None:
        from elftools.elf.elffile import ELFFile

        with path.open("rb") as stream:
            elf: Any = ELFFile(stream)
            sections = list(elf.iter_sections())
            count = Counter(section.name for section in sections)
            self._tables = frozenset(name.removeprefix(_EXCEPTIONS) for name in count if name.startswith(_EXCEPTIONS))
            self._symbols = {name: CodeAddress(name, 0) for name in count if count[name] == 1}
            table = elf.get_section_by_name(".symtab")
            for symbol in table.iter_symbols() if table else ():
                index = symbol["st_shndx"]
                if not isinstance(index, int) or not symbol.name:
                    continue  # undefined, or no code
                name = sections[index].name
                place = CodeAddress(name, symbol["st_value"]) if count[name] == 1 else CodeAddress("", 0)
                if self._symbols.setdefault(symbol.name, place) != place:
                    self._symbols[symbol.name] = CodeAddress("", 0)  # two of one name: no code is found there


def _disassemble(path: Path) -> dict[CodeAddress, MachineInstruction]:
    """Empty where there is no objdump, or it does not know the object."""
    program = shutil.which("objdump")
    if program is None:
        return {}
    try:
        lines = run([program, *_OBJDUMP, str(path)], what=f"reading the code of {path}").splitlines()
    except BuildError:
        return {}
    if not any(line.endswith("file format elf64-x86-64") for line in lines[:4]):
        return {}
    read = list(_read_lines(lines))
    return {
        at: MachineInstruction(
            at, *text, following if following is not None and following.section == at.section else None
        )
        for (at, text), following in zip(read, [*(at for at, _ in read[1:]), None], strict=False)
    }


def _read_lines(lines: list[str]) -> Iterator[tuple[CodeAddress, tuple[str, str, Relocation | None]]]:
    section = ""
    for line in lines:
        if begin := _SECTION.match(line):
            section = begin[1]
        elif found := _INSTRUCTION.match(line):
            yield CodeAddress(section, int(found[1], 16)), _parse(found[2], found[3])


def _parse(text: str, relocation: str | None) -> tuple[str, str, Relocation | None]:
    words = text.split()
    while len(words) > 1 and words[0] in _PREFIXES:
        words = words[1:]
    parsed = None
    if relocation is not None:
        fields = _RELOCATION.match(relocation)
        if fields is None:
            return "(bad)", "", None
        addend = int(fields[4] or "0", 16) * (-1 if fields[3] == "-" else 1)
        parsed = Relocation(fields[1], fields[2], addend)
    return words[0] if words else "(bad)", " ".join(words[1:]), parsed
