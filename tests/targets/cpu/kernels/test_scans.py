"""The scan sub-kernels give torch's bits, whatever the dtypes, strides and number of blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from targets.cpu.kernels.launched import BLOCKS, LAYOUTS, Launcher, laid_out, same_bits  # noqa: E402

from superkernel.errors import UnsupportedError  # noqa: E402
from superkernel.model.tensor_arg import TensorArg  # noqa: E402
from superkernel.targets.cpu.kernels import scans  # noqa: E402

pytestmark = pytest.mark.slow

# What is added up, and what is asked for: one kernel each, so not every pair is among them.
TOTALS = [
    ("cumsum", torch.float32, None),
    ("cumsum", torch.bfloat16, None),
    ("cumsum", torch.float16, None),
    ("cumsum", torch.float64, None),
    ("cumsum", torch.int64, None),
    ("cumsum", torch.uint8, None),
    ("cumsum", torch.bool, None),
    ("cumsum", torch.float32, torch.int32),
    ("cumsum", torch.int32, torch.int8),
    ("cumsum", torch.int64, torch.bfloat16),
    ("cumprod", torch.float32, None),
    ("cumprod", torch.int16, None),
]
SHAPES = st.one_of(
    st.tuples(st.sampled_from([0, 1, 2, 5, 1000])),
    st.tuples(st.sampled_from([1, 3, 8, 40]), st.sampled_from([1, 2, 7, 33, 100])),
    st.tuples(st.sampled_from([2, 17]), st.sampled_from([1, 3]), st.sampled_from([2, 5, 66])),
    st.just((2, 3, 4, 5)),
)


@pytest.fixture(scope="module")
def launch() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()


def elements(shape: tuple[int, ...], dtype: torch.dtype, special: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    if not dtype.is_floating_point:
        return torch.randint(0, 100, shape, generator=generator).to(dtype)
    x = torch.randn(shape, generator=generator)
    if special and x.numel():
        x.view(-1)[generator.initial_seed() % x.numel()] = math.nan
        x.view(-1)[generator.initial_seed() // 2 % x.numel()] = -math.inf
        x = torch.where(torch.rand(shape, generator=generator) < 0.3, torch.zeros(()), x)
    return x.to(dtype)


@settings(max_examples=min(40, settings().max_examples))
@given(
    data=st.data(),
    total=st.sampled_from(TOTALS),
    shape=SHAPES,
    special=st.booleans(),
    layout=st.sampled_from(LAYOUTS),
    out_layout=st.sampled_from(LAYOUTS),
)
def test_running_totals_have_the_bits_of_torch(
    launch: Launcher,
    data: st.DataObject,
    total: tuple[str, torch.dtype, torch.dtype | None],
    shape: tuple[int, ...],
    special: bool,
    layout: str,
    out_layout: str,
) -> None:
    name, dtype, result = total
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = laid_out(elements(shape, dtype, special and result is not torch.int32), layout)
    wanted = getattr(torch, name)(x, dim, dtype=result)
    for blocks in BLOCKS:
        out = laid_out(torch.zeros(shape, dtype=wanted.dtype), out_layout)
        launch(getattr(scans, name), blocks, x, dim, dtype=result, out=out)
        assert same_bits(out, wanted), f"{blocks} blocks"


@settings(max_examples=min(40, settings().max_examples))
@given(
    data=st.data(),
    name=st.sampled_from(["cummax", "cummin"]),
    shape=SHAPES,
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64]),
    layout=st.sampled_from(LAYOUTS),
)
def test_running_extremes_are_those_of_torch_and_at_their_places(
    launch: Launcher, data: st.DataObject, name: str, shape: tuple[int, ...], dtype: torch.dtype, layout: str
) -> None:
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = laid_out(elements(shape, dtype, special=True), layout)
    wanted = getattr(torch, name)(x, dim)
    for blocks in BLOCKS:
        values, indices = torch.zeros(shape, dtype=dtype), torch.full(shape, -1)
        launch(getattr(scans, name), blocks, x, dim, out0=values, out1=indices)
        assert torch.equal(indices, wanted.indices) and same_bits(values, wanted.values), f"{blocks} blocks"


def test_a_number_is_a_line_of_one(launch: Launcher) -> None:
    out = torch.zeros(())
    launch(scans.cumsum, 1, torch.tensor(2.5), 0, out=out)
    assert float(out) == 2.5


def test_fractions_are_cut_before_they_are_added_as_integers(launch: Launcher) -> None:
    out = torch.zeros(3, dtype=torch.int32)
    launch(scans.cumsum, 1, torch.tensor([0.7, 1.9, 2.5]), 0, dtype=torch.int32, out=out)
    assert out.tolist() == [0, 1, 3]


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_other_dtypes_are_refused_by_name(name: str) -> None:
    strange, plain = (TensorArg("t", 0, dtype, (4,), (1,)) for dtype in ("complex64", "float32"))
    with pytest.raises(UnsupportedError, match=f"{name} of complex64"):
        getattr(scans, name)(strange, 0, out=strange, cores=2)
    with pytest.raises(UnsupportedError, match=f"{name} to elements of complex64"):
        getattr(scans, name)(plain, 0, out=strange, cores=2)
