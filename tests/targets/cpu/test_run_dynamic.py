"""targets.cpu: dynamic ops: a control thread computes the tiling while the super kernel runs."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from targets.cpu.small import Array, N, child, compile_ops, expected, launched, numbers, small

from superkernel import LaunchError, Op, SuperKernel, Tiling
from superkernel.plan.steps import Feed

VARIANTS = {2: "twice", 3: "thrice", -7: "twice"}
Answer = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def choose() -> SuperKernel:
    """A producer, a dynamic op on its output, and a consumer; the tiling is given with each launch."""
    dynamic = small("twice", 4, variants=VARIANTS)
    ops = [
        Op(small("late", 4), ["a", "t", 500]),
        Op(dynamic, ["t", "z"], name="choose", task="dynamic"),
        Op(small("mix", 4), ["z", "t", "u"]),
    ]
    return compile_ops(ops, "dynamic", "debug-watchdog=200")


def by_numpy(arrays: dict[str, Array], key: int) -> tuple[Array, Array]:
    """z and u after a launch with that key."""
    t = 9 * arrays["a"] + 4
    z = arrays["z"] + (2 * t if VARIANTS[key] == "twice" else 3 * t[::-1])
    return z, 3 * z + t[::-1] + np.arange(N)


def run(kernel: SuperKernel, answer: Answer, seed: int = 1) -> dict[str, Array]:
    arrays = numbers("a", "z", seed=seed)
    made = kernel(arrays, tiling={"choose": answer})
    return {**arrays, **made}


@pytest.mark.parametrize("blocks", (1, 2, 3, 4))
@pytest.mark.parametrize("key", VARIANTS)
def test_the_answer_chooses_variant_and_block_count(choose: SuperKernel, key: int, blocks: int) -> None:
    for seed in range(5):
        found = run(choose, lambda inputs: (key, blocks), seed)
        z, u = by_numpy(numbers("a", "z", seed=seed), key)
        np.testing.assert_array_equal(found["z"], z)
        np.testing.assert_array_equal(found["u"], u)


def test_no_blocks_at_all(choose: SuperKernel) -> None:
    before = numbers("a", "z")
    found = run(choose, lambda inputs: Tiling(key=2, blocks=0))
    np.testing.assert_array_equal(found["z"], before["z"])
    np.testing.assert_array_equal(found["u"], 3 * before["z"] + (9 * before["a"] + 4)[::-1] + np.arange(N))


def test_the_function_runs_on_another_thread_in_the_middle_of_the_launch(choose: SuperKernel) -> None:
    """It sees what the producer stored, and the op that waits for it has not run."""
    seen: dict[str, Any] = {}
    before = numbers("a", "z")

    def tiling(inputs: dict[str, Any]) -> tuple[int, int]:
        seen.update({name: value.copy() for name, value in inputs.items()}, thread=threading.get_ident())
        return 2, 4

    run(choose, tiling)
    assert seen["thread"] != threading.get_ident()
    np.testing.assert_array_equal(seen["t"], 9 * before["a"] + 4)
    np.testing.assert_array_equal(seen["z"], before["z"])


def test_ops_that_do_not_need_the_answer_run_meanwhile() -> None:
    """The function returns only when an op behind the dynamic one has told the world that it is done."""
    ops = [
        Op(small("scale", 2), ["a", "t"]),
        Op(small("twice", 1, variants=VARIANTS), ["t", "z"], name="choose", task="dynamic", stream=1),
        Op(small("chain", 1), ["b", "u"], stream=2, send=["u is there"]),
    ]
    with compile_ops(ops, "meanwhile", "stream-fusion=1:debug-watchdog=200") as k:
        arrays = numbers("a", "b", "z")

        def tiling(inputs: dict[str, Any]) -> tuple[int, int]:
            assert k.events["u is there"].wait(600)
            return 2, 1

        made = k(arrays, tiling={"choose": tiling})
        np.testing.assert_array_equal(made["u"], expected(k, {**arrays, "z": arrays["z"]})["u"])


@pytest.mark.parametrize("answer", [(2, 5), (2, -1), Tiling(3, 1000)])
def test_a_block_count_out_of_range_is_an_error(choose: SuperKernel, answer: Any) -> None:
    with pytest.raises(LaunchError, match=r"op 'choose' was given -?\d+ blocks; it can run with 0 to 4"):
        run(choose, lambda inputs: answer)


def test_an_unknown_key_is_an_error_that_names_op_key_and_known_keys(choose: SuperKernel) -> None:
    pattern = r"super_kernel_scope 'dynamic': op 'choose' .*unknown tiling key 5; its keys are -7, 2, 3"
    before = numbers("a", "z")
    for _ in range(3):
        arrays = numbers("a", "z")
        with pytest.raises(LaunchError, match=pattern):
            choose(arrays, tiling={"choose": lambda inputs: (5, 1)})
        np.testing.assert_array_equal(arrays["z"], before["z"])
        np.testing.assert_array_equal(run(choose, lambda inputs: (3, 2))["z"], by_numpy(before, 3)[0])


def test_what_the_function_raises_is_the_cause_of_the_error(choose: SuperKernel) -> None:
    def tiling(inputs: dict[str, Any]) -> tuple[int, int]:
        raise ZeroDivisionError("of its own")

    with pytest.raises(LaunchError, match=r"the tiling function of op 'choose' failed: of its own") as told:
        run(choose, tiling)
    assert isinstance(told.value.__cause__, ZeroDivisionError)
    np.testing.assert_array_equal(run(choose, lambda inputs: (2, 2))["z"], by_numpy(numbers("a", "z"), 2)[0])


@pytest.mark.parametrize("answer", [None, 2, (2,), (2, 1, 1), ["2", 1], ("2", 1), (2, 1.0), (2**63, 1), Tiling("2", 1)])
def test_an_answer_that_is_no_tiling_is_an_error(choose: SuperKernel, answer: Any) -> None:
    with pytest.raises(LaunchError, match=r"return \(tiling key, block count\)"):
        run(choose, lambda inputs: answer)


def test_numbers_of_numpy_are_accepted(choose: SuperKernel) -> None:
    found = run(choose, lambda inputs: (np.int32(3), np.uint8(2)))
    np.testing.assert_array_equal(found["z"], by_numpy(numbers("a", "z"), 3)[0])


def test_a_function_that_does_not_return_is_left_behind() -> None:
    """The watchdog stops the launch; the function may still return whenever it likes."""
    release, returned = threading.Event(), threading.Event()

    def stuck(inputs: dict[str, Any]) -> tuple[int, int]:
        release.wait(800)
        returned.set()
        return 2, 1

    ops = [Op(small("twice", 1, variants=VARIANTS), ["a", "z"], name="choose", task="dynamic")]
    with compile_ops(ops, "stuck", "debug-watchdog=2") as k:
        start = time.monotonic()
        with pytest.raises(LaunchError, match=r"stalled in waits(.|\n)*select the variant of choose"):
            run(k, stuck)
        assert time.monotonic() - start < 400  # the function holds it for 800
        before = numbers("a", "z")
        np.testing.assert_array_equal(run(k, lambda inputs: (2, 1))["z"], before["z"] + 2 * before["a"])
        with pytest.raises(LaunchError, match="running"):
            k.close()
        release.set()
        assert returned.wait(600)
        deadline = time.monotonic() + 600
        while k.loaded.running():  # the agent ends the launch that it was left with
            assert time.monotonic() < deadline
            time.sleep(0.01)
        np.testing.assert_array_equal(run(k, lambda inputs: (2, 1))["z"], before["z"] + 2 * before["a"])


def test_a_dynamic_op_without_a_function_is_refused(choose: SuperKernel) -> None:
    with pytest.raises(LaunchError, match=r"op 'choose' is dynamic: pass tiling="):
        choose(numbers("a", "z"))


@pytest.mark.parametrize("blocks", (0, 1, 2, 3))
def test_a_dynamic_op_whose_blocks_meet_is_fed(blocks: int) -> None:
    def tiling(inputs: dict[str, Any]) -> tuple[int, int]:
        return 0, blocks

    ops = [
        Op(small("mix", 4), ["a", "b", "t"]),
        Op(small("gather", 3), ["t", "ws", "z"], task="dynamic", tiling=tiling),
        Op(small("mix", 4), ["z", "t", "u"]),
    ]
    with compile_ops(ops, "fed_dynamic", "feed-sync-all=1:debug-watchdog=200", 4) as k:
        assert any(isinstance(step, Feed) for step in k.plan.steps)
        for seed in range(10):
            arrays = numbers("a", "b", "z", seed=seed)
            t = 3 * arrays["a"] + arrays["b"][::-1] + np.arange(N)
            z = t + t.sum() if blocks else arrays["z"]
            found = launched(k, k, arrays)
            np.testing.assert_array_equal(found["z"], z)
            np.testing.assert_array_equal(found["u"], 3 * z + t[::-1] + np.arange(N))


def test_several_dynamic_ops_in_a_chain_equal_the_unfused_run() -> None:
    calls: list[int] = []

    def tiling(inputs: dict[str, Any]) -> tuple[int, int]:
        number = int(inputs["t"][0] if "t" in inputs else inputs["u"][0])
        calls.append(number)
        return 2 + number % 2, 1 + number % 4

    dynamic = small("twice", 4, variants={2: "twice", 3: "thrice"})
    ops = [
        Op(small("scale", 4), ["a", "t"]),
        Op(dynamic, ["t", "u"], name="one", task="dynamic", tiling=tiling),
        Op(dynamic, ["u", "v"], name="two", task="dynamic", tiling=tiling),
        Op(small("scale", 4), ["v", "w"]),
    ]
    with compile_ops(ops, "dynamics", "debug-watchdog=200") as k:
        for seed in range(5):
            arrays = numbers("a", "u", "v", seed=seed)
            fused, alone = launched(k, k, arrays), launched(k.unfused(), k, arrays)
            for name in ("t", "u", "v", "w"):
                np.testing.assert_array_equal(fused[name], alone[name])
    assert calls[: len(calls) // 2 * 2] and len(calls) == 20


def agents() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "superkernel-agent"}


def test_one_agent_serves_launch_after_launch(choose: SuperKernel) -> None:
    seen: set[int] = set()

    def tiling(inputs: dict[str, Any]) -> tuple[int, int]:
        seen.add(threading.get_ident())
        return 2, 4

    run(choose, tiling)
    before = agents()
    for seed in range(30):
        run(choose, tiling, seed)
    assert agents() == before
    assert len(seen) == 1
    assert all(thread.daemon for thread in before)


@pytest.mark.parametrize("fails", (False, True))
def test_a_tiling_function_may_launch_kernels_with_tiling_functions(choose: SuperKernel, fails: bool) -> None:
    """Each level of launches has an agent of its own, so that none waits for itself."""

    def nested(depth: int, inputs: dict[str, Any]) -> tuple[int, int]:
        if depth:
            found = run(choose, partial(nested, depth - 1))
            np.testing.assert_array_equal(found["z"], by_numpy(numbers("a", "z"), 2)[0])
        elif fails:
            raise ZeroDivisionError("at the bottom")
        return 2, 1 + depth

    if not fails:
        np.testing.assert_array_equal(run(choose, partial(nested, 2))["z"], by_numpy(numbers("a", "z"), 2)[0])
        return
    with pytest.raises(LaunchError, match=r"(the tiling function of op 'choose' failed: .*){3}at the bottom"):
        run(choose, partial(nested, 2))


def test_threads_that_launch_together_get_an_agent_each(choose: SuperKernel) -> None:
    """The functions of all launches are inside at the same time; afterwards their agents are idle, and enough."""
    count = 4
    together = threading.Barrier(count, timeout=600)

    def tiling(key: int, inputs: dict[str, Any]) -> tuple[int, int]:
        together.wait()
        return key, 2

    def launch(index: int) -> None:
        key = 2 + index % 2
        for seed in range(5):
            z, _ = by_numpy(numbers("a", "z", seed=seed), key)
            np.testing.assert_array_equal(run(choose, partial(tiling, key), seed)["z"], z)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(launch, range(count)))
        before = agents()
        list(pool.map(launch, range(count)))
    assert agents() == before


def test_an_idle_agent_keeps_no_kernel_alive() -> None:
    ops = [Op(small("twice", 1), ["a", "z"], task="dynamic", tiling=lambda inputs: (0, 1))]
    k = compile_ops(ops, "gone")
    k(numbers("a", "z"))
    loaded, buffers = weakref.ref(k.loaded), numbers("a", "z")
    k(buffers)
    array = weakref.ref(buffers.pop("a"))
    k.close()
    del k, buffers
    deadline = time.monotonic() + 600
    while loaded() is not None or array() is not None:  # the agent may still be on its way back
        gc.collect()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_child_of_a_fork_has_no_agents() -> None:
    """Their threads stayed in the parent: a launch in the child starts another agent, or is refused; it never hangs."""
    code = """
import os
from targets.cpu.small import compile_ops, numbers, small
from superkernel import LaunchError, Op
from superkernel.targets.cpu.runtime.tiling_agent import _pools
ops = [Op(small("twice", 1), ["a", "z"], task="dynamic", tiling=lambda inputs: (0, 1))]
k = compile_ops(ops, "forked", "debug-watchdog=200", 1)
k(numbers("a", "z"))
assert sum(len(pool.idle) for pool in _pools) == 1
pid = os.fork()
if pid == 0:
    left = sum(len(pool.idle) for pool in _pools)
    try:
        k(numbers("a", "z"))
    except LaunchError:
        pass
    os._exit(left)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
k(numbers("a", "z"))
"""
    child(code)
