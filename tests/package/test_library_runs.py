"""libsuperkernel: results, states, buckets, threads and wait policies, by packages that are made by hand."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_size_t, c_void_p
from pathlib import Path

import numpy as np
import pytest
import torch
from package.awake_threads import await_end_of_awake_threads, awake_threads, model_threads
from package.c_library import OpenedModel, call, get_state, run, run_index
from package.hand_made import OBJECT, Manifest, expected_sum, write_package

X = np.arange(8, dtype=np.float32)
BALANCED, SPIN, SLEEP = range(3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package(tmp_path_factory.mktemp("packages") / "hand_made.sk")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[OpenedModel]:
    with OpenedModel(folder) as opened:
        yield opened


@pytest.mark.parametrize("entry", ["add", "inside"])
@pytest.mark.parametrize(("threads", "wait"), [(1, BALANCED), (2, BALANCED), (2, SPIN), (2, SLEEP)])
def test_results_do_not_depend_on_threads_and_waiting(folder: Path, entry: str, threads: int, wait: int) -> None:
    with OpenedModel(folder, threads, wait) as opened:
        context, y = opened.context(), np.empty(8, np.float32)
        for i in range(300):
            x = X * i
            run(context, entry, [x], [y])
            np.testing.assert_array_equal(y, expected_sum(x))


def test_an_entry_that_needs_its_team_runs_on_it_also_with_fewer_processors(folder: Path) -> None:
    for threads in (1, 2):
        with OpenedModel(folder, threads) as opened:
            context, y = opened.context(), np.empty(2, np.int32)
            for i in range(50):
                run(context, "meet", [np.array([i, i + 1], np.int32)], [y])
                assert y.tolist() == [11 * i + 1, 11 * i + 10]


def test_contexts_run_at_the_same_time(folder: Path) -> None:
    with OpenedModel(folder, 2) as opened, ThreadPoolExecutor(4) as pool:

        def work(number: int) -> bool:
            context, y = opened.context(), np.empty(8, np.float32)
            for i in range(200):
                run(context, "add", [X * (i + number)], [y])
                if not np.array_equal(y, expected_sum(X * (i + number))):
                    return False
            return True

        assert all(pool.map(work, range(4)))


def test_a_context_may_use_fewer_threads_than_its_model(folder: Path) -> None:
    with OpenedModel(folder, 2, SPIN) as opened:
        context, y, before = opened.context(threads=1), np.empty(8, np.float32), model_threads()
        for i in range(50):
            run(context, "add", [X * i], [y])
            np.testing.assert_array_equal(y, expected_sum(X * i))
        assert model_threads() - before <= set(awake_threads())


def test_threads_are_bound_to_the_processors_that_are_named(folder: Path) -> None:
    last = max(os.sched_getaffinity(0))
    with OpenedModel(folder, 2, SPIN, cpus=[last]) as opened:
        context, y = opened.context(), np.empty(8, np.float32)
        before = model_threads()
        run(context, "add", [X], [y])
        for task in model_threads() - before:
            assert os.sched_getaffinity(task) == {last}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="threads cannot leave the only processor")
def test_threads_that_sleep_are_kept_off_the_processor_of_their_caller(folder: Path) -> None:
    """They would get no time there while it waits for them; a caller that has moved gives its processor back."""
    allowed = os.sched_getaffinity(0)
    with OpenedModel(folder, 2, SLEEP) as opened:
        context, x, y = opened.context(), np.array([1, 2], np.int32), np.empty(2, np.int32)
        before = model_threads()
        run(context, "meet", [x], [y])
        (thread,) = model_threads() - before
        try:
            for processor in sorted(allowed)[:2]:
                os.sched_setaffinity(0, {processor})
                for _ in range(20):
                    run(context, "meet", [x], [y])
                assert os.sched_getaffinity(thread) == allowed - {processor}
        finally:
            os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize("threads", [1, 2])
def test_with_spin_a_thread_of_the_lowest_priority_follows_the_caller_until_the_model_is_closed(
    folder: Path, threads: int
) -> None:
    allowed = os.sched_getaffinity(0)
    with OpenedModel(folder, threads, SPIN) as opened:
        context, y = opened.context(), np.empty(8, np.float32)
        await_end_of_awake_threads()  # of models of other tests: that of this one has none before the first call
        try:
            for processor in sorted(allowed)[:2]:
                os.sched_setaffinity(0, {processor})
                end = time.monotonic() + 240  # on a busy machine it runs every few seconds
                while time.monotonic() < end:
                    run(context, "add", [X], [y])
                    (thread,) = awake_threads()
                    if os.sched_getaffinity(thread) == {processor} and os.sched_getscheduler(thread) == os.SCHED_IDLE:
                        break
                else:
                    pytest.fail(f"the thread has not followed to processor {processor}")
                np.testing.assert_array_equal(y, expected_sum(X))
        finally:
            os.sched_setaffinity(0, allowed)
    await_end_of_awake_threads()


def test_a_team_that_spins_is_tried_and_used_also_for_calls_with_pauses_between_them(folder: Path) -> None:
    """A busy machine needs more tries."""
    with OpenedModel(folder, 2, SPIN) as opened:
        context, y = opened.context(), np.empty(2, np.int32)

        def threads_of_a_call_after_a_pause() -> int:
            end = time.perf_counter() + 0.0005
            while time.perf_counter() < end:
                pass
            run(context, "threads", [], [y])
            return len(set(y.tolist()))

        end = time.monotonic() + 240
        while sum(threads_of_a_call_after_a_pause() == 2 for _ in range(20)) <= 10:
            assert time.monotonic() < end, "most calls ran on one thread"


@pytest.mark.parametrize("wait", [BALANCED, SLEEP])
def test_other_models_let_processors_idle(folder: Path, wait: int) -> None:
    with OpenedModel(folder, 2, wait) as opened:
        await_end_of_awake_threads()  # of models of other tests
        run(opened.context(), "add", [X], [np.empty(8, np.float32)])
        assert not awake_threads()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no other processor")
def test_the_processor_of_a_caller_may_idle_unless_it_was_named(folder: Path) -> None:
    first, second, *_ = sorted(os.sched_getaffinity(0))
    allowed = os.sched_getaffinity(0)
    with OpenedModel(folder, 2, SPIN, cpus=[second]) as opened:
        context, y = opened.context(), np.empty(8, np.float32)
        try:
            os.sched_setaffinity(0, {first})
            await_end_of_awake_threads()  # of models of other tests
            run(context, "add", [X], [y])
            assert not awake_threads()
            os.sched_setaffinity(0, {second})
            run(context, "add", [X], [y])
            assert len(awake_threads()) == 1
        finally:
            os.sched_setaffinity(0, allowed)


def test_threads_treat_denormal_numbers_as_their_caller_does(tmp_path: Path) -> None:
    def on_a_team(fields: Manifest) -> None:
        fields["entries"][0]["shapes"][0]["launches"][0]["plans"][1:] = []

    folder = write_package(tmp_path / "model.sk", on_a_team, {"w": np.zeros(8, np.float32), "counter": X[:2]})
    tiny, y = np.full(8, 1e-40, np.float32), np.empty(8, np.float32)

    def found(context: c_void_p) -> set[int]:
        """The bits of all results: a thread that flushes denormal numbers reads them as zeros."""
        bits = set()
        for _ in range(100):
            run(context, "add", [tiny], [y])
            bits.update(y.view(np.int32).tolist())
        return bits

    with OpenedModel(folder, 2, SPIN) as opened:
        context = opened.context()
        assert found(context) == set(tiny.view(np.int32).tolist())
        if not torch.set_flush_denormal(True):
            pytest.skip("torch cannot flush denormal numbers on this processor")
        try:
            assert found(context) == {0}
        finally:
            torch.set_flush_denormal(False)


def test_states_belong_to_a_context(model: OpenedModel) -> None:
    first, second, y = model.context(), model.context(), np.empty(2, np.float32)
    for expected in ([6, 0], [7, 1]):
        run(first, "count", [], [y])
        assert y.tolist() == expected
    run(second, "count", [], [y])
    assert y.tolist() == [6, 0]
    call("sk_context_copy", second, first)
    assert get_state(second, "counter", y).tolist() == [7, 1]
    call("sk_context_reset", first)
    assert get_state(first, "counter", y).tolist() == [5, -1]
    chosen = np.array([100, 200], np.float32)
    call("sk_state_set", first, b"counter", c_void_p(chosen.ctypes.data), c_size_t(8))
    run_index(first, 2, [], [y])
    assert y.tolist() == [101, 201]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_bucket_is_padded_and_cut(model: OpenedModel, size: int) -> None:
    context, x = model.context(), np.random.default_rng(size).random((2, size, 3), np.float32)
    room = np.full(2 * size + 4, -1, np.float32)
    y = room[: 2 * size].reshape(2, size)
    full = np.zeros((2, 4), np.float32)
    run(context, "rows", [np.ones((2, 4, 3), np.float32)], [full])  # leaves other values in the staging memory
    assert full.tolist() == [[3] * 4] * 2
    run(context, "rows", [x], [y])
    np.testing.assert_array_equal(y, x[..., 0] + x[..., 1] + x[..., 2])
    assert (room[2 * size :] == -1).all()
    again = np.zeros_like(y)
    run_index(context, 3, [x], [again], size)
    np.testing.assert_array_equal(again, y)


def test_the_smallest_bucket_that_fits_is_taken(tmp_path: Path) -> None:
    def second_bucket(fields: Manifest) -> None:
        rows = fields["entries"][3]["shapes"]
        smaller = {**rows[0], "bucket": {**rows[0]["bucket"], "size": 2}}
        for kind in ("inputs", "outputs"):
            smaller[kind] = [{**rows[0][kind][0], "shape": [4, 2, *rows[0][kind][0]["shape"][2:]]}]
        rows.append(smaller)

    with OpenedModel(write_package(tmp_path / "two.sk", second_bucket)) as opened:
        context = opened.context()
        for rows, size in ((4, 1), (4, 2), (2, 3)):
            x, y = np.ones((rows, size, 3), np.float32), np.zeros((rows, size), np.float32)
            run(context, "rows", [x], [y])
            assert (y == 3).all()


def test_a_strided_copy_follows_the_launches(model: OpenedModel) -> None:
    y = np.zeros((4, 2), np.float32)
    run(model.context(), "turned", [X], [y])
    np.testing.assert_array_equal(y, (X + np.arange(8, dtype=np.float32) * 10).reshape(2, 4).T)


def test_weights_may_be_copied_and_the_folder_read_only(tmp_path: Path) -> None:
    folder = write_package(tmp_path / "read_only.sk")
    for path in (folder, folder / "objects"):
        path.chmod(0o555)
    try:
        with OpenedModel(folder, copy_weights=1) as opened:
            y = np.zeros(8, np.float32)
            run(opened.context(), "add", [X], [y])
            np.testing.assert_array_equal(y, expected_sum(X))
    finally:
        for path in (folder, folder / "objects"):
            path.chmod(0o755)


def test_a_package_that_was_replaced_runs_its_new_code(tmp_path: Path) -> None:
    """The system's loader takes a file that has the path of a loaded file for that file."""
    folder = write_package(tmp_path / "replaced.sk")
    with OpenedModel(folder):
        folder.rename(tmp_path / "old.sk")
        write_package(folder)
        with OpenedModel(folder):
            maps = Path("/proc/self/maps").read_text()
            assert str(folder / OBJECT) in maps and str(tmp_path / "old.sk" / OBJECT) in maps
