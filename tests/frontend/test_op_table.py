"""Operators of the table of CANN's op types: each is listed under its type, and emulated with the cpu target's bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import superkernel as sk
from superkernel.targets.ascend.operators.op_types import BY_OPERATOR

aten = torch.ops.aten
ASCEND = {"target": "ascend"}
UNARY = (
    *("abs", "neg", "exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan", "sinh", "cosh"),
    *(
        "asin",
        "acos",
        "atan",
        "erf",
        "erfc",
        "floor",
        "ceil",
        "round",
        "trunc",
        "sign",
        "isnan",
        "isinf",
        "relu",
        "silu",
    ),
    *("sigmoid", "tanh", "gelu", "hardswish", "softplus", "leaky_relu", "logical_not", "clone"),
)
BINARY = (
    *("add", "sub", "mul", "div", "remainder", "pow", "eq", "ne", "lt", "le", "gt", "ge"),
    *("maximum", "minimum", "atan2", "logical_and", "logical_or"),
)
X = torch.linspace(0.1, 0.9, 96).reshape(6, 16)
Y = torch.linspace(0.3, 0.7, 96).reshape(16, 6).t().contiguous()
WHOLE = torch.arange(96, dtype=torch.int32).reshape(6, 16)
ROWS = torch.tensor([4, 0, 2])


def named(operator: str, *arguments: Any, **keywords: Any) -> Callable[..., Any]:
    """A function that calls one operator."""
    packet = getattr(aten, operator)
    return lambda *tensors: packet(*tensors, *arguments, **keywords)


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    **{f"aten::{name}": (named(name), (X,)) for name in UNARY},
    **{f"aten::{name}": (named(name), (X, Y)) for name in BINARY},
    **{f"aten::bitwise_{name}": (named(f"bitwise_{name}"), (WHOLE, WHOLE + 3)) for name in ("and", "or", "xor")},
    **{f"aten::{name}": (named(name, [1], True), (X,)) for name in ("sum", "mean", "amax", "amin")},
    **{
        f"aten::{name}": (named(name, 1), (X,))
        for name in ("prod", "any", "all", "argmax", "argmin", "cumsum", "cumprod")
    },
    "aten::bitwise_not": (named("bitwise_not"), (WHOLE,)),
    "aten::mm": (named("mm"), (X, Y.t())),
    "aten::addmm": (named("addmm"), (torch.ones(6), X, Y.t())),
    "aten::bmm": (named("bmm"), (X.view(2, 3, 16), Y.view(2, 3, 16).transpose(1, 2))),
    "aten::baddbmm": (named("baddbmm"), (torch.ones(2, 3, 3), X.view(2, 3, 16), Y.view(2, 3, 16).transpose(1, 2))),
    "aten::_softmax": (named("_softmax", -1, False), (X,)),
    "aten::_log_softmax": (named("_log_softmax", -1, False), (X,)),
    "aten::native_layer_norm": (named("native_layer_norm", [16], None, None, 1e-5), (X,)),
    "aten::addcmul": (named("addcmul"), (X, Y, X)),
    "aten::addcdiv": (named("addcdiv"), (X, Y, X)),
    "aten::clamp": (named("clamp", 0.2, 0.5), (X,)),
    "aten::where": (lambda x, y: torch.where(x > y, x, y), (X, Y)),
    "aten::masked_fill": (lambda x, y: x.masked_fill(x > y, 2.0), (X, Y)),
    "aten::sort": (named("sort", 1), (X * Y - Y,)),
    "aten::topk": (named("topk", 3), (X * Y - Y,)),
    "aten::_to_copy": (lambda x: x.to(torch.bfloat16), (X,)),
    "aten::cat": (lambda x, y: torch.cat([x, y, x], 1), (X, Y)),
    "aten::repeat": (named("repeat", [2, 3]), (X,)),
    "aten::index_select": (lambda x, rows: x.index_select(0, rows), (X, ROWS)),
    "aten::embedding": (named("embedding"), (X, ROWS)),
    "aten::gather": (lambda x, rows: x.gather(0, rows.view(3, 1).expand(3, 16)), (X, ROWS)),
    "aten::index": (lambda x, rows: x[rows], (X, ROWS)),
    "aten::index_put": (lambda x, rows: x.index_put((rows,), torch.zeros(16)), (X, ROWS)),
    "aten::constant_pad_nd": (named("constant_pad_nd", [1, 2], 3.0), (X,)),
    "aten::flip": (named("flip", [1]), (X,)),
    "aten::roll": (named("roll", [3], [1]), (X,)),
    "aten::triu": (named("triu"), (X,)),
    "aten::tril": (named("tril"), (X,)),
    "aten::arange": (lambda x: x + torch.arange(16), (X,)),
    "aten::full": (lambda x: x + torch.full((16,), 2.0), (X,)),
    "aten::zeros_like": (named("zeros_like"), (X,)),
    "aten::ones_like": (named("ones_like"), (X,)),
}
# decomposed by torch itself before the table is asked, or not an operator of inference on the CPU
ELSEWHERE = {
    "aten::convolution", "aten::_grouped_mm", "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_fused_rms_norm", "aten::native_group_norm", "aten::scatter", "aten::scalar_tensor", "aten::copy_",
    "aten::lift_fresh_copy",
}  # fmt: skip


def flat(values: Any) -> list[Tensor]:
    return list(values) if isinstance(values, list | tuple) else [values]


def test_every_aten_operator_of_the_table_has_a_case() -> None:
    operators = {name for name in BY_OPERATOR if name.startswith("aten::")}
    assert operators == CASES.keys() | ELSEWHERE


@pytest.mark.conformance
@pytest.mark.parametrize("operator", CASES)
def test_an_operator_is_listed_and_emulated(operator: str) -> None:
    function, given = CASES[operator]
    (segment,) = sk.explain(function, *given, options=ASCEND).scopes[0].segments
    assert BY_OPERATOR[operator][0].name in [op.listed.op_type for op in segment.ops if op.listed is not None]
    with torch.no_grad():
        expected = torch.compile(function, backend="superkernel", options={"profit_gate": 0})(*given)
        torch._dynamo.reset()
        found = torch.compile(function, backend="superkernel", options=ASCEND)(*given)
    for one, other in zip(flat(found), flat(expected), strict=True):
        assert one.dtype == other.dtype and one.stride() == other.stride()
        assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
