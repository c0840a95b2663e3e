"""The with-statement: what it leaves on the graph, and that it does nothing else."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from frontend.recorded import Recorder, compiled, compute
from torch import Tensor, nn

from superkernel.errors import OptionError
from superkernel.frontend.scope import ANNOTATION, super_kernel

X = torch.ones(4, 4)


def marks(graph: Any) -> list[tuple[str, Any]]:
    """Op and mark of every node, as ("sin", ("a", ""))."""
    nodes = compute(graph)
    return [(str(node.target).split(".")[-2], node.meta.get("custom", {}).get(ANNOTATION)) for node in nodes]


def nothing_is_left_open() -> bool:
    from torch._dynamo.symbolic_convert import _get_error_on_graph_break

    return "custom" not in torch.fx.traceback.current_meta and not _get_error_on_graph_break()


@pytest.mark.parametrize("fullgraph", [True, False])
def test_ops_in_the_body_carry_scope_and_options_and_others_carry_none(fullgraph: bool) -> None:
    def model(x: Tensor) -> Tensor:
        x = x + 1
        with super_kernel("a", "early-start=2"):
            x = x.sin()
        return x.cos()

    (graph,) = compiled(model, X, fullgraph=fullgraph)
    assert marks(graph) == [("add", None), ("sin", ("a", "early-start=2")), ("cos", None)]


def test_an_inner_scope_replaces_name_and_options() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("outer", "profiling=1"):
            x = x.sin()
            with super_kernel("inner"):
                x = x.cos()
            return x.exp()

    (graph,) = compiled(model, X)
    assert marks(graph) == [
        ("sin", ("outer", "profiling=1")),
        ("cos", ("inner", "")),
        ("exp", ("outer", "profiling=1")),
    ]


def test_none_excludes_and_a_named_scope_inside_includes_again() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            x = x.sin()
            with super_kernel(None):
                x = x.cos()
                with super_kernel("b"):
                    x = x.exp()
            return x

    (graph,) = compiled(model, X)
    assert marks(graph) == [("sin", ("a", "")), ("cos", (None, "")), ("exp", ("b", ""))]


def test_a_decorated_function_is_a_scope() -> None:
    @super_kernel("a")
    def model(x: Tensor) -> Tensor:
        return x.sin()

    (graph,) = compiled(model, X, fullgraph=True)
    assert marks(graph) == [("sin", ("a", ""))]


def test_a_scope_entered_through_an_exit_stack_marks() -> None:
    def model(x: Tensor) -> Tensor:
        with ExitStack() as stack:
            stack.enter_context(super_kernel("a"))
            return x.sin()

    (graph,) = compiled(model, X, fullgraph=True)
    assert marks(graph) == [("sin", ("a", ""))]


def test_names_made_in_a_loop_mark_each_turn() -> None:
    def model(x: Tensor) -> Tensor:
        for layer in range(2):
            with super_kernel(f"layer{layer}"):
                x = x.sin()
        return x

    (graph,) = compiled(model, X, fullgraph=True)
    assert marks(graph) == [("sin", ("layer0", "")), ("sin", ("layer1", ""))]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with super_kernel("a"):
            return torch.softmax(self.linear(x), -1)


def test_marks_survive_decomposition() -> None:
    with torch.no_grad():
        (graph,) = compiled(Block(), X)
    assert {mark for _, mark in marks(graph)} == {("a", "")}


def test_marks_survive_functionalisation() -> None:
    def model(x: Tensor) -> Tensor:
        y = x.clone()
        with super_kernel("a"):
            y.view(-1).add_(1)
        return y

    (graph,) = compiled(model, X)
    assert ("add", ("a", "")) in marks(graph)


def test_marks_reach_the_backward_graph() -> None:
    torch._dynamo.reset()
    recorder = Recorder()
    torch.compile(Block(), backend=recorder)(X).sum().backward()
    backward = recorder.graphs[1]
    assert {mark for _, mark in marks(backward)} == {("a", "")}


def test_a_graph_break_outside_of_scopes_stays_allowed() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            x = x.sin()
        torch._dynamo.graph_break()
        with super_kernel("b"):
            return x.cos()

    first, second = compiled(model, X)
    assert marks(first) + marks(second) == [("sin", ("a", "")), ("cos", ("b", ""))]


def breaks_in_the_body(x: Tensor) -> Tensor:
    with super_kernel("outer"):
        with super_kernel("inner"):
            x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()


def breaks_in_a_function_it_calls(x: Tensor) -> Tensor:
    def inner(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x.cos()

    with super_kernel("outer"):
        return inner(x.sin())


def branches_on_data(x: Tensor) -> Tensor:
    with super_kernel("outer"):
        return x.sin() if x.sum() > 0 else x.cos()


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("model", [breaks_in_the_body, breaks_in_a_function_it_calls, branches_on_data])
def test_a_graph_break_in_a_scope_is_an_error_that_names_it(model: Callable[..., Any], fullgraph: bool) -> None:
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"super_kernel_scope 'outer': a graph break inside"):
        compiled(model, X, fullgraph=fullgraph)
    assert nothing_is_left_open()


def test_a_graph_break_in_an_excluded_body_is_an_error_too() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel(None):
            torch._dynamo.graph_break()
            return x.sin()

    with pytest.raises(torch._dynamo.exc.Unsupported, match="super_kernel_scope None: a graph break inside"):
        compiled(model, X)


def test_a_graph_break_after_a_scope_does_not_blame_it() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            x = x.sin()
        torch._dynamo.graph_break()
        return x

    with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
        compiled(model, X, fullgraph=True)
    assert "super_kernel_scope" not in str(caught.value)


def test_an_exception_caught_outside_closes_the_scope_while_tracing() -> None:
    def model(x: Tensor) -> Tensor:
        try:
            with super_kernel("a"):
                x = x.sin()
                raise ValueError
        except ValueError:
            return x.cos()

    (graph,) = compiled(model, X, fullgraph=True)
    assert marks(graph) == [("sin", ("a", "")), ("cos", None)]


def test_an_exception_that_leaves_the_model_is_the_users_own() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        compiled(model, X)
    assert nothing_is_left_open()


def test_threads_that_compile_and_run_at_once_keep_their_own_marks() -> None:
    torch._dynamo.reset()
    found: dict[str, set[Any]] = {}
    together = threading.Barrier(3)

    def model(x: Tensor, name: str) -> Tensor:
        with super_kernel(name):
            return x.sin() + x.cos()

    def trace(name: str) -> None:
        recorder = Recorder()
        together.wait()
        torch.compile(model, backend=recorder)(X, name)
        found[name] = {mark for _, mark in marks(recorder.graphs[0])}

    def eager() -> None:
        together.wait()
        for _ in range(1000):
            model(X, "eager")

    threads = [threading.Thread(target=trace, args=(name,)) for name in ("a", "b")] + [threading.Thread(target=eager)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"a": {("a", "")}, "b": {("b", "")}}


def test_eagerly_nothing_is_entered() -> None:
    with super_kernel("a"):
        assert nothing_is_left_open()


def test_eagerly_an_exception_passes_through() -> None:
    with pytest.raises(ValueError, match="mine"), super_kernel("a"):
        raise ValueError("mine")


@pytest.mark.parametrize(
    ("scope", "options", "said"),
    [
        ("", "", "super_kernel_scope '': the name is blank"),
        ("  ", "", "super_kernel_scope '  ': the name is blank"),
        (3, "", "super_kernel_scope 3: a scope is named by a text, or None, not by int"),
        (
            "a",
            "early-strat=1",
            r"super_kernel_scope 'a': unknown option 'early-strat'.* \(did you mean 'early-start'\?",
        ),
        ("a", "early-start=7", "super_kernel_scope 'a': option 'early-start' cannot be '7'"),
        ("a", None, "super_kernel_scope 'a': options cannot be None"),
        (None, "nothing", "super_kernel_scope None: unknown option 'nothing'"),
    ],
)
def test_eagerly_bad_arguments_are_refused_and_named(scope: Any, options: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said), super_kernel(scope, options):
        pytest.fail("the body ran")


@pytest.mark.parametrize("scope", [3, X, ["a"]])
def test_while_tracing_what_is_no_name_is_carried_as_its_type(scope: Any) -> None:
    def model(x: Tensor, scope: Any) -> Tensor:
        with super_kernel(scope):
            return x.sin()

    (graph,) = compiled(model, X, scope, fullgraph=True)
    assert marks(graph) == [("sin", (type(scope), ""))]


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_model_computes_the_same(strict: bool) -> None:
    block = Block()
    exported = torch.export.export(block, (X,), strict=strict)
    assert torch.equal(exported.module()(X), block(X))


def test_symbolic_tracing_ignores_scopes() -> None:
    block = Block()
    assert torch.equal(torch.fx.symbolic_trace(block)(X), block(X))


def test_jit_tracing_ignores_scopes() -> None:
    block = Block()
    assert torch.equal(torch.jit.trace(block, (X,))(X), block(X))


def test_without_torch_arguments_are_checked_and_torch_stays_away() -> None:
    program = """
import sys
from superkernel.errors import OptionError
from superkernel.frontend.scope import super_kernel
with super_kernel("a", "early-start=1"):
    pass
try:
    with super_kernel("a", "early-start=7"):
        pass
except OptionError:
    print("torch" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
