"""frontend.export.call_arena: buffers that only a launch uses -> places in one arena, right for all its plans."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ...plan import Plan
from ...plan.lifetimes import OpOrder, accesses, op_order, place
from ...plan.memory import ALIGNMENT
from ...runtime.package_kernel import PackageKernel


class _OrderOfAllPlans:
    """An op is over before another begins if it is over in every plan."""

    def __init__(self, orders: Sequence[OpOrder]) -> None:
        self._orders = orders

    def unfinished(self, rank: int, early: bool) -> int:
        late = 0
        for order in self._orders:
            late |= order.unfinished(rank, early)
        return late


def plan_arena(
    sizes: Mapping[str, int], returned: Collection[str], kernel: PackageKernel | None
) -> tuple[Mapping[str, int], int]:
    """Offsets by name, and the bytes of the arena. What is `returned` is read after the launch: it shares no memory."""
    if kernel is None:
        return {}, 0
    graph = kernel.graph
    touched = [name for name in sizes if name in graph.buffers]
    users = dict(zip(touched, accesses(graph, touched), strict=True))
    shared = sorted((name for name in touched if users[name] and name not in returned), key=lambda n: users[n][0])
    order = _OrderOfAllPlans([op_order(plan) for plan in kernel.plans if isinstance(plan, Plan)])
    plan = place(shared, [sizes[n] for n in shared], [users[n] for n in shared], order, [None] * len(shared))
    offsets, end = dict(plan.offsets), _aligned(plan.arena)
    for name in touched:
        if name not in offsets:
            offsets[name] = end
            end = _aligned(end + sizes[name])
    return offsets, end


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
