"""frontend.aot: a Dynamo graph and a compiler -> AOTAutograd calls that compiler with graphs of plain operators.

Training goes through Inductor's compile_fx, which does this. For inference compile_fx would cost more than the rest of
a warm start: it first imports every lowering and template of Inductor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch._dynamo.utils import detect_fake_mode
from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta
from torch._functorch.aot_autograd import aot_module_simplified
from torch.fx import GraphModule

from ..model.gc_pause import without_collection
from .lowering.inductor import inductor_decompositions

GraphCompiler = Callable[..., Callable[..., Any]]


class _NeedsGradients(BaseException):
    """Thrown through AOTAutograd when it asks for a forward and a backward graph after all."""


@without_collection  # a compilation makes many objects and little garbage
def compile_with_aot(module: GraphModule, inputs: Sequence[Any], compiler: GraphCompiler, kept: Collection[str]) -> Any:
    """The function that Dynamo is to call; `compiler` has compiled each graph. `kept` operators are not decomposed."""
    decompositions = inductor_decompositions(kept)
    # On a hit of AOTAutograd's or Inductor's cache no graph is compiled, and there is nothing to fuse.
    with torch._functorch.config.patch(enable_autograd_cache=False):
        wanted = any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
        if not (torch.is_grad_enabled() and wanted):
            try:
                return _inference(module, inputs, compiler, decompositions)
            except _NeedsGradients:
                pass
        return _with_gradients(module, inputs, compiler, decompositions)


def captured_graph(
    module: GraphModule, inputs: Sequence[Any], fake_mode: Any, kept: Collection[str]
) -> tuple[GraphModule, ViewAndMutationMeta]:
    """The inference graph of AOTAutograd, and what it says of inputs and outputs; nothing is compiled."""
    captured: list[GraphModule] = []

    def capture(graph: GraphModule, examples: Sequence[Any], **facts: Any) -> Any:
        captured.append(graph)
        return lambda args: args

    context = torch._guards.TracingContext(fake_mode)
    with torch._guards.tracing(context), torch.no_grad():
        compile_with_aot(module, inputs, capture, kept)
    (graph,) = captured
    assert context.fw_metadata is not None
    return graph, context.fw_metadata


def _inference(
    module: GraphModule, inputs: Sequence[Any], compiler: GraphCompiler, decompositions: dict[Any, Any]
) -> Any:
    from torch._inductor.virtualized import V

    fake_mode = detect_fake_mode(inputs) or torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    context = torch._guards.TracingContext.try_get() or torch._guards.TracingContext(fake_mode)

    def inference(graph: GraphModule, examples: Sequence[Any]) -> Any:
        return compiler(graph, examples, is_inference=True)

    def forward(graph: GraphModule, examples: Sequence[Any]) -> Any:
        raise _NeedsGradients

    with (
        V.set_fake_mode(fake_mode),
        torch._guards.tracing(context),
        torch._dynamo.compiled_autograd._disable(),
        torch._functorch.config.patch(unlift_effect_tokens=True),
    ):
        compiled = aot_module_simplified(
            module,
            list(inputs),
            fw_compiler=forward,
            inference_compiler=inference,
            decompositions=decompositions,
            keep_inference_input_mutations=True,
        )
    return torch._dynamo.disable(compiled, reason="compiled already")


def _with_gradients(
    module: GraphModule, inputs: Sequence[Any], compiler: GraphCompiler, decompositions: dict[Any, Any]
) -> Any:
    from torch._inductor.compile_fx import compile_fx

    # Inductor's passes over the joint graph know no scopes: they run later, on the parts outside of scopes.
    patches = {"freezing": False, "use_joint_graph_passes": False, "fx_graph_cache": False}
    return compile_fx(
        module, list(inputs), inner_compile=compiler, config_patches=patches, decompositions=decompositions
    )
