"""ops.gating: moe_gating_top_k: the scores of the experts for every token in, the chosen experts and weights out."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .argument_checks import FLOATS, ArgumentChecks, dtype_name, shape_text
from .custom_op import define_operator

_SCHEMA = (
    "(Tensor x, int k, Tensor? bias, int k_group, int group_count, int group_select_mode, int renorm, int norm_type, "
    "bool out_flag, float routed_scaling_factor, float eps) -> (Tensor, Tensor, Tensor)"
)
MAX_EXPERTS = 2048
_checks = ArgumentChecks("moe_gating_top_k")


def moe_gating_top_k(
    x: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor]:
    """The k best of the experts of every token (tokens, experts): their weights, their numbers, and all norms.

    The norm is softmax (norm_type 0) or sigmoid (1). Experts are chosen by norm + bias, in the k_group best groups: by
    their best expert (group_select_mode 0) or by their best two (1). Weights are norms, made to add up to
    routed_scaling_factor. Of equal experts the first is chosen. Without out_flag the norms are zeros.
    """
    result: tuple[Tensor, Tensor, Tensor] = torch.ops.superkernel.moe_gating_top_k(
        x, k, bias, k_group, group_count, group_select_mode, renorm, norm_type, out_flag, routed_scaling_factor, eps
    )
    return result


def _eager(x: Tensor, k: int, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    _check(x, k, *arguments)
    bias, k_group, group_count, group_select_mode, _, norm_type, out_flag, routed_scaling_factor, eps = arguments
    wide = x.double()
    norm = (wide.softmax(-1) if norm_type == 0 else 1 / (1 + torch.exp(-wide))).float()
    choice = norm if bias is None else norm + bias.float()
    if group_count > 1:
        groups = choice.unflatten(-1, (group_count, -1))
        best = _best_first(groups)[0]
        score = best[..., 0] if group_select_mode == 0 else best[..., 0] + best[..., 1]
        chosen = _best_first(score)[1][:, :k_group]
        left_out = torch.ones_like(score, dtype=torch.bool).scatter(-1, chosen, False)
        choice = groups.masked_fill(left_out.unsqueeze(-1), -math.inf).flatten(-2)
    experts = _best_first(choice)[1][:, :k]
    weights = norm.gather(-1, experts).double()
    weights = weights / (weights.sum(-1, keepdim=True) + eps) * routed_scaling_factor
    return weights.float().to(x.dtype), experts.to(torch.int32), norm if out_flag else torch.zeros_like(norm)


def _fake(x: Tensor, k: int, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    _check(x, k, *arguments)
    tokens, experts = x.shape
    norm = x.new_empty((tokens, experts), dtype=torch.float32)
    return x.new_empty((tokens, k)), x.new_empty((tokens, k), dtype=torch.int32), norm


def _best_first(values: Tensor) -> tuple[Tensor, Tensor]:
    """Sorts from the largest to the smallest, NaN first; equal values keep their order."""
    ordered: tuple[Tensor, Tensor] = torch.sort(values, dim=-1, descending=True, stable=True)
    return ordered


def _check(
    x: Tensor,
    k: int,
    bias: Tensor | None,
    k_group: int,
    group_count: int,
    group_select_mode: int,
    renorm: int,
    norm_type: int,
    out_flag: bool,
    routed_scaling_factor: float,
    eps: float,
) -> None:
    _checks.same_device(x=x, bias=bias)
    _checks.dtype("x", x, FLOATS)
    _checks.dimensions("x", x, 2, 2)
    experts = x.shape[1]
    _checks.supported(experts <= MAX_EXPERTS, f"x has {experts} experts; at most {MAX_EXPERTS} are supported")
    if bias is not None:
        wanted = f"it must be {dtype_name(x.dtype)}, as x is"
        _checks.supported(bias.dtype is x.dtype, f"bias is {dtype_name(bias.dtype)}; {wanted}")
        _checks.fits(tuple(bias.shape) == (experts,), f"bias is {shape_text(bias)}; it must be ({experts},)")
    _checks.supported(renorm == 0, f"renorm is {renorm}; supported: 0 (the norm first, then the choice)")
    _checks.supported(norm_type in (0, 1), f"norm_type is {norm_type}; supported: 0 (softmax), 1 (sigmoid)")
    known = group_select_mode in (0, 1)
    _checks.supported(known, f"group_select_mode is {group_select_mode}; supported: 0 (best), 1 (sum of the best two)")
    divides = group_count >= 1 and experts % group_count == 0
    _checks.fits(divides, f"{experts} experts cannot be divided into group_count={group_count} groups")
    each = experts // group_count
    two = group_count == 1 or each > group_select_mode
    _checks.fits(two, f"groups of {each} have no best {group_select_mode + 1} to be chosen by")
    _checks.fits(1 <= k_group <= group_count, f"k_group={k_group} is not between 1 and group_count={group_count}")
    most = each * k_group
    _checks.fits(1 <= k <= most, f"k={k} is not between 1 and {most}, the experts of k_group groups")
    finite = math.isfinite(routed_scaling_factor) and math.isfinite(eps)
    _checks.fits(finite, f"routed_scaling_factor={routed_scaling_factor} and eps={eps} must be finite")


define_operator("moe_gating_top_k", _SCHEMA, _eager, _fake)
