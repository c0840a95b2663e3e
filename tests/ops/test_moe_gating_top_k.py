"""moe_gating_top_k: the sub-kernel chooses what the reference chooses; groups, bias, ties; what is not supported."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from frontend.fused import check  # noqa: E402
from torch import Tensor  # noqa: E402

from ops.direct import Launcher  # noqa: E402
from superkernel import ops  # noqa: E402
from superkernel.errors import LaunchError, UnsupportedError  # noqa: E402
from superkernel.targets.cpu.kernels import gating as kernels  # noqa: E402

DEFAULTS: dict[str, Any] = {
    "bias": None,
    "k_group": 1,
    "group_count": 1,
    "group_select_mode": 0,
    "renorm": 0,
    "norm_type": 0,
    "out_flag": False,
    "routed_scaling_factor": 1.0,
    "eps": 1e-20,
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def same(launch: Launcher, x: Tensor, k: int, **given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What the reference gives; the sub-kernel gives it too, whatever the number of blocks."""
    wanted = ops.moe_gating_top_k(x, k, **given)
    for blocks in (1, 3):
        found = launch(kernels.moe_gating_top_k, {"x": x, "k": k, **DEFAULTS, **given}, wanted, blocks)
        assert torch.equal(found[1], wanted[1])
        for mine, other in ((found[0], wanted[0]), (found[2], wanted[2])):
            torch.testing.assert_close(mine, other, rtol=0, atol=0, equal_nan=True)
    return wanted


@settings(max_examples=min(100, settings().max_examples))
@given(
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    tokens=st.sampled_from([1, 2, 5, 33]),
    groups=st.sampled_from([1, 2, 3, 8]),
    each=st.sampled_from([2, 3, 7, 8, 32]),
    norm_type=st.sampled_from([0, 1]),
    mode=st.sampled_from([0, 1]),
)
def test_any_sizes_and_modes(
    launch: Launcher,
    data: st.DataObject,
    dtype: torch.dtype,
    tokens: int,
    groups: int,
    each: int,
    norm_type: int,
    mode: int,
) -> None:
    torch.manual_seed(tokens + 50 * groups + 700 * each)
    experts = groups * each
    k_group = data.draw(st.integers(1, groups), "k_group")
    k = data.draw(st.integers(1, k_group * each), "k")
    x = (torch.randn(tokens, experts) * data.draw(st.sampled_from([0, 1, 30]), "spread")).to(dtype)
    bias = torch.randn(experts).to(dtype) if data.draw(st.booleans(), "with a bias") else None
    given = {"k_group": k_group, "group_count": groups, "group_select_mode": mode, "norm_type": norm_type, "bias": bias}
    factor = data.draw(st.sampled_from([1.0, 2.5]), "routed_scaling_factor")
    weights, chosen, norm = same(launch, x, k, **given, out_flag=True, routed_scaling_factor=factor)
    assert weights.dtype is dtype and chosen.dtype is torch.int32 and norm.dtype is torch.float32
    assert all(len(set(row)) == k for row in chosen.tolist())
    assert all(len({expert // each for expert in row}) <= k_group for row in chosen.tolist())
    sums = norm.gather(-1, chosen.long()).sum(-1)
    total = weights.double().sum(-1)[sums > 1e-10]  # beside less than that, eps counts
    torch.testing.assert_close(total, torch.full_like(total, factor), rtol=0.02, atol=0.0)
    expected = torch.softmax(x.float(), -1) if norm_type == 0 else torch.sigmoid(x.float())
    torch.testing.assert_close(norm, expected, rtol=1e-5, atol=1e-7)


def test_the_choice_step_by_step(launch: Launcher) -> None:
    # groups (0 1 2) (3 4 5) (6 7 8); with the bias, the best is in the last, the best two are in the second
    x = torch.tensor([[0.0, 0.0, 0.0, 2.0, 1.9, 0.0, 1.0, 0.0, 0.0]])
    bias = torch.tensor([0.0, 0, 0, 0, 0, 0, 0.3, 0, 0])
    given = {"bias": bias, "k_group": 1, "group_count": 3, "norm_type": 1}
    assert same(launch, x, 2, **given, group_select_mode=0)[1].tolist() == [[6, 7]]
    weights, chosen, norm = same(launch, x, 2, **given, group_select_mode=1, routed_scaling_factor=2.0)
    assert chosen.tolist() == [[3, 4]] and not bool(norm.any())
    scores = torch.sigmoid(x[0, 3:5])
    torch.testing.assert_close(weights[0], 2 * scores / scores.sum())


def test_the_bias_chooses_but_does_not_weigh(launch: Launcher) -> None:
    x, bias = torch.tensor([[3.0, 2.0, 1.0, 0.0]]), torch.tensor([0.0, 0.0, 0.0, 9.0])
    weights, chosen, _ = same(launch, x, 2, bias=bias)
    assert chosen.tolist() == [[3, 0]]
    torch.testing.assert_close(weights[0], torch.softmax(x[0, [3, 0]], 0))


def test_of_equal_experts_the_first_is_chosen(launch: Launcher) -> None:
    for norm_type in (0, 1):
        x = torch.full((2, 300), 200.0)
        assert same(launch, x, 5, norm_type=norm_type)[1].tolist() == [[0, 1, 2, 3, 4]] * 2
        assert same(launch, x, 5, norm_type=norm_type, group_count=10, k_group=2)[1][0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("norm_type", [0, 1])
@pytest.mark.parametrize("mode", [0, 1])
def test_nan_and_infinity(launch: Launcher, norm_type: int, mode: int) -> None:
    x = torch.randn(6, 24)
    x[0, 3], x[1, 3], x[2, 3], x[4, 20] = math.nan, math.inf, -math.inf, -math.inf
    x[3] = -math.inf
    for groups, chosen in ((1, 1), (4, 2)):
        given = {"norm_type": norm_type, "group_select_mode": mode, "group_count": groups, "k_group": chosen}
        found = same(launch, x, 6, **given, out_flag=True)[1]
        assert norm_type == 0 or found[0, 0] == 3  # NaN comes before all
    bias = torch.zeros(24)
    bias[5], bias[6:12] = math.nan, -math.inf
    same(launch, x, 20, bias=bias, norm_type=norm_type, group_select_mode=mode, group_count=4, k_group=4)


def test_no_tokens_strides_and_many_experts(launch: Launcher) -> None:
    weights, chosen, norm = same(launch, torch.randn(0, 16), 4, out_flag=True)
    assert (weights.shape, chosen.shape, norm.shape) == ((0, 4), (0, 4), (0, 16))
    same(launch, torch.randn(2048, 3).t(), 2048, out_flag=True)
    same(launch, torch.randn(5, 64)[:, ::2], 7, bias=torch.randn(96)[::3])


def test_in_a_model_it_is_one_op() -> None:
    def model(x: Tensor, gate: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen, _ = ops.moe_gating_top_k(
            x @ gate, 8, bias=bias, k_group=4, group_count=8, group_select_mode=1, norm_type=1
        )
        return weights * 2, chosen + 1

    (scope,) = check(model, torch.randn(6, 32), torch.randn(32, 256), torch.randn(256)).report.scopes
    assert len(scope.segments) == 1 and not scope.unfusible


X = torch.randn(4, 12)


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"x": X.double()}, UnsupportedError, "x is float64"),
        ({"x": X[0]}, LaunchError, "it must have 2 dimensions"),
        ({"x": torch.randn(1, 2049)}, UnsupportedError, "at most 2048"),
        ({"k": 13}, LaunchError, "k=13 is not between 1 and 12"),
        ({"k": 0}, LaunchError, "k=0 is not between 1 and 12"),
        ({"k": 5, "group_count": 3}, LaunchError, "k=5 is not between 1 and 4"),
        ({"bias": torch.ones(12).half()}, UnsupportedError, "bias is float16; it must be float32"),
        ({"bias": torch.ones(11)}, LaunchError, r"bias is \(11\); it must be \(12,\)"),
        ({"group_count": 5}, LaunchError, "cannot be divided into group_count=5"),
        ({"group_count": 0}, LaunchError, "cannot be divided into group_count=0"),
        ({"group_count": 12, "group_select_mode": 1}, LaunchError, "groups of 1 have no best 2"),
        ({"group_count": 3, "k_group": 4}, LaunchError, "k_group=4 is not between 1 and group_count=3"),
        ({"k_group": 0}, LaunchError, "k_group=0"),
        ({"group_select_mode": 2}, UnsupportedError, "group_select_mode is 2"),
        ({"renorm": 1}, UnsupportedError, "renorm is 1"),
        ({"norm_type": 2}, UnsupportedError, "norm_type is 2"),
        ({"eps": math.nan}, LaunchError, "must be finite"),
    ],
)
def test_what_does_not_fit_is_refused_in_eager_mode_and_with_fake_tensors(
    given: dict[str, Any], kind: type[Exception], words: str
) -> None:
    given = {"x": X, "k": 2, **given}
    with pytest.raises(kind, match=words):
        ops.moe_gating_top_k(**given)
    faked = {name: value.to("meta") if isinstance(value, Tensor) else value for name, value in given.items()}
    with pytest.raises(kind, match=words):
        ops.moe_gating_top_k(**faked)


def test_torch_checks_the_operator_as_it_checks_its_own() -> None:
    operator = torch.ops.superkernel.moe_gating_top_k.default
    torch.library.opcheck(operator, (torch.randn(3, 16), 4, torch.randn(16), 2, 4, 1, 0, 1, True, 2.5, 1e-20))
