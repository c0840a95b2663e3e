"""runtime.package_kernel: ops -> the binary of their super kernel for a package, with plans for fewer cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import UnsupportedError, shown
from ..model.graph import Graph, build_graph
from ..model.op import Op
from ..model.options import Options
from ..targets.protocol import Executable, LaunchPlan, Target
from .artefact import smaller_plans
from .compile import core_choice


@dataclass(frozen=True)
class PackageKernel:
    """A super kernel that is built and not loaded. One binary holds the entries of all plans, most cores first."""

    graph: Graph
    plans: tuple[LaunchPlan, ...]
    executables: tuple[Executable, ...]  # by plan


def build_for_package(
    ops: Sequence[Op],
    name: str,
    options: Options,
    target: Target,
    cores: int | None,
    sizes: Mapping[str, int] | None = None,
) -> PackageKernel:
    """`cores`: as many; None: as many of this machine's as the estimated work deserves.

    `sizes`: the bytes that buffers have. The object says them, and is loaded for buffers that are no smaller.
    """
    _refuse_collectives(ops, name)
    built = build_graph(ops, name, options.stream_fusion)
    buffers = {
        buffer.name: replace(buffer, least_bytes=max(buffer.least_bytes, (sizes or {}).get(buffer.name, 0)))
        for buffer in built.buffers.values()
    }
    given = replace(built, title="segment", buffers=buffers)
    fixed_cores = target.planner.forced_cores(options, None, name) if cores is None else cores
    prepared = target.builder.prepare(list(dict.fromkeys(node.kernel for node in given.nodes)), [], None)
    graph = given.with_kernels(dict(prepared.kernels))
    choice = core_choice(graph, options, target, fixed_cores, by_work=True)
    plan = target.planner.plan(graph, options, choice.cores, choice.note)
    plans = (plan, *smaller_plans(target, plan), *_plan_for_one_core(target, plan))
    return PackageKernel(graph, plans, tuple(prepared.build(plans)))


def _refuse_collectives(ops: Sequence[Op], name: str) -> None:
    for op in ops:
        for sync in op.ranks:
            raise UnsupportedError(
                f"super_kernel_scope {shown(name)}: op {shown(op.name or op.kernel.name)} synchronises with the ranks "
                f"of {sync.group}; a package runs in one process. Export a model without collectives"
            )


def _plan_for_one_core(target: Target, plan: LaunchPlan) -> tuple[LaunchPlan, ...]:
    """A plan without waits; none where the plan is for one core, or its team meets in sync_all."""
    graph = plan.graph
    if plan.cores == 1 or any(node.kernel.sync_all for node in graph.nodes):
        return ()
    alone = replace(graph, title=f"{graph.label} on 1 core")
    return (target.planner.plan(alone, plan.options, 1, f"cores: 1 of the {plan.cores} that it was exported for"),)
