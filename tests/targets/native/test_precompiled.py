"""Includes of generated kernels: read ahead once they are needed often, and never what decides the result."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest

from superkernel.cache import Cache
from superkernel.errors import BuildError
from superkernel.targets.cpu.build import INCLUDE
from superkernel.targets.native.build_context import BuildContext
from superkernel.targets.native.compile_generated import compile_generated
from superkernel.targets.native.objects import compile_source, cxx_command
from superkernel.targets.native.precompiled import PLAIN_USES, precompiled

pytestmark = pytest.mark.slow

INCLUDES = "#include <cmath>\n#include <vector>"


def text(number: int, includes: str = INCLUDES) -> tuple[str, str]:
    body = f"std::vector<double> v({number + 1}, std::sqrt(4.0)); return v.back() + {number};"
    return includes, f'extern "C" double made_{number}() {{ {body} }}'


def value(path: Path, number: int, folder: Path) -> float:
    library = folder / f"{number}.so"
    subprocess.run(["g++", "-shared", path, "-o", library], check=True)
    function = getattr(ctypes.CDLL(str(library)), f"made_{number}")
    function.restype = ctypes.c_double
    return float(function())


def headers(cache: Cache) -> list[Path]:
    return list(cache.directory.glob("*/*.gch"))


@pytest.fixture
def context(tmp_path: Path) -> BuildContext:
    return BuildContext(Cache(tmp_path / "cache"))


def test_they_are_read_ahead_once_they_were_needed_a_few_times(context: BuildContext, tmp_path: Path) -> None:
    for number in range(PLAIN_USES + 2):
        (made,) = compile_generated([text(number)], [], context)
        assert value(made, number, tmp_path) == 2 + number
        assert len(headers(context.cache)) == (number >= PLAIN_USES)
    with_header = [command for command in context.commands if "-include" in command]
    assert len(with_header) == 2
    assert sum("c++-header" in command for command in context.commands) == 1


@pytest.mark.parametrize(("length", "calls"), [(10, 1), (5000, 2)])
def test_short_texts_share_a_call_and_long_texts_the_processors(
    context: BuildContext, monkeypatch: pytest.MonkeyPatch, length: int, calls: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    texts = [(includes, f"{kernel}  // {'x' * length}") for includes, kernel in map(text, range(3))]
    compile_generated(texts, [], context)
    assert len(context.commands) == calls


def test_texts_of_one_call_count_once(context: BuildContext) -> None:
    compile_generated([text(number) for number in range(9)], [], context)
    assert not any("-include" in command for command in context.commands)
    (uses,) = context.cache.directory.glob("*/*.uses")
    assert len(uses.read_text()) == 1


@pytest.mark.conformance
def test_other_flags_have_a_header_of_their_own(context: BuildContext) -> None:
    for number in range(PLAIN_USES + 1):
        compile_generated([text(number)], ["-O1"], context)
    compile_generated([text(0)], ["-O2"], context)
    assert len(headers(context.cache)) == 1
    assert "-include" not in context.commands[-1]


def test_a_header_that_is_damaged_or_gone_is_made_again_or_done_without(context: BuildContext, tmp_path: Path) -> None:
    for number in range(PLAIN_USES + 1):
        compile_generated([text(number)], [], context)
    (header,) = headers(context.cache)
    header.write_bytes(b"no header")
    (made,) = compile_generated([text(20)], [], context)
    assert value(made, 20, tmp_path) == 22
    header.unlink()
    (made,) = compile_generated([text(21)], [], context)
    assert value(made, 21, tmp_path) == 23
    assert header.stat().st_size > 1000


def test_an_error_in_a_kernel_is_told_as_without_a_header(context: BuildContext) -> None:
    for number in range(PLAIN_USES + 1):
        compile_generated([text(number)], [], context)
    with pytest.raises(BuildError, match="compiling generated kernels") as failed:
        compile_generated([(INCLUDES, "not C++")], [], context)
    assert re.search(r"not.*does not name a type|'not'|expected", failed.value.stderr)
    assert "-include" not in (failed.value.command or [])


def test_includes_that_do_not_exist_are_told(context: BuildContext) -> None:
    for number in range(PLAIN_USES + 2):
        with pytest.raises(BuildError, match="compiling generated kernels"):
            compile_generated([text(number, "#include <no_such_header>")], [], context)
    assert not headers(context.cache)
    assert sum("c++-header" in command for command in context.commands) == 1  # not tried again


@pytest.mark.conformance
def test_another_torch_has_a_header_of_its_own(context: BuildContext, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(PLAIN_USES + 1):
        compile_generated([text(number)], [], context)
    monkeypatch.setattr("superkernel.targets.native.precompiled.versions", lambda: "torch=99")
    compile_generated([text(50)], [], context)
    assert "-include" not in context.commands[-1]


def test_the_header_of_entries_is_read_ahead_and_objects_stay_the_same(context: BuildContext, tmp_path: Path) -> None:
    folders, source = (INCLUDE,), tmp_path / "entry.cpp"
    context = BuildContext(context.cache, folders)
    source.write_text('#include <superkernel/entry.h>\nextern "C" int lines() { return __LINE__; }\n')
    command = cxx_command([], context.toolchain, folders)
    found = [precompiled("#include <superkernel/entry.h>", command, context) for _ in range(PLAIN_USES + 1)]
    assert found[:-1] == [None] * PLAIN_USES and found[-1] is not None
    compilers, objects = [], []
    for number, header in enumerate(found[-2:]):
        cache = Cache(tmp_path / f"cache{number}")
        objects.append(compile_source(source, [], context.toolchain, cache, folders, compilers, True, header))
    assert objects[0].name == objects[1].name and objects[0].read_bytes() == objects[1].read_bytes()
    assert not any("-include" in command for command in compilers)  # what is dumped works without the cache
