"""targets.cpu: collectives between ranks. Here ranks are threads of one process on windows in its memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from targets.cpu.rank_group import begin_round, compile_ranks, in_threads, inputs_of, make_windows, reference

from superkernel import SuperKernel


def run_rounds(kernels: Sequence[SuperKernel], rounds: int, seed: int = 0, unfused: bool = False) -> None:
    """Every rank runs its rounds as fast as it can; results are those of the reference, round by round."""
    ranks = len(kernels)
    windows, inputs = make_windows(ranks), inputs_of(ranks, seed)
    expected_inputs = [{name: array.copy() for name, array in each.items()} for each in inputs]
    found: list[list[Any]] = [[] for _ in kernels]

    def run(rank: int) -> None:
        launch = kernels[rank].unfused if unfused else kernels[rank]
        for _ in range(rounds):
            begin_round(windows, rank)
            found[rank].append(launch({**inputs[rank], **windows})["y"].copy())

    raised = in_threads([partial(run, rank) for rank in range(ranks)])
    assert raised == [None] * ranks
    for number in range(rounds):
        for rank, expected in enumerate(reference(expected_inputs)):
            assert np.array_equal(found[rank][number], expected), (rank, number)


def test_ranks() -> None:
    kernels = compile_ranks(2, 1)
    run_rounds(kernels, 20)
