"""targets.cpu: a sub-kernel that calls fail(): the launch stops with its message, and the next one works."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from targets.cpu.small import KERNELS, N, compile_ops, numbers, small
from targets.cpu.test_run_openmp import inside

import superkernel as sk
from superkernel import LaunchError, Op, SubKernel, SuperKernel

pytestmark = pytest.mark.slow

WORDS = ":int64[48]"
CASES = pytest.mark.parametrize(("cores", "fused"), [(1, True), (2, True), (1, False), (2, False)])
PICK = (f"in:index{WORDS}", f"in:x{WORDS}", f"out:z{WORDS}", "inout:word:int64[1]")


def failing(name: str, blocks: int, *params: str, **more: Any) -> SubKernel:
    return SubKernel.from_source(KERNELS / "fail.cpp", name, block_dim=blocks, params=params, **more)


def given(index: int, at: int = 0) -> dict[str, Any]:
    arrays: dict[str, Any] = {**numbers("a", "x"), "index": np.arange(N)[::-1].copy()}
    arrays["index"][at] = index
    return arrays | {name: np.zeros(N, np.int64) for name in ("t", "z", "after")} | {"word": np.zeros(1, np.int64)}


def picking(name: str, options: str, cores: int, blocks: int = 2) -> SuperKernel:
    """scale, then the one that may fail, then one that needs it, then one that needs nothing on the same core."""
    ops = [
        Op(small("scale"), ["a", "t"]),
        Op(failing("pick", blocks, *PICK), ["index", "x", "z", "word"], name="picker"),
        Op(failing("mark", 2, f"in:x{WORDS}", f"out:z{WORDS}"), ["z", "after"], name="after"),
    ]
    return compile_ops(ops, name, options, cores)


def launcher(k: SuperKernel, fused: bool) -> Callable[[dict[str, Any]], object]:
    return k if fused else k.unfused()


@CASES
@pytest.mark.parametrize("at", (0, N - 1))
def test_the_message_is_raised_and_the_next_launch_works(cores: int, fused: bool, at: int) -> None:
    with picking("picks", "debug-watchdog=200", cores) as k:
        run = launcher(k, fused)
        for bad in (48, -7):
            arrays = given(bad, at)
            with pytest.raises(LaunchError) as told:
                run(arrays)
            assert str(told.value) == f"super_kernel_scope 'picks': op 'picker': index {bad} is out of range"
            assert arrays["word"][0] == 0  # every frame was left through its end
            assert not arrays["after"].any()  # nothing that depends on it was run
            good = given(3)
            run(good)
            np.testing.assert_array_equal(good["z"], good["x"][good["index"]])
            assert (good["after"][:2] == 1000).all()


def test_the_blocks_that_follow_on_the_same_core_do_not_run() -> None:
    with picking("blocks", "", cores=1, blocks=4) as k:
        arrays = given(-1, at=0)
        with pytest.raises(LaunchError, match=r"op 'picker': index -1"):
            k(arrays)
        assert not arrays["z"].any()


@pytest.mark.parametrize("fused", (True, False))
def test_a_long_message_is_cut_and_any_bytes_are_shown(fused: bool) -> None:
    text = np.zeros(4096, np.int8)
    with compile_ops([Op(failing("say", 1, "in:text"), ["text"])], "speaker") as k:
        run = launcher(k, fused)
        for message in (b"x" * 4000, "größer als 3 \N{SNOWMAN}".encode(), b"\xff\xfe", b""):
            text[:] = 0
            text[: len(message)] = np.frombuffer(message, np.int8)
            with pytest.raises(LaunchError) as told:
                run({"text": text})
            cut = message[:1023].decode("utf-8", "replace")
            assert str(told.value) == f"super_kernel_scope 'speaker': op 'say': {cut}"


def test_no_message_is_an_empty_one() -> None:
    with (
        compile_ops([Op(failing("say_nothing", 1, "in:x"), ["x"])], "mute") as k,
        pytest.raises(LaunchError, match=r"op 'say_nothing': $"),
    ):
        k({"x": np.zeros(1)})


@pytest.mark.parametrize("fused", (True, False))
def test_the_other_blocks_leave_the_meeting_that_one_does_not_come_to(fused: bool) -> None:
    meeting = failing("fail_in_meeting", 2, f"in:index{WORDS}", f"inout:z{WORDS}")
    with compile_ops([Op(small("scale"), ["a", "t"]), Op(meeting, ["index", "z"])], "meets", "debug-watchdog=200") as k:
        run = launcher(k, fused)
        for _ in range(5):
            with pytest.raises(LaunchError, match=r"'meets': op 'fail_in_meeting': not coming"):
                run({name: given(-1)[name] for name in ("a", "t", "index", "z")})
            good = {name: given(0)[name] for name in ("a", "t", "index", "z")}
            run(good)
            assert (good["z"][:2] == 1000).all()


@pytest.mark.parametrize("early", (0, 1, 2))
def test_a_kernel_that_fails_before_its_wait_point(early: int) -> None:
    op = failing("fail_early", 2, f"in:index{WORDS}", f"in:x{WORDS}", f"out:z{WORDS}", early_start=["index"])
    ops = [Op(small("late"), ["a", "t", 2000]), Op(op, ["index", "t", "z"]), Op(small("mix"), ["z", "t", "after"])]
    with compile_ops(ops, "hurry", f"early-start={early}:debug-watchdog=200") as k:
        for _ in range(3):
            with pytest.raises(LaunchError, match=r"'hurry': op 'fail_early': too early"):
                k({name: given(-1)[name] for name in ("a", "t", "index", "z", "after")})
            good = {name: given(0)[name] for name in ("a", "t", "index", "z", "after")}
            k(good)
            np.testing.assert_array_equal(good["z"], 9 * good["a"] + 5)


def test_the_op_and_not_its_kernel_is_named_where_unfused_ops_share_a_binary() -> None:
    pick = failing("pick", 1, *PICK)
    ops = [Op(pick, ["index", "x", "z", "word"], name="one"), Op(pick, ["other", "x", "after", "word"], name="two")]
    with compile_ops(ops, "pair") as k:
        arrays = {**{name: given(1)[name] for name in ("index", "x", "z", "after", "word")}, "other": np.full(N, 99)}
        for run in (k, k.unfused()):
            with pytest.raises(LaunchError, match=r"'pair': op 'two': index 99"):
                run(arrays)


def test_a_dynamic_op_that_fails() -> None:
    pick = failing("pick", 2, *PICK)
    op = Op(pick, ["index", "x", "z", "word"], name="dynamic", task="dynamic", tiling=lambda inputs: (0, 2))
    with compile_ops([op], "chosen", "debug-watchdog=200") as k:
        for run in (k, k.unfused()):
            arrays = {name: given(77, N - 1)[name] for name in ("index", "x", "z", "word")}
            with pytest.raises(LaunchError, match=r"'chosen': op 'dynamic': index 77"):
                run(arrays)
            arrays["index"][N - 1] = 0
            run(arrays)


@pytest.mark.parametrize("thread", (0, 1))
def test_inside_another_region(outside: ctypes.CDLL, thread: int) -> None:
    """One core runs the whole plan there; a meeting gets threads of its own."""
    meeting = failing("fail_in_meeting", 2, f"in:index{WORDS}", f"inout:z{WORDS}")
    with picking("nested", "debug-watchdog=200", 2) as plain, compile_ops([Op(meeting, ["index", "z"])], "met") as met:
        for _ in range(3):
            with pytest.raises(LaunchError, match="'nested': op 'picker': index 50"):
                inside(outside, lambda: plain(given(50)) and None, thread)
            inside(outside, lambda: plain(given(5)) and None, thread)
            with pytest.raises(LaunchError, match="'met': op 'fail_in_meeting': not coming"):
                inside(outside, lambda: met({name: given(-1)[name] for name in ("index", "z")}) and None, thread)
            inside(outside, lambda: met({name: given(0)[name] for name in ("index", "z")}) and None, thread)


def test_only_kernels_that_may_fail_are_looked_after() -> None:
    with picking("checked", "", 2) as k:
        calls = k.source.partition("// the whole plan")[0].split("core.begin(")
        assert ["core.alive()" in call for call in calls[1:]] == [False, True, False]
    kernels = [k.graph.nodes[i].kernel for i in range(3)]
    assert [kernel.may_fail for kernel in kernels] == [False, True, False]


def test_a_saved_kernel_fails_alike(tmp_path: Any) -> None:
    with picking("kept", "", 2) as k:
        k.save(tmp_path / "kept")
    with sk.load(tmp_path / "kept") as loaded, pytest.raises(LaunchError, match="'kept': op 'picker': index 60"):
        loaded(given(60))


def test_records_of_a_failed_launch_are_not_taken() -> None:
    with picking("recorded", "profiling=1", 2) as k:
        for run in (k, k.unfused()):
            with pytest.raises(LaunchError, match="'recorded': op 'picker': index 60"):
                run(given(60))
        k(given(4))
        assert {span.op for span in k.records() if span.what == "op"} == {"scale", "picker", "after"}
