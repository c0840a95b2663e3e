"""Buckets of an exported entry: the rows are shown not to mix, and each bucket becomes a shape; else refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import superkernel as sk
from superkernel.errors import OptionError, UnsupportedError
from superkernel.frontend.export.entry_buckets import prove_buckets, with_rows
from superkernel.frontend.export.entry_requests import entry_requests
from superkernel.frontend.export.exported_program import export_program
from superkernel.package.manifest import read_manifest

BATCH = sk.Dim("batch", buckets=(1, 4))
BUCKETS = {"x": {0: BATCH}, "ids": {0: BATCH}}


def scores(x: Tensor, ids: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.softmax(x @ table.T, -1) + ids[:, None]
    return y.T, ids * 2, table.sum(0)


ARGUMENTS = (torch.ones(3, 8), torch.ones(3, dtype=torch.int64), torch.ones(5, 8))


def test_inputs_and_outputs_with_rows_are_found() -> None:
    (request,) = entry_requests(scores, ARGUMENTS, BUCKETS)
    rows = prove_buckets(request, ("aten::mm",))
    assert (rows.name, rows.inputs, rows.outputs) == ("batch", ((0, 0), (1, 0)), ((0, 1), (1, 0)))
    assert [value.shape for value in with_rows(request, 4)] == [(4, 8), (4,), (5, 8)]
    bucket = rows.of_program(export_program(request.module, with_rows(request, 4), request.name), 4)
    assert (bucket.size, bucket.inputs, bucket.outputs) == (4, rows.inputs, rows.outputs)


def by_heads(x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    heads = x.view(x.shape[0], 2, -1).transpose(0, 1)
    rows = torch.cat((x, x.new_zeros(x.size(0), 1)), 1)
    return heads.softmax(-1), rows + ids[:, None] + torch.arange(x.shape[0])[:, None]


def test_a_model_may_use_the_number_of_rows_as_a_size() -> None:
    (request,) = entry_requests(by_heads, ARGUMENTS[:2], BUCKETS)
    rows = prove_buckets(request, ())
    assert (rows.inputs, rows.outputs) == (((0, 0), (1, 0)), ((0, 1), (1, 0)))


def with_others(x: Tensor, *others: Tensor) -> Tensor:
    found: Tensor = x @ others[0] + others[1]
    return found


def test_rows_beside_and_among_variable_arguments() -> None:
    (request,) = entry_requests(with_others, (torch.ones(3, 8), torch.ones(8, 2), torch.ones(2)), {"x": {0: BATCH}})
    assert prove_buckets(request, ()).inputs == ((0, 0),)
    (request,) = entry_requests(lambda *rows: rows[0] + rows[1], (torch.ones(3), torch.ones(3)), {"rows": {0: BATCH}})
    assert prove_buckets(request, ()).inputs == ((0, 0), (1, 0))


def test_each_bucket_is_a_shape(tmp_path: Path) -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2

    manifest = read_manifest(sk.export(double, (torch.ones(3, 8),), tmp_path / "x.sk", buckets={"x": {0: BATCH}}))
    (entry,) = manifest.entries
    assert [shape.inputs[0].shape for shape in entry.shapes] == [(1, 8), (4, 8)]
    assert [shape.bucket.size for shape in entry.shapes if shape.bucket] == [1, 4]
    assert [[launch.object for launch in shape.launches] for shape in entry.shapes] == [["forward_0"], ["forward_1"]]
    assert [*manifest.objects] == ["forward_0", "forward_1"]


def test_padding_raises_no_errors(tmp_path: Path) -> None:
    """Rows of zeros would be divided by zero, and would be looked up where the table has no row."""

    def share(x: Tensor, ids: Tensor) -> Tensor:
        return (100 // ids) * torch.arange(4)[ids - 5] + x[:, 0].long()

    path = sk.export(share, (torch.ones(3, 8), torch.full((3,), 5)), tmp_path / "x.sk", buckets=BUCKETS, cores=1)
    with sk.load_model(path) as loaded:
        for rows in (1, 2, 3, 4):
            x, ids = torch.randn(rows, 8), torch.randint(5, 9, (rows,))
            assert loaded(x, ids).equal(share(x, ids))


class Positions(torch.nn.Module):
    """A row of a table for each row, by its number."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(count, 8)

    def forward(self, x: Tensor) -> Tensor:
        placed: Tensor = x + self.table(torch.arange(x.shape[0]))
        return placed


def test_a_table_by_row_numbers_holds_the_largest_bucket(tmp_path: Path) -> None:
    batch = sk.Dim("batch", (4, 16))
    with pytest.raises(UnsupportedError, match=r"row 10 of a bucket .*Choose buckets of at most 10 rows, or pass"):
        sk.export(Positions(10), (torch.ones(3, 8),), tmp_path / "x.sk", buckets={"x": {0: batch}})
    model = Positions(16)
    path = sk.export(model, (torch.ones(3, 8),), tmp_path / "x.sk", buckets={"x": {0: batch}}, cores=1)
    with sk.load_model(path) as loaded:
        for rows in (1, 3, 10, 16):
            x = torch.randn(rows, 8)
            assert loaded(x).equal(model(x))


def mixes(x: Tensor) -> Tensor:
    return x - x.mean(0)


def flattens(x: Tensor) -> Tensor:
    return (x * 2).flatten()


def fixed(x: Tensor) -> Tensor:
    return x.view(3, 2, 4)


TABLE = torch.ones(2000, 8)


def table_of_size(x: Tensor) -> Tensor:
    return x + TABLE[: x.shape[0]]


def small_table_of_size(x: Tensor) -> Tensor:
    return x + TABLE[:9][: x.shape[0]]


def rest(x: Tensor) -> Tensor:
    return x[1:]


class Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.total += x.sum(0)
        return x * 2


def divides(x: Tensor) -> Tensor:
    return x / x.shape[0]


class Normalises(torch.nn.Module):
    """By the rows of the call, since it trains; its running variance is multiplied by n / (n - 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        normal: Tensor = self.norm(x)
        return normal


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (mixes, r"^entry 'forward': argument 'x', dimension 0 \('batch'\) cannot have buckets: aten.*x - x.mean\(0\)"),
        (flattens, "output 'output_0' has its rows inside of dimension 0"),
        (fixed, "(?s)torch.export cannot trace|works for one size of it only"),
        (table_of_size, r"dimension 'batch' cannot .*<= 2000: let the model take any number of rows .*or leave it out"),
        (
            small_table_of_size,
            r"any number of rows: RuntimeError: .*TABLE\[:9\].*: let the model take any number of rows",
        ),
        (rest, r"dimension 'batch' cannot have buckets: the model works for some sizes only: Not all values"),
        (Counts(), "cannot have buckets"),
        (divides, r"aten.div.Tensor: it computes with the number of rows \(.*return x / x.shape"),
        (Normalises(), "the model computes with the number of rows"),
    ],
)
def test_rows_that_mix_are_refused(tmp_path: Path, model: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        sk.export(model, (torch.ones(3, 8),), tmp_path / "x.sk", buckets={"x": {0: BATCH}})
    assert not list(tmp_path.iterdir())


def squeezed(x: Tensor) -> Tensor:
    return (x * 2).squeeze()


def branches(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] == 1 else x * 3


def by_type(x: Tensor) -> Tensor:
    """torch.export passes a number that is no int where a size is dynamic."""
    return x - x.mean(0) if isinstance(x.shape[0], int) else x


def counts(x: Tensor) -> tuple[Tensor, int]:
    return x * 2, x.shape[0] + 1


def many(x: Tensor) -> tuple[Tensor, bool]:
    return x * 2, x.shape[0] > 2


def names(x: Tensor) -> tuple[Tensor, str]:
    return x * 2, str(x.shape[0])


@pytest.mark.parametrize(
    ("model", "buckets", "message"),
    [
        (squeezed, (4,), r"something else for 1 row than for other numbers \(.*squeeze\(\)\): give it a bucket of 1"),
        (branches, (4,), "something else for 1 row than for other numbers"),
        (by_type, (1, 4), "something else for 4 rows than for other numbers"),
        (names, (1, 4), "something else for 4 rows than for other numbers"),
        (counts, (4,), "output 'output_1' is a number that is computed from the number of rows"),
        (many, (4,), "output 'output_1' is a number that is computed from the number of rows"),
    ],
)
def test_a_model_that_computes_something_else_for_some_sizes_is_refused(
    tmp_path: Path, model: Any, buckets: tuple[int, ...], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        sk.export(model, (torch.ones(3, 8),), tmp_path / "x.sk", buckets={"x": {0: sk.Dim("batch", buckets)}})


@pytest.mark.parametrize("model", [squeezed, branches])
def test_a_bucket_of_one_row_may_have_another_program(tmp_path: Path, model: Any) -> None:
    """Its calls are not padded."""
    path = sk.export(model, (torch.ones(3, 8),), tmp_path / "x.sk", buckets={"x": {0: BATCH}}, cores=1)
    with sk.load_model(path) as loaded:
        for rows in (1, 2, 4):
            x = torch.randn(rows, 8)
            assert loaded(x).equal(model(x))


def indexed(x: Tensor) -> tuple[Tensor, Tensor]:
    """Slices of everything, which torch.export leaves out where the number of rows is known, and views of one row."""
    return x[:, None, 1:] * torch.ones(4, 7), x[:, :0]


@pytest.mark.parametrize("model", [indexed, by_heads])
def test_programs_that_differ_in_sizes_alone_are_the_same(model: Any) -> None:
    arguments = ARGUMENTS[:1] if model is indexed else ARGUMENTS[:2]
    (request,) = entry_requests(
        model, arguments, {name: {0: sk.Dim("batch", (4, 16))} for name in ("x", "ids")[: len(arguments)]}
    )
    rows = prove_buckets(request, ())
    for size in (4, 16):
        program = export_program(request.module, with_rows(request, size), request.name)
        assert rows.of_program(program, size).outputs == rows.outputs


@pytest.mark.parametrize(
    ("args", "buckets", "message"),
    [
        ([(torch.ones(3, 8),), (torch.ones(2, 8),)], {"x": {0: BATCH}}, "several example inputs and buckets"),
        ((torch.ones(3, 8),), {"x": {2: BATCH}}, "has no dimension 2"),
        ((torch.ones(3, 8),), {"x": {0: BATCH, 1: sk.Dim("width", buckets=(8,))}}, "pads one dimension of an entry"),
        ((torch.ones(3, 8),), {"x": {0: 4}}, "give a Dim"),
        ((3.0,), {"x": {0: BATCH}}, "is no tensor"),
        ([(torch.ones(3),), (torch.ones(3),)], None, "have the same shapes"),
        ([(torch.ones(3),), (torch.ones(4, dtype=torch.int64),)], None, "differ in more than sizes"),
    ],
)
def test_shapes_and_buckets_that_make_no_sense(tmp_path: Path, args: Any, buckets: Any, message: str) -> None:
    def double(x: Any) -> Any:
        return x * 2

    with pytest.raises(OptionError, match=message):
        sk.export(double, args, tmp_path / "x.sk", buckets=buckets)
