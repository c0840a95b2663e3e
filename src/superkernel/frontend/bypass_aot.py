"""frontend.direct: an inference graph that is one super kernel -> the function that Dynamo calls, without a detour.

AOTAutograd wraps what it compiles: it copies mutated inputs back, rebuilds views, unwraps tensor subclasses, notes
mutations. Where none of that is needed, its wrappers are 13 to 17 us of every call for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta, ViewAndMutationMeta
from torch.fx import GraphModule

from .capture.partition import Part
from .program import Program


def direct(module: GraphModule, parts: Sequence[Part], calls: Sequence[Any], given: int) -> Callable[..., Any] | None:
    """A function of the graph's `given` inputs that calls the program of its only part; None: wrappers are needed."""
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    if metadata is None or len(parts) != 1 or len(placeholders) != given or _needs_wrappers(metadata, given):
        return None
    (part,), (call,) = parts, calls
    (results,) = module.graph.output_node().args
    if not isinstance(call, Program) or not call.launches_once or tuple(results) != part.outputs:
        return None
    if not set(part.inputs) <= set(placeholders):  # a constant of the graph
        return None
    return _function(call, [placeholders.index(node) for node in part.inputs], _mutated(metadata))


def _needs_wrappers(metadata: ViewAndMutationMeta, given: int) -> bool:
    plain = (
        len(metadata.input_info) == given
        and not metadata.mutated_inp_runtime_indices
        and not metadata.num_intermediate_bases
        and not metadata.tokens
        and not metadata.is_rng_op_functionalized
        and not metadata.num_graphsafe_rng_states
        and all(info.output_type is OutputType.non_alias for info in metadata.output_info)
        and all(type(meta) is PlainTensorMeta for meta in metadata.subclass_inp_meta)
        and all(type(meta) is PlainTensorMeta for meta in metadata.subclass_fw_graph_out_meta)
    )
    return not plain


def _mutated(metadata: ViewAndMutationMeta) -> list[int]:
    """Inputs that the graph itself writes to, which autograd is to know of."""
    return list(metadata.mutated_graph_handled_indices_seen_by_autograd)


def _function(program: Program, order: Sequence[int], mutated: Sequence[int]) -> Callable[..., Any]:
    run = program.bound(order)
    if not mutated:
        return lambda *args: run(args)
    increment = torch.autograd.graph.increment_version
    pick = itemgetter(*mutated) if len(mutated) > 1 else lambda args: (args[mutated[0]],)

    def call(*args: Any) -> Any:
        increment(pick(args))
        return run(args)

    return call
