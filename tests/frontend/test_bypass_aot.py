"""Inference graphs that are one super kernel are called by Dynamo itself; what needs AOTAutograd's care is not."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from frontend.fused import compiled

import superkernel
from superkernel.frontend import compile_graph, program

pytestmark = pytest.mark.slow


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Per compiled inference graph: is it called directly?"""
    found: list[bool] = []
    original = compile_graph.direct_function

    def noted(*args: Any) -> Any:
        function = original(*args)
        found.append(function is not None)
        return function

    monkeypatch.setattr(compile_graph, "direct_function", noted)
    torch._dynamo.reset()
    yield found


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ w, dim=-1) * 2


def two(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x @ w
    return y.relu(), y.sum(dim=0)


def written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return (x @ w).relu()


@pytest.mark.parametrize("model", [block, two, written])
def test_one_super_kernel_is_called_directly(made: list[bool], model: Callable[..., Any]) -> None:
    function = compiled(model)
    for _ in range(3):
        x, w = torch.randn(8, 16), torch.randn(16, 4)
        expected = model(x.clone(), w)
        torch.testing.assert_close(function(x, w), expected)
    assert made == [True]


def test_tensors_are_found_where_they_are_now(made: list[bool]) -> None:
    """Every call asks anew: guards do not know addresses, and parameters may get other memory."""
    layer = torch.nn.Linear(16, 4)
    function = compiled(layer)
    x = torch.randn(3, 16)
    with torch.no_grad():
        for _ in range(3):
            layer.weight.data = torch.randn(4, 16)
            torch.testing.assert_close(function(x), layer(x))
            torch.testing.assert_close(function(x.clone()[1:]), layer(x[1:]))
    assert set(made) == {True}


def test_without_torchs_help_tensors_are_asked_one_by_one(made: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "ADDRESS_FUNCTION", None)
    function = compiled(two)
    x, w = torch.randn(8, 16), torch.randn(16, 4)
    for got, expected in zip(function(x, w), two(x, w), strict=True):
        torch.testing.assert_close(got, expected)
    assert made == [True]


def returns_an_input(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x, (x @ w).relu()


def returns_a_view(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.t(), (x @ w).relu()


def two_views(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = (x @ w).relu()
    return y, y.t()


def resizes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = (x @ w).relu()
    x.t_()
    return y


@pytest.mark.parametrize("model", [returns_an_input, returns_a_view, two_views, resizes])
def test_aliases_are_those_of_the_model(made: list[bool], model: Callable[..., Any]) -> None:
    x, w = torch.randn(8, 16), torch.randn(16, 4)
    other = x.clone()
    ours, theirs = compiled(model)(x, w), model(other, w)
    torch.testing.assert_close(ours, theirs)
    assert x.shape == other.shape and x.stride() == other.stride()
    assert _sharing(x, ours) == _sharing(other, theirs)
    if model is returns_a_view:
        assert made == [False]


def _sharing(x: torch.Tensor, outputs: Any) -> list[bool]:
    memory = [t.untyped_storage().data_ptr() for t in (x, *(outputs if isinstance(outputs, tuple) else (outputs,)))]
    return [one == other for one in memory for other in memory]


def test_a_write_to_an_input_is_known_to_autograd(made: list[bool]) -> None:
    x, w = torch.randn(8, 16), torch.randn(16, 4)
    function = compiled(written)
    before = x._version
    function(x, w)
    function(x, w)
    assert made == [True] and x._version == before + 2
    kept = torch.randn(16, 4, requires_grad=True)
    product = (x @ kept).sum()
    function(x, w)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_results_are_fresh_and_of_the_mode_they_were_made_in(made: list[bool]) -> None:
    function = compiled(block)
    x, w = torch.randn(8, 16), torch.randn(16, 4, requires_grad=True)
    with torch.no_grad():
        first = function(x, w)
        kept = first.clone()
        second = function(-x, w)
    assert first.data_ptr() != second.data_ptr() and torch.equal(first, kept)
    assert not first.requires_grad and made == [True]
    with torch.inference_mode():
        third = function(x, w)
    assert third.is_inference() and torch.equal(third, kept)


def test_training_goes_through_autograd(made: list[bool]) -> None:
    x, w = torch.randn(8, 16), torch.randn(16, 4, requires_grad=True)
    compiled(block)(x, w).sum().backward()
    assert made == [] and w.grad is not None


def test_one_tensor_given_twice(made: list[bool]) -> None:
    x = torch.randn(8, 8)
    function = compiled(block)
    torch.testing.assert_close(function(x, x), block(x, x))
    torch.testing.assert_close(function(x, x + 1), block(x, x + 1))
    both = torch.randn(16, 8)
    torch.testing.assert_close(function(both[:8], both[8:]), block(both[:8], both[8:]))


@pytest.mark.conformance
def test_a_mode_around_the_call_changes_nothing(made: list[bool]) -> None:
    function = compiled(block)
    x, w = torch.randn(8, 16), torch.randn(16, 4)
    expected = function(x, w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again, eager = function(x, w), block(x, w)  # another graph: Dynamo guards autocast
    assert again.dtype is eager.dtype and not torch.equal(again.float(), expected)
    assert torch.equal(function(x, w), expected)


def test_a_steady_call_makes_at_most_eleven_python_calls() -> None:
    package = str(Path(superkernel.__file__).parent)
    function = compiled(two, profit_gate=1)
    x, w = torch.randn(8, 16), torch.randn(16, 4)
    calls: list[str] = []

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            calls.append(frame.f_code.co_qualname)

    deadline = time.monotonic() + 600
    while not 0 < len(calls) <= 11 and time.monotonic() < deadline:
        for _ in range(20):  # the profit gate decides, once another thread has built what it compares
            function(x, w)
        calls.clear()
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            function(x, w)
        finally:
            sys.setprofile(before)
    assert 0 < len(calls) <= 11, calls
