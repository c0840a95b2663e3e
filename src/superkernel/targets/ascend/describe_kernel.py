"""targets.ascend.make: a plan -> an EmittedKernel: names, text and all that a run time must know."""

from __future__ import annotations

from ...model.argument_layout import Role
from ...model.gc_pause import without_collection
from ...model.subkernel import SubKernel
from .emit import Emitter
from .facts import facts_of
from .kernel_description import EmittedKernel, EmittedOp, EventWord, Order, Prefetch, TilingWords
from .names import Named, entry_name, name_functions
from .plan import WEIGHT_BUDGET, AscendPlan
from .types import CUBE, CoreClass


@without_collection
def emit(plan: AscendPlan) -> EmittedKernel:
    graph, slots = plan.graph, plan.slots
    copies = {node.kernel: plan.copies[node.index] for node in graph.nodes}
    named = name_functions(graph.name, list(copies.items()))
    return EmittedKernel(
        name=graph.name,
        entry=entry_name(graph.name),
        source=Emitter(plan, named).source(),
        chip=plan.chip,
        launch=plan.launch,
        layout=plan.layout,
        ops=tuple(_op(plan, index, named) for index in range(len(graph.nodes))),
        order=plan.order.ops,
        events=tuple(_events(plan)),
        tilings=tuple(
            TilingWords(
                node.name,
                slots.one(node.name, Role.TILING_KEY),
                slots.one(node.name, Role.BLOCK_COUNT),
                slots.one(node.name, Role.LOCK),
            )
            for node in graph.nodes
            if node.dynamic
        ),
        prefetches=tuple(_prefetches(plan)),
        orders=tuple(
            Order(
                graph.nodes[edge.producer].name,
                graph.nodes[edge.consumer].name,
                "; ".join(map(str, edge.reasons)),
                edge.whole_stream,
            )
            for edge in graph.edges
        ),
        workspace_slot=slots.find(Role.WORKSPACE),
        workspace_bytes=plan.areas.workspace_bytes,
        feed_bytes=plan.areas.feed_bytes,
        dump=plan.areas.dump,
        profiling_slot=slots.find(Role.PROFILING),
        task_id_slot=slots.find(Role.TASK_ID),
        profiling=plan.areas.profiling,
        watchdog_s=plan.options.debug_watchdog,
        defines={one: (f"-D{_macro(plan, one)}",) for one in plan.launch.classes},
    )


def _macro(plan: AscendPlan, one: CoreClass) -> str:
    return plan.chip.cube_macro if one is CUBE else plan.chip.vector_macro


def _op(plan: AscendPlan, index: int, named: dict[SubKernel, Named]) -> EmittedOp:
    node = plan.graph.nodes[index]
    one = named[node.kernel]
    return EmittedOp(
        index=index,
        name=node.name,
        kernel=node.kernel,
        kernel_type=facts_of(node.kernel).type,
        blocks=node.blocks,
        stream=node.stream,
        dynamic=node.dynamic,
        first_slot=plan.slots.first[index],
        variants=one.variants,
        symbols=one.symbols,
        copies=one.copies,
        sync_all=bool(node.kernel.sync_all),
        waits_inside=bool(node.kernel.waits_inside),
        signals_inside=bool(node.kernel.signals_inside),
    )


def _events(plan: AscendPlan) -> list[EventWord]:
    found = []
    for slot in plan.layout:
        if slot.role in (Role.SEND, Role.RECV) and slot.source is not None:
            found.append(EventWord(slot.source, slot.index, slot.op, slot.role is Role.SEND))
    return found


def _prefetches(plan: AscendPlan) -> list[Prefetch]:
    asked = plan.options.prefetch_weights
    budget = WEIGHT_BUDGET if asked == 1 else asked
    return [
        Prefetch(
            node.name,
            plan.slots.one(node.name, Role.PREFETCH),
            plan.slots.one(node.name, Role.PREFETCHED),
            plan.graph.weights_of(node),
            budget,
        )
        for node in plan.graph.nodes
        if plan.slots.all(node.name, Role.PREFETCH)
    ]
