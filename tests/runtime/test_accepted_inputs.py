"""Numbers of numpy count as numbers; names of C++ may name parameters; what only looks like a list is refused."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from runtime.given import ADD, KERNELS, MARK, VECTOR, compiled, kernel, vector

import superkernel as sk
from superkernel import GraphError, Op, SubKernel
from superkernel.targets.cpu.build import INCLUDE
from superkernel.targets.native.c_names import c_identifiers

WHOLE = [np.int64, np.int32, np.uint8]


# --- numpy


@pytest.mark.parametrize("kind", WHOLE)
def test_whole_numbers_of_numpy_are_whole_numbers(kind: Callable[[int], int]) -> None:
    extent = (kind(1), kind(1), kind(1))
    grid = (kind(4), kind(1), kind(1))
    add = SubKernel.from_source(
        KERNELS, "add", block_dim=kind(4), params=["in:x", "in:y", "out:z"], grid=grid, threads=extent, shared=kind(0)
    )
    assert type(add.block_dim) is int and add.grid == (4, 1, 1)
    chosen = kernel("mark", "inout:ran:int64[1]", variants={kind(3): "mark"})
    assert chosen.variants == ((3, "mark"),) and type(chosen.variants[0][0]) is int
    op = Op(ADD, ["a", sk.Place("b", kind(4)), "c"], stream=kind(2), send=[kind(7)], recv=kind(8))
    assert (op.stream, op.send, op.recv, op.args[1].offset) == (2, (7,), (8,), 4)
    assert all(type(number) is int for number in (op.stream, *op.send, *op.recv, op.args[1].offset))
    options = sk.Options(split_mode=kind(2), early_start=kind(2), profiling=kind(1), debug_watchdog=kind(5))
    assert options == sk.Options.parse("split-mode=2:early-start=2:profiling=1:debug-watchdog=5")


def test_numbers_of_numpy_in_launches() -> None:
    number = kernel("store_int64", "scalar:value:int64", "out:out:int64[1]")
    real = kernel("store_float64", "scalar:value:float64", "out:real:float64[1]")
    ops = [
        Op(number, [np.int64(-5), "five"]),
        Op(number, ["n", "six"], name="named"),
        Op(real, [np.float32(0.5), "half"]),
    ]
    with compiled(*ops, cores=np.int64(1)) as k:
        assert k.plan.cores == 1
        made = k({"n": np.int32(6)})
    assert (made["five"][0], made["six"][0], made["half"].view(np.float64)[0]) == (-5, 6, 0.5)


def test_an_event_by_a_number_of_numpy_is_the_event_of_that_number() -> None:
    ops = [Op(MARK, ["first"]), Op(MARK, ["ran"], name="second", stream=np.int64(1), recv=np.int64(7))]
    with compiled(*ops, options="stream-fusion=1") as k:
        event = sk.Event()
        event.set()
        numbers = {"first": np.zeros(1, np.int64), "ran": np.zeros(1, np.int64)}
        k(numbers, events={np.int64(7): event})
        assert numbers["ran"][0] == 1


def test_a_tiling_in_numbers_of_numpy() -> None:
    dynamic = kernel("mark", "inout:ran:int64[1]", variants={np.int64(3): "mark"})
    with compiled(Op(dynamic, ["ran"], task="dynamic")) as k:
        ran = np.zeros(1, np.int64)
        k({"ran": ran}, tiling={"mark": lambda _: (np.int64(3), np.int64(1))})
        k({"ran": ran}, tiling={"mark": lambda _: sk.Tiling(np.int64(3), np.int32(1))})
        assert ran[0] == 2


def test_a_timeout_in_numbers_of_numpy() -> None:
    assert not sk.Event("e").wait(np.float32(0.001))
    with pytest.raises(sk.LaunchError, match=r"event 'e': timeout is nan"):
        sk.Event("e").wait(float("nan"))


# --- bytes


@pytest.mark.parametrize(
    "given", [b"e", bytearray(b"e"), memoryview(b"e"), [b"e"]], ids=lambda given: type(given).__name__
)
def test_bytes_are_no_event(given: object) -> None:
    for argument in ("send", "recv"):
        with pytest.raises(GraphError, match=f"{argument}.*is no event id"):
            Op(MARK, ["ran"], **{argument: given})


def test_bytes_are_no_list() -> None:
    with pytest.raises(GraphError, match="args is a list of names"):
        Op(MARK, b"r")
    with pytest.raises(GraphError, match="flags is a list of strings"):
        SubKernel.from_source(KERNELS, "add", block_dim=1, params=["in:x"], flags=b"-O1")
    with pytest.raises(GraphError, match="threads is"):
        SubKernel.from_source(KERNELS, "add", block_dim=1, params=["in:x"], threads=b"\x01\x01\x01")


# --- characters that no program takes


@pytest.mark.parametrize("flag", ["-DA=\0", "-I\ud800", "\0"])
def test_a_flag_that_no_compiler_can_be_given(flag: str) -> None:
    with pytest.raises(GraphError, match=r"'mark': a flag is .* it cannot contain the character"):
        kernel("mark", "inout:ran:int64[1]", flags=[flag])


@pytest.mark.parametrize("name", ["a\0b", "a\ud800", "a\x7f"])
def test_a_parameter_that_no_source_can_name(name: str) -> None:
    with pytest.raises(GraphError, match="a name cannot contain the character"):
        kernel("mark", f"inout:{name}:int64[1]")


@pytest.mark.parametrize("path", ["a\0b.cpp", "a\ud800.cpp"])
def test_a_path_that_no_file_system_has(path: str) -> None:
    with pytest.raises(sk.BuildError, match="source file"):
        SubKernel.from_source(path, "add", block_dim=1, params=["in:x"])
    for call in (sk.load, SubKernel.from_json):
        with pytest.raises(sk.SuperKernelError, match="NUL or a lone surrogate"):
            call(path)


# --- names of C++


NAMES = [
    "int64_t", "uint64_t", "size_t", "float", "double", "bool", "class", "NULL", "EOF", "INT64_MAX", "SYS_read",
    "errno", "stdin", "stdout", "linux", "unix", "assert", "std", "sk", "core", "slot", "bytes", "block", "at", "main",
    "and", "template", "sched_priority", "_x", "__x", "_X", "1", "x-y", "größe", "if", "this", "state", "offsetof",
    "uint64_t_x",
]  # fmt: skip


def test_every_name_may_name_parameters_ops_and_buffers() -> None:
    ops, buffers = [], {}
    for number, name in enumerate(NAMES):
        add = kernel("add", f"in:{name}:{VECTOR}", f"in:uint64_t:{VECTOR}" if name != "uint64_t" else f"in:y:{VECTOR}",
                     f"out:z:{VECTOR}")  # fmt: skip
        ops.append(Op(add, ["a", "b", name if name not in "ab" else f"c{number}"], name=name))
    buffers = {"a": vector(1), "b": vector(2)}
    with compiled(*ops) as k:
        made = k(buffers)
    assert len(made) == len(NAMES) and all((value == 3).all() for value in made.values())


def test_a_scalar_may_be_called_like_its_type() -> None:
    number = kernel("store_int64", "scalar:int64_t:int64", "out:uint64_t:int64[1]")
    with compiled(Op(number, [5, "out"])) as k:
        assert k({})["out"][0] == 5


def test_no_identifier_is_a_macro_of_the_headers() -> None:
    command = ["g++", "-std=c++17", f"-I{INCLUDE}", "-dM", "-E", "-x", "c++", "-"]
    text = subprocess.run(command, input="#include <superkernel/entry.h>\n", text=True, capture_output=True, check=True)
    macros = [line.split()[1] for line in text.stdout.splitlines() if "(" not in line.split()[1]]
    plain = [macro for macro in macros if not macro.startswith("_")]
    assert len(plain) > 100
    assert not set(c_identifiers(plain)) & set(macros)


def test_identifiers_differ() -> None:
    found = c_identifiers([*NAMES, "int64_t_x", "x_y", "NULL_x"])
    assert len(set(found)) == len(found)


# --- the rest of what a compilation takes


@pytest.mark.parametrize("argument", ["title", "progress"])
def test_a_title_and_a_progress_that_are_none(argument: str) -> None:
    with pytest.raises(GraphError, match=rf"super_kernel_scope 'inputs': {argument} is 5"):
        compiled(Op(MARK, ["ran"]), **{argument: 5})


@pytest.mark.parametrize(("argument", "words"), [("events", "events is a dict"), ("tiling", "tiling is a dict")])
def test_events_and_tilings_that_are_none(argument: str, words: str) -> None:
    with compiled(Op(MARK, ["ran"])) as k, pytest.raises(sk.LaunchError, match=rf"'inputs': {words}.*not 5"):
        k({"ran": np.zeros(1, np.int64)}, **{argument: 5})


def test_folders_that_are_none(tmp_path: Path) -> None:
    with compiled(Op(MARK, ["ran"])) as k:
        for call in (k.save, k.dump, sk.load):
            for wrong in (None, 5, b"x", "", "a\0b"):
                with pytest.raises(sk.BuildError, match="folder"):
                    call(wrong)
