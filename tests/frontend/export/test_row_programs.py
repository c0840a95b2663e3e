"""Whatever the proof of buckets accepts gives, padded and cut, the results of the model for the rows of the call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from frontend.export.row_programs import RowProgram, random_program
from torch import Tensor

import superkernel as sk
from superkernel.errors import UnsupportedError
from superkernel.frontend.capture.row_layouts import OpCall, RowsMix, Rule
from superkernel.frontend.capture.row_rules import find_rule
from superkernel.frontend.export import entry_buckets
from superkernel.frontend.export.entry_buckets import BucketedEntry, prove_buckets, with_rows
from superkernel.frontend.export.entry_requests import entry_requests
from superkernel.frontend.export.exported_program import export_program

BUCKETS = ((4, 16), (1, 4, 16), (8,), (3, 5))
BATCH = sk.Dim("batch", (8,))
KEPT = ("aten::mm", "aten::bmm", "aten::addmm", "aten::sort", "aten::topk", "aten::convolution")


def accepted(program: RowProgram, dim: sk.Dim) -> BucketedEntry | None:
    def model(x: Tensor, ids: Tensor) -> Tensor:
        return program.run(x, ids)

    (request,) = entry_requests(model, program.inputs(2), {"x": {program.axis: dim}, "ids": {0: dim}})
    try:
        proven = prove_buckets(request, KEPT)
        for size in dim.buckets:
            proven.of_program(export_program(request.module, with_rows(request, size), request.name), size)
    except UnsupportedError:
        return None
    return proven


def check_sizes(program: RowProgram, proven: BucketedEntry, dim: sk.Dim) -> None:
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
            found = program.run(x.index_select(program.axis, numbers), ids[numbers])
            if proven.outputs and rows < bucket:
                ((_, axis),) = proven.outputs
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


def test_a_rule_that_lets_rows_mix_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_careless_rule(target: Any) -> Rule | None:
        rule = find_rule(target)

        def careless(call: OpCall) -> Any:
            try:
                return rule(call) if rule else None
            except RowsMix:
                return call.with_rows[0][1].computed()

        return rule and careless

    assert accepted(random_program(18), BATCH) is None
    monkeypatch.setattr(entry_buckets, "find_rule", find_careless_rule)
    with pytest.raises(AssertionError, match="flip"):
        check_programs(range(18, 19))


@pytest.mark.conformance
@pytest.mark.parametrize("block", range(30))
def test_many_programs_that_are_accepted_keep_rows_apart(block: int) -> None:
    assert min(check_programs(range(100 * block, 100 * (block + 1)))) >= 10
