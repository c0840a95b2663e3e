"""targets.cpu: one OpenMP run time per process, shared with torch; launches inside a region of somebody else's."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from targets.cpu.small import child, compile_ops, expected, launched, numbers, resident, small

from superkernel import LaunchError, Op, SubKernel, SuperKernel
from superkernel.targets.cpu.runtime.openmp import loaded

pytestmark = pytest.mark.slow

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

LIBRARIES = """
from pathlib import Path
def libraries():
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return {path for path in mapped if Path(path).name.startswith(("libgomp", "libomp", "libiomp"))}
def launch():
    import numpy as np
    from targets.cpu.small import compile_ops, expected, launched, numbers, resident, small
    from superkernel import Op
    k = compile_ops([Op(small("mix"), ["a", "b", "t"]), Op(small("mix"), ["t", "a", "u"])], "one_run_time")
    arrays = numbers("a", "b")
    assert np.array_equal(launched(k, k, arrays)["u"], expected(k, arrays)["u"])
def use_torch():
    import torch
    torch.set_num_threads(2)
    x = torch.arange(200_000.0)
    assert float((x + 1).sum()) > 0  # large enough for torch to open a parallel region
"""
ORDERS = {
    "never": "launch()",
    "before": "use_torch(); launch(); use_torch()",
    "after": "launch(); use_torch(); launch()",
}
ORDER_MARKS = {"never": (), "before": (needs_torch, pytest.mark.conformance), "after": needs_torch}


@pytest.mark.parametrize("order", [pytest.param(o, marks=ORDER_MARKS[o]) for o in ORDERS])
def test_one_run_time_whenever_torch_is_imported(order: str) -> None:
    found = child(f"{LIBRARIES}\n{ORDERS[order]}\nassert len(libraries()) == 1, libraries()\nprint('done')")
    assert "done" in found.stdout


@needs_torch
def test_a_changed_thread_count_runs_the_old_binary_and_never_compiles() -> None:
    """Fewer threads than the plan has cores: one core runs the whole plan. A number that was asked for stays."""
    code = """
import numpy as np, torch
from targets.cpu.small import compile_ops, expected, launched, numbers, small
from superkernel import Op, compile
from superkernel.errors import BuildError
from superkernel.targets.native import toolchain
ops = [Op(small("mix", 4), ["a", "b", "t"]), Op(small("fold", 4), ["t", "a"]), Op(small("early", 4), ["t", "b", "u"])]
torch.set_num_threads(2)
follows = compile(ops, "follows", cores_by_work=False)
stays, replayed = compile_ops(ops, "stays", "", 3), compile_ops(ops, "replayed", "debug-replay=1", None)
meets = compile([Op(small("mix", 2), ["a", "b", "t"]), Op(small("total", 2), ["t", "ws", "u"])], "meets")
alone = follows.unfused()
arrays = numbers("a", "b")
wanted, met = expected(follows, arrays)["u"], expected(meets, arrays)["u"]
def refuse(*args, **more): raise AssertionError("a launch called the compiler")
toolchain.subprocess.run = refuse
cores = set()
for count in (2, 1, 3, 2):
    torch.set_num_threads(count)
    for _ in range(3):
        assert np.array_equal(launched(follows, follows, arrays)["u"], wanted)
        assert np.array_equal(launched(stays, stays, arrays)["u"], wanted)
        assert np.array_equal(launched(replayed, replayed, arrays)["u"], wanted)
        assert np.array_equal(launched(meets, meets, arrays)["u"], met)
        made = follows({name: torch.from_numpy(value) for name, value in arrays.items()})
        assert isinstance(made["u"], torch.Tensor) and np.array_equal(made["u"].numpy(), wanted)
        assert float(torch.arange(200_000.0).sum()) > 0
        assert np.array_equal(launched(alone, follows, arrays)["u"], wanted)
    assert follows.loaded.cores == min(2, count) and stays.loaded.cores == 3 and meets.loaded.cores == 2, count
print("done")
"""
    assert "done" in child(code).stdout


def inside(outside: ctypes.CDLL, act: Callable[[], None], thread: int) -> None:
    """Act in one thread of a parallel region; what it raises comes out here."""
    errors: list[BaseException] = []

    def call() -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    assert outside.call_inside(ctypes.CFUNCTYPE(None)(call), thread) == 2
    for error in errors:
        raise error


@pytest.mark.parametrize("thread", (0, 1))
def test_inside_another_region_one_core_runs_the_whole_plan(outside: ctypes.CDLL, thread: int) -> None:
    chain = small("chain", 1)
    ops = [
        Op(small("mix", 4), ["a", "b", "t"], send=["begun"]),
        Op(small("early", 4), ["t", "a", "u"]),
        Op(chain, ["u", "v"], stream=1),
        Op(small("seldom", 6), ["v", "w"], recv=["go"]),
    ]
    with compile_ops(ops, "nested", "stream-fusion=1:profiling=1:debug-watchdog=200") as k:
        for _ in range(5):
            assert_right_inside(outside, k, thread)
        spans = k.records()
        assert {span.core for span in spans} == {0}
        assert {span.op for span in spans if span.what == "op"} == {"mix", "early", "chain", "seldom"}


def assert_right_inside(outside: ctypes.CDLL, kernel: SuperKernel, thread: int) -> None:
    arrays, found = numbers("a", "b"), dict[str, np.ndarray]()

    def act() -> None:
        for label in ("go",):
            if label in kernel.events:
                kernel.events[label].set()
        found.update(launched(kernel, kernel, arrays))

    inside(outside, act, thread)
    wanted = expected(kernel, arrays)
    for name in wanted:
        if not name.startswith("ws"):
            np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


@pytest.mark.parametrize("thread", (0, 1))
def test_inside_another_region_a_meeting_gets_threads_of_its_own(outside: ctypes.CDLL, thread: int) -> None:
    ops = [
        Op(small("mix", 4), ["a", "b", "t"]),
        Op(small("total", 2), ["t", "ws", "u"]),
        Op(small("total", 4), ["u", "ws", "v"]),
    ]
    with compile_ops(ops, "nested_meeting", "feed-sync-all=1:debug-watchdog=200", 4) as k:
        for _ in range(20):
            assert_right_inside(outside, k, thread)


@pytest.mark.conformance
def test_threads_of_its_own_leave_nothing_behind(outside: ctypes.CDLL) -> None:
    ops = [Op(small("mix", 4), ["a", "b", "t"]), Op(small("total", 4), ["t", "ws", "u"])]
    with compile_ops(ops, "nested_often", "debug-watchdog=200", 4) as k:
        for _ in range(50):
            assert_right_inside(outside, k, 0)
        before = resident()
        for _ in range(800):
            assert_right_inside(outside, k, 0)
        assert resident() - before < 4 * 2**20


def test_a_sub_kernel_that_uses_openmp_gets_the_one_run_time(tmp_path: Path) -> None:
    """It sees the launch's region of two threads; its own region stands inside that one, and works."""
    (tmp_path / "own.cpp").write_text(
        """
#include <omp.h>
#include <stdint.h>
#include <superkernel/kernel.h>
extern "C" void own(const int64_t* x, int64_t* z) {
    int64_t sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < 48; ++i) sum += x[i];
    z[sk::block_idx()] = sum * 10 + omp_get_num_threads();
}
"""
    )
    params = ["in:x:int64[48]", "inout:z:int64[48]"]
    own = SubKernel.from_source(tmp_path / "own.cpp", "own", block_dim=2, params=params, flags=["-fopenmp"])
    with compile_ops([Op(small("scale"), ["a", "t"]), Op(own, ["t", "z"])], "regions") as k:
        arrays = numbers("a", "z")
        k(arrays)
        assert (arrays["z"][:2] == 10 * (5 * arrays["a"] + 1).sum() + 2).all()
    assert len(loaded()) == 1


def test_a_dynamic_op_inside_another_region(outside: ctypes.CDLL) -> None:
    dynamic = small("twice", 4, variants={2: "twice", 3: "thrice"})
    ops = [Op(small("scale", 4), ["a", "t"]), Op(dynamic, ["t", "b"], name="d", task="dynamic")]
    with compile_ops(ops, "nested_dynamic", "debug-watchdog=200") as k:
        arrays, found = numbers("a", "b"), dict[str, np.ndarray]()

        def act() -> None:
            memory = {name: value.copy() for name, value in arrays.items()}
            k(memory, tiling={"d": lambda inputs: (2, 3)})
            found.update(memory)

        inside(outside, act, 0)
        np.testing.assert_array_equal(found["b"], arrays["b"] + 2 * (5 * arrays["a"] + 1))
        with pytest.raises(LaunchError, match="unknown tiling key 9"):
            inside(outside, lambda: k(numbers("a", "b"), tiling={"d": lambda inputs: (9, 1)}) and None, 0)
