"""Training: forward and backward graphs are fused, and gradients, optimiser steps and buffers are eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from frontend.fused import compiled, with_grad
from measured import sample
from torch import Tensor, nn

from superkernel.frontend.report import CompileReport, collecting
from superkernel.frontend.scope import super_kernel

pytestmark = pytest.mark.slow

X = torch.linspace(-2, 2, 64).reshape(4, 16)


def gradients(function: Callable[..., Any], *inputs: Tensor) -> list[Tensor]:
    """The result, and the gradient of each input."""
    own = with_grad(inputs)
    result = function(*own)
    result.sin().sum().backward()
    return [result.detach(), *(value.grad for value in own)]


def check_gradients(model: Callable[..., Any], *inputs: Tensor, **options: Any) -> CompileReport:
    with collecting() as report:
        fused = gradients(compiled(model, **options), *inputs)
    off = gradients(compiled(model, **{**options, "fuse": "off"}), *inputs)
    eager = gradients(model, *inputs)
    for one, other, plain in zip(fused, off, eager, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, plain)
    return report


def block(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).tanh().softmax(-1)


def test_forward_and_backward_of_a_marked_scope_are_fused() -> None:
    def model(x: Tensor, w: Tensor) -> Tensor:
        with super_kernel("a"):
            x = block(x, w)
        return x.sin()

    report = check_gradients(model, X, torch.randn(16, 8))
    assert [(scope.name, scope.graph, scope.fused) for scope in report.scopes] == [
        ("a", "1 (forward)", True),
        ("a", "2 (backward)", True),
    ]


def test_forward_and_backward_of_an_unmarked_model_are_each_one_scope() -> None:
    report = check_gradients(block, X, torch.randn(16, 8))
    assert [len(scope.segments) for scope in report.scopes] == [1, 1] and report.outside == 0


@pytest.mark.conformance
def test_gradients_through_several_scopes_and_what_lies_between() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            x = x.sin()
        x = x.exp()
        with super_kernel("b"):
            x = x.cos()
        return x.tanh()

    report = check_gradients(model, X)
    assert sorted(scope.name for scope in report.scopes if scope.fused) == ["a", "a", "b", "b"]


def test_only_the_gradients_that_are_asked_for() -> None:
    def model(x: Tensor, w: Tensor) -> Tensor:
        with super_kernel("a"):
            return x.sin() * w

    function = compiled(model)
    x, w = X.clone().requires_grad_(), torch.ones(16)
    function(x, w).sum().backward()
    torch.testing.assert_close(x.grad, X.cos())
    with torch.no_grad():
        assert not function(x, w).requires_grad
    (twice,) = torch.autograd.grad(function(x, w), x, torch.full((4, 16), 2.0))
    torch.testing.assert_close(twice, 2 * X.cos())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        with super_kernel("net"):
            return self.norm(self.linear(x)).relu()


# Adam divides by the size of the gradient; where that is rounding noise, a large eps keeps the noise small.
@pytest.mark.parametrize(
    "optimiser", sample([partial(torch.optim.Adam, eps=1e-2), torch.optim.SGD]), ids=["adam", "sgd"]
)
def test_steps_of_an_optimiser_follow_those_of_eager(optimiser: Any) -> None:
    mine = Net()
    plain = copy.deepcopy(mine)
    target = torch.randn(4, 8)

    def train(step: Callable[[Tensor], Tensor], parameters: Any) -> None:
        chosen = optimiser(parameters, lr=0.05)
        for _ in range(4):
            chosen.zero_grad()
            nn.functional.mse_loss(step(X), target).backward()
            chosen.step()

    train(compiled(mine), mine.parameters())
    train(plain, plain.parameters())
    for (name, one), other in zip(mine.state_dict().items(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
    assert mine.norm.num_batches_tracked == 4


def test_a_model_goes_from_training_to_evaluation_and_back() -> None:
    mine = Net()
    plain = copy.deepcopy(mine)
    function = compiled(mine)
    for training in (True, False, True):
        mine.train(training)
        plain.train(training)
        torch.testing.assert_close(function(X), plain(X))
        torch.testing.assert_close(mine.norm.running_var, plain.norm.running_var)


@pytest.mark.conformance
@pytest.mark.parametrize("marked", [True, False])
def test_dropout_keeps_the_expected_share_and_its_gradient_uses_the_same_mask(marked: bool) -> None:
    def model(x: Tensor) -> Tensor:
        if not marked:
            return nn.functional.dropout(x, 0.25, training=True) * 3
        with super_kernel("a"):
            return nn.functional.dropout(x, 0.25, training=True) * 3

    x = torch.ones(100, 100, requires_grad=True)
    function = compiled(model, fuse="auto" if marked else "whole")
    y = function(x)
    kept = y != 0
    assert 0.72 < kept.float().mean() < 0.78
    torch.testing.assert_close(y[kept], torch.full_like(y[kept], 4.0))
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, y.detach())
    assert not torch.equal(function(x), y)


@pytest.mark.conformance
def test_a_checkpointed_block_recomputes_the_same() -> None:
    def inner(x: Tensor) -> Tensor:
        with super_kernel("a"):
            return x.sin().cos()

    def model(x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)

    for one, other in zip(gradients(compiled(model), X), gradients(model, X), strict=True):
        torch.testing.assert_close(one, other)


def test_an_input_that_needs_no_gradient_is_written_in_place() -> None:
    def model(x: Tensor, count: Tensor) -> Tensor:
        with super_kernel("a"):
            count.add_(1)
            return x.sin() * count

    function = compiled(model)
    x, count = X.clone().requires_grad_(), torch.zeros(16)
    for step in (1, 2):
        function(x, count).sum().backward()
        assert (count == step).all()
    torch.testing.assert_close(x.grad, X.cos() * 3)
