"""OP Types: what a user would call the kernels that torch, Inductor and we launch."""

from __future__ import annotations

import pytest

from superkernel.observe.op_types import operator_type, operators_in


@pytest.mark.parametrize(
    ("name", "op_type"),
    [
        ("aten::mm", "MatMul"),
        ("addmm", "MatMul"),
        ("aten::bmm", "BatchMatMul"),
        ("aten::topk", "TopK"),
        ("aten::masked_fill", "MaskedFill"),
        ("superkernel::moe_gating_top_k", "MoeGatingTopK"),
        ("fused_mean_0", "ReduceMean"),
        ("fused_mean_view_12", "ReduceMean"),
        ("fused_cat_0", "Concat"),
        ("fused_repeat", "Tile"),
        ("fused__to_copy_0", "Cast"),
        ("fused_clone_transpose_0", "Transpose"),
        ("fused_clone_t", "Transpose"),
        ("fused_clone_slice_0", "StridedSlice"),
        ("fused_clone_split_1", "Split"),
        ("fused_relu_0", "Relu"),
        ("fused_add_mul_relu_3", "fused_add_mul_relu"),  # several: none of them is the type
        ("fused__to_copy_add_mean", "fused__to_copy_add_mean"),
    ],
)
def test_types(name: str, op_type: str) -> None:
    assert operator_type(name) == op_type


def test_operators_with_underscores_are_found_whole() -> None:
    assert operators_in("_to_copy_add_split_with_sizes_mean") == ["_to_copy", "add", "split_with_sizes", "mean"]
