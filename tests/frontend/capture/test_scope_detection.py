"""Which callable was compiled, and whether a named scope stands anywhere in what it runs."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from frontend.recorded import Recorder
from torch import Tensor, nn

import superkernel.scope
from superkernel.frontend.capture.scope_detection import is_marked, note_mark, root_callable
from superkernel.frontend.scope import super_kernel
from superkernel.frontend.scope import super_kernel as renamed

X = torch.ones(4, 4)


def marked(x: Tensor) -> Tensor:
    with super_kernel("a"):
        return x.sin()


def plain(x: Tensor) -> Tensor:
    return x.sin()


class Marked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with super_kernel("a"):
            return x.sin()


class Plain(Marked):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin()


class CallsItsBase(Marked):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Holds(nn.Module):
    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        return self.held(x)


class CallsMethod(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return self.step(x)

    def step(self, x: Tensor) -> Tensor:
        with super_kernel("a"):
            return x.sin()


class NeverCallsMethod(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin()

    def step(self, x: Tensor) -> Tensor:
        with super_kernel("a"):
            return x.sin()


class Tool:
    def apply(self, x: Tensor) -> Tensor:
        return marked(x)


class Lazy(dict[str, Any]):
    def values(self) -> Any:
        raise RuntimeError("would load everything")


TOOL = Tool()
TABLE = {"sin": marked}


def through_an_attribute(x: Tensor) -> Tensor:
    with superkernel.frontend.scope.super_kernel("a"):
        return x.sin()


def through_another_name(x: Tensor) -> Tensor:
    with renamed("a"):
        return x.sin()


def imported_inside(x: Tensor) -> Tensor:
    from superkernel.frontend.scope import super_kernel as inside

    with inside("a"):
        return x.sin()


def named_at_run_time(x: Tensor, name: str | None = "a") -> Tensor:
    with super_kernel(name):
        return x.sin()


def in_an_inner_function(x: Tensor) -> Tensor:
    def inner(x: Tensor) -> Tensor:
        with super_kernel("a"):
            return x.sin()

    return inner(x)


def in_a_function_it_calls(x: Tensor) -> Tensor:
    return plain(x) + marked(x)


def in_a_method_of_a_global(x: Tensor) -> Tensor:
    return TOOL.apply(x)


def in_a_table(x: Tensor) -> Tensor:
    return TABLE["sin"](x)


def closes_over(function: Callable[..., Any]) -> Callable[..., Any]:
    def model(x: Tensor) -> Tensor:
        return function(x)

    return model


@super_kernel("a")
def decorated(x: Tensor) -> Tensor:
    return x.sin()


@torch.no_grad()
def marked_without_gradients(x: Tensor) -> Tensor:
    return marked(x)


@functools.cache
def marked_and_cached(x: Tensor) -> Tensor:
    return marked(x)


def with_hook() -> nn.Module:
    module = nn.Linear(4, 4)
    module.register_forward_hook(lambda module, inputs, output: marked(output))
    return module


@pytest.mark.parametrize(
    "root",
    [
        marked,
        through_an_attribute,
        through_another_name,
        imported_inside,
        named_at_run_time,
        in_an_inner_function,
        in_a_function_it_calls,
        in_a_method_of_a_global,
        in_a_table,
        closes_over(marked),
        decorated,
        marked_without_gradients,
        marked_and_cached,
        functools.partial(marked),
        functools.partial(closes_over(plain), marked),
        Tool().apply,
        Marked(),
        Marked().forward,
        CallsItsBase(),
        CallsMethod(),
        nn.Sequential(nn.Linear(4, 4), nn.ModuleList([Marked()])),
        Holds(marked),
        Holds(Tool().apply),
        Holds(functools.partial(marked)),
        Holds(Lazy(sin=marked)),
        Holds([(marked,)]),
        with_hook(),
        torch.compile(Marked(), backend="eager"),
        torch.compile(marked, backend="eager"),
    ],
)
def test_a_named_scope_is_found(root: object) -> None:
    assert is_marked(root)


def excludes(x: Tensor) -> Tensor:
    with super_kernel(None), superkernel.frontend.scope.super_kernel(None, "profiling=1"), renamed(scope=None):
        return x.sin()


@super_kernel(None)
def excludes_all(x: Tensor) -> Tensor:
    return x.sin()


def only_says(x: Tensor) -> str:
    return "super_kernel"


class Unfriendly:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("hands off")


class HoldsUnfriendly(nn.Module):
    tool = Unfriendly()

    def forward(self, x: Tensor) -> Tensor:
        return self.tool(x)  # type: ignore[operator,no-any-return]


@pytest.mark.parametrize(
    "root",
    [
        plain,
        excludes,
        excludes_all,
        only_says,
        closes_over(plain),
        Plain(),
        NeverCallsMethod(),
        Holds(plain),
        nn.Linear(4, 4),
        torch.sin,
        len,
        None,
        3,
        closes_over(Unfriendly()),  # type: ignore[arg-type]
        HoldsUnfriendly(),
        Holds(Lazy(sin=plain)),
        Holds(torch),
    ],
)
def test_where_no_named_scope_stands_none_is_found(root: object) -> None:
    assert not is_marked(root)


def test_a_noted_root_is_marked_whatever_its_source_says() -> None:
    root = closes_over(plain)
    note_mark(root)
    assert is_marked(root)


def test_a_note_ends_with_its_root() -> None:
    from superkernel.frontend.capture import scope_detection

    root = closes_over(plain)
    note_mark(root)
    key = id(root)
    del root
    gc.collect()
    assert key not in scope_detection._noted


def test_what_cannot_be_referred_to_weakly_can_be_noted_without_harm() -> None:
    note_mark(3)
    assert not is_marked(3)


def roots_seen(call: Callable[[Recorder], object]) -> list[object]:
    torch._dynamo.reset()
    seen: list[object] = []
    recorder = Recorder(lambda graph: seen.append(root_callable()))
    with torch.no_grad():
        call(recorder)
    return seen


class Step(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin()

    def other(self, x: Tensor) -> Tensor:
        return x.cos()


def breaks(x: Tensor) -> Tensor:
    x = x.sin()
    torch._dynamo.graph_break()
    return x.cos()


STEP, LINEAR, PARTIAL = Step(), nn.Linear(4, 4), functools.partial(plain)


@pytest.mark.parametrize(
    ("given", "root"),
    [
        (plain, plain),
        (STEP, STEP),
        (LINEAR, LINEAR),
        (STEP.forward, STEP),
        (STEP.other, STEP.other),
        (PARTIAL, PARTIAL),
        (torch.sin, torch.sin),
    ],
)
def test_the_compiled_callable_is_found_from_inside_the_back_end(given: Any, root: object) -> None:
    assert roots_seen(lambda backend: torch.compile(given, backend=backend)(X)) == [root]


def test_a_module_compiled_in_place_is_found() -> None:
    step = Step()

    def call(backend: Recorder) -> None:
        step.compile(backend=backend)
        step(X)

    assert roots_seen(call) == [step]


def test_all_graphs_of_a_callable_have_the_same_root() -> None:
    assert roots_seen(lambda backend: torch.compile(breaks, backend=backend)(X)) == [breaks, breaks]


def test_the_root_is_that_of_the_innermost_compile() -> None:
    def call(backend: Recorder) -> None:
        inner = torch.compile(plain, backend=backend)

        @torch.compiler.disable
        def outside(x: Tensor) -> Tensor:
            return inner(x)

        torch.compile(lambda x: outside(x.cos()), backend="eager")(X)

    assert roots_seen(call) == [plain]


def test_outside_of_a_back_end_there_is_no_root() -> None:
    assert root_callable() is None
