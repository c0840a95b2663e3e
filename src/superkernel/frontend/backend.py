"""frontend.backend: what torch.compile(backend="superkernel") calls: a Dynamo graph in, a callable out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from ..errors import UnsupportedError
from ..targets import find_target
from . import inductor
from .graphs import GraphContext, compile_graph
from .marks import is_marked, root_callable
from .settings import Settings

_log = logging.getLogger("superkernel")
_warned: set[str] = set()


def superkernel(module: GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: Any = None) -> Any:
    """The back end: marked regions become super kernels, the rest goes through Inductor."""
    from torch._inductor.compile_fx import compile_fx

    settings = Settings.parse(options, mode)
    if not inductor.supported():
        known = ", ".join(f"{major}.{minor}" for major, minor in inductor.SUPPORTED)
        _warn_once(
            f"superkernel knows torch {known}, not {torch.__version__}: everything goes through Inductor unfused"
        )
        return compile_fx(module, list(inputs))
    find_target(settings.target).register_kernels()
    specialise(module, inputs)
    root = root_callable()
    context = GraphContext(settings, root, is_marked(root) if root is not None else False)
    # AOTAutograd's and Inductor's caches hand out finished programs, in which there is nothing to take. Inductor's
    # passes over the joint graph know no scopes: they are run on what lies outside of scopes, later.
    patches = {"freezing": False, "use_joint_graph_passes": False, "fx_graph_cache": False}
    with torch._functorch.config.patch(enable_autograd_cache=False):
        return compile_fx(module, list(inputs), inner_compile=partial(compile_graph, context), config_patches=patches)


def specialise(module: GraphModule, inputs: Sequence[Any]) -> None:
    """Sizes that Dynamo left open become numbers: it guards them and comes back for the next shape."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, inputs, strict=True):
        example = node.meta.get("example_value")
        if isinstance(example, torch.SymInt):
            _specialised(example, f"input {node.name!r}")
        elif isinstance(example, torch.Tensor) and not example.is_nested and example.layout is torch.strided:
            wished = getattr(value, "_dynamo_dynamic_indices", ())
            for dimension, size in enumerate(example.shape):
                if not isinstance(size, torch.SymInt):
                    continue
                what = f"input {node.name!r}, dimension {dimension}"
                if dimension in wished:
                    raise UnsupportedError(
                        f"super_kernel_scope: {what} was marked dynamic, but a super kernel is compiled for one shape: "
                        f"use torch._dynamo.mark_static(tensor, {dimension}) instead of mark_dynamic"
                    )
                _specialised(size, what)
            for stride in example.stride():
                if isinstance(stride, torch.SymInt):
                    int(stride)


def _specialised(size: Any, what: str) -> None:
    try:
        value = int(size)
    except torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode as reason:
        raise UnsupportedError(
            f"super_kernel_scope: {what} has a size that depends on data; a super kernel is compiled for one shape: "
            "use torch._dynamo.mark_static, or leave it out of the scope"
        ) from reason
    _log.info("%s is compiled for %d; another size compiles anew", what, value)


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        _log.warning(text)
