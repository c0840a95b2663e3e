"""frontend.backend: what torch.compile(backend="superkernel") calls: a Dynamo graph in, a callable out."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch._dynamo.backends import registry
from torch.fx import GraphModule

from ..cache import cache_in
from ..errors import BuildError
from . import cache_artifacts
from .aot import compile_with_aot
from .bucketed_graph import compile_with_buckets
from .capture.bucketed_dims import find_symbolic_dims
from .capture.recurrent import trace_recurrent_layers, unroll_recurrent
from .capture.scope_detection import is_marked, root_callable
from .capture.static_shapes import nested_input, specialise
from .compile_graph import GraphContext, compile_graph
from .input_overlap import eager_where_inputs_overlap, with_separate_storage
from .report import current_report
from .settings import BackendSettings
from .torch_versions import unsupported_version
from .wrapped_inputs import unwraps

NAME = "superkernel"
_warned: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()  # by compiled callable
_warned_without_root: set[str] = set()


class _Registry(dict[str, Any]):
    """Torch's table of back ends, in which this one may be registered again.

    Threads that ask for it by name at once all load it, and each registers what it loaded.
    """

    def __contains__(self, name: object) -> bool:
        return name != NAME and super().__contains__(name)

    def __getitem__(self, name: str) -> Any:
        if name == NAME:
            prepare_tracing()
        return super().__getitem__(name)


def prepare_tracing() -> None:
    """Before Dynamo traces for this back end."""
    if unsupported_version(torch.__version__) is None:
        trace_recurrent_layers(superkernel)


def _allow_registering_again() -> None:
    if not isinstance(registry._COMPILER_FNS, _Registry):
        registry._COMPILER_FNS = _Registry(registry._COMPILER_FNS)


def superkernel(module: GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: Any = None) -> Any:
    """The back end: marked regions become super kernels, the rest goes through Inductor."""
    settings = BackendSettings.parse(options, mode)
    root = root_callable()
    context = GraphContext(settings, root, is_marked(root) if root is not None else False, _warnings_about(root))
    reason = unsupported_version(torch.__version__)
    if reason is None and (name := nested_input(module)) is not None:
        reason = f"input {name!r} is a nested tensor, and only plain tensors are fused"
    if reason is None and any(isinstance(value, list | tuple | dict) for value in inputs):
        reason = "the graph takes a list of tensors, as compiled autograd passes them"
    if reason is not None:
        return _compile_unfused(module, inputs, context, reason)
    with cache_in(settings.cache), suppress(BuildError):  # raised again by the stage that needs what is missing
        settings.model_support.warm_up()
    dims = find_symbolic_dims(module, inputs, settings.buckets, root, context.warn_once) if settings.buckets else []
    specialise(module, inputs, [dim.symbol for dim in dims])
    if dims:
        return compile_with_buckets(module, inputs, dims, context.kept_operators, partial(_compile_static, context))
    return _compile_static(context, module, inputs)


def _compile_static(context: GraphContext, module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A graph without symbolic sizes."""
    unroll_recurrent(module)
    count = sum(node.op == "placeholder" for node in module.graph.nodes)
    context = replace(context, input_count=count, unwraps=unwraps(module, inputs), direct=None)
    examples = with_separate_storage(inputs)
    compiled = compile_with_aot(module, examples, partial(compile_graph, context), context.kept_operators)
    support = context.settings.model_support
    return eager_where_inputs_overlap(context.direct or compiled, module, examples, support)


def _compile_unfused(module: GraphModule, inputs: Sequence[Any], context: GraphContext, reason: str) -> Any:
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    context.warn_once(f"super_kernel_scope: everything goes through Inductor, unfused: {reason}")
    current_report().notes.append(reason)
    return compile_fx(module, list(inputs), config_patches=list_mode_options(context.settings.mode or "default"))


def _warnings_about(root: object) -> set[str]:
    """Warnings given for a callable, so that its other graphs and shapes do not repeat them."""
    try:
        return _warned.setdefault(root, set())
    except TypeError:  # it cannot be referred to weakly, or has no hash
        return _warned_without_root


_allow_registering_again()
cache_artifacts.register()
