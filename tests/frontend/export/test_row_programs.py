"""Whatever the proof of buckets accepts gives, padded and cut, the results of the model for the rows of the call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from frontend.export.row_programs import ALONG, RowProgram, random_program
from torch import Tensor
from torch.export import ExportedProgram

import superkernel as sk
from superkernel.errors import UnsupportedError
from superkernel.frontend.capture.row_layouts import OpCall, RowsMix, Rule
from superkernel.frontend.capture.row_numbers import RowNumbers
from superkernel.frontend.capture.row_rules import find_rule
from superkernel.frontend.export import entry_buckets
from superkernel.frontend.export.entry_buckets import BucketedEntry, prove_buckets, with_rows
from superkernel.frontend.export.entry_requests import entry_requests
from superkernel.frontend.export.exported_program import export_program

BUCKETS = ((4, 16), (1, 4, 16), (8,), (3, 5))
BATCH = sk.Dim("batch", (8,))
KEPT = ("aten::mm", "aten::bmm", "aten::addmm", "aten::sort", "aten::topk", "aten::convolution")


@dataclass(frozen=True)
class Accepted:
    """A program that may have buckets, and what is compiled for each of them."""

    rows: BucketedEntry
    compiled: dict[int, Callable[[Tensor, Tensor], Tensor]]


def accepted(program: RowProgram, dim: sk.Dim) -> Accepted | None:
    def model(x: Tensor, ids: Tensor) -> Tensor:
        return program.run(x, ids)

    (request,) = entry_requests(model, program.inputs(2), {"x": {program.axis: dim}, "ids": {0: dim}})
    try:
        proven = prove_buckets(request, KEPT)
        exported = {
            size: export_program(request.module, with_rows(request, size), request.name) for size in dim.buckets
        }
        for size in dim.buckets:
            proven.of_program(exported[size], size)
    except UnsupportedError:
        return None
    return Accepted(proven, {size: without_unused(exported[size]) for size in dim.buckets})


def without_unused(program: ExportedProgram) -> Callable[[Tensor, Tensor], Tensor]:
    """Without steps whose values nothing reads, as in a package."""
    module = program.module()
    assert isinstance(module, torch.fx.GraphModule)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def check_sizes(program: RowProgram, proven: Accepted, dim: sk.Dim) -> None:
    for rows in range(1, dim.buckets[-1] + 1):
        bucket = dim.bucket_for(rows)
        x, ids = program.inputs(rows)
        try:
            wanted = program.run(x, ids)
        except (RuntimeError, ValueError, IndexError):  # the model does not take so few rows
            continue
        for numbers in (
            torch.arange(bucket) % rows,
            torch.arange(bucket).clamp(max=rows - 1),
        ):  # package, torch.compile
            found = proven.compiled[bucket](x.index_select(program.axis, numbers), ids[numbers])
            if proven.rows.outputs and rows < bucket:
                ((_, axis),) = proven.rows.outputs
                found = found.narrow(axis, 0, rows)
            is_right = found.shape == wanted.shape and found.allclose(wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
            assert is_right, f"{rows} rows of {bucket}, inputs {x.shape}: {program.text}"


def check_programs(seeds: range) -> tuple[int, int]:
    """How many programs were accepted, and refused."""
    count = 0
    for seed in seeds:
        program, dim = random_program(seed), sk.Dim("batch", BUCKETS[seed % len(BUCKETS)])
        if (proven := accepted(program, dim)) is not None:
            check_sizes(program, proven, dim)
            count += 1
    return count, len(seeds) - count


def test_programs_that_are_accepted_keep_rows_apart() -> None:
    assert min(check_programs(range(20))) >= 5


def along_rows(name: str) -> RowProgram:
    """A program of one step along the rows."""
    return RowProgram((4,), 0, [], [lambda values: ALONG[name](values[-1], 0)], [name])


@pytest.mark.parametrize("name", ["flip", "sort", "places among the first"])
def test_a_rule_that_lets_rows_mix_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def find_careless_rule(target: Any) -> Rule | None:
        rule = find_rule(target)

        def careless(call: OpCall) -> Any:
            try:
                return rule(call) if rule else None
            except RowsMix:
                return call.with_rows[0][1].computed()

        return rule and careless

    program = along_rows(name)
    assert accepted(program, BATCH) is None
    monkeypatch.setattr(entry_buckets, "find_rule", find_careless_rule)
    found = accepted(program, BATCH)
    assert found is not None
    with pytest.raises(AssertionError, match=name):
        check_sizes(program, found, BATCH)


@pytest.mark.parametrize(
    "name",
    [
        *("by number", "embedded number", "by number from the end", "taken by number", "added by number"),
        *("divided by number", "truncated by number", "one hot of number"),
    ],
)
def test_padding_that_raises_an_error_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name.startswith("one hot") and torch.__version__ < "2.13":
        pytest.skip(f"torch {torch.__version__} computes one_hot by comparisons, which raise no error")
    program, batch = along_rows(name), sk.Dim("batch", (32,))
    assert accepted(program, batch) is None
    monkeypatch.setattr(RowNumbers, "check", lambda numbers, node: None)
    found = accepted(program, batch)
    assert found is not None
    with pytest.raises((IndexError, RuntimeError), match=r"index|ZeroDivisionError|[Cc]lass values"):
        check_sizes(program, found, batch)


@pytest.mark.conformance
@pytest.mark.parametrize("block", range(30))
def test_many_programs_that_are_accepted_keep_rows_apart(block: int) -> None:
    assert min(check_programs(range(100 * block, 100 * (block + 1)))) >= 10
