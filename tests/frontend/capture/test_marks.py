"""What is read from a traced graph: the scope of every op, the options of every scope, and their source lines."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from frontend.recorded import Recorder, compiled, compute, named
from torch import Tensor

import superkernel.scope
from superkernel.errors import OptionError
from superkernel.frontend.capture.marks import ScopeMark, mark_of, read_marks, scope_options
from superkernel.frontend.capture.source_lines import source_line
from superkernel.frontend.scope import super_kernel
from superkernel.frontend.scope import super_kernel as renamed
from superkernel.model.options import Options

pytestmark = pytest.mark.slow

A, B, EXCLUDED = ScopeMark("a"), ScopeMark("b"), ScopeMark(None)


def marks_of(model: Callable[..., Any], *inputs: Any, **options: Any) -> dict[Any, ScopeMark | None]:
    with torch.no_grad():
        (graph,) = compiled(model, *inputs, **options)
    return read_marks(graph)


def by_name(marks: dict[Any, ScopeMark | None]) -> dict[str, ScopeMark | None]:
    return {node.name: mark for node, mark in marks.items()}


def line_of(model: Callable[..., Any], code: str) -> str:
    """The line of the model that starts with `code`, as messages show it."""
    lines, first = inspect.getsourcelines(model)
    (number,) = [first + at for at, line in enumerate(lines) if line.strip().startswith(code)]
    file = Path(__file__).relative_to(Path.cwd()) if Path(__file__).is_relative_to(Path.cwd()) else __file__
    return f"{file}:{number}: {lines[number - first].strip()}"


def four() -> Tensor:
    return torch.ones(4, 4)


def test_a_mark_is_read_from_a_node() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a", "profiling=1"):
            return x.sin()

    (graph,) = compiled(model, four())
    assert mark_of(named(graph, "sin")) == ScopeMark("a", "profiling=1")


def test_a_node_that_tracing_left_alone_has_no_mark() -> None:
    (graph,) = compiled(torch.sin, four())
    assert mark_of(named(graph, "sin")) is None


def test_only_ops_have_marks() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            return x.sin()

    (graph,) = compiled(model, four())
    assert list(read_marks(graph)) == compute(graph)


def test_an_excluded_op_differs_from_an_unmarked_one() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel(None):
            x = x.sin()
        return x.cos()

    assert by_name(marks_of(model, four())) == {"sin": EXCLUDED, "cos": None}


def index_copy(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    with super_kernel("a"):
        cache.index_copy_(0, at, new * 2)
        return cache.sin()


def index_put(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    with super_kernel("a"):
        cache[at] = new * 2
        return cache.sin()


def slice_assignment(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    with super_kernel("a"):
        cache[1:3] = new * 2
        return cache.sin()


def through_a_view(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    with super_kernel("a"):
        cache.view(-1).add_(1)
        return cache.sin()


@pytest.mark.parametrize("model", [index_copy, index_put, slice_assignment, through_a_view])
def test_writing_back_a_mutated_input_belongs_to_the_scope_that_mutates_it(model: Callable[..., Any]) -> None:
    marks = marks_of(model, four(), torch.ones(2, 4), torch.tensor([0, 1]))
    assert set(marks.values()) == {A}


def test_each_mutated_input_follows_its_own_scope() -> None:
    def model(first: Tensor, second: Tensor, third: Tensor) -> None:
        with super_kernel("a"):
            first.add_(1)
        with super_kernel(None):
            second.mul_(2)
        third.sub_(3)

    found = by_name(marks_of(model, four(), four(), four()))
    assert [found["copy_"], found["copy__1"], found["copy__2"]] == [A, EXCLUDED, None]


def test_a_view_made_again_for_the_output_belongs_to_the_op_that_made_its_value() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            x.add_(1)
            return x.t()

    (graph,) = compiled(model, four())
    again = named(graph, "t")
    assert (mark_of(again), read_marks(graph)[again]) == (None, A)


def test_a_view_between_two_blocks_of_one_scope_belongs_to_it() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            x = x.sin()
        x = x.view(2, 8).transpose(0, 1)
        with super_kernel("a"):
            return x.cos()

    assert set(marks_of(model, four()).values()) == {A}


def test_a_view_between_two_scopes_stays_unmarked() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            x = x.sin()
        x = x.view(-1)
        with super_kernel("b"):
            return x.cos()

    assert by_name(marks_of(model, four())) == {"sin": A, "view": None, "cos": B}


def test_a_view_with_an_unmarked_user_stays_unmarked() -> None:
    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        with super_kernel("a"):
            x = x.sin()
        x = x.view(-1)
        with super_kernel("a"):
            y = x.cos()
        return y, x.exp()

    assert by_name(marks_of(model, four()))["view"] is None


def test_the_parts_of_a_split_follow_their_users() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            x = x.sin()
        left, right = x.split(2)
        with super_kernel("a"):
            return left + right

    assert set(marks_of(model, four()).values()) == {A}


def test_a_view_of_an_input_follows_its_users() -> None:
    def model(x: Tensor) -> Tensor:
        x = x.view(-1).unsqueeze(0)
        with super_kernel("a"):
            return x.sin()

    assert set(marks_of(model, four()).values()) == {A}


def test_sizes_of_an_input_follow_their_users() -> None:
    def model(x: Tensor) -> Tensor:
        half = x.shape[0] // 2
        with super_kernel("a"):
            return x.sin().reshape(half, 2)

    marks = marks_of(model, torch.ones(6), dynamic=True)
    assert set(marks.values()) == {A}


def test_an_unmarked_op_between_blocks_of_one_scope_stays_unmarked() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            x = x.sin()
        x = x + 1
        with super_kernel("a"):
            return x.cos()

    assert by_name(marks_of(model, four())) == {"sin": A, "add": None, "cos": A}


def test_adding_up_gradients_belongs_to_the_scope_that_all_of_them_come_from() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            y = x.sin()
            return y * y.cos()

    torch._dynamo.reset()
    recorder = Recorder()
    torch.compile(model, backend=recorder)(four().requires_grad_()).sum().backward()
    backward = recorder.graphs[1]
    assert mark_of(named(backward, "add")) is None
    assert set(read_marks(backward).values()) == {A}


def options_of(model: Callable[..., Any], default: str = "") -> dict[str, Options]:
    return scope_options(marks_of(model, four()), default)


def test_every_name_has_its_options_and_excluded_bodies_have_none() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a", "early-start=2"):
            x = x.sin()
        with super_kernel("b"):
            x = x.cos()
        with super_kernel(None):
            return x.exp()

    assert options_of(model) == {"a": Options.parse("early-start=2"), "b": Options()}


def test_an_empty_text_is_no_opinion() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a"):
            x = x.sin()
        with super_kernel("a", "early-start=2"):
            x = x.cos()
        with super_kernel("a", "  "):
            return x.exp()

    assert options_of(model) == {"a": Options.parse("early-start=2")}


def test_texts_that_parse_equal_agree() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a", "early-start=2:profiling=1"):
            x = x.sin()
        with super_kernel("a", "profiling=1:early_start=2:"):
            return x.cos()

    assert options_of(model) == {"a": Options.parse("early-start=2:profiling=1")}


def test_default_options_serve_the_names_that_give_none() -> None:
    def model(x: Tensor) -> Tensor:
        with super_kernel("a", "early-start=2"):
            x = x.sin()
        with super_kernel("b"):
            return x.cos()

    assert options_of(model, "profiling=1") == {"a": Options(early_start=2), "b": Options(profiling=True)}


def contradicts_itself(x: Tensor) -> Tensor:
    with super_kernel("a", "early-start=2"):
        x = x.sin()
    with superkernel.frontend.scope.super_kernel("a", "early-start=0"):
        return x.cos()


@pytest.mark.parametrize("said", ["super_kernel_scope 'a'", "'early-start=2'", "'early-start=0'"])
def test_different_options_for_one_name_are_refused(said: str) -> None:
    with pytest.raises(OptionError) as caught:
        options_of(contradicts_itself)
    assert said in str(caught.value)


@pytest.mark.parametrize("opening", ["with super_kernel(", "with superkernel.frontend.scope.super_kernel("])
def test_different_options_name_both_lines(opening: str) -> None:
    with pytest.raises(OptionError) as caught:
        options_of(contradicts_itself)
    assert line_of(contradicts_itself, opening) in str(caught.value)


def bad_options(x: Tensor) -> Tensor:
    with super_kernel("a", "early-strat=1"):
        return x.sin()


def bad_options_excluded(x: Tensor) -> Tensor:
    with super_kernel(None, "early-strat=1"):
        return x.sin()


def blank_name(x: Tensor) -> Tensor:
    with super_kernel(" "):
        return x.sin()


def number_as_name(x: Tensor) -> Tensor:
    with super_kernel(3):  # type: ignore[arg-type]
        return x.sin()


def options_missing(x: Tensor) -> Tensor:
    with super_kernel("a", None):  # type: ignore[arg-type]
        return x.sin()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (bad_options, "super_kernel_scope 'a': unknown option 'early-strat'"),
        (bad_options_excluded, "super_kernel_scope None: unknown option 'early-strat'"),
        (blank_name, "super_kernel_scope ' ': the name is blank"),
        (number_as_name, "super_kernel_scope <class 'int'>: a scope is named by a text, or None, not by int"),
        (options_missing, "super_kernel_scope 'a': options cannot be None"),
    ],
)
def test_a_bad_mark_is_refused_with_its_scope_and_line(model: Callable[..., Any], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        options_of(model)
    message = str(caught.value)
    assert message.startswith(said)
    assert message.endswith(f"(at {line_of(model, 'with super_kernel(')})")


def leaf(x: Tensor) -> Tensor:
    return torch.nn.functional.softmax(x, -1)


def opened_by_the_caller(x: Tensor) -> Tensor:
    with super_kernel("a", "early-strat=1"):
        x = x + 1
    with super_kernel("b", "early-strat=1"):
        return leaf(x)


def opened_in_two_lines(x: Tensor) -> Tensor:
    with renamed("a", "early-strat=1"):
        return leaf(x)


@super_kernel("a", "early-strat=1")
def decorated(x: Tensor) -> Tensor:
    return leaf(x)


@pytest.mark.parametrize(
    ("model", "source", "opening"),
    [
        (opened_by_the_caller, opened_by_the_caller, 'with super_kernel("a"'),
        (opened_in_two_lines, opened_in_two_lines, "with renamed("),
        (decorated, inspect.unwrap(decorated), "@super_kernel("),
    ],
)
def test_the_line_that_opens_a_scope_is_found(
    model: Callable[..., Any], source: Callable[..., Any], opening: str
) -> None:
    with pytest.raises(OptionError) as caught:
        options_of(model)
    assert line_of(source, opening) in str(caught.value)


def test_without_a_line_that_opens_it_the_ops_own_line_is_named() -> None:
    hidden = {"open": super_kernel}

    def model(x: Tensor) -> Tensor:
        with hidden["open"]("a", "early-strat=1"):
            return x.sin()

    with pytest.raises(OptionError) as caught:
        options_of(model)
    assert line_of(model, "return x.sin()") in str(caught.value)


def test_the_source_line_of_an_op_is_the_users_innermost() -> None:
    (graph,) = compiled(opened_in_two_lines, four())
    assert source_line(named(graph, "_softmax")) == line_of(leaf, "return")


def test_the_source_line_of_a_backward_op_is_that_of_its_forward_op() -> None:
    torch._dynamo.reset()
    recorder = Recorder()
    torch.compile(leaf, backend=recorder)(four().requires_grad_()).sum().backward()
    assert source_line(named(recorder.graphs[1], "_softmax_backward_data")) == line_of(leaf, "return")


def test_a_node_without_a_trace_has_no_source_line() -> None:
    graph = torch.fx.Graph()
    assert source_line(graph.call_function(torch.ops.aten.sin.default, (graph.placeholder("x"),))) is None
