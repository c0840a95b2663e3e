"""What goes wrong between ranks: a clear error on every rank that is left, no hang, nothing left in shared memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from frontend.ranks import rank_functions as functions
from frontend.ranks.rank_processes import Died, RankError, RankProcesses, rank_processes

_SOON_S = 600.0  # far less than the time limit of a group whose ranks are found dead; some compile meanwhile


@pytest.fixture
def ranks() -> Iterator[RankProcesses]:
    """Their group waits for longer than a test may take: what ends earlier has not waited for the time limit."""
    with rank_processes(2, timeout_s=3600) as started:
        yield started


def error_of(answer: Any, *words: str) -> str:
    assert isinstance(answer, RankError) and answer.kind == "LaunchError", answer
    for word in words:
        assert word in answer.text, f"{word!r} is not in: {answer.text}"
    return answer.text


def test_a_rank_that_was_killed_before_a_collective_is_named(ranks: RankProcesses) -> None:
    assert ranks.call(functions.load_and_call, "m", "chained") == [functions.expected("chained", 2)] * 2
    ranks.kill(1)
    ranks.send([0], functions.call, "m")
    (answer,) = ranks.answers([0], _SOON_S)
    error_of(answer, "op 'all_reduce_0_reduce'", f"rank 1 (pid {ranks.pid(1)}) has ended", "group 0 (0,1)")
    ranks.send([0], functions.call, "m")  # and again
    error_of(ranks.answers([0], _SOON_S)[0], "an earlier launch failed", "rank 1")
    ranks.send([0], functions.load_and_call, "n", "single")  # another model of the group
    error_of(ranks.answers([0], _SOON_S)[0], f"rank 1 (pid {ranks.pid(1)}) has ended", "group 0 (0,1)")


def test_a_rank_that_was_killed_between_two_collectives_is_named(ranks: RankProcesses) -> None:
    """It has arrived at the first, which is then right, and never arrives at the second."""
    ranks.call(functions.load_and_call, "m", "chained")
    ranks.send([1], functions.call, "m")
    ranks.send([0], functions.await_arrival, 1)
    ranks.answers([0])
    ranks.kill(1)
    ranks.send([0], functions.call, "m")
    (answer,) = ranks.answers([0], _SOON_S)
    error_of(answer, "op 'all_reduce_1_reduce'", f"rank 1 (pid {ranks.pid(1)}) has ended", "group 0 (0,1)")
    assert ranks.answers([1]) == [Died(signal.SIGKILL)]


@pytest.mark.conformance
def test_a_rank_that_was_killed_while_it_waited_does_not_hold_the_others_up(ranks: RankProcesses) -> None:
    """It dies in the wait for the only collective: the other has all it needs, and fails in the next call."""
    ranks.call(functions.load_and_call, "m", "single")
    ranks.send([1], functions.call, "m")
    ranks.send([0], functions.await_arrival, 1)
    ranks.answers([0])
    ranks.kill(1)
    ranks.send([0], functions.call, "m")
    assert ranks.answers([0], _SOON_S) == [functions.expected("single", 2)]
    ranks.send([0], functions.call, "m")
    error_of(ranks.answers([0], _SOON_S)[0], "op 'all_reduce_0_reduce'", "rank 1", "has ended")


def stop_for(ranks: RankProcesses, pause_s: float) -> None:
    ranks.call(functions.load_and_call, "m", "chained")
    ranks.send([1], functions.call, "m")
    ranks.send([0], functions.await_arrival, 1)
    ranks.answers([0])
    ranks.kill(1, signal.SIGSTOP)
    ranks.send([0], functions.call, "m")
    time.sleep(pause_s)  # the pause is what is tested
    ranks.kill(1, signal.SIGCONT)
    assert ranks.answers([0, 1]) == [functions.expected("chained", 2)] * 2
    assert ranks.call(functions.call, "m") == [functions.expected("chained", 2)] * 2


@pytest.mark.conformance
def test_a_rank_that_was_stopped_for_a_while_goes_on(ranks: RankProcesses) -> None:
    stop_for(ranks, 1)


@pytest.mark.conformance
def test_a_rank_that_was_stopped_for_five_seconds_goes_on(ranks: RankProcesses) -> None:
    stop_for(ranks, 5)


DIFFERENT: dict[str, tuple[tuple[Any, ...], tuple[Any, ...], tuple[str, str]]] = {
    "graphs": (("single",), ("chained",), ("rank 0 has 1", "rank 1 has 2")),
    "operations": (("single",), ("maxima",), ("all_reduce sum", "all_reduce max")),
    "order": (("single_then_gathered",), ("gathered_then_single",), ("all_reduce sum", "all_gather")),
    "shapes": (("single", 8), ("single", 9), ("float32[8]", "float32[9]")),
    "dtypes": (("single", 8), ("single", 8, torch.bfloat16), ("float32[8]", "bfloat16[8]")),
}


def test_different_collectives_are_refused_on_every_rank_before_anything_runs(ranks: RankProcesses) -> None:
    for what, (first, second, words) in DIFFERENT.items():
        ranks.send([0], functions.load_and_call, what, *first)
        ranks.send([1], functions.load_and_call, what, *second)
        texts = {error_of(answer, *words, "Nothing was run", "group 0 (0,1)") for answer in ranks.answers([0, 1])}
        assert len(texts) == 1
    assert ranks.call(functions.load_and_call, "m", "chained") == [functions.expected("chained", 2)] * 2


def test_ranks_that_pass_different_shapes_to_a_model_are_told_so(ranks: RankProcesses) -> None:
    """One waits in a launch that it has compiled before; the other compiles, and waits for the first there."""
    ranks.call(functions.load_and_call, "m", "chained")
    ranks.send([0], functions.call, "m")
    ranks.send([1], functions.call, "m", 9)
    for answer in ranks.answers([0, 1], _SOON_S):
        error_of(answer, "group 0 (0,1)", "rank 1 and rank 0 wait for each other", "inputs of different shapes")


def test_a_rank_that_leaves_its_collectives_to_torch_holds_up_no_other(ranks: RankProcesses) -> None:
    """One rank cannot fuse its graph; the other would wait for it in the first collective."""
    ranks.call(functions.make_group_of_last_rank)
    ranks.send([0, 1], functions.load_and_call, "m", "left_out_on_the_last_rank")
    first, last = ranks.answers([0, 1], _SOON_S)
    error_of(first, "rank 1: it leaves collectives to torch that others fuse", "root is 1", "group 0 (0,1)")
    assert isinstance(last, RankError) and "invalid root rank" in last.text


def test_ranks_that_go_different_ways_later_are_told_so(ranks: RankProcesses) -> None:
    """Each waits for the other in another model, and neither comes."""
    ranks.call(functions.load_and_call, "m", "chained")
    ranks.call(functions.load_and_call, "n", "single")
    turns = ranks.call(functions.interleave, ["m", "n"], 6)
    assert turns[0] == turns[1] == [functions.expected("chained", 2), functions.expected("single", 2)] * 3
    ranks.send([0], functions.call, "m")
    ranks.send([1], functions.call, "n")
    for rank, answer in enumerate(ranks.answers([0, 1], _SOON_S)):
        error_of(answer, f"op 'all_reduce_0_reduce' waits for rank {1 - rank} of group 0 (0,1)")
        error_of(answer, "wait for each other in different models")
    for name in ("m", "n"):
        for answer in ranks.outcomes(functions.call, name):
            error_of(answer, "wait", "Create the process group again")
    ranks.call(functions.forget_models)
    assert ranks.call(functions.load_and_call, "m", "chained") == [functions.expected("chained", 2)] * 2


def test_overlapping_groups_in_a_circle_are_refused_before_anything_runs() -> None:
    with rank_processes(3, timeout_s=3600) as three:
        three.call(functions.make_ring)
        three.send(range(3), functions.load_and_call, "m", "in_a_ring")
        for answer in three.answers(range(3), _SOON_S):
            error_of(answer, "would wait for each other for ever", "Nothing was run")
            error_of(answer, "rank 0 waits in 'all_reduce_0' of group 1 (0,1) for rank 1; rank 1 waits in")


def test_the_time_limit_of_a_process_group_ends_a_wait_for_a_rank(ranks: RankProcesses) -> None:
    """What the user gave to torch, in a launch and before the first one."""
    ranks.call(functions.make_second_group)
    ranks.call(functions.load_and_call, "first", "of_second_group")  # ranks that compile may be further apart than 20 s
    ranks.call(functions.make_second_group, 20.0)
    ranks.call(functions.load_and_call, "second", "of_second_group")
    begin = time.monotonic()
    ranks.send([0], functions.call, "second")
    (answer,) = ranks.answers([0], _SOON_S)
    error_of(answer, "no progress for 20 s", "rank 1 (process", "before all_reduce_0_reduce")
    assert time.monotonic() - begin >= 19.5
    ranks.send([1], functions.call, "second")
    error_of(ranks.answers([1], _SOON_S)[0], "rank 0 has failed", "no progress for 20 s")
    ranks.send([0], functions.load_and_call, "third", "of_second_group", 16)
    error_of(ranks.answers([0], _SOON_S)[0], "rank 1 of group", "did not come within 20 s")


@pytest.mark.conformance
def test_an_error_on_one_rank_is_an_error_on_the_other_after_the_time_limit(ranks: RankProcesses) -> None:
    """Before the first call of a model, the ranks find each other again with the next."""
    ranks.call(functions.load_and_call, "m", "chained")
    ranks.call(functions.set_patience, 1)
    ranks.send([0], functions.raise_here)
    ranks.send([1], functions.load_and_call, "n", "single")
    answers = ranks.answers([0, 1])
    assert answers[0] == RankError("ValueError", "rank 0 has an error of its own")
    error_of(answers[1], "rank 0 of group 0 (0,1) did not come within 1 s")
    ranks.call(functions.set_patience, 3600)
    assert ranks.call(functions.load_and_call, "n", "single") == [functions.expected("single", 2)] * 2
    ranks.call(functions.set_patience, 1)
    ranks.send([0], functions.raise_here)
    ranks.send([1], functions.call, "m")
    error_of(ranks.answers([0, 1])[1], "no progress for 1 s", "rank 0 (process")
    for answer in ranks.outcomes(functions.call, "m"):
        error_of(answer, "group 0 (0,1)", "has not arrived")


@pytest.mark.conformance
def test_a_destroyed_group_is_refused_and_its_successor_serves(ranks: RankProcesses) -> None:
    ranks.call(functions.make_second_group)
    ranks.call(functions.load_and_call, "second", "of_second_group")
    ranks.call(functions.destroy_second_group)
    for answer in ranks.outcomes(functions.call, "second"):
        assert isinstance(answer, RankError) and "destroyed" in answer.text, answer
    ranks.call(functions.load_and_call, "m", "chained")
    for successor in range(2):
        ranks.call(functions.destroy)
        ranks.call(functions.forget_models)
        assert ranks.call(functions.count_areas) == [0, 0]
        # gloo itself may hang if its store has what another group has left there
        ranks.call(functions.initialise, str(ranks.folder / f"store{successor}"), 2, 3600)
        assert ranks.call(functions.load_and_call, "m", "chained") == [functions.expected("chained", 2)] * 2


def test_a_rank_that_destroys_the_group_holds_up_no_other(ranks: RankProcesses) -> None:
    """Its process lives on, and does not come again. A round that it has finished stays right."""
    ranks.call(functions.make_second_group)
    ranks.call(functions.load_and_call, "second", "of_second_group")
    ranks.call(functions.load_and_call, "m", "chained")
    ranks.send([1], functions.call, "second")
    ranks.send([0], functions.await_arrival, 1)
    ranks.answers([0])
    ranks.send([0], functions.destroy_second_group)
    (none, answer) = ranks.answers([0, 1], _SOON_S)
    assert none is None
    error_of(answer, "all_reduce_0_reduce", f"rank 0 (pid {ranks.pid(0)}) has ended, or has closed the group")
    assert ranks.call(functions.call, "m") == [functions.expected("chained", 2)] * 2  # of another group
    ranks.send([1], functions.call, "m")
    ranks.send([0], functions.call_and_destroy, "m")
    assert ranks.answers([0, 1], _SOON_S) == [functions.expected("chained", 2)] * 2


@pytest.mark.conformance
def test_memory_goes_with_the_models_that_use_it(ranks: RankProcesses) -> None:
    """And ranks leave without a word when their scripts end."""
    ranks.call(functions.load_and_call, "first", "chained")
    ranks.call(functions.forget_models)
    before = ranks.call(functions.descriptors)
    for _ in range(3):
        ranks.call(functions.load_and_call, "m", "chained")
        assert ranks.call(functions.count_areas) == [1, 1]
        assert all(set(modes) == {0o600} for modes in ranks.call(functions.modes_of_files))
        ranks.call(functions.forget_models)
        assert ranks.call(functions.count_areas) == [0, 0]
    assert ranks.call(functions.descriptors) == before
    ranks.call(functions.load_and_call, "m", "chained")
    assert ranks.leave() == [0, 0]


@pytest.mark.conformance
def test_a_forked_child_and_a_second_thread_are_refused(ranks: RankProcesses) -> None:
    ranks.call(functions.load_and_call, "m", "chained")
    for text in ranks.call(functions.call_in_child, "m"):
        assert "forked" in text and "spawn" in text, text
    assert ranks.call(functions.call, "m") == [functions.expected("chained", 2)] * 2
    ranks.send([0], functions.call_while_in_a_round, "m")
    ranks.send([1], functions.await_arrival, 0)
    ranks.answers([1])
    ranks.send([1], functions.call, "m")
    refused, result = ranks.answers([0, 1])
    assert "another thread is in the middle of a round" in refused
    assert result == functions.expected("chained", 2)


@pytest.mark.conformance
def test_shared_memory_that_is_full_is_an_error_on_every_rank(ranks: RankProcesses) -> None:
    count = 1 << 20  # elements: a window of several slots of 4 MB
    ranks.call(functions.load_and_call, "m", "gathered")
    ranks.send([0], functions.limit_file_size, 8 << 20)
    ranks.answers([0])
    for answer in ranks.outcomes(functions.call, "m", count):
        error_of(answer, "no room for", "/dev/shm", "--shm-size")


@pytest.mark.conformance
def test_a_store_that_has_gone_with_its_rank_is_named(ranks: RankProcesses) -> None:
    ranks.call(functions.host_store, str(ranks.folder / "port"))
    ranks.call(functions.load_and_call, "m", "single")
    ranks.kill(0)
    ranks.send([1], functions.load_and_call, "n", "chained")
    (answer,) = ranks.answers([1], _SOON_S)
    error_of(answer, "group 0 (0,1)")
    assert "store" in answer.text or f"rank 0 (pid {ranks.pid(0)}) has ended" in answer.text


def call_often(ranks: RankProcesses, calls: int) -> None:
    """A second job with the same names of groups runs at the same time."""
    with rank_processes(2, timeout_s=3600) as others:
        for job in (ranks, others):
            job.send([0, 1], functions.load_and_call, "m", "chained")
        for job in (ranks, others):
            assert job.answers([0, 1]) == [functions.expected("chained", 2)] * 2
        for job in (ranks, others):
            job.send([0, 1], functions.call_often, "m", calls, 0.002)
        assert [job.answers([0, 1]) for job in (ranks, others)] == [[0, 0]] * 2


def test_many_calls_of_two_jobs_with_random_pauses_have_no_wrong_bit(ranks: RankProcesses) -> None:
    call_often(ranks, 300)


@pytest.mark.conformance
def test_ten_thousand_calls_with_random_pauses_have_no_wrong_bit(ranks: RankProcesses) -> None:
    call_often(ranks, 10_000)


def test_ranks_leave_no_process_behind() -> None:
    with rank_processes(2) as started:
        pids = [started.pid(rank) for rank in range(2)]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
