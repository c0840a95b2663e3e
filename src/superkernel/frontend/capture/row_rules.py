"""frontend.capture.row_rules: an operator -> the rule that says where the rows of its results are.

Element-wise operators, reductions, scans and products are here; views and indices are in row_view_rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from .row_layouts import OpCall, RowLayout, RowsMix, Rule
from .row_view_rules import VIEW_RULES


def find_rule(target: Any) -> Rule | None:
    """The rule of an operator; None: there is none, and whether it keeps rows apart is not known."""
    packet = getattr(target, "overloadpacket", None)
    if packet is None:
        return None
    name = str(packet)
    if name.startswith("aten._scaled_dot_product") or name == "aten.scaled_dot_product_attention":
        return _attention_with_mask
    rule = _RULES.get(name)
    return _elementwise if rule is None and torch.Tag.pointwise in target.tags else rule


def _elementwise(call: OpCall) -> RowLayout:
    """Operands are broadcast: their dimensions are aligned at the last."""
    count = len(call.output_shape)
    aligned = [layout.computed(layout.dim + count - len(call.shape(node))) for node, layout in call.with_rows]
    if any(not layout.same_rows(aligned[0]) for layout in aligned):
        raise RowsMix("it combines tensors that have their rows in different places")
    return aligned[0]


def _copied(call: OpCall) -> RowLayout:
    """The same elements, perhaps of another type or in other memory."""
    ((_, layout),) = call.with_rows
    keeps_numbers = call.node.meta["val"].dtype in (torch.int32, torch.int64)
    return layout if keeps_numbers else layout.computed()


def _reduced(call: OpCall) -> RowLayout | None:
    layout = call.only("self")
    count = len(call.shape(call.arguments["self"]))
    given = call.arguments.get("dim")
    chosen = given if isinstance(given, list | tuple) else [] if given is None else [given]
    dimensions = {call.wrapped(dimension, count) for dimension in chosen} or set(range(count))
    if layout.dim in dimensions:
        if str(call.node.target.overloadpacket) in _UNCHANGED_BY_COPIES and _is_asserted(call.node):
            return None
        raise RowsMix("it reduces over the rows")
    if call.arguments.get("keepdim"):
        return layout.computed()
    return layout.computed(layout.dim - sum(dimension < layout.dim for dimension in dimensions))


def _is_asserted(node: Node) -> bool:
    """Whether the value is for assertions alone, as in F.one_hot: padding, which are copies of rows, changes none."""
    return bool(node.users) and all(user.target in _ASSERTIONS or _is_asserted(user) for user in node.users)


def _along(call: OpCall) -> RowLayout:
    """Results have the shape of the argument and are computed along one dimension: softmax, cumsum, sort."""
    layout = call.only("self")
    if call.dimension("dim") == layout.dim:
        raise RowsMix("it runs along the rows")
    return layout.computed()


def _searched(call: OpCall) -> RowLayout:
    """Values are looked up in the same row of the sorted tensor, or in a sorted tensor without rows."""
    layout = call.only("self", "sorted_sequence", "sorter")
    if (rows_of_sorted := call.of("sorted_sequence") or call.of("sorter")) is None:
        return layout.computed()
    if rows_of_sorted.dim == len(call.shape(call.arguments["sorted_sequence"])) - 1:
        raise RowsMix("it searches in the rows")
    return layout.computed()


def _flipped(call: OpCall) -> RowLayout:
    ((tensor, layout),) = call.with_rows
    count = len(call.shape(tensor))
    if any(call.wrapped(dimension, count) == layout.dim for dimension in call.arguments["dims"]):
        raise RowsMix("it reorders the rows")
    return layout.computed()


def _trailing(mixed: int, call: OpCall) -> RowLayout:
    """The last `mixed` dimensions are combined, those before them are not: pooling, interpolation."""
    (first, *_) = call.tensors
    layout = call.only(*(name for name, value in call.arguments.items() if value is first))
    if layout.dim >= len(call.shape(first)) - mixed:
        raise RowsMix("it combines elements along the rows")
    return layout.computed()


def _per_sample(call: OpCall) -> RowLayout:
    """Dimension 0 counts samples, which are computed apart; weights are shared: convolution, normalisation."""
    name = "input" if "input" in call.arguments else "self"
    layout = call.only(name)
    if layout.dim != 0:
        raise RowsMix("it combines elements along the rows")
    return layout.computed()


def _batch_norm(call: OpCall) -> Any:
    """With running statistics; its two further results are empty."""
    return _per_sample(call), None, None


def _checked(call: OpCall) -> None:
    """An assertion about sizes and types."""


def _layer_norm(call: OpCall) -> RowLayout:
    layout = call.only("input")
    if layout.dim >= len(call.shape(call.arguments["input"])) - len(call.arguments["normalized_shape"]):
        raise RowsMix("it normalises over the rows")
    return layout.computed()


def _padded(call: OpCall) -> RowLayout:
    layout = call.only("self")
    count = len(call.shape(call.arguments["self"]))
    if layout.dim >= count - len(call.arguments["pad"]) // 2:
        raise RowsMix("it pads the rows")
    return layout.computed()


def _product(left: str, right: str, call: OpCall) -> RowLayout:
    """left @ right for matrices, vectors, or stacks of matrices of equal size, plus an addend."""
    a, b = call.of(left), call.of(right)
    ranks = [len(call.shape(call.arguments[name])) for name in (left, right)]
    stacked = ranks == [3, 3]
    result: RowLayout | None = None
    if stacked and a is not None and b is not None:
        if a.dim != 0 or not a.same_rows(b):
            raise RowsMix("it multiplies rows with each other")
        result = a
    elif a is not None and b is not None:
        raise RowsMix("it multiplies rows with each other")
    elif a is not None:
        if a.dim == ranks[0] - 1:
            raise RowsMix("it sums over the rows")
        result = a
    elif b is not None:
        if b.dim == max(ranks[1] - 2, 0):
            raise RowsMix("it sums over the rows")
        result = b.at(len(call.output_shape) - 1) if b.dim == ranks[1] - 1 else b
    addend = call.arguments.get("self") if left != "self" else None
    if (added := call.layout(addend)) is not None:
        added = added.at(added.dim + len(call.output_shape) - len(call.shape(addend)))
        if result is not None and not added.same_rows(result):
            raise RowsMix("it adds a tensor that has its rows in another place")
        result = result or added
    assert result is not None
    return result.computed()


def _attention(call: OpCall) -> Any:
    """Queries, keys and values of one sample, or of one head, are combined with each other only."""
    layout = call.only("query", "key", "value")
    if layout.dim > 1 or any(call.of(name) is None for name in ("query", "key", "value")):
        raise RowsMix("it attends from each row to all rows")
    return layout.computed()


def _attention_with_mask(call: OpCall) -> Any:
    mask = call.arguments.get("attn_mask", call.arguments.get("attn_bias"))
    rows_of_mask = call.layout(mask)
    if rows_of_mask is None:
        return _attention(call)
    layouts = {node: layout for node, layout in call.layouts.items() if node is not mask}
    layout = _attention(OpCall(call.node, call.rows, layouts, call.arguments))
    rank = len(call.shape(call.arguments["query"]))
    if not rows_of_mask.at(rows_of_mask.dim + rank - len(call.shape(mask))).same_rows(layout):
        raise RowsMix("its mask has the rows in another place")
    return layout


def _embedding(call: OpCall) -> RowLayout:
    return call.only("indices").computed()


def _written(call: OpCall) -> None:
    """The write of an input: copy_(input, value)."""
    if call.of("self") is not None:
        raise RowsMix("it writes into a tensor that is padded: only the padded copy would change")
    raise RowsMix("it writes rows into a tensor that has none")


_REDUCTIONS = (
    *("sum", "mean", "amax", "amin", "any", "all", "prod", "argmax", "argmin", "var", "std", "var_mean", "logsumexp"),
    *("norm", "linalg_vector_norm", "aminmax", "max", "min", "median", "nansum", "count_nonzero"),
)
_UNCHANGED_BY_COPIES = ("aten.any", "aten.all", "aten.amax", "aten.amin")
_ASSERTIONS = (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)
_ALONG = (
    *("_softmax", "_log_softmax", "softmax", "log_softmax", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"),
    *("sort", "topk", "glu"),
)
_COPIES = ("clone", "_to_copy", "alias", "detach", "contiguous", "lift_fresh_copy", "to")
_LIKE = ("zeros_like", "ones_like", "full_like", "empty_like")
_PER_SAMPLE = ("convolution", "native_group_norm", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
_TRAILING = {
    **{f"{kind}_pool{rank}d": rank for kind in ("avg", "adaptive_avg", "_adaptive_avg") for rank in (1, 2, 3)},
    **{f"{kind}_pool{rank}d_with_indices": rank for kind in ("max",) for rank in (2, 3)},
    **{f"adaptive_max_pool{rank}d": rank for rank in (2, 3)},
    **{f"upsample_{kind}1d": 1 for kind in ("nearest", "linear")},
    **{f"upsample_{kind}2d": 2 for kind in ("nearest", "bilinear", "bicubic")},
    **{f"reflection_pad{rank}d": rank for rank in (1, 2, 3)},
    **{f"replication_pad{rank}d": rank for rank in (1, 2, 3)},
}
_RULES: Mapping[str, Rule] = {
    **{f"aten.{name}": _reduced for name in _REDUCTIONS},
    **{f"aten.{name}": _along for name in _ALONG},
    **{f"aten.{name}": _copied for name in _COPIES},
    **{f"aten.{name}": _elementwise for name in _LIKE},
    **{f"aten.{name}": _per_sample for name in _PER_SAMPLE},
    **{f"aten.{name}": partial(_trailing, mixed) for name, mixed in _TRAILING.items()},
    "aten._native_batch_norm_legit_no_training": _batch_norm,
    "aten._assert_tensor_metadata": _checked,
    "aten.copy": _elementwise,
    "prims._low_memory_max_pool_with_offsets": partial(_trailing, 2),
    "prims._low_memory_max_pool_offsets_to_indices": partial(_trailing, 2),
    "prims.convert_element_type": _copied,
    "aten.bucketize": lambda call: call.only("self").computed(),
    "aten.searchsorted": _searched,
    "aten.flip": _flipped,
    "prims.rev": _flipped,
    "aten.native_layer_norm": _layer_norm,
    "aten.constant_pad_nd": _padded,
    "aten.mm": partial(_product, "self", "mat2"),
    "aten.bmm": partial(_product, "self", "mat2"),
    "aten.mv": partial(_product, "self", "vec"),
    "aten.addmm": partial(_product, "mat1", "mat2"),
    "aten.addmv": partial(_product, "mat", "vec"),
    "aten.baddbmm": partial(_product, "batch1", "batch2"),
    "aten._weight_int8pack_mm": lambda call: call.only("self").computed(),
    "aten.embedding": _embedding,
    "aten.copy_": _written,
    **VIEW_RULES,
}
