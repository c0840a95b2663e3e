"""frontend.capture.decompositions: operators that Inductor leaves whole -> the same in operators that can be fused."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten


def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Elements of `source`, in order, where the mask is true: the n-th true element takes the n-th of `source`."""
    if source.numel() == 0 or self.dtype is not source.dtype:
        return NotImplemented
    self, mask = torch.broadcast_tensors(self, mask)
    flat_mask = mask.reshape(-1)
    place = torch.where(flat_mask, flat_mask.cumsum(0) - 1, 0)
    return torch.where(flat_mask, source.reshape(-1)[place], self.reshape(-1)).view(self.shape)


def transformer_encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """What nn.TransformerEncoderLayer calls in evaluation mode; nested tensors are left to torch."""
    if src.is_nested or src.numel() == 0:
        return NotImplemented

    def first_norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second_norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def feed_forward(x: Tensor) -> Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)

    def attend(x: Tensor) -> Tensor:
        mixed = _self_attention(F.linear(x, qkv_weight, qkv_bias), num_heads, mask, mask_type)
        return F.linear(mixed, proj_weight, proj_bias)

    if norm_first:
        x = src + attend(first_norm(src))
        return x + feed_forward(second_norm(x))
    x = first_norm(src + attend(src))
    return second_norm(x + feed_forward(x))


def _self_attention(qkv: Tensor, heads: int, mask: Tensor | None, mask_type: int | None) -> Tensor:
    """Attention over queries, keys and values that lie side by side; a true element of the mask excludes a key."""
    batch, length, width = qkv.shape
    size = width // 3 // heads
    query, key, value = qkv.view(batch, length, 3, heads, size).permute(2, 0, 3, 1, 4).unbind()
    kept = None if mask is None else ~_broadcast_mask(mask.to(torch.bool), mask_type, batch, length)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=kept, scale=1 / math.sqrt(size))
    if kept is not None:  # as in torch, a query without keys has no value
        mixed = torch.where(kept.any(-1, keepdim=True), mixed, math.nan)
    return mixed.transpose(1, 2).reshape(batch, length, heads * size)


def _broadcast_mask(mask: Tensor, mask_type: int | None, batch: int, length: int) -> Tensor:
    """The mask as (batch, heads, query, key): of kind 0 for every batch, of kind 1 of padded keys."""
    if mask.dim() == 4:
        return mask
    if mask_type == 1 or mask.shape != (length, length):
        return mask.view(batch, 1, 1, length)
    return mask.view(1, 1, length, length)


def truncated_quotient(self: Tensor | int, other: Tensor | int, *, rounding_mode: str | None) -> Tensor:
    """div of integers that is rounded to 0. Inductor divides without a look at the divisor, and 0 ends the process."""
    operands = [value for value in (self, other) if isinstance(value, Tensor)]
    is_whole = not any(value.dtype.is_floating_point or value.dtype.is_complex for value in operands)
    are_flags = all(value.dtype is torch.bool for value in operands)
    divisor_is_known = not isinstance(other, Tensor) and other != 0
    if rounding_mode != "trunc" or not is_whole or are_flags or isinstance(other, float) or divisor_is_known:
        return NotImplemented
    below, rest = torch.floor_divide(self, other), torch.remainder(self, other)
    is_rounded_down = (rest != 0) & ((self < 0) != (other < 0))
    return below + is_rounded_down.to(below.dtype)


DECOMPOSITIONS: dict[Any, Any] = {
    aten.div.Tensor_mode: truncated_quotient,
    aten.div.Scalar_mode: truncated_quotient,
    aten.masked_scatter.default: masked_scatter,
    aten._transformer_encoder_layer_fwd.default: transformer_encoder_layer,
}
