"""targets.cpu: several Python threads at once: each launch has its own state, and none holds the GIL."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from targets.cpu.small import Array, compile_ops, expected, launched, numbers, small

from superkernel import Op, SuperKernel

THREADS, LAUNCHES = 4, 200


def program(name: str, kernel: str) -> SuperKernel:
    first, second = small("mix", 4), small(kernel, 4)
    ops = [Op(first, ["a", "b", "t"]), Op(second, ["t", "u"]), Op(first, ["u", "t", "v"]), Op(second, ["v", "w"])]
    return compile_ops(ops, name)


def launch_often(kernel: SuperKernel, seed: int) -> int:
    """How many launches gave a wrong result."""
    arrays = numbers("a", "b", seed=seed)
    wanted = expected(kernel, arrays)
    memory = {name: np.zeros_like(value) for name, value in wanted.items()}
    wrong = 0
    for _ in range(LAUNCHES):
        for name, value in arrays.items():
            memory[name][:] = value
        kernel(memory)
        wrong += any(not np.array_equal(memory[name], value) for name, value in wanted.items())
    return wrong


def test_threads_launch_one_kernel_at_once() -> None:
    with program("shared", "scale") as k, ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(launch_often, [k] * THREADS, range(THREADS))) == [0] * THREADS


def test_threads_launch_different_kernels_at_once() -> None:
    with program("one", "scale") as one, program("two", "seldom") as two, ThreadPoolExecutor(THREADS) as pool:
        kernels = [one, two] * (THREADS // 2)
        assert list(pool.map(launch_often, kernels, range(THREADS))) == [0] * THREADS


def test_other_python_threads_run_during_a_launch() -> None:
    """The launch waits for an event that only another Python thread will set, after some work of its own."""
    ops = [Op(small("scale"), ["a", "t"], send=["begun"]), Op(small("mix"), ["t", "b", "u"], recv=["go"])]
    with compile_ops(ops, "free", "debug-watchdog=200") as k:
        steps: list[int] = []

        def work() -> None:
            assert k.events["begun"].wait(600)
            steps.extend(range(10_000))
            k.events["go"].set()

        thread = threading.Thread(target=work)
        thread.start()
        arrays = numbers("a", "b")
        found = launched(k, k, arrays)
        assert len(steps) == 10_000
        thread.join()
        np.testing.assert_array_equal(found["u"], expected(k, arrays)["u"])


def test_concurrent_launches_with_control_threads_and_records() -> None:
    dynamic = small("twice", 4, variants={2: "twice", 3: "thrice"})

    def tiling(inputs: dict[str, Array]) -> tuple[int, int]:
        return 2, int(inputs["t"][0] % 4) + 1

    ops = [Op(small("scale", 4), ["a", "t"]), Op(dynamic, ["t", "z"], task="dynamic", tiling=tiling)]
    with compile_ops(ops, "busy", "profiling=1:debug-watchdog=200") as k, ThreadPoolExecutor(THREADS) as pool:

        def launch(seed: int) -> bool:
            arrays = numbers("a", "z", seed=seed)
            return np.array_equal(launched(k, k, arrays)["z"], arrays["z"] + 2 * (5 * arrays["a"] + 1))

        assert all(pool.map(launch, range(60)))


@pytest.mark.parametrize("cores", (2, 4))
def test_a_first_launch_from_many_threads_at_once(cores: int) -> None:
    """Nothing is made twice or half when the first launches race."""
    for round_number in range(5):
        k = compile_ops([Op(small("mix", 4), ["a", "b", "t"]), Op(small("fold", 4), ["t", "a"])], "race", "", cores)
        with k, ThreadPoolExecutor(8) as pool:
            arrays = numbers("a", "b", seed=round_number)
            wanted = expected(k, arrays)["t"]
            start = threading.Barrier(8)

            def launch(
                _: int, k: SuperKernel = k, start: threading.Barrier = start, arrays: dict[str, Array] = arrays
            ) -> Array:
                start.wait(600)
                return launched(k, k, arrays)["t"]

            for found in pool.map(launch, range(8)):
                np.testing.assert_array_equal(found, wanted)
