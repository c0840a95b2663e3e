"""frontend.backend: what torch.compile(backend="superkernel") calls: a Dynamo graph in, a callable out."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from ..cache import cache_in
from ..errors import BuildError
from ..targets import find_target, model_support_of
from .aot import hand_on
from .capture.marks import is_marked, root_callable
from .capture.static_shapes import nested_input, specialise
from .compile_graph import GraphContext, compile_graph
from .lowering import inductor
from .report import current
from .settings import Settings

_warned: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()  # by compiled callable
_warned_of_nobody: set[str] = set()


def superkernel(module: GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: Any = None) -> Any:
    """The back end: marked regions become super kernels, the rest goes through Inductor."""
    settings = Settings.parse(options, mode)
    root = root_callable()
    context = GraphContext(settings, root, is_marked(root) if root is not None else False, _warned_for(root))
    if (why := _why_not(module)) is not None:
        return _left_to_inductor(module, inputs, context, why)
    support = model_support_of(find_target(settings.target))
    with cache_in(settings.cache), suppress(BuildError):  # whoever needs what is missing will say so
        support.warm_up()
    specialise(module, inputs)
    context.inputs = sum(node.op == "placeholder" for node in module.graph.nodes)
    with _collector_paused():
        made = hand_on(module, inputs, partial(compile_graph, context))
    return context.direct or made


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A compilation makes a great many objects and little garbage: looking for it takes a tenth of a warm start."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _why_not(module: GraphModule) -> str | None:
    """Why nothing of the graph can be fused; None: something may be."""
    if not inductor.supported():
        known = ", ".join(f"{major}.{minor}" for major, minor in inductor.SUPPORTED)
        return f"superkernel knows torch {known}, not {torch.__version__}"
    if (name := nested_input(module)) is not None:
        return f"input {name!r} is a nested tensor, and only plain tensors are fused"
    return None


def _left_to_inductor(module: GraphModule, inputs: Sequence[Any], context: GraphContext, why: str) -> Any:
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    context.warn_once(f"super_kernel_scope: everything goes through Inductor, unfused: {why}")
    current().notes.append(why)
    return compile_fx(module, list(inputs), config_patches=list_mode_options(context.settings.mode or "default"))


def _warned_for(root: object) -> set[str]:
    """What has been said about a callable, so that its other graphs and shapes do not say it again."""
    try:
        return _warned.setdefault(root, set())
    except TypeError:  # it cannot be referred to weakly, or has no hash
        return _warned_of_nobody
