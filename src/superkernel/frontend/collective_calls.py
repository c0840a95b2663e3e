"""frontend.collective_calls: a call of torch's functional collectives -> the collectives that it starts.

What reaches a back end is the same for torch.distributed's functions, functional collectives, and modules that
parallelize_module has sharded: `_c10d_functional` operators, each result with a `wait_tensor`. Inductor writes
all_reduce and broadcast in place (`all_reduce_`, after a copy where the input is used later), keeps the order of the
operators, and ignores what `wait_tensor` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UnsupportedError
from ..targets.collectives import CollectiveKind, CollectiveTerms
from .lowering.program_trace import LibraryCall, TracedTensor
from .registry import named_arguments

WAIT = "_c10d_functional::wait_tensor"
_NAMESPACE = "_c10d_functional::"
# every operator of torch that communicates
_COLLECTIVES = (_NAMESPACE, "_c10d_functional_autograd::", "c10d::", "c10d_functional::", "_dtensor::")
_KINDS = {
    "all_reduce": CollectiveKind.ALL_REDUCE,
    "all_gather_into_tensor": CollectiveKind.ALL_GATHER,
    "reduce_scatter_tensor": CollectiveKind.REDUCE_SCATTER,
    "all_to_all_single": CollectiveKind.ALL_TO_ALL,
    "broadcast": CollectiveKind.BROADCAST,
}


@dataclass(frozen=True)
class CollectiveCall:
    """A collective on one tensor; in place, the result is the source."""

    terms: CollectiveTerms
    source: TracedTensor
    result: TracedTensor
    group_name: Any
    ranks: int | None = None  # that take part, where the call says it


def communicates(operator: str) -> bool:
    """Whether an operator talks to other ranks, or waits for them."""
    return operator.startswith(_COLLECTIVES)


def collectives_of(call: LibraryCall) -> list[CollectiveCall]:
    """UnsupportedError: an operator, or an argument of it, that no kernel knows."""
    name = call.op._schema.name
    base = name.removeprefix(_NAMESPACE).removesuffix("_out").removesuffix("_").removesuffix("_coalesced")
    if not name.startswith(_NAMESPACE) or (kind := _KINDS.get(base)) is None:
        raise UnsupportedError("collective")
    named, outs = named_arguments(call.op, call.args, call.kwargs)
    sources = _listed(named["input"] if "input" in named else named["inputs"])
    is_in_place = name.endswith("_")
    results = sources if is_in_place else outs or [result for result in call.results if result is not None]
    found = []
    for source, result in zip(sources, results, strict=True):
        terms = CollectiveTerms(
            kind,
            named.get("reduce_op", "sum"),
            named.get("src", 0),
            tuple(named.get("input_split_sizes", ())),
            tuple(named.get("output_split_sizes", ())),
        )
        found.append(CollectiveCall(terms, source, result, named["group_name"], named.get("group_size")))
    return found


def _listed(tensors: Any) -> list[TracedTensor]:
    return list(tensors) if isinstance(tensors, Sequence) else [tensors]
