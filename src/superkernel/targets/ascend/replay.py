"""targets.ascend.replay: debug-replay on the emulator: every op alone as well, compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...errors import LaunchError
from ...model.graph import Graph, build_graph
from ...model.node import Node
from ...model.op import Op
from ...model.options import EarlyStart
from ...model.params import Kind
from ...runtime.buffers import bind, copy_of, same_bits
from ..protocol import LaunchInputs
from .describe_kernel import emit
from .kernel_description import EmittedKernel
from .plan import AscendPlan, make_ascend_plan

Run = Callable[[EmittedKernel, Graph, Mapping[str, Any], LaunchInputs], Any]


def replayed(
    plan: AscendPlan, emitted: EmittedKernel, buffers: Mapping[str, Any], launch_inputs: LaunchInputs, run: Run
) -> Any:
    """What the fused launch gave; a LaunchError names the first op that gives something else alone."""
    graph = plan.graph
    bound = bind(graph, buffers)
    live = dict(zip(graph.buffers, bound.keep, strict=True))
    copies = {name: copy_of(value) for name, value in live.items()}
    emulation = run(emitted, graph, live, launch_inputs)
    for index in graph.order:
        node = graph.nodes[index]
        alone = _alone(plan, node)
        used = {name: copies[name] for name in alone.graph.buffers}
        tilings = {node.name: launch_inputs.tilings[node.name]} if node.dynamic else {}
        run(emit(alone), alone.graph, used, LaunchInputs({}, tilings))
    for name, index in _last_writers(graph).items():
        if not same_bits(live[name], copies[name]):
            raise LaunchError(
                f"super_kernel_scope {graph.name!r}: debug-replay: op {graph.nodes[index].name!r} is the first whose "
                f"output {name!r} differs from the same op run alone"
            )
    return replace(emulation, made=bound.made)


def _alone(plan: AscendPlan, node: Node) -> AscendPlan:
    """One op as a launch with one op, with its names, without its events."""
    op = Op(node.kernel, node.op.args, node.name, task=node.op.task)
    options = replace(
        plan.options,
        stream_fusion=False,
        feed_sync_all=True,
        debug_replay=False,
        debug_sync_all=False,
        profiling=False,
        prefetch_weights=0,
        debug_aic_num=0,
        debug_aiv_num=0,
        early_start=EarlyStart.FULL,
        split_mode=None,
    )
    return make_ascend_plan(build_graph([op], f"{plan.graph.name}_{node.index}"), options, plan.chip)


def _last_writers(graph: Graph) -> dict[str, int]:
    """Buffer -> the op that writes it last, in the order of those ops."""
    last: dict[str, int] = {}
    for index in graph.order:
        for param, name in graph.nodes[index].arguments():
            if param.kind in (Kind.OUT, Kind.INOUT):
                last.pop(name, None)
                last[name] = index
    return last
