"""The sub-kernels of scatter_reduce, index_put, histc and searchsorted give what torch gives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from targets.cpu.kernels.launched import BLOCKS, LAYOUTS, Launcher, laid_out, same_bits  # noqa: E402

from superkernel.errors import LaunchError, UnsupportedError  # noqa: E402
from superkernel.model.op import Place  # noqa: E402
from superkernel.model.tensor_arg import TensorArg  # noqa: E402
from superkernel.targets.cpu.kernels import scatter  # noqa: E402

pytestmark = pytest.mark.slow

SHAPES = st.sampled_from([(1,), (7,), (50,), (3, 8), (20, 5), (2, 3, 4), (0, 4), (4, 1, 30)])
REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8)


@pytest.fixture(scope="module")
def launch() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()


def elements(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (
        (torch.randn(shape, generator=generator) * 4).abs().to(dtype)
        if dtype is torch.uint8
        else (torch.randn(shape, generator=generator) * 4).to(dtype)
    )


@settings(max_examples=min(40, settings().max_examples))
@given(
    data=st.data(),
    shape=SHAPES,
    dtype=st.sampled_from(DTYPES),
    reduce=st.sampled_from(REDUCTIONS),
    include_self=st.booleans(),
    layout=st.sampled_from(LAYOUTS),
    special=st.booleans(),
)
def test_elements_that_meet_are_combined_as_torch_does_it(
    launch: Launcher,
    data: st.DataObject,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    reduce: str,
    include_self: bool,
    layout: str,
    special: bool,
) -> None:
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    self = elements(shape, dtype)
    size = shape[dim]
    count = list(shape)
    count[dim] = data.draw(st.integers(0, 12)) if size else 0
    src = laid_out(elements(tuple(count), dtype, seed=1), layout)
    if special and dtype.is_floating_point and src.numel():
        src[(0,) * src.dim()] = math.nan
    index = laid_out(torch.randint(0, max(1, size), count, generator=torch.Generator().manual_seed(2)), layout)
    wanted = self.clone().scatter_reduce_(dim, index, src, reduce, include_self=include_self)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2}.get(dtype, 0)
    first = None
    for blocks in BLOCKS:
        mine = laid_out(self.clone(), layout)
        launch(scatter.scatter_reduce_, blocks, mine, dim, index, src, reduce, include_self=include_self, out=mine)
        torch.testing.assert_close(mine, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
        first = mine if first is None else first
        assert same_bits(mine, first), f"{blocks} blocks give other bits than one"


def test_rows_added_by_an_index_that_is_the_same_for_all_columns(launch: Launcher) -> None:
    tokens, index = torch.randn(40, 16), torch.randint(0, 6, (40,))
    mine = torch.zeros(6, 16)
    launch(scatter.scatter_reduce_, 3, mine, 0, index[:, None].expand(40, 16), tokens, "sum", out=mine)
    torch.testing.assert_close(mine, torch.zeros(6, 16).index_add(0, index, tokens), rtol=1e-5, atol=1e-5)


PUTS: list[tuple[tuple[int, ...], list[Any], tuple[int, ...]]] = [
    ((6,), [(9,)], (9,)),
    ((6, 5), [(9,)], (9, 5)),
    ((6, 5), [(9,)], (5,)),
    ((6, 5), [(9,)], ()),
    ((6, 5), [None, (9,)], (6, 9)),
    ((6, 5), [(9,), (9,)], (9,)),
    ((6, 5, 4), [None, (2, 3), (2, 3)], (6, 2, 3)),
    ((6, 5, 4), [(1,), (9,), (9,)], (9,)),
    ((6, 5, 4), [(2, 3)], (2, 3, 5, 4)),
    ((6, 5, 4), [(0,)], (0, 5, 4)),
]


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shape", "indices", "values"), PUTS)
def test_elements_are_put_where_indices_say(
    launch: Launcher,
    shape: tuple[int, ...],
    indices: list[Any],
    values: tuple[int, ...],
    dtype: torch.dtype,
    accumulate: bool,
) -> None:
    generator = torch.Generator().manual_seed(len(values))
    given = []
    for dim, of_index in enumerate(indices):
        size = shape[dim]
        count = math.prod(of_index or ())
        drawn = torch.randint(-size, size, (count,), generator=generator)
        given.append(None if of_index is None else drawn.view(of_index))
    # Without accumulation nobody promises which of two elements that meet stays: they are all the same.
    added = elements(values, dtype) if accumulate else torch.ones(values).to(dtype)
    self = elements(shape, dtype)
    wanted = torch.ops.aten.index_put(self, given, added, accumulate)
    for blocks in BLOCKS:
        mine = self.clone()
        launch(scatter.index_put_, blocks, mine, given, added, accumulate, out=mine)
        torch.testing.assert_close(mine, wanted, rtol=2e-2 if dtype is torch.bfloat16 else 1e-6, atol=1e-6)


@settings(max_examples=min(40, settings().max_examples))
@given(
    values=st.lists(st.floats(-3, 3, width=32) | st.sampled_from([math.nan, 0.0, 1.0, 2.0, 3.0, 7.0]), max_size=60),
    bins=st.integers(1, 40),
    limits=st.sampled_from([(0, 3), (-1, 1), (0.25, 0.75), (2, 2), (0, 127)]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_histograms_are_those_of_torch(
    launch: Launcher, values: list[float], bins: int, limits: tuple[float, float], dtype: torch.dtype
) -> None:
    x = torch.tensor(values, dtype=dtype)
    if limits[0] == limits[1]:
        x = x.nan_to_num()
    wanted = torch.histc(x, bins, *limits)
    for blocks in BLOCKS:
        out = torch.full((bins,), 77, dtype=dtype)
        launch(scatter.histc, blocks, x, bins, *limits, out=out)
        assert torch.equal(out, wanted), f"{blocks} blocks"


def test_a_histogram_of_rows_with_gaps(launch: Launcher) -> None:
    x = laid_out(torch.randn(20, 30), "gaps")
    out = torch.empty(10)
    launch(scatter.histc, 3, x, 10, out=out)
    assert torch.equal(out, torch.histc(x, 10))


def test_a_histogram_over_no_finite_range_stops_the_launch(launch: Launcher) -> None:
    with pytest.raises(LaunchError, match="range of the elements is not finite"):
        launch(scatter.histc, 2, torch.tensor([1.0, math.nan]), 4, out=torch.empty(4))


@settings(max_examples=min(40, settings().max_examples))
@given(
    shape=st.sampled_from([(), (1,), (9,), (4, 6), (2, 3, 5), (3, 0)]),
    length=st.sampled_from([0, 1, 2, 7, 100]),
    rows=st.booleans(),
    right=st.booleans(),
    sorter=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64]),
    layout=st.sampled_from(LAYOUTS),
)
def test_values_are_found_where_torch_finds_them(
    launch: Launcher,
    shape: tuple[int, ...],
    length: int,
    rows: bool,
    right: bool,
    sorter: bool,
    dtype: torch.dtype,
    layout: str,
) -> None:
    lines = (*shape[:-1], length) if rows and len(shape) > 1 else (length,)
    raw, values = elements(lines, dtype), laid_out(elements(shape, dtype, seed=5), layout)
    if dtype.is_floating_point and values.dim() and values.numel():
        values[(0,) * values.dim()] = math.nan
    ordered = raw.sort(-1)
    order = ordered.indices if sorter else None
    sequence = laid_out(raw if sorter else ordered.values, layout)
    wanted = torch.searchsorted(sequence.contiguous(), values.contiguous(), right=right, sorter=order)
    for blocks in BLOCKS:
        out = torch.full(shape, -1)
        launch(scatter.searchsorted, blocks, sequence, values, right=right, sorter=order, out=out)
        assert torch.equal(out, wanted), f"{blocks} blocks"
    if len(lines) == 1 and not sorter:
        narrow = torch.full(shape, -1, dtype=torch.int32)
        launch(scatter.bucketize, 2, values, sequence, out_int32=True, right=right, out=narrow)
        assert torch.equal(narrow, wanted.int())


def test_indices_outside_stop_the_launch(launch: Launcher) -> None:
    x, ones = torch.zeros(4), torch.ones(2)
    for index in ([0, 4], [-1, 0]):
        with pytest.raises(LaunchError, match="scatter_reduce: an index is outside"):
            launch(scatter.scatter_reduce_, 1, x, 0, torch.tensor(index), ones, "sum", out=x)
    for index in ([0, 4], [-5, 0]):
        with pytest.raises(LaunchError, match="index_put: an index is outside"):
            launch(scatter.index_put_, 1, x, [torch.tensor(index)], ones, out=x)
    with pytest.raises(LaunchError, match="sorter has an index outside"):
        launch(scatter.searchsorted, 1, x, ones, sorter=torch.tensor([0, 1, 9, 3]), out=torch.zeros(2, dtype=int))


def tensor(dtype: str = "float32", shape: tuple[int, ...] = (4,)) -> TensorArg:
    return TensorArg("t", 0, dtype, shape, tuple(torch.empty(shape).stride()))


def test_what_has_no_kernel_is_refused() -> None:
    x, long = tensor(), tensor("int64")

    def refused(reason: str, function: Any, *arguments: Any, **keywords: Any) -> None:
        with pytest.raises(UnsupportedError, match=reason):
            function(*arguments, **{"out": x, "cores": 2, **keywords})

    room = {"scratch": lambda _nbytes: Place("room")}
    refused("scatter_reduce of bool", scatter.scatter_reduce_, tensor("bool"), 0, long, tensor("bool"), "sum", **room)
    refused("float64 into float32", scatter.scatter_reduce_, x, 0, long, tensor("float64"), "sum", **room)
    refused("by 'median'", scatter.scatter_reduce_, x, 0, long, x, "median", **room)
    refused("without dimensions", scatter.scatter_reduce_, tensor(shape=()), 0, long, x, "sum", **room)
    refused("into float32 by bool", scatter.index_put_, x, [tensor("bool")], x)
    refused("by 2 indices", scatter.index_put_, tensor(shape=(4, 4, 4)), [long, None, long], tensor(shape=(4, 4)))
    crossed = [tensor("int64", (4, 1)), tensor("int64", (1, 4))]
    refused("as one line", scatter.index_put_, tensor(shape=(4, 4)), crossed, tensor(shape=(4, 4)))
    refused("histc of bfloat16", scatter.histc, tensor("bfloat16"))
    refused("histc from 3 to 1", scatter.histc, x, 4, 3, 1)
    refused("min is inf", scatter.histc, x, 4, math.inf, 1)
    refused("of a number", scatter.searchsorted, x, 1.5)
    refused("of a number", scatter.bucketize, 1.5, x)
    refused("float32 among float64", scatter.searchsorted, tensor("float64"), x)
    refused("to float32", scatter.searchsorted, x, x)
