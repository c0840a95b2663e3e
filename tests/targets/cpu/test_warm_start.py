"""targets.cpu: what a process finds in the cache it does not make again, nor does it run a program to find it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from caches import with_host_library
from targets.cpu.small import child

from superkernel import BuildError, SubKernel
from superkernel.cache import Cache
from superkernel.targets.cpu.build import INCLUDE
from superkernel.targets.native import object_facts as facts
from superkernel.targets.native import toolchain
from superkernel.targets.native.object_facts import facts_of
from superkernel.targets.native.objects import compile_source, object_key
from superkernel.targets.native.toolchain import find_toolchain

pytestmark = pytest.mark.slow

# A C++ name, variants, a region of its own, a library: everything that a program might be asked about.
SOURCE = """
#include <cmath>
#include <cstdint>
#include <superkernel/kernel.h>
#include <vector>
namespace ns {
template <class T> void half(const T* x, T* z) { z[sk::block_idx()] = x[sk::block_idx()] / 2; }
template void half<double>(const double*, double*);
void root(const double* x, double* z) {
    if (x[0] < 0) sk::fail("negative");
#pragma omp parallel for
    for (int i = 0; i < 2; ++i) z[i] = std::sqrt(x[i]);
}
}
extern "C" void one(const double* x, double* z) { z[sk::block_idx()] = x[sk::block_idx()] + 1; }
extern "C" void two(const double* x, double* z) { z[sk::block_idx()] = x[sk::block_idx()] + 2; }
"""

PROGRAM = """
import json, sys
calls = []
sys.addaudithook(lambda event, args: event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn")
                 and calls.append(str(args[1])))
import numpy as np
import superkernel as sk
params = ["in:x:float64[2]", "out:z:float64[2]"]
more = {"flags": ["-fopenmp"], "libraries": ["m"], "keyed_by_text": sys.argv[2] == "1"}
def kernel(name, blocks=2, **extra):
    return sk.SubKernel.from_source(sys.argv[1], name, block_dim=blocks, params=params, **more, **extra)
ops = [sk.Op(kernel("ns::half<double>"), ["x", "a"]), sk.Op(kernel("root", 1), ["a", "b"]),
       sk.Op(kernel("one"), ["b", "c"]),
       sk.Op(kernel("pick", variants={1: "one", 2: "two"}), ["c", "d"], task="dynamic", tiling=lambda inputs: (2, 2))]
with sk.compile(ops, name="warm", cores=2) as k:
    for run in (k, k.unfused()):
        assert run({"x": np.array([8.0, 18.0])})["d"].tolist() == [5.0, 6.0]
    commands = list(k.executable.commands)
print(json.dumps({"calls": calls, "commands": commands}))
"""


# Behind a script there may be any compiler, so that it is asked for its version at every start.
ASKED_ONCE = pytest.mark.skipif(
    Path(find_toolchain().cxx[0]).resolve().read_bytes()[:4] != b"\x7fELF", reason="the compiler is a script here"
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "warm.cpp"
    path.write_text(SOURCE)
    return path


def started(source: Path, cache: Path, keyed: bool = True) -> dict[str, Any]:
    """A process that compiles and runs the ops: the programs it ran, and how it says the binary was made."""
    done = child(PROGRAM, args=[str(source), str(int(keyed))], env={"SUPERKERNEL_CACHE": str(cache)})
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@ASKED_ONCE
def test_a_warm_start_runs_no_program(source: Path, tmp_path: Path) -> None:
    cache = with_host_library(tmp_path / "cache")
    cold, warm = started(source, cache), started(source, cache)
    assert cold["calls"] and warm["calls"] == []
    assert warm["commands"] == cold["commands"] and any(" -shared " in command for command in warm["commands"])


@ASKED_ONCE
def test_only_sources_whose_headers_are_unknown_are_preprocessed(source: Path, tmp_path: Path) -> None:
    cache = with_host_library(tmp_path / "cache")
    started(source, cache, keyed=False)
    (call,) = started(source, cache, keyed=False)["calls"]
    assert "-E" in call and str(source) in call


def test_another_text_is_another_kernel(source: Path, tmp_path: Path) -> None:
    cache, tools = Cache(tmp_path / "cache"), find_toolchain()

    def made(**more: Any) -> Path:
        more = {"include_dirs": (INCLUDE,), **more}
        return compile_source(source, more.pop("flags", ("-O0",)), tools, cache, keyed_by_text=True, **more)

    first = made()
    assert made() == first
    assert made(flags=("-O1",)) != first
    assert made(include_dirs=(INCLUDE, tmp_path)) != first
    source.write_text(SOURCE + "\n// a word\n")
    assert made() != first
    source.unlink()
    with pytest.raises(BuildError, match="does not exist"):
        made()


def test_headers_elsewhere_are_not_looked_at_with_keyed_by_text(tmp_path: Path) -> None:
    (tmp_path / "beside.h").write_text("#define NUMBER 1\n")
    source, cache, tools = tmp_path / "k.cpp", Cache(tmp_path / "cache"), find_toolchain()
    source.write_text('#include "beside.h"\nextern "C" int k() { return NUMBER; }\n')
    keyed = compile_source(source, (), tools, cache, keyed_by_text=True)
    plain = compile_source(source, (), tools, cache)
    (tmp_path / "beside.h").write_text("#define NUMBER 2\n")
    assert compile_source(source, (), tools, cache, keyed_by_text=True) == keyed
    assert compile_source(source, (), tools, cache) != plain


def test_keyed_by_text_belongs_to_the_kernel(source: Path) -> None:
    one, other = (
        SubKernel.from_source(source, "one", block_dim=1, params=["in:x", "out:z"], keyed_by_text=keyed)
        for keyed in (True, False)
    )
    assert one != other and one.binary.keyed_by_text


# --- facts of objects


def test_facts_are_read_once(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path / "cache")
    made = compile_source(source, ("-fopenmp",), find_toolchain(), cache, (INCLUDE,))
    first = facts_of(made, object_key(made), ["root", "one"], source, cache)
    assert first.symbols == ("_ZN2ns4rootEPKdPd", "one") and first.unique[0].startswith("root_")
    assert "sk_fail" in first.called and "GOMP_parallel" in first.undefined and first.code_bytes > 0
    monkeypatch.setattr(facts, "_find", None)
    assert facts_of(made, object_key(made), ["root", "one"], source, cache) == first


def test_mistakes_are_not_kept(source: Path, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    made = compile_source(source, (), find_toolchain(), cache, (INCLUDE,))
    for told in (source, tmp_path / "other.cpp"):
        with pytest.raises(BuildError, match=f"{told} does not define a function 'rot'"):
            facts_of(made, object_key(made), ["rot"], told, cache)


# --- the tool chain


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the tools were asked, from now on; with a cache of its own."""
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    calls: list[str] = []
    real = toolchain.run

    def run(command: Any, **more: Any) -> str:
        calls.append(" ".join(command))
        return real(command, **more)

    monkeypatch.setattr(toolchain, "run", run)
    yield calls
    toolchain._find.cache_clear()


def found_anew() -> str:
    toolchain._find.cache_clear()
    return find_toolchain().identity


def test_the_tools_are_asked_once_for_the_same_files(asked: list[str]) -> None:
    first = found_anew()
    assert len(asked) == 4 and "g++" in first
    assert found_anew() == first and len(asked) == 4


def test_a_tool_that_was_replaced_is_asked_again(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path(shutil.which("g++") or "").resolve()
    copy = tmp_path / "g++"
    shutil.copy2(real, copy)
    monkeypatch.setenv("CXX", str(copy))
    found_anew()
    found_anew()
    assert len(asked) == 4
    os.utime(copy, (1, 1))
    found_anew()
    assert len(asked) == 8


@pytest.mark.parametrize("words", ("", " -m64"))
def test_a_wrapper_is_asked_every_time(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """Another compiler may be behind it tomorrow."""
    wrapper = tmp_path / "g++"
    wrapper.write_text('#!/bin/sh\nexec /usr/bin/env g++ "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper) if not words else str(shutil.which("g++")) + words)
    found_anew()
    found_anew()
    assert len(asked) == 8


def test_without_a_cache_the_tools_are_asked(asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "file" / "cache"))
    assert found_anew() and len(asked) == 4
