"""dequant_swiglu_quant: the sub-kernel gives the reference's bits; rows, groups, scales; what is not supported."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from frontend.fused import check, compiled, run  # noqa: E402
from torch import Tensor  # noqa: E402

from ops.direct import Launcher  # noqa: E402
from superkernel import ops  # noqa: E402
from superkernel.errors import LaunchError, UnsupportedError  # noqa: E402
from superkernel.targets.cpu.kernels import swiglu_quant as kernels  # noqa: E402

NAMES = ("weight_scale", "activation_scale", "bias", "quant_scale", "quant_offset", "group_index")
NOTHING: dict[str, Any] = {**dict.fromkeys(NAMES), "activate_left": False, "quant_mode": 0}


def same(launch: Launcher, x: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
    """What the reference gives; the sub-kernel gives it too, whatever the number of blocks."""
    wanted = ops.dequant_swiglu_quant(x, **given)
    for blocks in (1, 3):
        found = launch(kernels.dequant_swiglu_quant, {"x": x, **NOTHING, **given}, wanted, blocks)
        for mine, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=0, equal_nan=True)
    return wanted


def sample(rows: int = 13, half: int = 40, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    if dtype is torch.int32:
        return torch.randint(-(2**20), 2**20, (rows, 2 * half), dtype=dtype)
    return (torch.randn(rows, 2 * half) * 3).to(dtype)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_each_type_mode_and_side(launch: Launcher, dtype: torch.dtype, mode: int, left: bool) -> None:
    x, weight_scale = sample(dtype=dtype), torch.randn(13, 80) * 4
    y, scale = same(launch, x, weight_scale=weight_scale, activate_left=left, quant_mode=mode)
    one, other = (x.float() * weight_scale).chunk(2, -1)
    gate, value = (one, other) if left else (other, one)
    product = torch.nn.functional.silu(gate) * value
    if mode == 0:
        assert not bool(scale.any())
        assert (y - product.round().clamp(-128, 127)).abs().max() <= 1
    else:
        torch.testing.assert_close(scale, product.abs().amax(-1) / 127, rtol=1e-5, atol=0)
        torch.testing.assert_close(y * scale[:, None], product, rtol=0, atol=float(scale.max()) * 0.51)
    assert y.unique().numel() > 50


@pytest.mark.parametrize("mode", [0, 1])
def test_int32_sums_are_dequantised_by_columns_and_rows(launch: Launcher, mode: int) -> None:
    x = sample(dtype=torch.int32)
    given = {
        "weight_scale": torch.rand(1, 80) * 1e-5,
        "activation_scale": torch.rand(13),
        "bias": torch.randint(-9999, 9999, (80,), dtype=torch.int32),
        "quant_scale": torch.rand(40) * 9,
    }
    same(launch, x, **given, quant_mode=mode)
    x[0, 0], given["bias"][0] = 2**31 - 1, 5  # wraps, as int32 does
    same(launch, x, **given, quant_mode=mode, activate_left=True)


@pytest.mark.parametrize("shape", [(80,), (1, 80), (13, 80), (13, 1), (1, 1), (1,), ()])
def test_a_weight_scale_is_broadcast(launch: Launcher, shape: tuple[int, ...]) -> None:
    x, weight_scale = sample(), torch.randn(shape) * 4
    y, _ = same(launch, x, weight_scale=weight_scale)
    assert torch.equal(y, ops.dequant_swiglu_quant(x, weight_scale=weight_scale.expand(13, 80))[0])


@pytest.mark.parametrize("shape", [(40,), (1, 40), (13, 40), (13, 1), (1,)])
def test_quant_scale_and_offset_are_broadcast(launch: Launcher, shape: tuple[int, ...]) -> None:
    same(launch, sample(), quant_scale=torch.rand(shape) * 9, quant_offset=torch.randn(shape) * 9)
    same(launch, sample(), quant_scale=torch.rand(shape) * 9, activation_scale=torch.rand(13, 1), quant_mode=1)


def test_a_missing_quant_scale_is_one(launch: Launcher) -> None:
    x = sample() * 4
    plain = same(launch, x)
    given = same(launch, x, weight_scale=torch.ones(1), quant_scale=torch.ones(40), quant_offset=torch.zeros(1))
    assert torch.equal(plain[0], given[0])


@pytest.mark.parametrize("half", [1, 3, 2047, 2048, 2049, 5000])
def test_rows_of_any_length(launch: Launcher, half: int) -> None:
    for mode in (0, 1):
        same(launch, sample(3, half), quant_mode=mode, quant_scale=torch.rand(half))


def test_strided_tensors_are_read_in_place(launch: Launcher) -> None:
    wide, scales = sample(26, 90), torch.rand(80, 13)
    same(launch, wide[::2, :80], weight_scale=scales.t(), quant_mode=1)
    same(launch, wide[:13, ::2][:, :80], weight_scale=scales.t())


@pytest.mark.parametrize("counts", [[13], [2, 0, 3, 8], [0, 0, 13, 0], [2, 0, 3, 1], [0, 0], [4, 4]])
def test_groups_have_scales_of_their_own_and_rows_without_a_group_are_zeros(
    launch: Launcher, counts: list[int]
) -> None:
    x, groups = sample(dtype=torch.int32), len(counts)
    weight_scale, quant_scale, rows = torch.rand(groups, 80) * 1e-5, torch.rand(groups, 40), torch.rand(13)
    given = {"weight_scale": weight_scale, "quant_scale": quant_scale, "activation_scale": rows, "quant_mode": 1}
    y, scale = same(launch, x, group_index=torch.tensor(counts), **given)
    begin = 0
    for group, count in enumerate(counts):
        part = slice(begin, begin + count)
        alone = {"weight_scale": weight_scale[group], "quant_scale": quant_scale[group], "activation_scale": rows[part]}
        expected = ops.dequant_swiglu_quant(x[part], **alone, quant_mode=1)
        assert torch.equal(y[part], expected[0]) and torch.equal(scale[part], expected[1])
        begin += count
    assert not bool(y[begin:].any()) and not bool(scale[begin:].any())


@pytest.mark.parametrize("mode", [0, 1])
def test_nan_infinity_and_rows_of_zeros(launch: Launcher, mode: int) -> None:
    x = sample(8, 20, torch.float32)
    x[0] = 0
    x[1, 3], x[2, 25], x[3, 25], x[4, 3] = math.nan, math.inf, -math.inf, math.inf
    x[5], x[6] = 1e30, -1000
    y, scale = same(launch, x, quant_mode=mode)
    assert not bool(y[0].any()) and y[1, 3] == 0 and scale[0] == 0
    assert not mode or bool(scale[1].isnan())


@pytest.mark.parametrize("mode", [0, 1])
def test_no_rows(launch: Launcher, mode: int) -> None:
    y, scale = same(launch, sample(0), quant_mode=mode)
    assert y.shape == (0, 40) and scale.shape == (0,)


@pytest.mark.conformance
def test_in_a_model_it_is_one_op_and_its_results_are_used() -> None:
    def model(x: Tensor, weight_scale: Tensor, counts: Tensor) -> Tensor:
        y, scale = ops.dequant_swiglu_quant(
            x.relu(), weight_scale=weight_scale, group_index=counts, activate_left=True, quant_mode=1
        )
        return y * scale.unsqueeze(-1)

    x, weight_scale = sample(), torch.rand(3, 80)
    (scope,) = check(model, x, weight_scale, torch.tensor([2, 0, 9]), tolerance=1e-6).report.scopes
    assert len(scope.segments) == 1 and not scope.unfusible


@pytest.mark.parametrize(("counts", "words"), [([2, 20], "more rows than x has"), ([-1, 2], "negative count")])
def test_counts_that_do_not_add_up_stop_the_launch(counts: list[int], words: str) -> None:
    def model(x: Tensor, counts: Tensor) -> Any:
        return ops.dequant_swiglu_quant(x, group_index=counts, quant_mode=1)

    x = sample()
    with pytest.raises(LaunchError, match="adds up to 22, but x has 13 rows" if sum(counts) > 13 else words):
        model(x, torch.tensor(counts))
    with pytest.raises(LaunchError, match=words):
        compiled(model)(x, torch.tensor(counts))
    run(model, x, torch.tensor([6, 7]))  # and the next launch is as good as any


FLOATS = {"x": sample()}
SUMS = {"x": sample(dtype=torch.int32), "weight_scale": torch.ones(80)}
COUNTS = {**FLOATS, "group_index": torch.tensor([6, 7])}


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"x": sample().double()}, UnsupportedError, "x is float64"),
        ({"x": sample()[0]}, LaunchError, "it must have 2 dimensions"),
        ({"x": sample()[:, :79]}, LaunchError, "even number of elements"),
        ({"x": SUMS["x"]}, LaunchError, "an int32 x needs a weight_scale"),
        ({**FLOATS, "quant_mode": 2}, UnsupportedError, "quant_mode is 2"),
        ({**FLOATS, "weight_scale": torch.ones(40)}, LaunchError, r"broadcastable to \(13, 80\)"),
        ({**FLOATS, "weight_scale": torch.ones(1, 13, 80)}, LaunchError, r"broadcastable to \(13, 80\)"),
        ({**FLOATS, "weight_scale": torch.ones(80).half()}, UnsupportedError, "weight_scale is float16"),
        ({**FLOATS, "quant_scale": torch.ones(80)}, LaunchError, r"broadcastable to \(13, 40\)"),
        ({**FLOATS, "quant_offset": torch.ones(40), "quant_mode": 1}, UnsupportedError, "for quant_mode=0"),
        ({**FLOATS, "activation_scale": torch.ones(12)}, LaunchError, r"must be \(13,\) or \(13, 1\)"),
        ({**FLOATS, "bias": torch.ones(80, dtype=torch.int32)}, UnsupportedError, "bias is for an int32 x"),
        ({**SUMS, "bias": torch.ones(80)}, UnsupportedError, "bias is float32"),
        ({**SUMS, "bias": torch.ones(40, dtype=torch.int32)}, LaunchError, r"it must be \(80,\) or \(1, 80\)"),
        (COUNTS, UnsupportedError, "group_index is for quant_mode=1"),
        (
            {**COUNTS, "quant_mode": 1, "quant_offset": torch.ones(40)},
            UnsupportedError,
            "not supported with group_index",
        ),
        ({**COUNTS, "quant_mode": 1, "weight_scale": torch.ones(3, 80)}, LaunchError, r"it must be \(2, 80\)"),
        ({**COUNTS, "quant_mode": 1, "group_index": torch.ones(2)}, UnsupportedError, "group_index is float32"),
    ],
)
def test_what_does_not_fit_is_refused_in_eager_mode_and_with_fake_tensors(
    given: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        ops.dequant_swiglu_quant(**given)
    faked = {name: value.to("meta") if isinstance(value, Tensor) else value for name, value in given.items()}
    with pytest.raises(kind, match=words):
        ops.dequant_swiglu_quant(**faked)


def test_torch_checks_the_operator_as_it_checks_its_own() -> None:
    operator = torch.ops.superkernel.dequant_swiglu_quant.default
    torch.library.opcheck(operator, (sample(), torch.rand(80), None, None, None, None, None, False, 0))
    torch.library.opcheck(operator, (sample(), None, None, None, None, None, torch.tensor([2, 0, 3]), True, 1))
