"""targets.cpu.read_back: the C++ text of an entry -> what each core does, as statements with the numbers in the text.

It knows the language of emitted code, lines and tables, and neither the plan nor the printers: check_emitted compares
what it finds with the plan (P22). Whatever it does not understand is an error that names the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...errors import BuildError
from .emitted_text import GUARDS, Declared, EntryText, Lines, Statement, TextError, enumerators, guard_ranges
from .read_lines import read_lines
from .read_table import Tables, read_rows, read_tables

_PARAMETERS = r"sk::Core& core, const uint64_t\* slot, \[\[maybe_unused\]\] const int64_t\* bytes"
_UNUSED = r"sk::Core&, const uint64_t\*, const int64_t\*"
_FUNCTION = re.compile(rf"static void (\w+)\((?:{_PARAMETERS}|{_UNUSED})\) \{{(\}}  //.*)?")
_KERNEL = re.compile(r'extern "C" void (\w+)\(([^()]*)\);')
_COPIES = re.compile(r"static void \(\*const (\w+)\[\]\)\([^()]*\) = \{([\w, ]+)\};")
_TILING = re.compile(r'extern "C" int (\w+)\(const sk_tiling_args\* in, sk_tiling_result\* out\);')
_COPY_OF = re.compile(r"static const int (\w+)\[\] = \{([\d, ]+)\};  //.*")


def read_back(text: str) -> EntryText:
    """What an entry does. A text that cannot be read is a BuildError that names the line."""
    try:
        return _read(Lines(text))
    except TextError as error:
        raise BuildError(f"the emitted code cannot be read back (P22): line {error.line} {error.reason}") from error


def _read(lines: Lines) -> EntryText:
    lines.expect(r"#include <superkernel/entry\.h>")
    declared = _read_declarations(lines)
    tables: Tables | None = read_tables(lines, declared) if lines.peek() == "using sk::Do;" else None
    functions: dict[str, tuple[Statement, ...]] = {}
    while head := _FUNCTION.fullmatch(lines.peek()):
        number = lines.number
        lines.take()
        if head[1] in functions:
            raise TextError(number, f"defines {head[1]} again")
        if head[2]:
            functions[head[1]] = ()
        elif tables is not None:
            functions[head[1]] = tuple(read_rows(lines, tables))
        else:
            functions[head[1]] = tuple(read_lines(lines, declared))
    return _read_entry(lines, declared, functions)


def _read_declarations(lines: Lines) -> Declared:
    declared = Declared()
    while lines.peek() != "namespace at {":
        number, line = lines.number, lines.take()
        if found := _KERNEL.fullmatch(line):
            types = tuple(parameter.rpartition(" ")[0] for parameter in found[2].split(", ") if parameter)
            if declared.types.setdefault(found[1], types) != types:
                raise TextError(number, f"declares {found[1]} again, with other parameters")
        elif found := _COPIES.fullmatch(line):
            declared.copies[found[1]] = tuple(found[2].split(", "))
        elif found := _TILING.fullmatch(line):
            declared.tilings.add(found[1])
        else:
            raise TextError(number, f"is {line!r}, which declares nothing that is known")
    declared.slots = enumerators(lines, "at")
    while found := _COPY_OF.fullmatch(lines.peek()):
        declared.copy_of[found[1]] = tuple(map(int, found[2].split(", ")))
        lines.take()
    return declared


def _read_entry(lines: Lines, declared: Declared, functions: Mapping[str, tuple[Statement, ...]]) -> EntryText:
    lines.expect(r'extern "C" __attribute__\(\(visibility\("default"\)(?:, aligned\(\d+\))?\)\)')
    name = lines.expect(r"void (\w+)\(sk::Launch\* launch, int id\) \{")[1]
    lines.expect(r"sk::Core core\(\*launch, id < 0 \? 0 : id\);")
    lines.expect(r"sk::current = &core;")
    lines.expect(r"if \(id < 0\) \{")
    lines.expect(r"whole_plan\(core, launch->slots, launch->bytes\);")
    lanes = []
    while lines.peek().startswith("} else if"):
        guard = guard_ranges(lines.expect(rf"\}} else if \(({GUARDS})\) \{{")[1])
        lane = lines.expect(r"(\w+)\(core, launch->slots, launch->bytes\);")[1]
        lanes.append((guard, lane))
    lines.expect(r"\}")
    lines.expect(r"sk::current = nullptr;")
    lines.expect(r"\}")
    if lines.peek():
        raise lines.error(f"is {lines.peek()!r}, after the entry")
    for lane in ("whole_plan", *(lane for _, lane in lanes)):
        if lane not in functions:
            raise lines.error(f"calls {lane}, which is not defined")
    return EntryText(name, declared, tuple((guard, functions[lane]) for guard, lane in lanes), functions["whole_plan"])
