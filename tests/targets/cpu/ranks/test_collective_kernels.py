"""The kernels of collectives give the serial reference's bits on every rank, for any number of ranks and blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.cpu.ranks import reference
from targets.cpu.ranks.emulated_ranks import EmulatedGroup, aligned, tensor
from targets.cpu.ranks.reference import REDUCTIONS, STORED

from superkernel.errors import GraphError, UnsupportedError
from superkernel.model.ranks import RankGroup
from superkernel.targets.collectives import CollectiveKind, CollectiveTerms
from superkernel.targets.cpu.kernels import collectives
from superkernel.targets.cpu.kernels.collectives import collective_ops

ALL = [(dtype, reduction) for dtype in STORED for reduction in REDUCTIONS if (dtype, reduction) != ("bool", "avg")]
# every dtype and every reduction at least once
SAMPLE = [
    ("float32", "sum"), ("bfloat16", "avg"), ("float16", "sum"), ("int32", "avg"), ("int64", "product"),
    ("uint8", "max"), ("bool", "sum"), ("float32", "min"),
]  # fmt: skip
PAIRS = [pytest.param(*pair, marks=() if pair in SAMPLE else pytest.mark.conformance) for pair in ALL]
GROUP = RankGroup("tp", (0, 1), 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def arrays_of(dtype: str, counts: list[int], seed: int, apart: int = 0) -> list[Any]:
    """The tensors of the ranks, `apart` elements behind an aligned address."""
    arrays = []
    for rank, count in enumerate(counts):
        stored = np.dtype(STORED[dtype])
        memory = aligned(max(count, 1) * stored.itemsize, apart=apart * stored.itemsize)[: count * stored.itemsize]
        array = memory.view(stored)
        array[:] = reference.values(dtype, count, seed * 100 + rank).view(stored)
        arrays.append(array)
    return arrays


def check_reductions(
    dtype: str, reduction: str, ranks: int, count: int, blocks: int, folder: Path, rounds: int
) -> None:
    for kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER):
        given = count if kind is CollectiveKind.ALL_REDUCE else count * ranks
        terms = [CollectiveTerms(kind, reduction)] * ranks
        in_place = kind is CollectiveKind.ALL_REDUCE and blocks == 2
        group = EmulatedGroup(terms, dtype, [(given,)] * ranks, [(count,)] * ranks, in_place=in_place)
        for number in range(1, rounds + 1):
            xs = arrays_of(dtype, [given] * ranks, number, apart=number)
            ys = arrays_of(dtype, [count] * ranks, 50, apart=3)
            total = reference.reduced([x.copy() for x in xs], dtype, reduction)
            assert group.run(xs, ys, blocks, number, folder) == ""
            for rank, found in enumerate(xs if in_place else ys):
                wanted = total if kind is CollectiveKind.ALL_REDUCE else total[rank * count : (rank + 1) * count]
                assert reference.same(found, wanted, dtype), f"{kind}, rank {rank} of {ranks}, {blocks} blocks"
                if kind is CollectiveKind.ALL_REDUCE:
                    assert found.tobytes() == (xs if in_place else ys)[0].tobytes(), "ranks differ"


@pytest.mark.parametrize(("dtype", "reduction"), PAIRS)
@pytest.mark.parametrize("past_caches", [False, True])
def test_reductions_have_the_bits_of_the_serial_reference(
    dtype: str, reduction: str, past_caches: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small and large ways, in and past the caches, in place and not; sizes that no vector divides."""
    if past_caches:
        monkeypatch.setattr(collectives, "_PAST_CACHES", 0)
    for two_windows in (False, True):
        monkeypatch.setattr(collectives, "_TWO_WINDOWS", 0 if two_windows else 1 << 40)
        for ranks, count, blocks in ((2, 1, 1), (2, 1037, 2), (3, 700, 3), (4, 5000, 7), (5, 3, 2)):
            check_reductions(dtype, reduction, ranks, count, blocks, folder, rounds=2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_gathers_and_broadcasts_move_every_byte(dtype: str, folder: Path) -> None:
    for ranks, count, blocks in ((2, 1, 1), (3, 333, 2), (4, 5000, 7)):
        xs, gathered = arrays_of(dtype, [count] * ranks, 1, apart=1), arrays_of(dtype, [count * ranks] * ranks, 2)
        terms = [CollectiveTerms(CollectiveKind.ALL_GATHER)] * ranks
        group = EmulatedGroup(terms, dtype, [(count,)] * ranks, [(count * ranks,)] * ranks)
        group.run(xs, gathered, blocks, 1, folder)
        for root in range(ranks):
            ys = arrays_of(dtype, [count] * ranks, 3)
            terms = [CollectiveTerms(CollectiveKind.BROADCAST, root=root)] * ranks
            EmulatedGroup(terms, dtype, [(count,)] * ranks, [(count,)] * ranks).run(xs, ys, blocks, root + 1, folder)
            for rank in range(ranks):
                assert gathered[rank].tobytes() == b"".join(x.tobytes() for x in xs)
                assert ys[rank].tobytes() == xs[root].tobytes()


LONG = pytest.mark.conformance  # every rank has other splits, and so a kernel of its own


@pytest.mark.parametrize(
    "rows",
    [
        ((1, 2), (3, 0)),
        None,
        pytest.param(((0, 0), (0, 0)), marks=LONG),
        pytest.param(((2, 0, 70), (1, 1, 1), (0, 9, 0)), marks=LONG),
    ],
)
def test_all_to_all_moves_the_rows_of_the_splits(rows: tuple[tuple[int, ...], ...] | None, folder: Path) -> None:
    """`rows`: from each rank to each rank; None: equal parts of 3 ranks."""
    sent = rows or ((2, 2, 2),) * 3
    ranks, width = len(sent), 5
    received = [tuple(sent[other][rank] for other in range(ranks)) for rank in range(ranks)]
    kind = CollectiveKind.ALL_TO_ALL
    terms = [
        CollectiveTerms(kind) if rows is None else CollectiveTerms(kind, sent=sent[rank], received=received[rank])
        for rank in range(ranks)
    ]
    shapes_in, shapes_out = [(sum(each), width) for each in sent], [(sum(each), width) for each in received]
    group = EmulatedGroup(terms, "int32", shapes_in, shapes_out)
    for number, blocks in ((1, 1), (2, 3), (3, 7)):
        xs = arrays_of("int32", [sum(each) * width for each in sent], number)
        ys = arrays_of("int32", [sum(each) * width for each in received], 60)
        assert group.run(xs, ys, blocks, number, folder) == ""
        for rank, y in enumerate(ys):
            parts = []
            for other, x in enumerate(xs):
                begin = sum(sent[other][:rank])
                parts.append(x.reshape(-1, width)[begin : begin + sent[other][rank]])
            np.testing.assert_array_equal(y.reshape(-1, width), np.concatenate(parts))


def test_splits_that_do_not_fit_together_stop_the_launch(folder: Path) -> None:
    kind = CollectiveKind.ALL_TO_ALL
    terms = [CollectiveTerms(kind, sent=(1, 2), received=(1, 3)), CollectiveTerms(kind, sent=(3, 0), received=(3, 0))]
    group = EmulatedGroup(terms, "int32", [(3, 5), (3, 5)], [(4, 5), (3, 5)])
    xs, ys = arrays_of("int32", [15, 15], 1), arrays_of("int32", [20, 15], 2)
    failure = group.run(xs, ys, 2, 1, folder)
    assert failure == (
        "the rank at place 0 of the group sends 40 bytes, and the rank at place 1 expects 60: their splits differ"
    )


def test_a_group_of_one_rank_copies_and_has_no_window(folder: Path) -> None:
    for kind in CollectiveKind:
        x, y = arrays_of("float32", [100], 1), arrays_of("float32", [100], 2)
        group = EmulatedGroup([CollectiveTerms(kind)], "float32", [(100,)], [(100,)])
        assert group.windows == {} and group.ops[0].start == ()
        group.run(x, y, 2, 1, folder)
        assert y[0].tobytes() == x[0].tobytes()
        assert EmulatedGroup([CollectiveTerms(kind)], "float32", [(100,)], [(100,)], in_place=True).ops[0].finish == ()


def test_large_reductions_have_two_syncs_and_small_ones_have_one() -> None:
    syncs = []
    for count in (1024, 1 << 20):
        x = tensor("x", "float32", (count,))
        made = collective_ops(
            CollectiveTerms(CollectiveKind.ALL_REDUCE), x, tensor("y", "float32", (count,)), GROUP, "c", 2
        )
        ops = [*made.start, *made.finish]
        syncs.append([(sync.sends, sync.window) for op in ops for sync in op.ranks])
    assert syncs == [
        [(True, "c"), (False, "c")],
        [(True, "c_parts"), (True, "c_sums"), (False, "c_parts"), (False, "c_sums")],
    ]


REDUCE, GATHER, SCATTER = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
EXCHANGE, BROADCAST = CollectiveKind.ALL_TO_ALL, CollectiveKind.BROADCAST
UNEQUAL = {"sent": (4, 5), "received": (4, 4)}
REFUSED = [
    ("reduction 'summ' .did you mean 'sum'", UnsupportedError, REDUCE, "float32", (8,), (8,), {"reduction": "summ"}),
    ("there are kernels for float32, bfloat16", UnsupportedError, REDUCE, "float64", (8,), (8,), {}),
    ("bool has no average", UnsupportedError, REDUCE, "bool", (8,), (8,), {"reduction": "avg"}),
    ("as many elements", GraphError, REDUCE, "float32", (8,), (9,), {}),
    ("the result of 2 ranks has 16 elements", GraphError, GATHER, "float32", (8,), (15,), {}),
    ("9 elements do not divide into 2 parts of 4", GraphError, SCATTER, "float32", (9,), (4,), {}),
    ("root is 2; it is a place in the group, from 0 to 1", GraphError, BROADCAST, "int32", (8,), (8,), {"root": 2}),
    ("splits belong to all_to_all", GraphError, BROADCAST, "float32", (8,), (8,), {"sent": (4, 4)}),
    ("there must be 2 of them", GraphError, EXCHANGE, "float32", (8,), (8,), UNEQUAL),
    ("must divide into 2 equal parts", GraphError, EXCHANGE, "float32", (9,), (9,), {}),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[0])
def test_what_has_no_meaning_is_refused(case: tuple[Any, ...]) -> None:
    pattern, kind_of_error, kind, dtype, shape_in, shape_out, more = case
    terms = CollectiveTerms(kind, **more)
    with pytest.raises(kind_of_error, match=pattern) as refusal:
        collective_ops(terms, tensor("x", dtype, shape_in), tensor("y", dtype, shape_out), GROUP, "c", 2)
    assert str(kind) in str(refusal.value)


def test_overlapping_tensors_are_refused_and_gathers_in_place_are_not() -> None:
    terms = CollectiveTerms(CollectiveKind.ALL_GATHER)
    second = RankGroup("tp", (0, 1), 1)
    whole = tensor("y", "float32", (16,))
    assert collective_ops(terms, tensor("y", "float32", (8,), 32), whole, second, "c", 2).finish
    with pytest.raises(UnsupportedError, match="overlap in y"):
        collective_ops(terms, tensor("y", "float32", (8,), 32), whole, GROUP, "c", 2)


def test_permuted_tensors_are_reduced_where_they_lie_and_said_to_be() -> None:
    turned, result = (collectives.Tensor(name, 0, "float32", (4, 1, 2), (1, 9, 4)) for name in "xy")
    for kind in (REDUCE, BROADCAST):
        made = collective_ops(CollectiveTerms(kind), turned, result, GROUP, "c", 2)
        (sync,) = made.start[0].ranks
        assert sync.terms.endswith("of float32[8] with strides [1, 4]")
        assert not collective_ops(CollectiveTerms(kind), turned, turned, RankGroup("one", (0,), 0), "c", 2).finish
    for kind, other in ((REDUCE, tensor("y", "float32", (4, 1, 2))), (EXCHANGE, result)):
        with pytest.raises(UnsupportedError, match="x is not contiguous"):
            collective_ops(CollectiveTerms(kind), turned, other, GROUP, "c", 2)
    apart = collectives.Tensor("x", 0, "float32", (4, 2), (1, 5))
    with pytest.raises(UnsupportedError, match="x is not contiguous"):
        collective_ops(CollectiveTerms(REDUCE), apart, apart, GROUP, "c", 2)


def test_a_tensor_without_elements_has_no_op_whatever_its_strides() -> None:
    given = collectives.Tensor("x", 0, "float32", (12, 0), (1, 1))
    result = collectives.Tensor("y", 0, "float32", (6, 0), (7, 3))
    made = collective_ops(CollectiveTerms(CollectiveKind.REDUCE_SCATTER), given, result, GROUP, "c", 2)
    assert not made.start and not made.finish and not made.windows
