"""The grouped matmul sub-kernels give what torch gives group by group, whatever the ends of groups say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from targets.cpu.kernels.launched import BLOCKS, Launcher, laid_out, same_bits  # noqa: E402

from superkernel.errors import GraphError, UnsupportedError  # noqa: E402
from superkernel.model.tensor_arg import TensorArg  # noqa: E402
from superkernel.targets.cpu.kernels import grouped_mm  # noqa: E402

pytestmark = pytest.mark.slow

EPSILON = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
DTYPES = st.sampled_from(list(EPSILON))
SIZES = st.sampled_from([1, 2, 4, 7, 16, 17, 31, 33, 64, 70, 130])
WEIGHTS = st.sampled_from(["rows", "columns", "gaps"])


@pytest.fixture(scope="module")
def launch() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def matrices(values: torch.Tensor, layout: str) -> torch.Tensor:
    """In memory by rows, by columns as torch.nn.Linear keeps its weights, or with gaps."""
    return values.mT.contiguous().mT if layout == "columns" else laid_out(values, layout)


def by_groups(a: torch.Tensor, b: torch.Tensor, ends: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The result in float64, group after group with torch's slices, and the size of what was added up."""
    out = torch.zeros(a.shape[0], b.shape[2], dtype=torch.float64)
    size = torch.zeros_like(out)
    begin = 0
    for matrix, end in zip(b.double(), ends, strict=True):
        out[begin:end] = a[begin:end].double() @ matrix
        size[begin:end] = a[begin:end].double().abs() @ matrix.abs()
        begin = end
    return out, size


def assert_close(found: torch.Tensor, wanted: torch.Tensor, size: torch.Tensor, depth: int) -> None:
    allowed = (depth + 4) * EPSILON[torch.float32] * size + EPSILON[found.dtype] * wanted.abs() + 1e-7
    wrong = (found.double() - wanted).abs() > allowed
    assert not bool(wrong.any()), f"{int(wrong.sum())} of {wrong.numel()} elements of {tuple(found.shape)}"


@settings(max_examples=min(60, settings().max_examples))
@given(
    data=st.data(),
    dtype=DTYPES,
    rows=st.sampled_from([0, 1, 2, 5, 16, 40, 200]),
    groups=st.integers(1, 6),
    n=SIZES,
    k=st.one_of(SIZES, st.sampled_from([0, 256, 1030])),
    weights=WEIGHTS,
    in_order=st.integers(0, 3).map(bool),
)
def test_rows_of_each_group_are_multiplied_with_its_matrix(
    launch: Launcher,
    data: st.DataObject,
    dtype: torch.dtype,
    rows: int,
    groups: int,
    n: int,
    k: int,
    weights: str,
    in_order: bool,
) -> None:
    a, b = random(rows, k, dtype=dtype), matrices(random(groups, k, n, dtype=dtype), weights)
    limits = (0, rows) if in_order else (-2, rows + 2)
    ends = data.draw(st.lists(st.integers(*limits), min_size=groups, max_size=groups))
    ends = sorted(ends) if in_order else ends
    wanted, size = by_groups(a, b, ends)
    first = None
    for blocks in BLOCKS:
        out = torch.full((rows, n), 77, dtype=dtype)
        launch(grouped_mm.grouped_mm_fallback, blocks, a, b, torch.tensor(ends), out=out)
        assert_close(out, wanted, size, k)
        first = out if first is None else first
        assert same_bits(out, first), f"{blocks} blocks give other bits than one"


@pytest.mark.parametrize("dtype", list(EPSILON))
def test_what_the_operators_of_torch_and_transformers_give(launch: Launcher, dtype: torch.dtype) -> None:
    pytest.importorskip("transformers.integrations.moe")
    a, b = random(24, 64, dtype=dtype), matrices(random(4, 64, 32, dtype=dtype) / 8, "columns")
    tolerance = {"rtol": EPSILON[dtype] * 4, "atol": EPSILON[dtype] * 8}
    for ends in ([3, 3, 20, 24], [0, 0, 0, 24], [5, 10, 15, 20], [3, 30, 30, 30], [10, 2, 24, 24], [-4, 0, 24, 24]):
        for offset_dtype in (torch.int32, torch.int64):
            offsets = torch.tensor(ends, dtype=offset_dtype)
            out = torch.empty(24, 32, dtype=dtype)
            launch(grouped_mm.grouped_mm_fallback, 2, a, b, offsets, out=out)
            wanted = torch.ops.transformers.grouped_mm_fallback(a, b, offsets)
            torch.testing.assert_close(out, wanted, **tolerance)
            if offset_dtype is torch.int32:
                launch(grouped_mm._grouped_mm, 2, a, b, offsets, out=out)
                covered = max(*ends, 24 if min(ends) < 0 else 0)  # torch leaves the rest as it was
                theirs = torch._grouped_mm(a, b, offs=offsets)
                torch.testing.assert_close(out[:covered], theirs[:covered], **tolerance)


@pytest.mark.conformance
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_groups_of_columns_of_depth_and_of_nothing(launch: Launcher, dtype: torch.dtype) -> None:
    ends = torch.tensor([8, 8, 24, 32], dtype=torch.int32)
    tolerance = {"rtol": EPSILON[dtype] * 4, "atol": EPSILON[dtype] * 64}
    for blocks in BLOCKS:
        a, b = random(4, 40, 16, dtype=dtype), matrices(random(16, 32, dtype=dtype), "columns")
        out = torch.empty(40, 32, dtype=dtype)
        launch(grouped_mm._grouped_mm, blocks, a, b, ends, out=out)
        torch.testing.assert_close(out, torch._grouped_mm(a, b, offs=ends), **tolerance)
        a, b = random(40, 32, dtype=dtype), matrices(random(32, 48, dtype=dtype), "columns")
        out = torch.empty(4, 40, 48, dtype=dtype)
        launch(grouped_mm._grouped_mm, blocks, a, b, ends, out=out)
        torch.testing.assert_close(out, torch._grouped_mm(a, b, offs=ends), **tolerance)
        a, b = random(3, 40, 32, dtype=dtype), matrices(random(3, 32, 48, dtype=dtype), "columns")
        out = torch.empty(3, 40, 48, dtype=dtype)
        launch(grouped_mm._grouped_mm, blocks, a, b, out=out)
        torch.testing.assert_close(out, torch.bmm(a, b), **tolerance)


def test_nan_and_infinity_stay_in_their_group_and_row(launch: Launcher) -> None:
    a, b = torch.ones(6, 20), torch.ones(3, 20, 24)
    a[1, 3], b[1, 0, 5], b[2, 7, 2] = math.nan, math.inf, math.nan
    for weights in ("rows", "columns", "gaps"):
        out = torch.empty(6, 24)
        launch(grouped_mm.grouped_mm_fallback, 2, a, matrices(b, weights), torch.tensor([3, 5, 5]), out=out)
        wanted = torch.full((6, 24), 20.0)
        wanted[1], wanted[3:5, 5], wanted[5] = math.nan, math.inf, 0
        assert same_bits(out, wanted)


def tensor(dtype: str, shape: tuple[int, ...]) -> TensorArg:
    return TensorArg("t", 0, dtype, shape, tuple(torch.empty(shape).stride()))


def test_what_has_no_kernel_is_refused() -> None:
    a, b, ends, out = (tensor("float32", shape) for shape in ((8, 4), (2, 4, 6), (2,), (8, 6)))
    whole = tensor("int32", (2,))

    def refused(reason: str, *arguments: object, kind: type[Exception] = UnsupportedError, **keywords: object) -> None:
        with pytest.raises(kind, match=reason):
            grouped_mm._grouped_mm(*arguments, **{"out": out, "cores": 2, **keywords})

    refused("ends of groups in float32", a, b, ends)
    refused("with a bias", a, b, whole, out)
    refused("without ends", a, b)
    refused("with ends of groups", b, b, whole)
    refused("mixed dtypes: float32, float32, bfloat16", a, b, whole, out=tensor("bfloat16", (8, 6)))
    doubles = [tensor("float64", shape) for shape in ((8, 4), (2, 4, 6), (8, 6))]
    refused("grouped matmul of float64", doubles[0], doubles[1], whole, out=doubles[2])
    refused("cannot give", a, b, tensor("int32", (3,)), kind=GraphError)
    refused("cannot give", a, tensor("float32", (2, 5, 6)), whole, kind=GraphError)


def test_little_work_is_not_divided() -> None:
    def blocks(rows: int, n: int) -> int:
        shapes = (rows, 64), (8, 64, n), (8,), (rows, n)
        a, b, ends, out = (tensor(dtype, shape) for dtype, shape in zip(("float32",) * 4, shapes, strict=True))
        ends = tensor("int64", ends.shape)
        return grouped_mm.grouped_mm_fallback(a, b, ends, out=out, cores=8).kernel.block_dim

    assert blocks(2, 32) == 1 and blocks(64, 16) == 1 and blocks(64, 512) == 8
