"""Which ops end up in which super kernel: scopes, `fuse`, unfusible ops and the strict check."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from frontend.fused import assert_same_bits, check, compiled, refused, run
from measured import sample
from torch import Tensor, nn

from superkernel.errors import OptionError, UnsupportedError
from superkernel.frontend.scope import super_kernel

pytestmark = pytest.mark.slow

X = torch.linspace(-2, 2, 64).reshape(4, 16)


# scopes


@pytest.mark.parametrize("fullgraph", sample([True, False]))
def test_a_scope_in_a_function_is_one_super_kernel_and_the_rest_goes_through_inductor(fullgraph: bool) -> None:
    def model(x: Tensor) -> Tensor:
        x = x + 1
        with super_kernel("a"):
            x = x.sin().sum(0)
        return x.cos()

    ran = check(model, X, fullgraph=fullgraph)
    assert ran.shape == {"a": [1]}
    assert ran.scopes["a"].segments[0].fused and ran.report.outside == 2


def test_a_scope_in_a_module_is_found_and_its_parameters_are_inputs() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            with super_kernel("a"):
                return self.linear(x).sin()

    model = Model().eval().requires_grad_(False)
    ran = check(model, X)
    assert ran.shape == {"a": [2]}
    model.linear.weight.zero_()  # weights that change later are seen
    model.linear.bias.fill_(1)
    assert torch.allclose(ran.function(X), torch.tensor(1.0).sin().expand(4, 16))


def test_an_inner_scope_replaces_the_outer_one() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("outer"):
            x = x.sin()
            with super_kernel("inner"):
                x = x.cos()
            return x.exp()

    ran = check(model, X)
    assert ran.shape == {"outer": [1, 1], "inner": [1]}
    assert "lies outside of the scope" in ran.scopes["outer"].segments[0].reason


def test_none_excludes_and_a_named_scope_inside_includes_again() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            x = x.sin()
            with super_kernel(None):
                x = x.cos()
                with super_kernel("b"):
                    x = x.exp()
            return x

    ran = check(model, X)
    assert ran.shape == {"a": [1], "b": [1]}
    assert ran.report.outside == 1


@pytest.mark.conformance
def test_blocks_of_one_name_are_one_scope_and_one_segment_where_nothing_lies_between() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            x = x.sin()
        with super_kernel("a", "early-start=2"):
            x = x.sum(0)
        return x

    ran = check(model, X)
    assert ran.shape == {"a": [1]}
    assert ran.scopes["a"].options == "early-start=2"


@pytest.mark.parametrize("name", ["", "  "])
def test_a_blank_name_is_refused(name: str) -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel(name):
            return x.sin()

    message = refused(model, X, kind=OptionError)
    assert "super_kernel_scope" in message and "blank" in message
    with pytest.raises(OptionError, match="blank"):
        model(X)


def test_an_exception_in_the_body_closes_the_scope() -> None:
    def model(x: Tensor) -> Tensor:
        try:
            with super_kernel("a"):
                x = x.sin()
                raise ValueError
        except ValueError:
            x = x.cos()
        return x

    ran = check(model, X)
    assert ran.shape == {"a": [1]}
    assert ran.report.outside == 1


@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_graph_break_inside_a_scope_is_an_error_that_says_so(fullgraph: bool) -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("broken"):
            x = x.sin()
            torch._dynamo.graph_break()
            return x.cos()

    with pytest.raises(torch._dynamo.exc.TorchDynamoException, match=r"super_kernel_scope 'broken': a graph break"):
        compiled(model, fullgraph=fullgraph)(X)
    torch._dynamo.reset()
    assert torch.equal(model(X), X.sin().cos())  # nothing is left open


def test_one_compiled_model_serves_several_threads() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            return (x.sin() @ x.T).softmax(-1)

    function = compiled(model)
    expected = {scale: function(X * scale) for scale in range(8)}
    wrong: list[int] = []

    def call(scale: int) -> None:
        mine = X * scale
        for _ in range(50):
            if not torch.equal(function(mine), expected[scale]):
                wrong.append(scale)

    threads = [threading.Thread(target=call, args=(scale,)) for scale in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# fuse


def unmarked(x: Tensor) -> Tensor:
    return x.sin().sum(0)


def marked(x: Tensor) -> Tensor:
    x = x.cos()
    with super_kernel("a"):
        x = x.sin().sum(0)
    return x


def without_cos(x: Tensor) -> Tensor:
    with super_kernel(None):
        x = x.cos()
    return x.sin().sum(0)


@pytest.mark.parametrize(
    ("fuse", "model", "shape", "outside"),
    [
        ("auto", unmarked, {"graph": [1]}, 0),
        ("auto", marked, {"a": [1]}, 1),
        ("auto", without_cos, {"graph": [1]}, 1),
        ("marked", unmarked, {}, 2),
        ("marked", marked, {"a": [1]}, 1),
        ("marked", without_cos, {}, 3),
        ("whole", unmarked, {"graph": [1]}, 0),
        ("whole", marked, {"graph": [1]}, 0),
        ("whole", without_cos, {"graph": [1]}, 1),
        ("off", unmarked, {"graph": [1]}, 0),
        ("off", marked, {"a": [1]}, 1),
        ("off", without_cos, {"graph": [1]}, 1),
    ],
)
def test_fuse_says_what_is_fused(fuse: str, model: Any, shape: dict[str, list[int]], outside: int) -> None:
    ran = run(model, X, fuse=fuse)
    torch.testing.assert_close(ran.outputs, model(X))
    assert (ran.shape, ran.report.outside) == (shape, outside)
    assert all(s.fused == (fuse != "off") for scope in ran.report.scopes for s in scope.segments)


def test_a_mark_in_a_later_graph_counts_for_the_earlier_ones() -> None:
    def model(x: Tensor) -> Tensor:
        x = x.cos()
        torch._dynamo.graph_break()
        with super_kernel("a"):
            x = x.sin().sum(0)
        return x

    ran = check(model, X)
    assert ran.report.graphs == 2
    assert ran.shape == {"a": [1]} and ran.report.outside == 1


@pytest.mark.conformance
def test_with_none_marks_only_all_graphs_are_scopes() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel(None):
            x = x.cos()
        torch._dynamo.graph_break()
        return x.sin().sum(0)

    ran = check(model, X)
    assert ran.shape == {"graph": [1]} and ran.report.outside == 1


# what cannot be fused


def summed_between(x: Tensor, options: str = "") -> Tensor:
    with super_kernel("a", options):
        x = x.sin()
        x = x.logcumsumexp(0)
        return x.sum(0)


def test_an_unfusible_op_splits_the_scope_and_is_named_with_its_line() -> None:
    ran = check(summed_between, X)
    scope = ran.scopes["a"]
    assert [len(segment.ops) for segment in scope.segments] == [1, 1]
    (found,) = scope.unfusible
    assert (
        found.op == "aten::logcumsumexp"
        and "x.logcumsumexp(0)" in found.origins[0]
        and "no cpu sub-kernel" in found.reason
    )
    assert scope.segments[0].reason.startswith("ended by aten::logcumsumexp: no cpu sub-kernel")
    assert scope.segments[1].reason == "ended with the graph"
    assert not ran.warnings


def test_abort_refuses_an_unfusible_op_with_scope_op_and_line() -> None:
    message = refused(lambda x: summed_between(x, "strict-scope-check=abort"), X, kind=UnsupportedError)
    assert message.startswith("super_kernel_scope 'a': strict-scope-check=abort: aten::logcumsumexp: ")
    assert "test_backend_scopes.py" in message and "x = x.logcumsumexp(0)" in message


def test_bypass_warns_once_and_leaves_the_whole_scope_unfused() -> None:
    ran = check(lambda x: summed_between(x, "strict-scope-check=bypass"), X)
    scope = ran.scopes["a"]
    assert not scope.fused and scope.unfusible[0].op == "aten::logcumsumexp"
    (warning,) = ran.warnings
    assert warning.startswith("super_kernel_scope 'a': strict-scope-check=bypass") and "aten::logcumsumexp" in warning


def foreign_between(x: Tensor, options: str, inner: str | None) -> Tensor:
    with super_kernel("a", options):
        x = x.sin()
        with super_kernel(inner):
            x = x.cos()
        return x.exp()


def unmarked_between(x: Tensor, options: str, inner: str | None) -> Tensor:
    with super_kernel("a", options):
        x = x.sin()
    x = x.cos()
    with super_kernel("a"):
        return x.exp()


BREAKERS = [
    (foreign_between, "b", "of scope 'b'"),
    (foreign_between, None, "outside of the scope"),
    (unmarked_between, None, "outside of the scope"),
]


@pytest.mark.parametrize(("model", "inner", "owner"), sample(BREAKERS))
def test_abort_refuses_a_scope_broken_by_an_op_between_its_ops(model: Any, inner: str | None, owner: str) -> None:
    message = refused(lambda x: model(x, "strict-scope-check=abort", inner), X, kind=UnsupportedError)
    assert "super_kernel_scope 'a'" in message and "aten.cos" in message and owner in message
    assert "x = x.cos()" in message


@pytest.mark.parametrize(("model", "inner", "owner"), sample(BREAKERS))
def test_bypass_leaves_a_broken_scope_unfused(model: Any, inner: str | None, owner: str) -> None:
    ran = check(lambda x: model(x, "strict-scope-check=bypass", inner), X)
    assert not ran.scopes["a"].fused
    assert len(ran.warnings) == 1 and "aten.cos" in ran.warnings[0] and owner in ran.warnings[0]
    if inner:
        assert ran.scopes[inner].fused


@pytest.mark.conformance
@pytest.mark.parametrize("mark", sample(["none", "excluded", "other"]))
def test_views_between_its_ops_never_break_a_scope(mark: str) -> None:
    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        with super_kernel("a", "strict-scope-check=abort"):
            x = x.sin()
        if mark == "none":
            y = x.t().unsqueeze(0)[:, 1:]
        else:
            with super_kernel(None if mark == "excluded" else "b"):
                y = x.t().unsqueeze(0)[:, 1:]
        with super_kernel("a"):
            return y.sum(1), y  # the view leaves the graph as well

    ran = check(model, X)
    assert ran.shape["a"] == [1] or ran.shape["a"] == [2]
    assert len(ran.scopes["a"].segments) == 1


def test_the_strict_check_of_one_scope_says_nothing_of_another() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a", "strict-scope-check=abort"):
            x = x.sin()
        with super_kernel("b"):
            return x.logcumsumexp(0)

    ran = check(model, X)
    assert ran.scopes["a"].fused and not ran.scopes["b"].fused


def test_a_scope_with_nothing_but_unfusible_ops_runs_right() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            return x.logcumsumexp(0)

    ran = check(model, X)
    assert ran.scopes["a"].segments == [] and ran.scopes["a"].unfusible[0].op == "aten::logcumsumexp"


@pytest.mark.conformance
def test_two_scopes_of_one_graph_keep_their_own_options() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a", "early-start=0"):
            x = x.sin()
        with super_kernel("b", "debug-sync-all=1"):
            return x.cos()

    ran = check(model, X, early_start=2)
    assert {name: scope.options for name, scope in ran.scopes.items()} == {
        "a": "early-start=0",
        "b": "debug-sync-all=1",
    }


def test_replay_proves_every_op_of_a_scope() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a", "debug-replay=1"):
            y = (x @ x.T).softmax(-1)
            return y.sum(), y @ x

    ran = check(model, X)
    assert ran.shape == {"a": [3]}
    assert_same_bits(ran.function(X), ran.outputs)
