"""The emulator's kernel_operator.h agrees with the declarations that emitted sources are parsed against."""

from __future__ import annotations

import re
from typing import Any

import pytest
from clang.cindex import CursorKind
from targets.ascend.declared import HEADER, OURS, enums, functions, macros, own_cursors, parsed
from targets.ascend.test_emit_golden import SCENARIOS

from superkernel.targets.ascend.describe_kernel import emit
from superkernel.targets.ascend.emulator.library import HOST, INCLUDE
from superkernel.targets.ascend.source_check import DECLARATIONS

SOURCES = r"\[(cce \d{4}|api \d{4}|spaces|function|macros|set flag|same as|no page)\]"


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
