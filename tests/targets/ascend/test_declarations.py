"""The emulator's kernel_operator.h agrees with the declarations that emitted sources are parsed against."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clang.cindex import CursorKind, Diagnostic, Index, TranslationUnit
from targets.ascend.test_emit_golden import SCENARIOS

from superkernel.targets.ascend.describe_kernel import emit
from superkernel.targets.ascend.emulator.library import HOST, INCLUDE
from superkernel.targets.ascend.source_check import DECLARATIONS

HEADER = "kernel_operator.h"
OURS = ("sk_", "SK_")  # what is not of the device compiler
SOURCES = r"\[(cce \d{4}|api \d{4}|spaces|function|macros|set flag|same as|no page)\]"


@dataclass(frozen=True)
class Signature:
    result: str
    parameters: tuple[str, ...]


def plain(type_name: str) -> str:
    """Without the address space, which host code does not have."""
    return re.sub(r"__attribute__\(\(address_space\(\d\)\)\) ", "", type_name)


def parsed(folder: Path, *defines: str) -> Any:
    flags = ["-xc++", "-std=c++17", "-nostdinc", "-nostdinc++", "-Wno-pragma-once-outside-header", *defines]
    flags.append(f"-I{DECLARATIONS}")
    unit = Index.create().parse(str(folder / HEADER), flags, options=TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD)
    assert not [diagnostic for diagnostic in unit.diagnostics if diagnostic.severity >= Diagnostic.Warning]
    return unit


def own_cursors(unit: Any) -> list[Any]:
    return [
        cursor
        for cursor in unit.cursor.get_children()
        if cursor.location.file is not None and cursor.location.file.name == unit.spelling
    ]


def functions(unit: Any) -> dict[str, Signature]:
    """Overloads would need a list; neither header has any."""
    found = [cursor for cursor in own_cursors(unit) if cursor.kind is CursorKind.FUNCTION_DECL]
    found = [cursor for cursor in found if not cursor.spelling.startswith(OURS)]
    assert len({cursor.spelling for cursor in found}) == len(found)
    return {
        cursor.spelling: Signature(
            plain(cursor.result_type.get_canonical().spelling),
            # `line` is where the call stands: emitted code does not give it
            tuple(plain(p.type.get_canonical().spelling) for p in cursor.get_arguments() if p.spelling != "line"),
        )
        for cursor in found
    }


def enums(unit: Any) -> dict[str, dict[str, int]]:
    return {
        cursor.spelling: {value.spelling: value.enum_value for value in cursor.get_children()}
        for cursor in own_cursors(unit)
        if cursor.kind is CursorKind.ENUM_DECL
    }


def macros(unit: Any) -> set[str]:
    found = {cursor.spelling for cursor in own_cursors(unit) if cursor.kind is CursorKind.MACRO_DEFINITION}
    return {name for name in found if not name.startswith(OURS)}


@pytest.fixture(params=["-D__DAV_CUBE__", "-D__DAV_VEC__"])
def declared(request: pytest.FixtureRequest) -> Any:
    return parsed(DECLARATIONS, request.param)


@pytest.fixture
def emulated() -> Any:
    return parsed(INCLUDE, "-DSK_EMULATED")


def test_functions_have_the_same_types(declared: Any, emulated: Any) -> None:
    assert functions(emulated) == functions(declared)


def test_enums_have_the_same_values(declared: Any, emulated: Any) -> None:
    """The emulator may lack values, never add or renumber any."""
    for name, values in enums(emulated).items():
        assert values.items() <= enums(declared)[name].items(), name


def test_the_emulator_has_the_words_of_emitted_code(declared: Any, emulated: Any) -> None:
    """Qualifiers, types and values; the functions are the same in any case."""
    words = set(re.findall(r"\w+", "\n".join(emit(scenario()).source for scenario in SCENARIOS)))

    def known(unit: Any) -> set[str]:
        return macros(unit).union(*([name, *values] for name, values in enums(unit).items())) & words

    assert known(emulated) == known(declared) > {"__gm__", "PIPE_FIX", "cache_line_t", "CACHELINE_OUT"}


def test_the_emulated_chip_numbers_pipes_as_its_header_does(emulated: Any) -> None:
    pipes = enums(emulated)["pipe_t"]
    numbers = dict(re.findall(r"(k\w+Pipes?) = (\d+)", (HOST / "machine.h").read_text()))
    assert {name: int(number) for name, number in numbers.items()} == {
        "kOutPipe": pipes["PIPE_MTE3"],
        "kAllPipes": pipes["PIPE_ALL"],
        "kFixPipe": pipes["PIPE_FIX"],
    }


def test_every_declaration_names_its_source(declared: Any) -> None:
    lines = (DECLARATIONS / HEADER).read_text().splitlines()
    for cursor in own_cursors(declared):
        if cursor.kind in (CursorKind.FUNCTION_DECL, CursorKind.ENUM_DECL) and not cursor.spelling.startswith(OURS):
            # on a line of the declaration, or in the comment before it
            first = cursor.extent.start.line - 1
            while lines[first - 1].startswith(("//", "#", "enum")):
                first -= 1
            assert re.search(SOURCES, "\n".join(lines[first : cursor.extent.end.line])), cursor.spelling
