"""frontend.bypass_aot: an inference graph that is one super kernel -> a function for Dynamo without AOT's wrappers.

AOTAutograd wraps what it compiles: it copies mutated inputs back, rebuilds views, unwraps tensor subclasses, records
mutations. Where none of that is needed, its wrappers cost 13 to 17 us of every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch._functorch._aot_autograd.schemas import OutputType, ViewAndMutationMeta
from torch.fx import GraphModule

from .capture.partition import GraphPart
from .part_gate import PartGate
from .program import Program


def direct_function(
    module: GraphModule, parts: Sequence[GraphPart], functions: Sequence[Any], input_count: int
) -> Callable[..., Any] | None:
    """A function of the graph's inputs that calls the program of its only part; None: the wrappers are needed.

    No input and no output of Dynamo's graph is a tensor subclass that AOTAutograd unwraps: the metadata does not tell.
    """
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    if metadata is None or len(parts) != 1 or len(placeholders) != input_count:
        return None
    (part,), (function,) = parts, functions
    (results,) = module.graph.output_node().args
    program = function.program if isinstance(function, PartGate) else function
    if not isinstance(program, Program) or not program.launches_once or tuple(results) != part.outputs:
        return None
    if _needs_wrappers(metadata, input_count) or not set(part.inputs) <= set(placeholders):  # a constant of the graph
        return None
    order = [placeholders.index(node) for node in part.inputs]
    return _function(function, order, metadata.mutated_graph_handled_indices_seen_by_autograd)


def _needs_wrappers(metadata: ViewAndMutationMeta, input_count: int) -> bool:
    plain = (
        len(metadata.input_info) == input_count
        and not metadata.mutated_inp_runtime_indices
        and not metadata.num_intermediate_bases
        and not metadata.tokens
        and not metadata.is_rng_op_functionalized
        and not metadata.num_graphsafe_rng_states
        and all(info.output_type is OutputType.non_alias for info in metadata.output_info)
    )
    return not plain


def _function(program: Program | PartGate, order: Sequence[int], mutated: Sequence[int]) -> Callable[..., Any]:
    """`mutated`: inputs that the program writes; autograd counts their versions."""
    run = program.bound(order)
    if not mutated:
        return lambda *args: run(args)
    increment = torch.autograd.graph.increment_version
    pick = itemgetter(*mutated) if len(mutated) > 1 else lambda args: (args[mutated[0]],)

    def call(*args: Any) -> Any:
        increment(pick(args))
        return run(args)

    return call
