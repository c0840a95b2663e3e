"""targets.cpu: launches by addresses and sizes alone, fused and unfused: the same results and errors, few checks."""

from __future__ import annotations

import threading
import timeit
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from measured import least, sample
from targets.cpu.small import (
    N,
    assert_same,
    broken,
    child,
    compared,
    compile_ops,
    expected,
    numbers,
    planted,
    small,
    without,
)

from superkernel import LaunchError, Op, Place, SuperKernel
from superkernel.model.params import scalar_bits

pytestmark = pytest.mark.slow

OPS = [
    Op(small("scale"), ["a", "t"]),
    Op(small("mix", 4), ["t", "b", "u"]),
    Op(small("early"), ["u", "a", "v"]),
    Op(small("late"), ["v", "w", "times"]),
    Op(small("late"), ["w", "x", 3]),
]
WAYS = pytest.mark.parametrize("fused", (True, False))


def filled(k: SuperKernel, arrays: Mapping[str, Any], **scalars: int) -> tuple[Any, Any]:
    values, sizes = k.argument_arrays()
    for place, name in enumerate(k.graph.buffers):
        if name in scalars:
            values[place] = scalar_bits(scalars[name], None, name, ValueError)
        else:
            values[place], sizes[place] = arrays[name].ctypes.data, arrays[name].nbytes
    return values, sizes


def memory_of(k: SuperKernel, arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: arrays[name].copy() if name in arrays else np.zeros(N, np.int64)
        for name, buffer in k.graph.buffers.items()
        if not buffer.scalar
    }


def launcher(k: SuperKernel, fused: bool) -> Callable[[Any, Any], None]:
    return k.launch_values if fused else k.unfused().launch_values


@WAYS
@pytest.mark.parametrize("cores", sample((2, 1, None)))
@pytest.mark.parametrize("options", ("", "profiling=1", "debug-replay=1"))
def test_the_same_results_as_by_name(fused: bool, cores: int | None, options: str) -> None:
    with compile_ops(OPS, "valued", options, cores) as k:
        arrays = numbers("a", "b")
        wanted = expected(k, {**arrays, "times": np.zeros(N, np.int64)})
        for _ in range(3):
            memory = memory_of(k, arrays)
            assert launcher(k, fused)(*filled(k, memory, times=5)) is None
            for name in compared(k):
                np.testing.assert_array_equal(memory[name], wanted[name], err_msg=name)


@WAYS
def test_one_pair_of_arrays_serves_many_launches(fused: bool) -> None:
    with compile_ops([Op(small("fold", 2), ["x", "y"])], "again") as k:
        arrays, wanted = numbers("x", "y"), numbers("x", "y")
        values = filled(k, arrays)
        with np.errstate(over="ignore"):
            for _ in range(5):
                launcher(k, fused)(*values)
                wanted["x"][:] = 7 * wanted["x"] + wanted["y"][(5 * np.arange(N) + 1) % N]
        np.testing.assert_array_equal(arrays["x"], wanted["x"])


@WAYS
def test_places_are_added_to_the_addresses(fused: bool) -> None:
    ops = [Op(small("mix"), [Place("x", 8), Place("x", 16), Place("z", 24)])]
    with compile_ops(ops, "added") as k:
        x, z = np.arange(N + 2), np.zeros(N + 3, np.int64)
        launcher(k, fused)(*filled(k, {"x": x, "z": z}))
        np.testing.assert_array_equal(z[3:], 3 * x[1:-1] + x[2:][::-1] + np.arange(N))


@WAYS
@pytest.mark.parametrize("options", ("", "profiling=1", "debug-check=1"))
def test_a_buffer_without_memory_is_refused(fused: bool, options: str) -> None:
    """It would end the process. An empty one has no address, and needs none."""
    ops = [Op(small("scale", 1), ["a", "t"]), Op(small("mix", 1), ["t", Place("b", 8), "u"])]
    with compile_ops(ops, "null", options) as k:
        memory = {name: np.ones(N + 1, np.int64) for name in k.graph.buffers}
        values, sizes = filled(k, memory)
        place = list(k.graph.buffers).index("b")
        values[place] = 0
        refused = "'null': op 'mix': argument 'y', buffer 'b', has no memory"
        with pytest.raises(LaunchError, match=refused if fused else "'null': op 'mix'.*has no memory"):
            launcher(k, fused)(values, sizes)
        assert (memory["u"] == 1).all() and (not fused or (memory["t"] == 1).all())
        values[place] = memory["b"].ctypes.data
        launcher(k, fused)(values, sizes)
        assert (memory["u"][:N] != 1).any()


def test_an_empty_buffer_needs_no_memory() -> None:
    with compile_ops([Op(small("scale", 1), ["x", "z"]), Op(small("late", 1), ["z", "w", "n"])], "empty") as k:
        values, sizes = filled(k, memory_of(k, numbers("x")), n=0)
        assert 0 in list(values)
        k.launch_values(values, sizes)


@WAYS
def test_nothing_else_is_checked(fused: bool) -> None:
    """Two names of one memory, which a launch by name refuses; sizes that say too little."""
    with compile_ops([Op(small("scale", 1), ["x", "z"])], "trusting") as k:
        array = numbers("x")["x"]
        wanted = 5 * array + 1
        with pytest.raises(LaunchError, match="overlap"):
            k({"x": array, "z": array})
        values, sizes = filled(k, {"x": array, "z": array})
        sizes[0] = 0
        launcher(k, fused)(values, sizes)
        np.testing.assert_array_equal(array, wanted)


def test_records_are_collected() -> None:
    with compile_ops(OPS[:3], "recorded", "profiling=1") as k:
        k.launch_values(*filled(k, memory_of(k, numbers("a", "b"))))
        first = k.records()
        k.launch_values(*filled(k, memory_of(k, numbers("a", "b"))))
        assert {span.op for span in first if span.what == "op"} == {"scale", "mix", "early"}
        assert min(span.begin_ns for span in k.records()) > min(span.begin_ns for span in first)
        unfused = k.unfused()
        unfused.launch_values(*filled(k, memory_of(k, numbers("a", "b"))))
        assert all(op.launch.kernel.step_times() for op in unfused.ops)


@pytest.mark.parametrize(
    ("op", "what"),
    [
        (Op(small("scale"), ["a", "t"], send=["out"]), "an external event"),
        (Op(small("twice"), ["a", "t"], task="dynamic", tiling=lambda inputs: (0, 1)), "a dynamic op"),
    ],
)
def test_what_needs_more_than_values_is_refused(op: Op, what: str) -> None:
    with compile_ops([op], "more") as k:
        with pytest.raises(LaunchError, match=f"'more': a kernel with {what} cannot be launched by values alone"):
            k.argument_arrays()
        with pytest.raises(AssertionError):
            k.launch_values(None, None)
        with pytest.raises(AssertionError):
            k.unfused().launch_values(None, None)


@WAYS
def test_a_closed_kernel_refuses(fused: bool) -> None:
    k = compile_ops(OPS[:2], "shut")
    launch, values = launcher(k, fused), filled(k, memory_of(k, numbers("a", "b")))
    launch(*values)
    k.close()
    with pytest.raises(LaunchError, match="the kernel is closed"):
        launch(*values)


@WAYS
def test_threads_launch_at_once(fused: bool) -> None:
    with compile_ops(OPS[:3], "at_once") as k:
        arrays, launch, wrong = numbers("a", "b"), launcher(k, fused), list[str]()
        wanted = expected(k, arrays)

        def work() -> None:
            memory = memory_of(k, arrays)
            values = filled(k, memory)
            for _ in range(50):
                launch(*values)
            wrong.extend(name for name in wanted if not np.array_equal(memory[name], wanted[name]))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_a_forked_process_refuses() -> None:
    code = """
import os
from targets.cpu.test_run_values import OPS, filled, memory_of
from targets.cpu.small import compile_ops, numbers
from superkernel import LaunchError
k = compile_ops(OPS[:3], "forked")
values = filled(k, memory_of(k, numbers("a", "b")))
launches = [k.launch_values, k.unfused().launch_values]
for launch in launches:
    launch(*values)
if os.fork() == 0:
    for launch in launches:
        try:
            launch(*values)
        except LaunchError as error:
            print(str(error)[:70], flush=True)
    os._exit(0)
os.wait()
"""
    assert child(code).stdout.count("launch in a forked process") == 2


def test_replay_by_addresses_gives_away_a_dropped_wait() -> None:
    ops = [Op(small("late"), ["a", "t", 100_000]), Op(small("mix"), ["t", "b", "u"]), Op(small("mix"), ["u", "t", "v"])]
    with compile_ops(ops, "replayed", "debug-replay=1") as k:
        assert_same(k, numbers("a", "b"))
        told = r"'replayed': debug-replay: op '(mix|mix_1)' is the first whose"
        with planted(k, without(r"core\.wait\(")) as faulty, pytest.raises(LaunchError, match=told):
            for _ in range(50):
                faulty.launch_values(*filled(faulty, memory_of(faulty, numbers("a", "b"))))


def test_replay_runs_on_copies_at_the_same_place_in_their_page() -> None:
    """Each op adds to what it finds: twice on one memory would show."""
    with compile_ops([Op(small("twice", 2), ["x", "z"])], "on_copies", "debug-replay=1") as k:
        arrays, before = numbers("x", "z"), numbers("x", "z")
        k.launch_values(*filled(k, arrays))
        np.testing.assert_array_equal(arrays["z"], 2 * before["x"] + before["z"])
        np.testing.assert_array_equal(arrays["x"], before["x"])


def test_unfused_errors_name_scope_and_op() -> None:
    """A launch that is stopped inside a series says which of its ops it was, and the series works again."""
    ops = [Op(small("scale"), ["a", "t"]), Op(broken("stand_up", 2, "inout:z:int64[48]", sync_all=False), ["z"])]
    with compile_ops(ops, "series") as k:
        memory = memory_of(k, numbers("a"))
        for _ in range(2):
            for launch in (k.launch_values, k.unfused().launch_values):
                with pytest.raises(LaunchError, match=r"'series': op 'stand_up' called sync_all, but sub-kernel"):
                    launch(*filled(k, memory))


def test_an_interrupt_stops_a_series_once() -> None:
    code = """
import os, signal, threading, time
import numpy as np
from targets.cpu.test_run_values import filled, memory_of
from targets.cpu.small import broken, compile_ops
from superkernel import Op
signal.signal(signal.SIGINT, signal.default_int_handler)
kernels = {1: broken("held", 4)}  # ends when the signal is there, however late that comes on a busy machine
ops = [Op(kernels.get(i, broken("patient", 4)), [f"z{i}"], name=f"op{i}") for i in range(40)]
k = compile_ops(ops, "long", cores=2)
memory, series = {f"z{i}": np.full(48, -1) for i in range(40)}, k.unfused()
values = filled(k, memory)
def act():
    while memory["z0"][3] < 0:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)
    memory["z1"][47] = 0
thread = threading.Thread(target=act)
thread.start()
try:
    series.launch_values(*values)
    raise SystemExit("the series was not stopped")
except KeyboardInterrupt:
    reached = [i for i in range(40) if (memory[f"z{i}"] >= 0).any()]
thread.join()
for i in range(1000):  # a second KeyboardInterrupt would come here
    pass
assert reached == list(range(len(reached))) and len(reached) < 40, reached
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
series.launch_values(*values)
assert all((z[:4] == range(4)).all() for z in memory.values())
print("done")
"""
    assert "done" in child(code).stdout


@pytest.mark.serial
def test_python_adds_little_to_a_launch() -> None:
    """The limits are generous: what is measured is that nothing slow stands on the way."""
    with compile_ops([Op(small("scale", 1), ["x", "z"])] * 1, "quick", cores=1) as k:
        values = filled(k, numbers("x", "z"))
        assert least(lambda: timeit.timeit(lambda: k.launch_values(*values), number=200) / 200, 5e-6, 500) < 5e-6
    with compile_ops([Op(small("scale", 1), ["x", "z"]) for _ in range(64)], "quick_series", cores=1) as k:
        values, series = filled(k, numbers("x", "z")), k.unfused()
        each = least(lambda: timeit.timeit(lambda: series.launch_values(*values), number=20) / 20 / 64, 3.5e-6, 500)
        assert each < 3.5e-6
