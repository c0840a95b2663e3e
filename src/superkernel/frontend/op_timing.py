"""frontend.op_timing: the library calls of a part -> the time of each as torch's function and as a sub-kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..model.params import Kind
from .gate_timing import Clock
from .lowering.program_trace import LibraryCall, StorageOrigin, TracedTensor
from .program import Program
from .program_memory import CallTensors, SegmentLaunch
from .segments import Segment

_FEWEST, _MOST = 2, 15  # runs that are timed
_SAMPLING_NS = 20_000_000  # how long they may take, where this allows the fewest
_GIVEN = (StorageOrigin.INPUT, StorageOrigin.CONSTANT)


def library_times(
    calls: Mapping[int, LibraryCall], program: Program, args: Sequence[Any], clock: Clock
) -> dict[int, int]:
    """Nanoseconds of torch's function for each call, by its index; without calls that take integers of other ops.

    Inputs and weights are those of the program; intermediate tensors hold random numbers. Calls of equal layout are
    timed once.
    """
    tensors = CallTensors(args, (), {})
    known: dict[Any, int] = {}
    found: dict[int, int] = {}
    for index, call in calls.items():
        leaves, structure = tree_flatten((call.args, call.kwargs), is_leaf=lambda leaf: isinstance(leaf, TracedTensor))
        if not all(map(_has_trial_value, leaves)):
            continue
        key = call.op, str(structure), tuple(map(_layout, leaves))
        if key not in known:
            values = [_trial_value(leaf, program, tensors) for leaf in leaves]
            trial_args, trial_kwargs = tree_unflatten(values, structure)
            known[key] = _time(partial(call.op, *trial_args, **trial_kwargs), clock)
        found[index] = known[key]
    return found


def _has_trial_value(leaf: Any) -> bool:
    """Integers between ops may be indices, which random numbers would not be."""
    if not isinstance(leaf, TracedTensor):
        return True
    is_plain = not (leaf.conjugated or leaf.negated)
    return is_plain and (leaf.storage.origin in _GIVEN or leaf.dtype.is_floating_point)


def _layout(leaf: Any) -> Any:
    return (leaf.dtype, leaf.shape, leaf.strides) if isinstance(leaf, TracedTensor) else repr(leaf)


def _trial_value(leaf: Any, program: Program, tensors: CallTensors) -> Any:
    if not isinstance(leaf, TracedTensor):
        return leaf
    if leaf.storage.origin in _GIVEN:
        return program.tensor(leaf, tensors)
    reach = 1 + sum((size - 1) * stride for size, stride in zip(leaf.shape, leaf.strides, strict=True))
    flat = torch.empty(max(1, reach), dtype=leaf.dtype).normal_()
    return flat.as_strided(leaf.shape, leaf.strides)


def _time(function: Callable[[], object], clock: Clock) -> int:
    """The least time of several runs, after one that warms it up."""
    times: list[int] = []
    while len(times) <= _FEWEST or (len(times) < _MOST and sum(times) < _SAMPLING_NS):
        begin = clock()
        function()
        times.append(clock() - begin)
    return min(times[1:])


def kernel_times(program: Program, segments: Sequence[Segment], args: Sequence[Any], clock: Clock) -> dict[int, int]:
    """Nanoseconds of the sub-kernels of each call, launched by themselves, by the id of the call.

    The program runs once, op by op, on the memory of one call; an op that reads what it writes runs once.
    """
    found: dict[int, int] = {}
    pending = iter(segments)

    def launch(step: SegmentLaunch, values: Any, sizes: Any) -> None:
        segment = next(pending)
        for node, single in step.kernel.unfused().single_launches():
            is_repeatable = all(param.kind is not Kind.INOUT for param in node.kernel.params)
            if not is_repeatable:
                single.launch_values(values, sizes)
                continue
            duration = _time(partial(single.launch_values, values, sizes), clock)
            call = id(segment.calls[node.index])
            found[call] = found.get(call, 0) + duration

    program(args, launch)
    return found
