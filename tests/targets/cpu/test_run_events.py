"""targets.cpu: external events: words shared with Python threads, with C code and with other super kernels."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from targets.cpu.small import Array, compile_ops, expected, launched, numbers, small

from superkernel import Event, Op, SuperKernel

OPTIONS = "debug-watchdog=200"
LONG = 600.0


@pytest.fixture(scope="module")
def gated() -> SuperKernel:
    """mix, which tells that it is done; then an op that is held back; then one that tells again."""
    ops = [
        Op(small("late"), ["a", "t", 2000], send=["t is there"]),
        Op(small("mix"), ["t", "b", "u"], recv=["b is there"]),
        Op(small("mix"), ["u", "t", "v"], send=["all done"]),
    ]
    return compile_ops(ops, "gated", OPTIONS)


def beside(act: Callable[[], object], kernel: SuperKernel, arrays: dict[str, Array]) -> dict[str, Array]:
    """Launch while another thread acts."""
    with ThreadPoolExecutor(1) as pool:
        acted = pool.submit(act)
        found = launched(kernel, kernel, arrays)
        acted.result(LONG)
    return found


def assert_right(kernel: SuperKernel, found: dict[str, Array], arrays: dict[str, Array]) -> None:
    wanted = expected(kernel, arrays)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def clear(kernel: SuperKernel) -> None:
    for event in kernel.events.values():
        event.clear()


def test_a_python_thread_waits_for_one_event_and_sets_the_next(gated: SuperKernel) -> None:
    """Row yes, yes of the table: if the kernel waited before it notified, neither side would go on."""
    for seed in range(20):
        clear(gated)
        arrays = numbers("a", "b", seed=seed)

        def act() -> None:
            assert gated.events["t is there"].wait(LONG)
            gated.events["b is there"].set()

        assert_right(gated, beside(act, gated, arrays), arrays)


def test_the_words_after_a_launch(gated: SuperKernel) -> None:
    clear(gated)
    gated.events["b is there"].set()
    launched(gated, gated, numbers("a", "b"))
    assert {label: event.is_set() for label, event in gated.events.items()} == {
        "t is there": True,
        "b is there": False,
        "all done": True,
    }


def test_an_op_does_not_start_before_its_event(gated: SuperKernel) -> None:
    """The other side changes what the op will read, after the op before it is done and before it sets the word."""
    clear(gated)
    arrays, later = numbers("a", "b"), numbers("b", seed=2)
    memory = {**{name: value.copy() for name, value in arrays.items()}, **numbers("t", "u", "v", seed=3)}

    def act() -> None:
        assert gated.events["t is there"].wait(LONG)
        memory["b"][:] = later["b"]
        gated.events["b is there"].set()

    with ThreadPoolExecutor(1) as pool:
        acted = pool.submit(act)
        gated(memory)
        acted.result(LONG)
    assert_right(gated, memory, {**arrays, **later})


def test_a_notify_comes_after_all_that_its_op_stored(gated: SuperKernel) -> None:
    for seed in range(20):
        clear(gated)
        arrays = numbers("a", "b", seed=seed)
        memory = {**arrays, **numbers("t", "u", "v", seed=seed + 100)}
        copies: list[Array] = []

        def act(memory: dict[str, Array] = memory, copies: list[Array] = copies) -> None:
            assert gated.events["t is there"].wait(LONG)
            copies.append(memory["t"].copy())
            gated.events["b is there"].set()

        with ThreadPoolExecutor(1) as pool:
            acted = pool.submit(act)
            gated(memory)
            acted.result(LONG)
        np.testing.assert_array_equal(copies[0], 9 * arrays["a"] + 4)


def test_c_code_waits_and_sets(gated: SuperKernel, outside: ctypes.CDLL) -> None:
    for seed in range(10):
        clear(gated)
        arrays = numbers("a", "b", seed=seed)
        words = [ctypes.c_void_p(gated.events[label].address) for label in ("t is there", "b is there", "all done")]
        answers: list[int] = []

        def act(words: list[ctypes.c_void_p] = words, answers: list[int] = answers) -> None:
            tries = ctypes.c_int64(10**9)
            answers.append(outside.relay(words[0], words[1], tries))
            answers.append(outside.relay(words[2], words[0], tries))

        assert_right(gated, beside(act, gated, arrays), arrays)
        assert answers == [1, 1]
    outside.clear(words[2])
    assert not gated.events["all done"].is_set()


def test_one_super_kernel_sends_to_another_while_both_run() -> None:
    there, back = Event("there"), Event("back")
    first = compile_ops(
        [
            Op(small("late"), ["a", "t", 5000], send=[there]),
            Op(small("mix"), ["t", "r", "u"], recv=[back]),
        ],
        "first",
        OPTIONS,
    )
    second = compile_ops(
        [
            Op(small("scale"), ["b", "s"]),
            Op(small("mix"), ["t", "s", "r"], recv=[there], send=[back]),
        ],
        "second",
        OPTIONS,
    )
    with first, second, ThreadPoolExecutor(2) as pool:
        for seed in range(20):
            shared = numbers("a", "b", "t", "r", "u", "s", seed=seed)
            given = {name: value.copy() for name, value in shared.items()}
            runs = [
                pool.submit(second, {name: shared[name] for name in ("b", "s", "t", "r")}),
                pool.submit(first, {name: shared[name] for name in ("a", "t", "r", "u")}),
            ]
            for one in runs:
                one.result(LONG)
            t = 9 * given["a"] + 4
            s = 5 * given["b"] + 1
            r = 3 * t + s[::-1] + np.arange(48)
            np.testing.assert_array_equal(shared["r"], r)
            np.testing.assert_array_equal(shared["u"], 3 * t + r[::-1] + np.arange(48))
            assert not there.is_set() and not back.is_set()


def test_an_event_given_with_the_launch_replaces_the_kernel_s_own(gated: SuperKernel) -> None:
    clear(gated)
    mine = Event()
    mine.set()
    arrays = numbers("a", "b")
    made = gated(arrays, events={"b is there": mine})
    np.testing.assert_array_equal(made["v"], expected(gated, arrays)["v"])
    assert not mine.is_set() and not gated.events["b is there"].is_set()


def test_one_event_that_two_ops_receive() -> None:
    ops = [
        Op(small("scale"), ["a", "t"]),
        Op(small("mix"), ["t", "b", "u"], recv=["go"]),
        Op(small("mix"), ["t", "u", "v"], recv=["go"]),
    ]
    with compile_ops(ops, "shared_event", OPTIONS) as k:
        arrays = numbers("a", "b")
        for _ in range(5):
            assert_right(k, beside(k.events["go"].set, k, arrays), arrays)
            assert not k.events["go"].is_set()


def test_lanes_are_held_back_by_an_event_of_one_of_them() -> None:
    chain = small("chain", 1)
    ops = [
        Op(chain, ["a", "t"], stream=1, send=["t is there"]),
        Op(chain, ["b", "u"], stream=2),
        Op(chain, ["u", "v"], stream=2, recv=["go"]),
        Op(chain, ["t", "w"], stream=1),
        Op(small("mix"), ["v", "w", "x"], stream=1),
    ]
    with compile_ops(ops, "lane_events", f"stream-fusion=1:{OPTIONS}") as k:
        assert len(k.plan.lanes) > 1
        for seed in range(10):
            arrays = numbers("a", "b", seed=seed)
            clear(k)

            def act() -> None:
                assert k.events["t is there"].wait(LONG)
                k.events["go"].set()

            assert_right(k, beside(act, k, arrays), arrays)


def test_the_unfused_run_deals_with_the_same_events(gated: SuperKernel) -> None:
    clear(gated)
    arrays = numbers("a", "b")
    setter = threading.Timer(0.0, gated.events["b is there"].set)
    setter.start()
    assert_right(gated, launched(gated.unfused(), gated, arrays), arrays)
    assert [event.is_set() for event in gated.events.values()] == [True, False, True]
