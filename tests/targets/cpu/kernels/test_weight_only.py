"""Matmuls with int8 and int4 weights give what torch's operators give, for every layout of packed weights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from targets.cpu.kernels.launched import BLOCKS, LAYOUTS, Launcher, laid_out  # noqa: E402

from superkernel.errors import GraphError, UnsupportedError  # noqa: E402
from superkernel.model.tensor_arg import TensorArg  # noqa: E402
from superkernel.targets.cpu.kernels import weight_only  # noqa: E402
from superkernel.targets.cpu.kernels.weight_only import PackedLayout, packed_layout  # noqa: E402

pytestmark = pytest.mark.slow

TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
DTYPES = [
    torch.float32,
    pytest.param(torch.bfloat16, marks=pytest.mark.conformance),
    pytest.param(torch.float16, marks=pytest.mark.conformance),
]
FOREIGN = [PackedLayout(64, True), PackedLayout(32, True), PackedLayout(32, False), PackedLayout(16, False)]


@pytest.fixture(scope="module")
def launch() -> Iterator[Launcher]:
    launcher = Launcher()
    yield launcher
    launcher.close()


def assert_near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Relative to the largest element: sums of many products."""
    scale = float(wanted.abs().max()) if wanted.numel() else 1.0
    tolerance = TOLERANCES[wanted.dtype] * max(scale, 1.0)
    torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 70, 100), (3, 33, 64), (7, 16, 5), (20, 100, 300), (1, 1, 1), (2, 8, 0)])
def test_int8_weights(launch: Launcher, dtype: torch.dtype, m: int, n: int, k: int) -> None:
    torch.manual_seed(m + n)
    x, weight = torch.randn(m, k).to(dtype), torch.randint(-128, 128, (n, k), dtype=torch.int8)
    scales = (torch.rand(n) / 100).to(dtype)
    wanted = (x.double() @ weight.double().t() * scales.double()).to(dtype)
    first: torch.Tensor | None = None
    for blocks, layout in zip(BLOCKS, (*LAYOUTS, "rows"), strict=True):
        out = laid_out(torch.zeros(m, n, dtype=dtype), layout)
        launch(weight_only._weight_int8pack_mm, blocks, laid_out(x, layout), weight, scales, out=out)
        assert_near(out, wanted)
        first = out.clone() if first is None else first
        assert torch.equal(out, first), f"{blocks} blocks"


def dequantised(quantised: torch.Tensor, scales_and_zeros: torch.Tensor, group: int) -> torch.Tensor:
    scales, zeros = (scales_and_zeros[..., i].double().repeat_interleave(group, 0) for i in (0, 1))
    return (quantised.t().double() - 8) * scales + zeros


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("m", "n", "k", "group"), [(1, 144, 128, 32), (3, 48, 64, 64), (5, 272, 256, 128), (2, 16, 8, 4)]
)
def test_int4_weights(launch: Launcher, dtype: torch.dtype, m: int, n: int, k: int, group: int) -> None:
    torch.manual_seed(m + n)
    x, quantised = torch.randn(m, k).to(dtype), torch.randint(0, 16, (n, k), dtype=torch.int32)
    scales = (torch.randn(k // group, n, 2) / 10).to(dtype)
    wanted = (x.double() @ dequantised(quantised, scales, group)).to(dtype)
    packed = torch.zeros(n, k // 2, dtype=torch.uint8)
    launch(weight_only._convert_weight_to_int4pack_for_cpu, 2, quantised, 1, out=packed)
    assert torch.equal(packed, torch.ops.aten._convert_weight_to_int4pack_for_cpu(quantised, 1))
    first: torch.Tensor | None = None
    for blocks, layout in zip(BLOCKS, (*LAYOUTS, "rows"), strict=True):
        out = laid_out(torch.zeros(m, n, dtype=dtype), layout)
        given = laid_out(x, layout), packed, group, scales
        launch(weight_only._weight_int4pack_mm_for_cpu, blocks, *given, out=out)
        assert_near(out, wanted)
        first = out.clone() if first is None else first
        assert torch.equal(out, first), f"{blocks} blocks"


@pytest.mark.parametrize("layout", FOREIGN, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 9])
def test_weights_that_another_processor_packs(
    launch: Launcher, monkeypatch: pytest.MonkeyPatch, layout: PackedLayout, rows: int
) -> None:
    x, quantised = torch.randn(rows, 96), torch.randint(0, 16, (144, 96), dtype=torch.int32)
    scales = torch.randn(3, 144, 2) / 10
    packed = torch.frombuffer(bytearray(layout.pack(quantised.tolist())), dtype=torch.uint8).view(144, 48)
    monkeypatch.setattr(weight_only, "packed_layout", lambda: layout)
    repacked, out = torch.zeros_like(packed), torch.zeros(rows, 144)
    launch(weight_only._convert_weight_to_int4pack_for_cpu, 3, quantised, 1, out=repacked)
    assert torch.equal(repacked, packed)
    launch(weight_only.int4mm_packed_weight_cpu, 3, x, packed, torch.tensor(32), scales, out=out)
    assert_near(out, (x.double() @ dequantised(quantised, scales, 32)).float())


def test_the_layout_is_found_by_packing() -> None:
    assert packed_layout() in weight_only._LAYOUTS


def tensor(dtype: str, *shape: int) -> TensorArg:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return TensorArg("t", 0, dtype, shape, tuple(strides))


def test_what_does_not_fit_is_refused() -> None:
    x, out = tensor("float32", 2, 64), tensor("float32", 2, 16)
    scales, weight = tensor("float32", 16), tensor("int8", 16, 64)
    with pytest.raises(UnsupportedError, match="int8 weights of mixed dtypes"):
        weight_only._weight_int8pack_mm(x, weight, tensor("bfloat16", 16), out=out, cores=2)
    with pytest.raises(UnsupportedError, match="has elements of uint8"):
        weight_only._weight_int8pack_mm(x, tensor("uint8", 16, 64), scales, out=out, cores=2)
    with pytest.raises(GraphError, match="cannot give"):
        weight_only._weight_int8pack_mm(x, tensor("int8", 16, 60), scales, out=out, cores=2)
    turned = TensorArg("t", 0, "int8", (16, 64), (1, 16))
    with pytest.raises(UnsupportedError, match="are not contiguous"):
        weight_only._weight_int8pack_mm(x, turned, scales, out=out, cores=2)
    pairs, packed = tensor("float32", 2, 16, 2), tensor("uint8", 16, 32)
    with pytest.raises(GraphError, match="is not 2 groups of 30 rows"):
        weight_only._weight_int4pack_mm_for_cpu(x, packed, 30, pairs, out=out, cores=2)
    with pytest.raises(GraphError, match="cannot give"):
        weight_only._weight_int4pack_mm_for_cpu(x, packed, 32, tensor("float32", 2, 15, 2), out=out, cores=2)
