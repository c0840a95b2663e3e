"""Which functions keep rows apart: the proof accepts those, computes where the rows are, and refuses the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from superkernel.errors import UnsupportedError
from superkernel.frontend.capture.row_layouts import RowLayout
from superkernel.frontend.capture.row_proof import prove_rows_independent
from superkernel.frontend.capture.row_rules import find_rule
from superkernel.frontend.lowering.inductor import inductor_decompositions

ROWS = 1009
put = torch.ops.aten.index_put
N, BUCKET = 3, 5
TABLE = torch.randn(11, 6)
BIG = torch.randn(2000, 6)
WEIGHT = torch.randn(6, 4)
SORTED = torch.linspace(-1, 1, 7)


def proven(function: Callable[..., Any], inputs: Sequence[Tensor], dims: Sequence[int | None]) -> list[Any]:
    """The layouts of the outputs; `dims`: the dimension of each input that counts rows."""
    fake_mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    rows: Any = fake_mode.from_tensor(torch.empty(ROWS), symbolic_context=context, source=ConstantSource("rows")).size(
        0
    )
    fakes = []
    for value, dim in zip(inputs, dims, strict=True):
        sizes = [rows if place == dim else size for place, size in enumerate(value.shape)]
        with fake_mode:
            fakes.append(torch.empty(sizes, dtype=value.dtype))

    def listed(*args: Tensor) -> list[Tensor]:
        results = function(*args)
        return list(results) if isinstance(results, tuple) else [results]

    with fake_mode, enable_python_dispatcher():
        graph = make_fx(listed, inductor_decompositions(()), _allow_non_fake_inputs=True)(*fakes)
    with_rows = {index: dim for index, dim in enumerate(dims) if dim is not None}
    largest = {rows.node.expr: BUCKET}
    what = "argument 'x', dimension 0"
    return prove_rows_independent(graph, rows.node.expr, with_rows, find_rule, largest, what).outputs


def padded(value: Tensor, dim: int | None) -> Tensor:
    return value if dim is None else value.index_select(dim, torch.arange(BUCKET).clamp(max=N - 1))


def cut(value: Tensor, layout: RowLayout | None) -> Tensor:
    if layout is None:
        return value
    outer, inner = int(layout.outer), int(layout.inner)
    split = value.unflatten(layout.dim, (outer, BUCKET, inner)).narrow(layout.dim + 1, 0, N)
    return split.flatten(layout.dim, layout.dim + 2)


X = torch.randn(N, 6)
Y = torch.randn(N, 4, 6)
IMAGE = torch.randn(N, 4, 8, 8)
IDS = torch.tensor([[1, 3], [10, 0], [2, 2]])
HEADS = torch.randn(N, 2, 4, 6)

KEPT: dict[str, tuple[Callable[..., Any], Sequence[Tensor], Sequence[int | None]]] = {
    "elementwise": (lambda x: (x.sin() * 2 + x.new_ones(6)).relu(), [X], [0]),
    "two arguments": (lambda x, y: torch.where(x > 0, x, y[:, 0]), [X, Y], [0, 0]),
    "linear": (lambda x: F.linear(x, WEIGHT.T, WEIGHT[0]), [X], [0]),
    "linear of three dimensions": (lambda y: y @ WEIGHT + y.mean(-1, keepdim=True), [Y], [0]),
    "columns": (lambda x: WEIGHT.T @ x, [torch.randn(6, N)], [1]),
    "bmm": (lambda y: torch.bmm(y, y.transpose(1, 2)).softmax(-1), [Y], [0]),
    "outer rows": (lambda y: y.permute(1, 0, 2).reshape(-1, 6) * 2, [Y], [0]),
    "inner rows": (lambda y: y.reshape(-1, 6) @ WEIGHT, [Y], [0]),
    "reductions": (lambda y: (y.sum(-1), y.amax((1, 2)), y.argmax(1), y.var(2), y.std((1, 2), keepdim=True)), [Y], [0]),
    "layer norm": (lambda x: F.layer_norm(x, (6,), WEIGHT[:, 0], WEIGHT[:, 1]), [X], [0]),
    "scans": (lambda y: (y.cumsum(1), y.sort(-1).values, *y.topk(2, 1)), [Y], [0]),
    "embedding": (lambda ids: F.embedding(ids, TABLE).flatten(1), [IDS], [0]),
    "index a table": (lambda ids: TABLE[ids] + TABLE.index_select(0, ids[:, 0])[:, None], [IDS], [0]),
    "index columns": (lambda x: x[:, torch.tensor([0, 2, 2])], [X], [0]),
    "separated indices": (lambda x: x[torch.tensor([1]), :, torch.tensor([0, 2])], [Y.transpose(0, 1)], [1]),
    "each row by its number": (lambda y, ids: y[torch.arange(y.shape[0]), ids[:, 1]], [Y, IDS], [0, 0]),
    "gather": (lambda x, ids: x.gather(1, ids % 6), [X, IDS], [0, 0]),
    "scatter": (lambda x, ids: x.scatter(1, ids % 6, 0.5), [X, IDS], [0, 0]),
    "index_put": (lambda y, x: put(y, [None, torch.tensor([1])], x[:, None]), [Y, X], [0, 0]),
    "repeated": (lambda x: torch.cat((x, x)) * 2, [X], [0]),
    "cat": (lambda x: torch.cat((x, x * 2, x.new_zeros(x.shape[0], 1)), 1), [X], [0]),
    "stack and split": (lambda x: torch.stack(x.split(2, 1), 1), [X], [0]),
    "views": (lambda y: y.unsqueeze(0).squeeze(0)[:, 1:3, ::2].flip(1), [Y], [0]),
    "whole slice": (lambda x: x[: x.shape[0]] + x[:], [X], [0]),
    "unbind": (lambda y: y.unbind(1), [Y], [0]),
    "numbered rows": (lambda x: x + torch.arange(x.shape[0])[:, None], [X], [0]),
    "expanded": (lambda x: WEIGHT[:1].expand(x.shape[0], 4) + x[:, :4], [X], [0]),
    "padding of columns": (lambda x: F.pad(x, (1, 2)), [X], [0]),
    "convolution": (lambda x: F.conv2d(x, torch.ones(4, 4, 3, 3), padding=1), [IMAGE], [0]),
    "pooling": (lambda x: F.max_pool2d(x, 2) + F.avg_pool2d(x, 2) + F.adaptive_avg_pool2d(x, 4), [IMAGE], [0]),
    "batch norm in eval": (lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4), training=False), [IMAGE], [0]),
    "group norm": (lambda x: F.group_norm(x, 2), [IMAGE], [0]),
    "group norm with weights": (lambda x: F.group_norm(x, 2, WEIGHT[0], WEIGHT[1]), [IMAGE], [0]),
    "one hot": (lambda ids: F.one_hot(ids, 11), [IDS], [0]),
    "memory in order": (lambda x: (x * 2).as_strided((x.shape[0], 2, 3), (6, 3, 1)), [X], [0]),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), [IMAGE], [0]),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), [HEADS], [0]),
    "attention with a mask": (
        lambda q, x: F.scaled_dot_product_attention(q, q, q, attn_mask=(x[:, :4] > -9)[:, None, None]),
        [HEADS, X],
        [0, 0],
    ),
    "a table by row numbers": (lambda x: x + TABLE[:BUCKET][torch.arange(x.shape[0])], [X], [0]),
    "an embedding of row numbers": (lambda x: x + F.embedding(torch.arange(x.shape[0]), TABLE[:BUCKET]), [X], [0]),
    "a table from its end": (lambda x: x + TABLE[:BUCKET][-1 - torch.arange(x.shape[0])], [X], [0]),
    "a table in turn": (lambda x: x + TABLE[:2][torch.arange(x.shape[0]) % 2], [X], [0]),
    "columns by row numbers": (lambda x: x.gather(1, torch.arange(x.shape[0])[:, None]), [X], [0]),
    "quotients by row numbers": (lambda ids: ids // (torch.arange(ids.shape[0])[:, None] - BUCKET), [IDS], [0]),
    "fractions by row numbers": (lambda ids: ids / (torch.arange(ids.shape[0])[:, None] - N), [IDS], [0]),
    "one hot of row numbers": (lambda x: F.one_hot(torch.arange(x.shape[0]), BUCKET) + x[:, :1], [X], [0]),
    "an index by row numbers": (lambda ids: TABLE[ids[torch.arange(ids.shape[0]), 1]], [IDS], [0]),
    "repeated columns": (lambda x: x.repeat(1, 2) + x.tile(2), [X], [0]),
    "repeated rows": (lambda x: x.repeat(2, 2, 1), [X], [0]),
    "a repeated table": (lambda x: TABLE[:2].repeat(x.shape[0], 1).view(-1, 2, 6) + x[:, None], [X], [0]),
    "bucketize": (lambda x: torch.bucketize(x, SORTED), [X], [0]),
    "search in a table": (lambda x: torch.searchsorted(SORTED, x.T), [X], [0]),
    "search in each row": (lambda x, y: torch.searchsorted(x, y[:, 0], sorter=x.argsort(1)), [X, Y], [0, 0]),
    "bags": (lambda ids: (F.embedding_bag(ids, TABLE), F.embedding_bag(ids, TABLE, mode="max")), [IDS], [0]),
    "weighted bags": (
        lambda ids, x: F.embedding_bag(ids, TABLE, per_sample_weights=x[:, :2], mode="sum"),
        [IDS, X],
        [0, 0],
    ),
    "bags by their offsets": (
        lambda ids: F.embedding_bag(ids.flatten(), TABLE, torch.arange(0, ids.shape[0] * 2, 2)),
        [IDS],
        [0],
    ),
    "gates": (lambda y: F.glu(y, 1), [Y], [0]),
    "diagonals": (lambda y: (y.diagonal(dim1=1, dim2=2), y.permute(2, 1, 0).diagonal(1)), [Y], [0]),
    "windows": (lambda y: y.unfold(1, 2, 1), [Y], [0]),
    "no rows": (lambda x: (WEIGHT.sum(0), x), [X], [0]),
    "sizes as sizes": (lambda x: x.reshape(x.shape[0], 2, -1).sum(1), [X], [0]),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_function_that_keeps_rows_apart_is_accepted(name: str) -> None:
    function, inputs, dims = KEPT[name]
    layouts = proven(function, inputs, dims)
    results = function(*map(padded, inputs, dims))
    wanted = function(*inputs)
    results, wanted = (value if isinstance(value, tuple) else (value,) for value in (results, wanted))
    assert any(layout is not None for layout in layouts)
    for result, layout, right in zip(results, layouts, wanted, strict=True):
        torch.testing.assert_close(cut(result, layout), right, rtol=1e-5, atol=1e-5)


MIXED: dict[str, tuple[Callable[..., Any], Sequence[Tensor], Sequence[int | None], str]] = {
    "mean over all": (lambda x: x - x.mean(), [X], [0], "reduces over the rows"),
    "mean over the rows": (lambda x: x.mean(0), [X], [0], "reduces over the rows"),
    "softmax over the rows": (lambda x: x.softmax(0), [X], [0], "over the rows|along the rows"),
    "cumsum over the rows": (lambda x: x.cumsum(0), [X], [0], "runs along the rows"),
    "sort of the rows": (lambda x: x.sort(0).values, [X], [0], "runs along the rows"),
    "gram matrix": (lambda x: x @ x.T, [X], [0], "multiplies rows with each other"),
    "sum by matmul": (lambda x: WEIGHT.T @ x.T @ x, [X], [0], "multiplies rows with each other"),
    "projection of columns": (lambda x: TABLE[:, :1] @ x[:, :1].T @ x, [X], [0], "multiplies rows"),
    "pairwise distances": (lambda x: x[:, None] - x[None], [X], [0], "rows in different places"),
    "first row": (lambda x: x - x[0], [X], [0], "takes one row by its position"),
    "last rows": (lambda x: x[1:], [X], [0], "takes rows by their position"),
    "every other row": (lambda x: x[::2], [X], [0], "takes rows by their position"),
    "reversed rows": (lambda x: x.flip(0), [X], [0], "reorders the rows"),
    "rolled rows": (lambda x: x.roll(1, 0), [X], [0], ""),
    "rows by an index": (lambda x: x[torch.tensor([0, 1, 1])], [X], [0], "takes rows by an index"),
    "rows joined to rows": (lambda x: torch.cat((x, 2 * x)), [X], [0], "appends rows to rows"),
    "rows folded into columns": (lambda y: y.reshape(4, -1), [Y], [0], "does not keep rows apart"),
    "transposed fold": (lambda y: y.permute(1, 0, 2).reshape(-1, 24) * 2, [Y], [0], ""),
    "number of rows": (lambda x: x / x.shape[0], [X], [0], "computes with the number of rows"),
    "size of a slice": (lambda y, x: y[:, : x.shape[0] - 1], [Y, X], [0, 0], "number of rows"),
    "batch norm in training": (lambda x: F.batch_norm(x, None, None, training=True), [IMAGE], [0], "over the rows"),
    "attention over the rows": (
        lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
        [X],
        [0],
        "attends from each row to all rows|multiplies rows",
    ),
    "first halves of memory": (lambda x: (x * 2).as_strided((x.shape[0], 3), (3, 1)), [X], [0], "does not keep every"),
    "columns of memory": (lambda x: (x * 2).as_strided((x.shape[0], 3), (1, 3)), [X], [0], "position in memory"),
    "memory from the middle": (
        lambda x: (x * 2).as_strided((x.shape[0], 6), (6, 1), 3),
        [X],
        [0],
        "position in memory",
    ),
    "rows by their numbers in a narrow type": (
        lambda x: x[torch.arange(x.shape[0], dtype=torch.int8).long()],
        [X],
        [0],
        "takes rows by an index",
    ),
    "as many rows of a table": (lambda x: x + BIG[: x.shape[0]], [X], [0], "computes with the number of rows"),
    "any row": (lambda x: torch.where((x > 0).any(), x, -x), [X], [0], "reduces over the rows"),
    "padded rows": (lambda x: F.pad(x, (0, 0, 1, 0)), [X], [0], "pads the rows"),
    "random numbers": (lambda x: x + torch.rand_like(x), [X], [0], "random numbers"),
    "identity of the rows": (lambda x: torch.eye(x.shape[0]) @ x, [X], [0], ""),
    "rows into a table": (lambda x: TABLE.index_put((torch.tensor([0]),), x.sum(1)), [X], [0], ""),
    "rows repeated by their number": (lambda x: x.repeat(x.shape[0], 1), [X], [0], "as often as there are rows"),
    "search in the rows": (lambda x: torch.searchsorted(x[:, 0].contiguous(), x), [X], [0], "searches in the rows"),
    "bags of several rows": (
        lambda ids: F.embedding_bag(ids.flatten(), TABLE, torch.arange(ids.shape[0])),
        [IDS],
        [0],
        "bags are not the rows",
    ),
    "diagonal of the rows": (lambda x: x.diagonal(), [X], [0], "takes rows by their position"),
    "windows of the rows": (lambda x: x.unfold(0, 2, 1), [X], [0], "takes rows by their position"),
    "a small table by row numbers": (
        lambda x: x + TABLE[:4][torch.arange(x.shape[0])],
        [X],
        [0],
        "its index is out of bounds for size 4 on row 4 of a bucket.*Choose buckets of at most 4 rows, or pass",
    ),
    "an embedding of large row numbers": (
        lambda x: x + F.embedding(torch.arange(x.shape[0]) + 7, TABLE),
        [X],
        [0],
        "out of bounds for size 11 on row 4",
    ),
    "columns by large row numbers": (
        lambda x: x.scatter(1, torch.arange(x.shape[0])[:, None] * 2, 0.5),
        [X],
        [0],
        "out of bounds for size 6 on row 3",
    ),
    "a table by sums with row numbers": (
        lambda x, ids: x + TABLE[ids[:, 0] + torch.arange(x.shape[0])],
        [X, IDS],
        [0, 0],
        "with the numbers of rows and with inputs, and its index may be out of bounds.*as an input",
    ),
    "quotients by row numbers that end": (
        lambda ids: ids % (torch.arange(ids.shape[0])[:, None] - 4),
        [IDS],
        [0],
        "its divisor is 0 on row 4 of a bucket",
    ),
    "quotients by sums with row numbers": (
        lambda ids: 9 // (ids + torch.arange(ids.shape[0])[:, None]),
        [IDS],
        [0],
        "its divisor may be 0 on rows",
    ),
    "one hot of large row numbers": (
        lambda x: F.one_hot(torch.arange(x.shape[0]), 4),
        [X],
        [0],
        "it fails for the largest bucket.*smaller buckets",
    ),
    "one hot of sums with row numbers": (
        lambda ids: F.one_hot(ids + torch.arange(ids.shape[0])[:, None], 20),
        [IDS],
        [0],
        "it may fail on rows",
    ),
    "unknown operator": (lambda x: torch.linalg.qr(x).R, [X], [0], "not known to keep rows apart"),
    "rows of the weight": (lambda w: F.conv2d(torch.ones(1, 4, 8, 8), w), [torch.randn(N, 4, 3, 3)], [0], "depends on"),
}


@pytest.mark.parametrize("name", MIXED)
def test_a_function_that_combines_rows_is_refused(name: str) -> None:
    if name.startswith("one hot") and torch.__version__ < "2.13":
        pytest.skip(f"torch {torch.__version__} computes one_hot by comparisons, which raise no error")
    function, inputs, dims, said = MIXED[name]
    with pytest.raises(UnsupportedError, match=f"argument 'x', dimension 0 cannot have buckets: .*({said})"):
        proven(function, inputs, dims)
