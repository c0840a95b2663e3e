"""The sorting sub-kernels give torch's values and places, ties, NaN and strides included, for any number of blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from targets.cpu.kernels.launched import BLOCKS, LAYOUTS, Launcher, laid_out, same_bits  # noqa: E402

from superkernel.errors import UnsupportedError  # noqa: E402
from superkernel.model.op import Place  # noqa: E402
from superkernel.model.tensor_arg import TensorArg  # noqa: E402
from superkernel.targets.cpu.kernels import sorting  # noqa: E402

pytestmark = pytest.mark.slow

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8)
SHAPES = st.one_of(
    st.tuples(st.sampled_from([0, 1, 2, 5, 64, 65, 200, 1000])),
    st.tuples(st.sampled_from([1, 3, 8]), st.sampled_from([1, 2, 7, 31, 33, 100, 300])),
    st.tuples(st.sampled_from([2, 70]), st.sampled_from([1, 3]), st.sampled_from([2, 5, 66])),
)


@pytest.fixture(scope="module")
def launch() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()


def elements(shape: tuple[int, ...], dtype: torch.dtype, ties: bool, seed: int = 0) -> torch.Tensor:
    """Random ones; with ties: few different ones, with everything that is special about floats among them."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if not ties:
        if dtype.is_floating_point:
            return (torch.randn(shape, generator=generator) * 1e3).to(dtype)
        limits = torch.iinfo(dtype)
        return torch.randint(limits.min, limits.max, shape, generator=generator, dtype=dtype)
    few = [0.0, 1.0, 2.0, 3.0]
    if dtype.is_floating_point:
        few += [-0.0, math.nan, -math.nan, math.inf, -math.inf, -1.5]
    elif dtype is not torch.uint8:
        few += [-1.0, -3.0]
    return torch.tensor(few, dtype=dtype)[torch.randint(0, len(few), shape, generator=generator)]


def sorted_by_kernel(
    launch: Launcher, x: torch.Tensor, dim: int, largest: bool, blocks: int, k: int | None = None, layout: str = "rows"
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = list(x.shape)
    if k is not None and shape:
        shape[dim] = k
    values = laid_out(torch.zeros(shape, dtype=x.dtype), layout)
    indices = laid_out(torch.full(shape, -1), layout)
    if k is None:
        launch(sorting.sort, blocks, x, dim, largest, stable=True, out0=values, out1=indices)
    else:
        launch(sorting.topk, blocks, x, k, dim, largest, out0=values, out1=indices)
    return values, indices


@settings(max_examples=min(40, settings().max_examples))
@given(
    data=st.data(),
    shape=SHAPES,
    dtype=st.sampled_from(FLOATS + INTEGERS),
    descending=st.booleans(),
    ties=st.booleans(),
    layout=st.sampled_from(LAYOUTS),
    out_layout=st.sampled_from(LAYOUTS),
)
def test_sort_gives_the_bits_of_a_stable_sort_of_torch(
    launch: Launcher,
    data: st.DataObject,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    descending: bool,
    ties: bool,
    layout: str,
    out_layout: str,
) -> None:
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = laid_out(elements(shape, dtype, ties), layout)
    wanted = torch.sort(x, stable=True, dim=dim, descending=descending)
    for blocks in BLOCKS:
        values, indices = sorted_by_kernel(launch, x, dim, descending, blocks, layout=out_layout)
        assert torch.equal(indices, wanted.indices) and same_bits(values, wanted.values), f"{blocks} blocks"


@settings(max_examples=min(40, settings().max_examples))
@given(
    data=st.data(),
    shape=SHAPES,
    dtype=st.sampled_from(FLOATS + INTEGERS),
    largest=st.booleans(),
    ties=st.booleans(),
    layout=st.sampled_from(LAYOUTS),
    out_layout=st.sampled_from(LAYOUTS),
)
def test_topk_gives_the_values_of_torch_and_the_first_of_equal_elements(
    launch: Launcher,
    data: st.DataObject,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    largest: bool,
    ties: bool,
    layout: str,
    out_layout: str,
) -> None:
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    k = data.draw(st.integers(0, shape[dim]))
    x = laid_out(elements(shape, dtype, ties), layout)
    ordered = torch.sort(x, stable=True, dim=dim, descending=largest)
    for blocks in BLOCKS:
        values, indices = sorted_by_kernel(launch, x, dim, largest, blocks, k, out_layout)
        assert torch.equal(indices, ordered.indices.narrow(dim, 0, k)), f"{blocks} blocks"
        assert same_bits(values, ordered.values.narrow(dim, 0, k))
        theirs = torch.topk(x, k, dim=dim, largest=largest).values
        assert torch.equal(values.isnan(), theirs.isnan()) and torch.equal(values.nan_to_num(), theirs.nan_to_num())


@pytest.mark.parametrize("direction", ["rising", "falling", "the same"])
def test_lines_that_are_hard_to_select_from(launch: Launcher, direction: str) -> None:
    x = torch.arange(5000.0) * {"rising": 1, "falling": -1, "the same": 0}[direction]
    for k in (1, 50, 64, 65, 5000):
        values, indices = sorted_by_kernel(launch, x, -1, True, 2, k)
        wanted = torch.sort(x, stable=True, descending=True)
        assert torch.equal(values, wanted.values[:k]) and torch.equal(indices, wanted.indices[:k])


def test_bools_are_sorted(launch: Launcher) -> None:
    x = elements((3, 100), torch.uint8, ties=True) > 1
    values, indices = sorted_by_kernel(launch, x, 1, False, 2)
    wanted = torch.sort(x, stable=True, dim=1)
    assert torch.equal(values, wanted.values) and torch.equal(indices, wanted.indices)


def test_a_number_is_a_line_of_one(launch: Launcher) -> None:
    x = torch.tensor(5.0)
    for k in (None, 1):
        values, indices = sorted_by_kernel(launch, x, -1, True, 1, k)
        assert float(values) == 5 and int(indices) == 0


def tensor(dtype: str = "float32", shape: tuple[int, ...] = (4, 4)) -> TensorArg:
    return TensorArg("t", 0, dtype, shape, tuple(torch.empty(shape).stride()))


def room(_nbytes: int) -> Place:
    return Place("room")


def test_more_than_there_are_is_refused() -> None:
    outs = {"out0": tensor(), "out1": tensor("int64")}
    with pytest.raises(UnsupportedError, match="5 of the 4 elements of dimension -1"):
        sorting.topk(tensor(), 5, **outs, cores=2, scratch=room)


def test_other_dtypes_are_refused_by_name() -> None:
    outs = {"out0": tensor("complex64"), "out1": tensor("int64")}
    with pytest.raises(UnsupportedError, match="sort of complex64"):
        sorting.sort(tensor("complex64"), **outs, cores=2, scratch=room)


def test_too_many_strided_dimensions_are_refused() -> None:
    shape = (2,) * 8
    strange = TensorArg("t", 0, "float32", shape, tuple(2**i for i in range(8)))
    with pytest.raises(UnsupportedError, match="more than 6 strided dimensions"):
        sorting.sort(strange, 0, out0=tensor(shape=shape), out1=tensor("int64", shape), cores=2, scratch=room)


def test_little_work_is_not_divided() -> None:
    def blocks(rows: int) -> int:
        shape = (rows, 256)
        outs = {"out0": tensor(shape=shape), "out1": tensor("int64", shape)}
        return sorting.topk(tensor(shape=shape), 8, **outs, cores=8, scratch=room).kernel.block_dim

    assert blocks(1) == 1 and blocks(32) == 2 and blocks(1024) == 8
