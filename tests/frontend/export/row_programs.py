"""Random models over tensors with a dimension of rows; their other sizes are often those of buckets."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

SIZES = (1, 2, 3, 4, 4, 8, 16)  # of dimensions beside the rows
_TRIED_ROWS = (5, 7)  # a step must work for both
_MOST_ELEMENTS = 20_000
TABLE = torch.linspace(-1, 1, 10)  # as large as some buckets, and smaller than others

Compute = Callable[[Sequence[Tensor]], Tensor]


def _numbers(t: Tensor, dim: int) -> Tensor:
    return torch.arange(t.shape[dim]).view(-1, *[1] * (t.dim() - 1))


def _down(t: Tensor, dim: int) -> Tensor:
    return 9 - torch.arange(t.shape[dim])


ELEMENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "sin": torch.sin,
    "gelu": F.gelu,
    "where": lambda t: torch.where(t > 0, t, -t),
    "flat": lambda t: t.reshape(-1),
    "by rows": lambda t: t.reshape(t.shape[0], -1),
    "last apart": lambda t: t.reshape(-1, t.shape[-1]),
    "reversed dimensions": lambda t: t.permute(*range(t.dim())[::-1]),
    "repeated": lambda t: t.expand(4, *t.shape),
    "tiled": lambda t: t.repeat(2, *[1] * (t.dim() - 1)),
    "layer norm": lambda t: F.layer_norm(t, t.shape[-1:]),
    "group norm": lambda t: F.group_norm(t, 2),
    "instance norm": F.instance_norm,
    "batch norm": lambda t: F.batch_norm(t, None, None, training=True),
    "attention": lambda t: F.scaled_dot_product_attention(t, t, t),
    "gram": lambda t: t @ t.mT,
    "convolution": lambda t: F.conv1d(t, t.new_ones(2, t.shape[1], 3), padding=1),
    "pooling": lambda t: F.max_pool1d(t, 2),
    "interpolation": lambda t: F.interpolate(t, scale_factor=2.0),
    "padding": lambda t: F.pad(t, (1, 0)),
    "padding of two": lambda t: F.pad(t, (0, 0, 1, -1)),
    "triangle": lambda t: t.tril(),
    "diagonal": lambda t: t.diagonal(dim1=-2, dim2=-1),
    "distances": lambda t: torch.cdist(t, t),
    "gated": lambda t: F.glu(t, t.dim() - 1),
    "buckets": lambda t: torch.bucketize(t, TABLE) - 5.0,
    "places among": lambda t: torch.searchsorted(t.sort(-1).values, t).float(),
    "bags": lambda t: F.embedding_bag((t > 0).long(), TABLE.view(5, 2), mode="max"),
    "weighted bags": lambda t: F.embedding_bag((t > 0).long(), TABLE.view(5, 2), per_sample_weights=t, mode="sum"),
    "bags of two": lambda t: F.embedding_bag((t > 0).long().flatten(), TABLE.view(5, 2), torch.arange(0, t.numel(), 2)),
    "memory": lambda t: (t * 1).as_strided(t.shape, t.stride()),
}
ALONG: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sum": lambda t, dim: t.sum(dim),
    "minus mean": lambda t, dim: t - t.mean(dim, keepdim=True),
    "sum of two": lambda t, dim: t.sum((0, dim)) if dim % t.dim() else t.sum(0, keepdim=True),
    "largest": lambda t, dim: t.amax(dim),
    "place of the largest": lambda t, dim: t.argmax(dim).float(),
    "norm": lambda t, dim: torch.linalg.vector_norm(t, dim=dim, keepdim=True),
    "softmax": lambda t, dim: t.softmax(dim),
    "cumsum": lambda t, dim: t.cumsum(dim),
    "sort": lambda t, dim: t.sort(dim).values,
    "topk": lambda t, dim: t.topk(1, dim).values,
    "flip": lambda t, dim: t.flip(dim),
    "roll": lambda t, dim: t.roll(1, dim),
    "first": lambda t, dim: t.select(dim, 0),
    "half": lambda t, dim: t.chunk(2, dim)[0],
    "but the first": lambda t, dim: t.narrow(dim, 1, t.shape[dim] - 1),
    "twice": lambda t, dim: torch.cat((t, t * 2), dim),
    "stacked": lambda t, dim: torch.stack((t, t + 1), dim),
    "unsqueezed": lambda t, dim: t.unsqueeze(dim),
    "squeezed": lambda t, dim: t.squeeze(dim),
    "split": lambda t, dim: t.unflatten(dim, (2, -1)),
    "split the other way": lambda t, dim: t.unflatten(dim, (-1, 2)),
    "merged": lambda t, dim: t.flatten(dim % t.dim(), dim % t.dim() + 1),
    "first dimension": lambda t, dim: t.transpose(dim, 0),
    "each twice": lambda t, dim: t.repeat_interleave(2, dim),
    "windows": lambda t, dim: t.unfold(dim, 2, 1),
    "by size": lambda t, dim: t / t.shape[dim],
    "numbered": lambda t, dim: t.movedim(dim, -1) * torch.arange(t.shape[dim]),
    "places among the first": lambda t, dim: torch.searchsorted(t.transpose(0, dim)[..., 0] + 1, t).float(),
    "by number": lambda t, dim: t.movedim(dim, -1) + TABLE[torch.arange(t.shape[dim])],
    "embedded number": lambda t, dim: (
        t.movedim(dim, -1)[..., None] + F.embedding(torch.arange(t.shape[dim]), TABLE[:, None])
    ),
    "by number in turn": lambda t, dim: t.movedim(dim, -1) + TABLE[torch.arange(t.shape[dim]) % 10],
    "by number from the end": lambda t, dim: t.movedim(dim, -1) + TABLE[-1 - torch.arange(t.shape[dim])],
    "taken by number": lambda t, dim: t.movedim(dim, 0).flatten(1).gather(1, torch.arange(t.shape[dim])[:, None] // 4),
    "added by number": lambda t, dim: t.movedim(dim, 0).scatter(-1, _numbers(t, dim) // 3, 0.5),
    "divided by number": lambda t, dim: t.movedim(dim, -1) + 100 % (9 - torch.arange(t.shape[dim])),
    "truncated by number": lambda t, dim: (t.movedim(dim, -1) * 9).int().div(_down(t, dim), rounding_mode="trunc") / 9,
    "one hot of number": lambda t, dim: t.movedim(dim, -1) * F.one_hot(torch.arange(t.shape[dim]), 10).amax(-1),
    "repeated along": lambda t, dim: t.repeat([1 + (place == dim % t.dim()) for place in range(t.dim())]),
    "repeated before": lambda t, dim: t.repeat(2, *[1] * t.dim()),
    "table for each": lambda t, dim: t.movedim(dim, 0).flatten(1)[:, :2] + TABLE[None, :2].repeat(t.shape[dim], 1),
    "two for each": lambda t, dim: TABLE[:2].repeat(t.shape[dim]).view(-1, 2) * t.movedim(dim, 0).flatten(1)[:, :1],
    "diagonal of": lambda t, dim: t.diagonal(dim1=dim, dim2=0),
    "new": lambda t, dim: torch.ones(t.shape[dim], 2),
    "filled": lambda t, dim: t.index_fill(dim, torch.tensor([0]), 3.0),
    "sorted by gather": lambda t, dim: t.take_along_dim(t.argsort(dim, stable=True), dim),
    "scattered": lambda t, dim: t.scatter_add(dim, torch.zeros_like(t, dtype=torch.int64), t),
    "one replaced": lambda t, dim: torch.select_scatter(t, t.select(dim, 0) * 2, dim, 0),
}
PAIRS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "product": torch.mul,
    "matmul": torch.matmul,
    "matmul of columns": lambda a, b: a @ b.mT,
    "matmul of rows": lambda a, b: a.mT @ b,
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "joined": lambda a, b: torch.cat((a, b), -1),
    "joined rows": lambda a, b: torch.cat((a, b)),
    "attention of": lambda a, b: F.scaled_dot_product_attention(a, b, b),
    "filters": F.conv1d,
    "as large as": lambda a, b: a.expand_as(b),
    "outer": lambda a, b: torch.einsum("...i,...j->...ij", a, b),
}
INDEXED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rows of a table": lambda t, ids: t[ids],
    "columns": lambda t, ids: t[:, ids],
    "one of each row": lambda t, ids: t[torch.arange(t.shape[0]), ids],
    "separated": lambda t, ids: t[ids, :, ids],
    "written": lambda t, ids: t.index_put((torch.arange(t.shape[0]), ids), t.new_ones(())),
    "accumulated": lambda t, ids: t.index_add(0, ids, t.new_ones(ids.shape[0], *t.shape[1:])),
    "rows of a table by number": lambda t, ids: TABLE[ids + torch.arange(ids.shape[0])] + t.flatten(1)[:, 0],
    "rows of a table by their own": lambda t, ids: TABLE[ids[torch.arange(t.shape[0])]] + t.flatten(1)[:, 0],
    "parts of ids": lambda t, ids: t.flatten(1)[:, 0] + ids // (torch.arange(ids.shape[0]) + 1),
    "one hot of sums": lambda t, ids: F.one_hot(ids + torch.arange(ids.shape[0]), 12) * t.flatten(1)[:, :1],
    "one hot": lambda t, ids: t * F.one_hot(ids, 2)[:, :1],
}


@dataclass
class RowProgram:
    """A model of an input `x`, one of whose dimensions counts rows, of `ids`, one for each row, and of tables."""

    shape: tuple[int, ...]  # of one row
    axis: int  # of the rows in x
    tables: list[Tensor]
    steps: list[Compute] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def inputs(self, rows: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(rows)
        x = torch.randn(*self.shape[: self.axis], rows, *self.shape[self.axis :], generator=generator)
        return x, torch.randint(0, 2, (rows,), generator=generator)

    def run(self, x: Tensor, ids: Tensor) -> Tensor:
        values = [ids, *self.tables, x]
        for step in self.steps:
            values.append(step(values))
        return values[-1]


def random_program(seed: int) -> RowProgram:
    """Two to six steps; those that fail for the sizes that are tried are left out."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    shape = tuple(choose.choice(SIZES) for _ in range(choose.randrange(4)))
    tables = [torch.randn([choose.choice(SIZES) for _ in range(choose.randrange(1, 4))]) for _ in range(2)]
    program = RowProgram(shape, choose.choice((0, 0, choose.randrange(len(shape) + 1))), tables)
    runs = []
    for rows in _TRIED_ROWS:
        x, ids = program.inputs(rows)
        runs.append([ids, *tables, x])
    wanted = choose.randrange(2, 7)
    for _ in range(60):
        if len(program.steps) == wanted:
            break
        text, step = _random_step(choose, *runs)
        try:
            results = [step(values) for values in runs]
        except (RuntimeError, ValueError, IndexError, TypeError, ZeroDivisionError):
            continue
        if any(result.numel() > _MOST_ELEMENTS or result.dim() > 5 for result in results):
            continue
        program.steps.append(step)
        program.text.append(text)
        for values, result in zip(runs, results, strict=True):
            values.append(result)
    return program


def _random_step(choose: random.Random, values: Sequence[Tensor], others: Sequence[Tensor]) -> tuple[str, Compute]:
    """Most steps take one of the last results. `others`: those for another number of rows."""
    recent = choose.choice((len(values) - 1, len(values) - 1, choose.randrange(1, len(values))))
    other = choose.randrange(1, len(values))
    kind = choose.choice(("elements", "along", "along", "along", "pairs", "indexed"))
    if kind == "along":
        name, along = choose.choice([*ALONG.items()])
        rank = max(values[recent].dim(), 1)
        sizes = zip(values[recent].shape, others[recent].shape, strict=True)
        of_rows = [dim for dim, (size, other) in enumerate(sizes) if size != other]
        dim = choose.choice(of_rows) if of_rows and choose.random() < 0.4 else choose.randrange(-rank, rank)
        return f"{name}({recent}, dim={dim})", lambda values: along(values[recent], dim)
    if kind == "elements":
        name, compute = choose.choice([*ELEMENTS.items()])
        return f"{name}({recent})", lambda values: compute(values[recent])
    if kind == "pairs":
        name, pair = choose.choice([*PAIRS.items()])
        return f"{name}({recent}, {other})", lambda values: pair(values[recent], values[other])
    name, indexed = choose.choice([*INDEXED.items()])
    return f"{name}({recent}, ids)", lambda values: indexed(values[recent], values[0])
