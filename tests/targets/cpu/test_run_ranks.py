"""targets.cpu: collectives between ranks. Here ranks are threads of one process on windows in its memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.cpu.rank_group import (
    COUNT,
    SOURCE,
    awaits,
    begin_round,
    compile_ranks,
    group_of,
    in_threads,
    inputs_of,
    make_windows,
    reference,
    sends,
    window_of,
    word,
)

import superkernel as sk
from superkernel import SubKernel, SuperKernel
from superkernel.errors import LaunchError
from superkernel.model import window_layout as layout
from superkernel.model.opsfile import read_ops
from superkernel.model.ranks import ranks_to_json

NUMBERS = ("scalar:count", "scalar:rank", "scalar:ranks", "scalar:stride")


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


def test_a_window_in_which_no_round_has_begun_is_refused() -> None:
    """Otherwise ranks would not wait for each other, and read what is not there."""
    kernels, windows, inputs = compile_ranks(2, 1), make_windows(2), inputs_of(2, 1)
    with pytest.raises(
        LaunchError, match=r"'wc', the window of collective 'c', is in no round: all ranks of tp \(10,11\)"
    ):
        kernels[0]({**inputs[0], **windows})
    with pytest.raises(LaunchError, match="'wc' is a window that all ranks of a group share, and was not passed"):
        kernels[0](inputs[0])
    collect = SubKernel.from_source(
        str(SOURCE), "collect", block_dim=1, params=["in:w", "out:y", *NUMBERS], sync_all=False
    )
    publish = SubKernel.from_source(
        str(SOURCE), "publish", block_dim=1, params=["in:x", "out:w", *NUMBERS], sync_all=False
    )
    numbers = (COUNT, 0, 2, 512)
    short = [
        sk.Op(publish, ["x", "wc", *numbers], ranks=[sends("c", group_of(2, 0))]),
        sk.Op(collect, ["wc", "y", *numbers], ranks=[awaits("c", group_of(2, 0))]),
    ]
    with (
        sk.compile(short, "short") as k,
        pytest.raises(LaunchError, match=r"'wc'.* has 64 bytes: the words of the 2 ranks"),
    ):
        k({"x": np.zeros(COUNT, "int64"), "wc": np.zeros(64, "uint8"), "y": np.zeros(COUNT, "int64")})


def test_a_second_launch_in_the_same_round_is_refused() -> None:
    """The other ranks have arrived in this round already: the launch would read what they stored for the first."""
    kernels, windows, inputs = compile_ranks(2, 1), make_windows(2), inputs_of(2, 1)
    for rank in range(2):
        begin_round(windows, rank)
    launches = [partial(kernels[rank], {**inputs[rank], **windows}) for rank in range(2)]
    assert in_threads(launches) == [None, None]
    with pytest.raises(
        LaunchError, match=r"rank 10 of tp \(10,11\) has been launched in round 1 already: begin the next"
    ):
        launches[0]()
    word(windows["wd"], 1, layout.ARRIVED).value = layout.FAILED
    begin_round(windows, 1)
    with pytest.raises(LaunchError, match=r"'wd'.* says that rank 11 of tp \(10,11\) has failed"):
        launches[1]()


def test_ops_of_ops_json_run_by_hand(tmp_path: Path) -> None:
    """A saved kernel of each rank, loaded again; the windows are arguments."""
    window = f"uint8[{window_of(2).nbytes}]"
    kernels = {
        "publish": {"source": str(SOURCE), "block_dim": 2, "params": ["in:x:int64[48]", f"out:w:{window}", *NUMBERS]},
        "collect": {"source": str(SOURCE), "block_dim": 2, "params": [f"in:w:{window}", "out:y:int64[48]", *NUMBERS]},
    }
    loaded = []
    for rank in range(2):
        given = (COUNT, rank, 2, window_of(2).stride)
        group = group_of(2, rank)
        ops = [
            {"kernel": "publish", "args": ["x", "wc", *given], "ranks": ranks_to_json([sends("c", group)])},
            {"kernel": "collect", "args": ["wc", "y", *given], "ranks": ranks_to_json([awaits("c", group)])},
        ]
        file = tmp_path / f"rank{rank}.json"
        file.write_text(json.dumps({"kernels": kernels, "ops": ops}))
        with sk.compile(read_ops(file).ops, f"rank{rank}") as compiled:
            compiled.save(tmp_path / f"rank{rank}.sk")
        loaded.append(sk.load(tmp_path / f"rank{rank}.sk"))
    windows, inputs = make_windows(2, ["wc"]), [np.arange(COUNT) * 7 + rank for rank in range(2)]
    found: list[Any] = [None, None]

    def run(rank: int) -> None:
        begin_round(windows, rank)
        found[rank] = loaded[rank]({"x": inputs[rank], **windows})["y"]

    assert in_threads([partial(run, rank) for rank in range(2)]) == [None, None]
    expected = (inputs[0] * 31 + inputs[1])[::-1]
    assert all(np.array_equal(result, expected) for result in found)


def test_a_dump_shows_what_ranks_do(tmp_path: Path) -> None:
    kernel = compile_ranks(2, 2)[1]
    kernel.dump(tmp_path)
    pages = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert "notifies the ranks of tp (10,11): d" in pages["graph.txt"]
    assert "collectives: 2 with the ranks of tp (10,11); waits for ranks: 2" in pages["plan.txt"]
    assert "wait for ranks of tp (10,11) before collect_d: collective d" in pages["plan.txt"]
    assert "2 collectives, 2 waits for ranks" in pages["validation.txt"]
    assert "// [0-1] wait for ranks of tp (10,11) before pass_on: collective c" in pages["source.cpp"]
