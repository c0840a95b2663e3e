"""Inputs that share memory, in some calls of a compiled function and not in others, give what they give eagerly."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from frontend.fused import compiled
from measured import examples, sample
from torch import Tensor

from superkernel import super_kernel

pytestmark = pytest.mark.slow

SIZE = 6
Function = Callable[..., object]
Views = Callable[[Tensor], list[Tensor]]  # the inputs of one call, as views of a base


def writes_the_second(x: Tensor, y: Tensor) -> Tensor:
    y.add_(1)
    return x * 2


def writes_in_a_scope(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x = x + 1
    with super_kernel("inner"):
        y.mul_(3)
        z = x + y
    return z.sum(), z


def returns_views(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    y.copy_(y + x)  # eagerly, an addition in place refuses operands that overlap partly
    return y.view(2, 3), x[1:4]


VIEWS: dict[str, Views] = {
    "apart": lambda base: [base[:6], base[6:12]],
    "overlapping": lambda base: [base[:6], base[2:8]],
    "the other way": lambda base: [base[5:11], base[2:8]],
    "the same bytes": lambda base: [base[:6], base[:6].view(6)],
    "the same tensor": lambda base: [base[:6]] * 2,
    "touching": lambda base: [base[6:12], base[:6]],
}


def agree(function: Function, of_base: Sequence[Function], views: Views) -> None:
    """The compiled function and eager give equal outputs, leave equal bases, and alias the inputs equally."""
    bases = [torch.arange(24.0) for _ in of_base]
    inputs = [views(base) for base in bases]
    outputs = [call(*given) for call, given in zip(of_base, inputs, strict=True)]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=0)
    torch.testing.assert_close(bases[0], bases[1], rtol=0, atol=0)
    where = [[_place(output, base) for output in _tensors(made)] for made, base in zip(outputs, bases, strict=True)]
    assert where[0] == where[1]


def _tensors(outputs: object) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)  # type: ignore[call-overload]


def _place(output: Tensor, base: Tensor) -> int | None:
    """Where in the base the output begins; None: it has memory of its own."""
    begin, end = base.data_ptr(), base.data_ptr() + base.nbytes
    return output.data_ptr() - begin if begin <= output.data_ptr() < end else None


@pytest.mark.parametrize("first", sample(["apart", "overlapping"]))
@pytest.mark.parametrize("function", [writes_the_second, writes_in_a_scope, returns_views])
def test_every_overlap_gives_what_eager_gives(function: Function, first: str) -> None:
    with torch.no_grad():
        fused = compiled(function)
        for name in (first, *VIEWS, first):
            agree(function, (fused, function), VIEWS[name])


def test_a_call_that_runs_eagerly_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with torch.no_grad():
        fused = compiled(writes_the_second)
        for name in ("apart", "overlapping", "overlapping"):
            fused(*VIEWS[name](torch.arange(24.0)))
    assert sum("overlaps with another input" in record.getMessage() for record in caplog.records) == 1


def test_interleaved_inputs_are_not_taken_for_overlapping_ones(caplog: pytest.LogCaptureFixture) -> None:
    def columns(base: Tensor) -> list[Tensor]:
        rows = base.view(4, 6)
        return [rows[:, :3], rows[:, 3:]]

    with torch.no_grad():
        fused = compiled(writes_the_second)
        for _ in range(2):
            agree(writes_the_second, (fused, writes_the_second), columns)
    assert not any("overlaps" in record.getMessage() for record in caplog.records)


STATEMENTS = (
    "x.add_(1)", "y.mul_(2)", "z.copy_(x * 1)", "y[1:4].add_(3)", "x = x + y", "y = y * z", "z.copy_(z - y)",
    "x.view(2, 3).t().add_(1)",
)  # fmt: skip
RESULTS = ("x * 2", "y + z", "x.view(3, 2)", "z[2:]", "y", "(x * z).sum()")


def random_function(rng: random.Random) -> tuple[str, Function]:
    lines = [f"    {rng.choice(STATEMENTS)}" for _ in range(rng.randint(1, 4))]
    results = ", ".join(rng.sample(RESULTS, rng.randint(1, 3)))
    text = "\n".join(["def function(x, y, z):", *lines, f"    return {results},"])
    names: dict[str, Function] = {}
    exec(text, names)
    return text, names["function"]


def random_views(rng: random.Random) -> Views:
    starts = [rng.choice((0, 0, 1, 3, 6, 12, 18)) for _ in range(3)]
    return lambda base: [base[start : start + SIZE] for start in starts]


@pytest.mark.parametrize("seed", range(examples(8)))
def test_random_functions_of_random_views(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = random.Random(seed)
    text, function = random_function(rng)
    with torch.no_grad():
        fused = compiled(function)
        for _ in range(6):
            try:
                agree(function, (fused, function), random_views(rng))
            except AssertionError as wrong:
                raise AssertionError(f"{text}\n{wrong}") from wrong
