"""frontend.program_lifetimes: the steps of a program -> places in one arena for the storages that only they use.

Steps run one after the other. Within a segment, storages share memory by the order of its plan, which every way to
launch it keeps: on a team, on one core, op by op.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from torch.utils._pytree import tree_leaves

from ..plan import Plan
from ..plan.lifetimes import Access, OpOrder, accesses, op_order, partitions, place
from ..plan.memory import MemoryPlan, PlacedBuffer, Request, arrange
from .lowering.program_trace import TracedTensor
from .segments import ProgramStep, Segment, TorchCall


@dataclass(frozen=True)
class _StepMoments:
    """A step of a program, and its ops as moments of the program."""

    begin: int
    end: int
    plan: Plan | None = None  # None: a torch call, one moment
    order: OpOrder | None = None


class ProgramOrder:
    """Which moments of a program are over when another begins; a moment is an op of a segment, or a torch call."""

    def __init__(self, steps: Sequence[ProgramStep]) -> None:
        self.steps: list[_StepMoments] = []
        self._step_of: list[_StepMoments] = []  # by moment
        for step in steps:
            begin = len(self._step_of)
            moments = _StepMoments(begin, begin + 1)
            if isinstance(step, Segment):
                assert step.kernel is not None and isinstance(step.kernel.plan, Plan)
                plan = step.kernel.plan
                moments = _StepMoments(begin, begin + len(plan.graph.order), plan, op_order(plan))
            self.steps.append(moments)
            self._step_of += [moments] * (moments.end - begin)

    def unfinished(self, rank: int, early: bool) -> int:
        """Of the moments up to this one, those that may not be over: earlier steps are."""
        step = self._step_of[rank]
        return 0 if step.order is None else step.order.unfinished(rank - step.begin, early) << step.begin


def plan_program(sizes: Mapping[str, int], steps: Sequence[ProgramStep]) -> MemoryPlan:
    """Places for storages by name, with their bytes. One that no step touches has none."""
    order = ProgramOrder(steps)
    found: dict[str, list[Access]] = {}
    divided: dict[str, list[Hashable]] = {}  # by segment
    for step, moments in zip(steps, order.steps, strict=True):
        if isinstance(step, TorchCall):
            for name in _storages(step):
                found.setdefault(name, []).append((moments.begin, False))
                divided.setdefault(name, []).append(None)
        elif moments.plan is not None:
            names = list(moments.plan.graph.buffers)
            uses = zip(names, accesses(moments.plan.graph, names), partitions(moments.plan, names), strict=True)
            for name, ops, partition in uses:
                found.setdefault(name, []).extend((moments.begin + rank, early) for rank, early in ops)
                divided.setdefault(name, []).append(partition)
    touched = [name for name in sizes if found.get(name)]
    names = sorted(touched, key=lambda name: found[name][0])
    # equal parts of two segments may lie on other cores, but segments are over one after the other
    whole = [parts[0] if len(parts) == 1 else None for parts in (divided[name] for name in names)]
    return place(names, [sizes[name] for name in names], [found[name] for name in names], order, whole)


def separate(sizes: Mapping[str, int]) -> MemoryPlan:
    """Memory of its own for every storage: for debugging that tells buffers apart by their memory."""
    requests = [Request(nbytes, 0, 0) for nbytes in sizes.values()]
    arrangement = arrange(requests, [(1 << len(requests)) - 1] * len(requests))
    placed = zip(sizes, arrangement.offsets, strict=True)
    buffers = tuple(PlacedBuffer(name, offset, sizes[name]) for name, offset in placed)
    return MemoryPlan(buffers, arrangement.arena, arrangement.peak, sum(sizes.values()))


def _storages(step: TorchCall) -> list[str]:
    call = step.call
    leaves = tree_leaves((call.args, call.kwargs, call.results), is_leaf=lambda value: isinstance(value, TracedTensor))
    return list(dict.fromkeys(leaf.storage.name for leaf in leaves if isinstance(leaf, TracedTensor)))
