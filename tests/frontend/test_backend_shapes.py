"""Shapes: every shape gets a super kernel of its own; sizes that cannot be numbers are refused or left to Inductor."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from frontend.fused import check, compiled, refused, run
from measured import sample
from torch import Tensor

from superkernel.errors import UnsupportedError
from superkernel.frontend.report import collecting
from superkernel.frontend.scope import super_kernel

pytestmark = pytest.mark.slow

X = torch.linspace(-2, 2, 64).reshape(4, 16)


def marked(x: Tensor) -> Tensor:
    with super_kernel("a"):
        return x.sin().sum(0)


def unmarked(x: Tensor) -> Tensor:
    return x.sin().sum(0)


@pytest.mark.parametrize("dynamic", sample([None, True, False]))
def test_every_shape_gives_right_results_and_open_sizes_are_named_in_one_line(
    dynamic: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "superkernel")
    function = compiled(marked, dynamic=dynamic)
    for rows in (4, 5, 6):
        x = torch.linspace(-2, 2, rows * 16).reshape(rows, 16)
        torch.testing.assert_close(function(x), marked(x))
    told = [record.getMessage() for record in caplog.records if "compiled for" in record.getMessage()]
    about_rows = [line for line in told if line.startswith("input 'x', dimension 0 is compiled for")]
    expected = {True: [4, 5, 6], None: [5, 6], False: []}[dynamic]  # the first shape is static unless asked otherwise
    assert about_rows == [f"input 'x', dimension 0 is compiled for {n}; another size compiles anew" for n in expected]


@pytest.mark.conformance
def test_a_size_that_is_used_as_a_number() -> None:
    def model(x: Tensor, n: int) -> Tensor:
        return x[:n] * x.shape[0] + torch.arange(n).unsqueeze(1)

    function = compiled(model, dynamic=True)
    for rows, n in ((4, 2), (5, 3)):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(function(x, n), model(x, n))


def test_a_dimension_marked_dynamic_is_refused_and_one_marked_static_is_fine() -> None:
    x = X.clone()
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        compiled(marked, dynamic=None)(x)
    error = caught.value.inner_exception
    assert isinstance(error, UnsupportedError)
    assert "super_kernel_scope: input 'x', dimension 0, was marked dynamic" in str(error)
    assert "torch._dynamo.mark_static(tensor, 0)" in str(error)
    torch._dynamo.reset()
    y = X.clone()
    torch._dynamo.mark_static(y, 0)
    torch.testing.assert_close(compiled(marked, dynamic=None)(y), marked(y))


# sizes and numbers that depend on data


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Any:
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


def positive(x: Tensor) -> Tensor:
    return x[x > 0].sin()


def test_a_size_that_depends_on_data_is_refused_in_a_scope(captured: None) -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            return positive(x)

    message = refused(model, X, kind=UnsupportedError, fullgraph=True)
    assert message.startswith("super_kernel_scope 'a': ") and "its size depends on data" in message
    assert "return x[x > 0].sin()" in message and "torch._dynamo.mark_static" in message


def test_a_model_whose_sizes_depend_on_data_goes_through_inductor_with_the_reason(captured: None) -> None:
    ran = run(positive, X, fullgraph=True)
    torch.testing.assert_close(ran.outputs, positive(X))
    torch.testing.assert_close(ran.function(-2 * X), positive(-2 * X))
    (segment,) = ran.scopes["graph"].segments
    assert not segment.fused and "its size depends on data" in segment.reason
    assert len(ran.warnings) == 1 and "runs unfused through Inductor" in ran.warnings[0]


def test_a_size_that_depends_on_data_may_stand_beside_a_scope(captured: None) -> None:
    def model(x: Tensor) -> Any:
        with super_kernel("a"):
            y = x.sin()
        z = y[y > 0] * 2
        with super_kernel("b"):
            w = y.cos()
        return z + 1, w

    ran = run(model, X, fullgraph=True)
    for one, other in zip(ran.outputs, model(X), strict=True):
        torch.testing.assert_close(one, other)
    assert ran.scopes["a"].fused and ran.scopes["b"].fused
    for one, other in zip(ran.function(3 * X), model(3 * X), strict=True):
        torch.testing.assert_close(one, other)


def test_a_whole_number_that_depends_on_data_splits_a_scope(captured: None) -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            y = x.sin()
            return y.sum(0) + x[0, 0].to(torch.int64).item()

    ran = run(model, X, fullgraph=True)
    torch.testing.assert_close(ran.outputs, model(X))
    torch.testing.assert_close(ran.function(2 * X), model(2 * X))
    assert {found.op for found in ran.scopes["a"].unfusible} == {"aten._local_scalar_dense.default", "aten.add.Tensor"}


@pytest.mark.conformance
def test_a_float_that_becomes_an_input_stays_in_its_scope() -> None:
    def model(x: Tensor, factor: float) -> Tensor:
        with super_kernel("a", "strict-scope-check=abort"):
            return (x.sin() * factor).sum(0)

    function = compiled(model, dynamic=None)
    with collecting() as report:
        for factor in (1.5, 2.5, 3.5):
            torch.testing.assert_close(function(X, factor), model(X, factor))
    assert [len(scope.segments) for scope in report.scopes] == [1, 1] and report.outside == 0


# higher-order operators


def chosen(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


@pytest.mark.parametrize("options", ["", "strict-scope-check=bypass"])
def test_a_higher_order_operator_splits_a_scope(options: str) -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a", options):
            return chosen(x + 1).exp()

    ran = check(model, X)
    torch.testing.assert_close(ran.function(-X - 3), model(-X - 3))
    scope = ran.scopes["a"]
    (found,) = scope.unfusible
    assert found.op == "cond" and "higher-order" in found.reason
    assert "torch.cond(" in found.origins[0]
    if options:
        assert not scope.fused and len(ran.warnings) == 1
    else:
        assert [len(segment.ops) for segment in scope.segments] == [1, 1] and not ran.warnings
        assert scope.segments[0].reason == "ended by cond: a higher-order operator is left to Inductor"


def test_abort_refuses_a_higher_order_operator() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a", "strict-scope-check=abort"):
            return chosen(x + 1)

    message = refused(model, X, kind=UnsupportedError)
    assert "super_kernel_scope 'a'" in message and "cond: a higher-order operator" in message


def test_an_unmarked_model_with_a_higher_order_operator_is_fused_around_it() -> None:
    ran = check(lambda x: chosen(x + 1).exp(), X)
    assert [len(segment.ops) for segment in ran.scopes["graph"].segments] == [1, 1]


@pytest.mark.conformance
def test_a_scope_inside_of_a_higher_order_operator_says_that_it_is_not_fused() -> None:
    def branch(x: Tensor) -> Tensor:
        with super_kernel("inner"):
            return x.sin()

    ran = check(lambda x: torch.cond(x.sum() > 0, branch, lambda x: x.cos(), (x,)), X + 1)
    assert ran.scopes["inner"].segments[0].reason.startswith("it lies inside of cond")
    (warning,) = ran.warnings
    assert warning.startswith("super_kernel_scope 'inner': runs unfused through Inductor: it lies inside of cond")


@pytest.mark.conformance
def test_loops_run_right() -> None:
    def model(x: Tensor) -> Any:
        steps = torch.zeros((), dtype=torch.int64)
        _, grown = torch._higher_order_ops.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (steps, x.sin()))
        return grown.cos()

    check(model, X)
