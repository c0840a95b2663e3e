"""targets.cpu.kernels.gating: tensors by name in, the op that chooses the experts of every token out."""

from __future__ import annotations

from ....errors import UnsupportedError
from ....model.op import Argument, Op
from .quant_matmul import DTYPES
from .shipping import Tensor, parameters, place, shipped

_SCORES_PER_BLOCK = 256  # least work of a block
_PARAMS = parameters(
    "in:x x_dtype x_row x_column in:bias bias_dtype bias_step out:y out:expert out:norm tokens experts k k_group "
    "group_count best_two sigmoid norm_wanted scalar:factor:float64 scalar:eps:float64"
)


def moe_gating_top_k(
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
    *,
    out0: Tensor,
    out1: Tensor,
    out2: Tensor,
    cores: int,
) -> Op:
    """The arguments are those that the operator accepts."""
    tokens, experts = x.shape
    widths = ((out0, k), (out1, k), (out2, experts))
    if tokens > 1 and any(tuple(out.strides) != (width, 1) for out, width in widths):
        raise UnsupportedError("moe_gating_top_k: a result that is not contiguous")
    arguments: list[Argument] = [place(x), DTYPES[x.dtype], *x.strides]
    arguments += [place(x), 0, 0] if bias is None else [place(bias), DTYPES[bias.dtype], bias.strides[0]]
    arguments += [place(out0), place(out1), place(out2), tokens, experts, k, k_group, group_count]
    arguments += [group_select_mode, norm_type, int(out_flag), float(routed_scaling_factor), float(eps)]
    blocks = max(1, min(cores, tokens, tokens * experts // _SCORES_PER_BLOCK))
    return Op(shipped("gating.cpp", "gating", _PARAMS, blocks=blocks, op_type="MoeGatingTopK"), arguments)
