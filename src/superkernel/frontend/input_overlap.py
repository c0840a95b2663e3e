"""frontend.input_overlap: a compiled graph that writes its inputs -> a function that runs eagerly where inputs overlap.

AOTAutograd moves writes to the end of a graph, which is right as long as no other input shares the memory that is
written. Dynamo's guards compare shapes and strides, not addresses: the next call may pass views of one tensor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import combinations
from typing import Any

import torch
from torch._functorch._aot_autograd.input_output_analysis import compute_overlapping_tensors
from torch.fx import GraphModule

from ..targets.protocol import ModelSupport
from ..targets.tensor_spans import TensorSpan
from .program import ADDRESS_FUNCTION
from .wrapped_inputs import PlainInputs, find_wrapped

_log = logging.getLogger("superkernel")
_WARNING = (
    "super_kernel_scope: an input that is written overlaps with another input: calls with such inputs run eagerly"
)


def with_separate_storage(inputs: Sequence[Any]) -> list[Any]:
    """Example inputs as if none overlapped with another: the graph is compiled for calls in which none does."""
    begins: dict[int, list[tuple[int, int]]] = {}  # by storage: the first byte of a tensor, its index
    for index, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            begin = int(value.storage_offset()) * value.element_size()
            begins.setdefault(value.untyped_storage()._cdata, []).append((begin, index))
    apart = list(inputs)
    for same_storage in begins.values():
        reach = -1
        for begin, index in sorted(same_storage):
            if begin < reach:
                apart[index] = _alone(inputs[index])
            reach = max(reach, begin + _covered_bytes(inputs[index]))
    return apart


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.requires_grad or type(tensor) not in (torch.Tensor, torch._subclasses.FakeTensor):
        return tensor
    with getattr(tensor, "fake_mode", None) or nullcontext():
        room = torch.empty(tensor.untyped_storage().nbytes(), dtype=torch.uint8, device=tensor.device)
        copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        copy.set_(room.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
    context = torch._guards.TracingContext.try_get()
    if context is not None and tensor in context.tensor_to_context:  # which of its sizes are static
        context.tensor_to_context[copy] = context.tensor_to_context[tensor]
    return copy


def eager_where_inputs_overlap(
    function: Callable[..., Any], module: GraphModule, inputs: Sequence[Any], support: ModelSupport
) -> Callable[..., Any]:
    """The compiled function, or `module` itself for a call in which a written input overlaps with another."""
    plain = find_wrapped(inputs)
    spans = _spans(inputs, plain)
    if len(spans) < 2 or not any(span.written for span in spans):
        return function
    overlap = support.overlap_check(spans, ADDRESS_FUNCTION)
    warned: list[bool] = []

    def call(*args: Any) -> Any:
        tensors = args if plain is None else plain(args)
        if overlap(tensors) and _written_memory_is_shared(tensors, spans):
            if not warned:
                warned.append(True)
                _log.warning(_WARNING)
            return module(*args)
        return function(*args)

    return call


def _spans(inputs: Sequence[Any], plain: PlainInputs | None) -> list[TensorSpan]:
    """The bytes that each tensor covers from its first element on, and whether the graph writes it."""
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    written = [info.mutates_data for info in metadata.input_info] if metadata is not None else []
    if plain is not None:
        if len(written) == len(inputs):
            written = [written[source] for source in plain.sources]
        inputs = plain(inputs)
    if len(written) != len(inputs):  # not known: any input may be written
        written = [True] * len(inputs)
    tensors = [(index, value) for index, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
    return [TensorSpan(index, written[index], _covered_bytes(tensor)) for index, tensor in tensors]


def _covered_bytes(tensor: torch.Tensor) -> int:
    if 0 in tensor.shape:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((last + 1) * tensor.element_size())


def _written_memory_is_shared(args: Sequence[Any], spans: Sequence[TensorSpan]) -> bool:
    """Whether two tensors, one of them written, share a byte."""
    return any(
        share_memory(args[first.index], args[second.index])
        for first, second in combinations(spans, 2)
        if first.written or second.written
    )


def share_memory(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors share a byte; the bytes that they cover may overlap where they are interleaved."""
    begin, other = left.data_ptr(), right.data_ptr()
    if begin + _covered_bytes(left) <= other or other + _covered_bytes(right) <= begin:
        return False
    if left.untyped_storage().data_ptr() != right.untyped_storage().data_ptr():
        return True
    return left.dtype != right.dtype or bool(compute_overlapping_tensors([left, right], symbolic=False))
