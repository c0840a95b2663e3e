"""Functions whose kernels are hard to share among cores: partial results, regions inside loops, every dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from conformance.checks import Case
from torch import Tensor

Maker = Callable[[torch.Generator], Tensor]


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Maker:
    return lambda source: torch.randn(shape, generator=source).to(dtype)


def integers(*shape: int, dtype: torch.dtype = torch.int64, below: int = 50) -> Maker:
    return lambda source: torch.randint(0, below, shape, generator=source).to(dtype)


def _case(name: str, function: Callable[..., Any], *makers: Maker) -> Case:
    def arguments(seed: int) -> tuple[Sequence[Any], dict[str, Any]]:
        source = torch.Generator().manual_seed(seed)
        return [make(source) for make in makers], {}

    return Case(name, function, arguments)


def _reductions(x: Tensor) -> Any:
    return x.sum(), x.mean(1), x.var(), x.std(0), x.argmax(1), x.amax(), torch.softmax(x, 1)


def _whole(x: Tensor) -> Any:
    return x.sum(), x.sum(0), x.prod(1), x.amax(), x.argmin(1)


CASES = (
    # a few rows of many columns: the region stands inside the loop over rows
    _case("sum of long rows", lambda x: x.sum(1), floats(2, 100_000)),
    _case("variance of long rows", lambda x: torch.var_mean(x, 1), floats(3, 40_000)),
    _case("largest of long rows", lambda x: (x.argmax(1), x.max(1)), floats(2, 50_000)),
    _case("two loops around", lambda x: x.amax(2) * 2, floats(2, 3, 50_000)),
    _case("layer norm of long rows", lambda x: torch.nn.functional.layer_norm(x, (30_000,)), floats(2, 30_000)),
    _case("softmax of long rows", lambda x: torch.softmax(x, 1), floats(2, 30_000)),
    _case("long rows in place", lambda x: x.div_(x.norm(dim=1, keepdim=True)), floats(2, 30_000)),
    _case("sum of long columns", lambda x: x.sum(0) + 1, floats(50_000, 7)),
    _case("variance of long columns", lambda x: x.var(0), floats(50_000, 3)),
    # partial results of every kind
    _case("full variance", lambda x: (x * x).var(), floats(300, 100)),
    _case("full argmax", lambda x: (x.argmax(), x.argmin(), x.max(), x.min()), floats(300, 100)),
    _case("product and logic", lambda x: (x.prod(), (x > 0).any(), (x > 5).all(), x.logsumexp(0)), floats(300)),
    _case("bfloat16", _reductions, floats(40, 300, dtype=torch.bfloat16)),
    _case("float16", _reductions, floats(40, 300, dtype=torch.float16)),
    _case("float64", _reductions, floats(40, 300, dtype=torch.float64)),
    _case("int64", _whole, integers(40, 20, below=3)),
    _case("int32", _whole, integers(40, 20, dtype=torch.int32, below=3)),
    _case("uint8", lambda x: (x.sum(), x.amax(), (x + 1).amin(1)), integers(40, 20, dtype=torch.uint8)),
    _case("bool", lambda x: (x.any(), x.all(1), x.sum(), x.any(0)), integers(40, 300, dtype=torch.bool)),
    _case("nothing", lambda x: (x.sum(), x.sum(0), x.sum(1), x.mean()), floats(0, 5)),
    # sums whose order decides the last bit
    _case("scattered sums", lambda x, i: torch.zeros(50).index_add(0, i, x), floats(2000), integers(2000)),
    _case("several in one", lambda x: (x - x.mean()) / (x.std() + x.amax(0, True)) * x.sum(1, True), floats(64, 65)),
)  # fmt: skip
