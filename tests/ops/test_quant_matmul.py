"""quant_matmul: the sub-kernel gives the reference's bits, both are exact, and what is not supported is refused."""

from __future__ import annotations

import math
import platform
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from frontend.fused import check, compiled  # noqa: E402
from torch import Tensor  # noqa: E402

import superkernel as sk  # noqa: E402
from ops.direct import Launcher  # noqa: E402
from superkernel import ops  # noqa: E402
from superkernel.errors import LaunchError, UnsupportedError  # noqa: E402
from superkernel.targets.cpu.kernels import quant_matmul as kernels  # noqa: E402

FLOAT = {"output_dtype": torch.bfloat16}
NOTHING: dict[str, Any] = dict.fromkeys(("offset", "pertoken_scale", "bias", "output_dtype", "group_sizes"))


def numbers(*shape: int) -> Tensor:
    """All int8 values, and often the extreme ones: their products are the largest."""
    values = torch.randint(-128, 128, shape, dtype=torch.int8)
    return torch.where(torch.rand(shape) < 0.2, torch.tensor(-128, dtype=torch.int8), values)


def laid_out(values: Tensor, layout: str) -> Tensor:
    """The same values in another order in memory."""
    if layout == "columns":
        return values.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "spread":
        wide = torch.zeros(*values.shape[:-1], 3 * values.shape[-1], dtype=values.dtype)
        wide[..., ::3] = values
        return wide[..., ::3]
    if layout == "padded":
        wide = torch.full((*values.shape[:-1], values.shape[-1] + 5), 99, dtype=values.dtype)
        wide[..., : values.shape[-1]] = values
        return wide[..., : values.shape[-1]]
    return values.contiguous()


def by_kernel(launch: Launcher, x1: Tensor, x2: Tensor, scale: Tensor, blocks: int = 2, **given: Any) -> Tensor:
    flags = given.pop("flags", ())
    like = torch.empty_like(ops.quant_matmul(x1, x2, scale, **given))
    arguments = {"x1": x1, "x2": x2, "scale": scale, **NOTHING, **given}
    (found,) = launch(kernels.quant_matmul, arguments, [like], blocks, flags)
    return found


SIZES = st.sampled_from([1, 2, 3, 5, 6, 7, 15, 16, 17, 33, 64, 65, 130, 200])
DEPTHS = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 31, 63, 64, 65, 127, 128, 129, 255, 256, 257, 600])
LAYOUTS = st.sampled_from(["rows", "columns", "spread", "padded"])


@settings(max_examples=min(120, settings().max_examples))
@given(data=st.data(), batches=st.sampled_from([None, None, None, 1, 3]), m=SIZES, n=SIZES, k=DEPTHS)
def test_products_are_exact_for_any_shape_strides_and_number_of_blocks(
    launch: Launcher, data: st.DataObject, batches: int | None, m: int, n: int, k: int
) -> None:
    torch.manual_seed(m + 300 * n + 90000 * k)
    batch = () if batches is None else (batches,)
    x1 = laid_out(numbers(*batch, m, k), data.draw(LAYOUTS, "layout of x1"))
    x2 = laid_out(numbers(*data.draw(st.sampled_from([batch, ()]), "batch of x2"), k, n), data.draw(LAYOUTS, "of x2"))
    bias = data.draw(st.sampled_from([None, torch.randint(-(2**31), 2**31 - 1, (n,), dtype=torch.int32)]), "bias")
    exact = x1.long() @ x2.long() + (0 if bias is None else bias.long())
    wanted = ((exact + 2**31) % 2**32 - 2**31).int()
    for blocks in (1, 2, 3, 7):
        found = by_kernel(launch, x1, x2, torch.ones(1), blocks, bias=bias, output_dtype=torch.int32)
        assert torch.equal(found, wanted), f"{blocks} blocks"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are those of x86")
@pytest.mark.parametrize("flags", [("-mno-avx512vnni",), ("-march=haswell",), ("-march=x86-64",)])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 40, 300), (13, 70, 259), (70, 130, 64), (3, 3, 3)])
def test_machines_without_vnni_give_the_same(launch: Launcher, flags: tuple[str, ...], m: int, n: int, k: int) -> None:
    for layout in ("rows", "columns"):
        x1, x2 = numbers(m, k), laid_out(numbers(k, n), layout)
        found = by_kernel(launch, x1, x2, torch.ones(1), output_dtype=torch.int32, flags=flags)
        assert torch.equal(found, (x1.long() @ x2.long()).int())


def cases() -> list[tuple[str, dict[str, Any]]]:
    m, n = 37, 100
    scale, column = torch.randn(n) * 1e-3, torch.randn(n)
    whole = torch.randint(-9999, 9999, (n,), dtype=torch.int32)
    rows = torch.randn(m)
    found: list[tuple[str, dict[str, Any]]] = [
        ("int8", {"scale": scale}),
        ("int8, one scale", {"scale": torch.tensor([3e-4])}),
        ("int8, offset, bias", {"scale": scale, "offset": column * 20, "bias": whole}),
        ("int8, one offset", {"scale": scale.bfloat16(), "offset": torch.tensor([-3.5])}),
        ("int32", {"scale": scale, "output_dtype": torch.int32, "bias": whole}),
    ]
    for dtype in (torch.float16, torch.bfloat16):
        found.append((f"{dtype}", {"scale": scale, "output_dtype": dtype}))
        for bias in (None, whole, column, column.half(), column.bfloat16()):
            told = "no" if bias is None else str(bias.dtype)
            given = {"scale": scale.bfloat16(), "output_dtype": dtype, "pertoken_scale": rows, "bias": bias}
            found.append((f"{dtype}, rows, {told} bias", given))
    return found


@pytest.mark.parametrize(("told", "given"), cases(), ids=[told for told, _ in cases()])
def test_scales_and_biases_give_the_bits_of_the_reference(launch: Launcher, told: str, given: dict[str, Any]) -> None:
    x1, x2 = numbers(37, 300), numbers(100, 300).t()
    wanted = ops.quant_matmul(x1, x2, **given)
    found = by_kernel(launch, x1, x2, **given)
    assert torch.equal(found.view(torch.uint8), wanted.contiguous().view(torch.uint8))
    assert wanted.unique().numel() > 20  # not all clamped


def test_the_reference_is_what_the_formula_says() -> None:
    x1, x2 = numbers(5, 40), numbers(40, 7)
    sums = (x1.long() @ x2.long()).float()
    scale, rows, bias = torch.rand(7) * 1e-3, torch.rand(5), torch.rand(7)
    whole = torch.arange(7, dtype=torch.int32)
    found = ops.quant_matmul(x1, x2, scale, pertoken_scale=rows, bias=bias, **FLOAT)
    torch.testing.assert_close(found, (sums * scale * rows[:, None] + bias).bfloat16(), rtol=1e-2, atol=1e-6)
    found = ops.quant_matmul(x1, x2, scale, offset=bias, bias=whole)
    assert torch.equal(found, ((sums + whole) * scale + bias).round().clamp(-128, 127).to(torch.int8))


@pytest.mark.parametrize(("value", "wanted"), [(0.5, 0), (1.5, 2), (-2.5, -2), (127.6, 127), (-1e9, -128)])
def test_int8_is_rounded_to_even_and_clamped(launch: Launcher, value: float, wanted: int) -> None:
    one = torch.ones(1, 1, dtype=torch.int8)
    assert ops.quant_matmul(one, one, torch.tensor([value])).item() == wanted
    assert by_kernel(launch, one, one, torch.tensor([value])).item() == wanted


@pytest.mark.parametrize(("value", "whole"), [(math.nan, 0), (math.inf, 127), (-math.inf, -128)])
def test_nan_and_infinity_in_scales(launch: Launcher, value: float, whole: int) -> None:
    x1, x2, scale = numbers(3, 20), numbers(20, 33), torch.ones(33)
    x1[1], x2[:, 5] = 1, 1
    scale[5] = value
    for kind in ({}, FLOAT, {"output_dtype": torch.float16}):
        wanted, found = ops.quant_matmul(x1, x2, scale, **kind), by_kernel(launch, x1, x2, scale, **kind)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    assert ops.quant_matmul(x1, x2, scale)[1, 5].item() == whole


@pytest.mark.parametrize("shapes", [((0, 8), (8, 5)), ((4, 8), (8, 0)), ((4, 0), (0, 5)), ((0, 4, 8), (8, 5))])
def test_sizes_of_zero(launch: Launcher, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x1, x2 = numbers(*shapes[0]), numbers(*shapes[1])
    wanted = ops.quant_matmul(x1, x2, torch.ones(1), **FLOAT)
    found = by_kernel(launch, x1, x2, torch.ones(1), **FLOAT)
    assert found.shape == wanted.shape and torch.equal(found, wanted) and not bool(wanted.any())


def test_batches_are_broadcast_and_a_bias_may_have_them() -> None:
    x1, x2 = numbers(1, 6, 40), numbers(5, 40, 16)
    bias = torch.randint(-5, 5, (5, 1, 16), dtype=torch.int32)
    scale, offset = torch.rand(16) * 1e-2, torch.rand(16)

    def model(x1: Tensor, x2: Tensor, scale: Tensor, offset: Tensor, bias: Tensor) -> Tensor:
        return ops.quant_matmul(x1, x2, scale, offset=offset, bias=bias)

    (scope,) = check(model, x1, x2, scale, offset, bias, tolerance=0).report.scopes
    assert not scope.unfusible
    exact = (x1.long() @ x2.long() + bias).float() * scale + offset
    assert torch.equal(model(x1, x2, scale, offset, bias), exact.round().clamp(-128, 127).to(torch.int8))


def test_batches_that_no_stride_walks_are_left_to_torch() -> None:
    x1, x2 = numbers(2, 1, 4, 8), numbers(3, 8, 5)
    run = check(lambda x1, x2: ops.quant_matmul(x1, x2, torch.ones(1), **FLOAT), x1, x2, tolerance=0)
    (scope,) = run.report.scopes
    assert "no single stride" in str(scope.unfusible)


def test_a_scope_of_both_operators_is_one_segment_and_gives_the_bits_of_the_reference() -> None:
    x1, x2, weight_scale = numbers(20, 96), numbers(64, 96), torch.randn(20, 64)
    scale, rows = torch.randn(64) * 1e-2, torch.randn(20)

    def model(x1: Tensor, x2: Tensor, scale: Tensor, rows: Tensor, weight_scale: Tensor) -> tuple[Tensor, ...]:
        with sk.super_kernel("sp1"):
            product = ops.quant_matmul(x1, x2.t(), scale, pertoken_scale=rows, **FLOAT)
            return *ops.dequant_swiglu_quant(product, weight_scale=weight_scale), product

    (scope,) = check(model, x1, x2, scale, rows, weight_scale, tolerance=0).report.scopes
    assert [[op.name for op in segment.ops] for segment in scope.segments] == [["quant_matmul", "dequant_swiglu_quant"]]
    assert not scope.unfusible


GOOD: dict[str, Any] = {"x1": numbers(4, 8), "x2": numbers(8, 5), "scale": torch.ones(5)}


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"x1": torch.ones(4, 8)}, UnsupportedError, "x1 is float32; supported: int8"),
        ({"x2": torch.ones(8, 5, dtype=torch.int32)}, UnsupportedError, "int4 in int32"),
        ({"x1": numbers(8)}, LaunchError, "2 to 6 dimensions"),
        ({"x2": numbers(7, 5)}, LaunchError, r"\(4, 8\) cannot be multiplied by x2 \(7, 5\)"),
        ({"x1": numbers(2, 4, 8), "x2": numbers(3, 8, 5)}, LaunchError, "cannot be broadcast"),
        ({"scale": torch.ones(4)}, LaunchError, r"scale is \(4\); it must be \(1,\) or \(5,\)"),
        ({"scale": torch.ones(5, dtype=torch.int64)}, UnsupportedError, "npu_trans_quant_param"),
        ({"output_dtype": torch.float32}, UnsupportedError, "output_dtype is torch.float32"),
        ({"offset": torch.ones(5), **FLOAT}, UnsupportedError, "offset is for int8 results"),
        ({"offset": torch.ones(5).half()}, UnsupportedError, "offset is float16"),
        ({"pertoken_scale": torch.ones(4)}, UnsupportedError, "pertoken_scale is for float16 and bfloat16"),
        ({"pertoken_scale": torch.ones(5), **FLOAT}, LaunchError, r"it must be \(4,\)"),
        ({"bias": torch.ones(5)}, UnsupportedError, "no int32"),
        ({"bias": torch.ones(4, dtype=torch.int32)}, LaunchError, r"bias is \(4\); it must be \(5,\)"),
        ({"bias": torch.ones(5, dtype=torch.int64)}, UnsupportedError, "bias is int64"),
        ({"group_sizes": [1, 1, 32]}, UnsupportedError, "group_sizes is not supported"),
        ({"x1": numbers(1, 131072), "x2": numbers(131072, 5)}, UnsupportedError, "may not fit an int32"),
    ],
)
def test_what_does_not_fit_is_refused_in_eager_mode_and_with_fake_tensors(
    change: dict[str, Any], kind: type[Exception], words: str
) -> None:
    given = {**GOOD, **change}
    with pytest.raises(kind, match=words):
        ops.quant_matmul(**given)
    faked = {name: value.to("meta") if isinstance(value, Tensor) else value for name, value in given.items()}
    with pytest.raises(kind, match=words):
        ops.quant_matmul(**faked)


def test_a_mistake_is_told_while_a_model_is_compiled() -> None:
    with pytest.raises(Exception, match="cannot be multiplied by x2"):
        compiled(lambda x1, x2: ops.quant_matmul(x1, x2, torch.ones(1)))(numbers(4, 8), numbers(7, 5))


def test_torch_checks_the_operator_as_it_checks_its_own() -> None:
    arguments = (numbers(4, 8), numbers(8, 5), torch.ones(5), None, None, None, torch.bfloat16, None)
    torch.library.opcheck(torch.ops.superkernel.quant_matmul.default, arguments)
