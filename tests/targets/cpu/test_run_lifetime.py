"""targets.cpu: closing: a closed kernel refuses, a running one is not closed, and nothing is left behind."""

from __future__ import annotations

import gc
import os
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from measured import least
from targets.cpu.small import binary_of, compile_ops, expected, growth, launched, numbers, small

import superkernel as sk
from superkernel import LaunchError, Op, SuperKernel

LEAK = 2 * 2**20  # bytes: less is no leak of hundreds of launches
OPS = [Op(small("mix"), ["a", "b", "t"]), Op(small("mix"), ["t", "a", "u"])]


def mapped(binary: Path) -> bool:
    return str(binary) in Path("/proc/self/maps").read_text()


def test_a_closed_kernel_refuses_and_closing_twice_is_fine() -> None:
    k = compile_ops(OPS, "closing")
    k(numbers("a", "b"))
    k.close()
    k.close()
    assert "closed" in repr(k)
    for refused in (lambda: k(numbers("a", "b")), k.unfused):
        with pytest.raises(LaunchError, match=r"super_kernel_scope 'closing': the kernel is closed"):
            refused()


def test_a_with_statement_closes() -> None:
    with compile_ops(OPS, "with_closing") as k:
        k(numbers("a", "b"))
    with pytest.raises(LaunchError, match="closed"):
        k(numbers("a", "b"))


def test_the_unfused_run_is_closed_with_its_kernel() -> None:
    with compile_ops(OPS, "alone_closing") as k:
        alone = k.unfused()
        alone(numbers("a", "b"))
    with pytest.raises(LaunchError, match="closed"):
        alone(numbers("a", "b"))


def test_what_a_launch_made_outlives_the_kernel() -> None:
    with compile_ops(OPS, "outlived") as k:
        made = k(numbers("a", "b"))
        wanted = {name: value.copy() for name, value in made.items()}
    for name, value in made.items():
        np.testing.assert_array_equal(value, wanted[name])


def test_a_kernel_is_not_closed_while_it_runs() -> None:
    ops = [Op(small("scale"), ["a", "t"], send=["begun"]), Op(small("scale"), ["t", "u"], recv=["go"])]
    k = compile_ops(ops, "busy_closing", "debug-watchdog=200")
    found: list[dict[str, np.ndarray]] = []
    thread = threading.Thread(target=lambda: found.append(launched(k, k, numbers("a"))))
    thread.start()
    assert k.events["begun"].wait(600)
    with pytest.raises(LaunchError, match=r"super_kernel_scope 'busy_closing': close\(\) while 1 launches are running"):
        k.close()
    k.events["go"].set()
    thread.join()
    np.testing.assert_array_equal(found[0]["t"], 5 * numbers("a")["a"] + 1)
    k.close()


def launch_until_refused(kernel: SuperKernel, started: threading.Barrier, wrong: list[object]) -> None:
    arrays = numbers("a", "b")
    wanted = expected(kernel, arrays)["u"]
    started.wait(600)
    while True:
        try:
            if not np.array_equal(launched(kernel, kernel, arrays)["u"], wanted):
                wrong.append("a result")
        except LaunchError as error:
            if "closed" not in str(error):
                wrong.append(error)
            return


def test_threads_on_their_way_into_a_launch_are_refused_and_never_crash() -> None:
    """Close while four threads launch as fast as they can: each launch is right or refused."""
    for _ in range(10):
        k, wrong, started = compile_ops(OPS, "racing"), list[object](), threading.Barrier(5)
        threads = [threading.Thread(target=launch_until_refused, args=(k, started, wrong)) for _ in range(4)]
        for thread in threads:
            thread.start()
        started.wait(600)
        while "closed" not in repr(k):
            with suppress(LaunchError):  # a launch is running just now
                k.close()
        for thread in threads:
            thread.join(600)
            assert not thread.is_alive()
        assert wrong == []


def test_closing_unloads_the_binary() -> None:
    k = compile_ops(OPS, f"unloaded_{os.getpid()}")
    binary = binary_of(k)
    assert mapped(binary)
    k.close()
    assert not mapped(binary)


def test_a_forgotten_kernel_is_unloaded_too() -> None:
    k = compile_ops(OPS, f"forgotten_{os.getpid()}")
    k(numbers("a", "b"))
    binary = binary_of(k)
    del k
    gc.collect()
    assert not mapped(binary)


def test_create_launch_close_again_and_again_does_not_leak(tmp_path: Path) -> None:
    dynamic = small("twice", 2, variants={2: "twice"})
    ops = [*OPS, Op(small("total"), ["u", "ws", "v"]), Op(dynamic, ["v", "z"], name="d", task="dynamic")]
    with compile_ops(ops, "cycled", "profiling=1") as k:
        folder = k.save(tmp_path / "saved")

    def cycle() -> None:
        with sk.load(folder) as k:
            k(numbers("a", "b", "z"), tiling={"d": lambda inputs: (2, 2)})

    for _ in range(100):  # until every thread that allocates has its arena
        cycle()
    assert least(lambda: growth(cycle, 100), LEAK) < LEAK


def test_stopped_launches_do_not_leak() -> None:
    dynamic = small("twice", 2, variants={2: "twice"})
    with compile_ops([Op(dynamic, ["a", "z"], name="d", task="dynamic")], "failing") as k:

        def fail() -> None:
            with pytest.raises(LaunchError, match="unknown tiling key"):
                k(numbers("a", "z"), tiling={"d": lambda inputs: (1, 1)})

        for _ in range(50):
            fail()
        assert least(lambda: growth(fail, 300), LEAK) < LEAK
