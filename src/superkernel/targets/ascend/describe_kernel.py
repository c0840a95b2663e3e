"""targets.ascend.describe_kernel: a plan -> an EmittedKernel: names, text and all that a run time must know."""

from __future__ import annotations

from collections.abc import Iterator

from ...model.argument_layout import Role
from ...model.gc_pause import without_collection
from ...model.options import EarlyStart, WatchdogAction
from ...model.subkernel import SubKernel
from .core_types import CUBE, VECTOR
from .emit import AscendEmitter
from .facts import facts_of
from .kernel_description import EmittedKernel, EmittedOp, EventWord, Prefetch, TilingWords
from .names import KernelFunctions, entry_name, linked_name, name_functions
from .plan import WEIGHT_BUDGET, AscendPlan
from .rank_events import rank_labels
from .weights import weights_by_reader

_TILING_ROLES = (Role.TILING_KEY, Role.BLOCK_COUNT, Role.LOCK)


@without_collection
def emit(plan: AscendPlan) -> EmittedKernel:
    graph, slots = plan.graph, plan.slots
    copies = {node.kernel: plan.copies[node.index] for node in graph.nodes}
    name = linked_name(plan.chip, graph.name)
    named = name_functions(name, list(copies.items()))
    between = rank_labels(graph)
    macros = {CUBE: plan.chip.cube_macro, VECTOR: plan.chip.vector_macro}
    return EmittedKernel(
        name=name,
        entry=entry_name(name),
        source=AscendEmitter(plan, named).source(),
        chip=plan.chip,
        launch=plan.launch,
        layout=plan.layout,
        ops=tuple(_op(plan, index, named) for index in range(len(graph.nodes))),
        events=tuple(
            EventWord(slot.source, slot.index, slot.op, slot.role is Role.SEND, slot.source in between)
            for slot in plan.layout
            if slot.role in (Role.SEND, Role.RECV) and slot.source is not None
        ),
        tilings=tuple(
            TilingWords(node.name, *(slots.slot(node.name, role) for role in _TILING_ROLES))
            for node in graph.nodes
            if node.dynamic
        ),
        prefetches=tuple(_prefetches(plan)),
        workspace_slot=slots.find(Role.WORKSPACE),
        workspace_bytes=plan.workspace.bytes,
        feed_bytes=plan.workspace.feed_bytes,
        dump=plan.workspace.dump,
        profiling_slot=slots.find(Role.PROFILING),
        task_id_slot=slots.find(Role.TASK_ID),
        profiling=plan.workspace.profiling,
        preload_code=plan.options.preload_code,
        watchdog_s=plan.options.debug_watchdog,
        watchdog_exits=plan.options.debug_watchdog_action is WatchdogAction.EXIT,
        cann_defines=tuple(_cann_defines(plan)),
        defines={core_class: (f"-D{macros[core_class]}",) for core_class in plan.launch.classes},
    )


def _cann_defines(plan: AscendPlan) -> Iterator[str]:
    if any(node.dynamic for node in plan.graph.nodes):
        yield "-D__SUPER_KERNEL_DYNAMIC_BLOCK_NUM__"
    if plan.options.early_start is EarlyStart.FULL and not plan.order.lanes:
        yield "-D__ASCENDC_ENABLE_SET_NEXT_TASK_START"
        yield "-D__ASCENDC_ENABLE_WAIT_PRE_TASK_END"
        yield "-D__ASCENDC_SUPERKERNEL_EARLY_START_V2"
    if plan.options.feed_sync_all:
        yield "-D__ASCENDC_SUPERKERNEL_AUTO_SYNC_ALL__"
    yield "-DASCENDC_DUMP" if plan.workspace.dump is not None else "-DASCENDC_DUMP=0"


def _op(plan: AscendPlan, index: int, named: dict[SubKernel, KernelFunctions]) -> EmittedOp:
    node = plan.graph.nodes[index]
    linked = named[node.kernel]
    return EmittedOp(
        index=index,
        name=node.name,
        kernel=node.kernel,
        kernel_type=facts_of(node.kernel).type,
        blocks=node.blocks,
        stream=node.stream,
        dynamic=node.dynamic,
        first_slot=plan.slots.first[index],
        variants=linked.variants,
        symbols=linked.symbols,
        copies=linked.copies,
    )


def _prefetches(plan: AscendPlan) -> list[Prefetch]:
    asked = plan.options.prefetch_weights
    budget = WEIGHT_BUDGET if asked == 1 else asked
    weights = weights_by_reader(plan.graph, plan.issue_order) if asked else {}
    ops = {op: plan.graph.nodes[op].name for op in sorted(weights)}
    return [Prefetch(name, plan.slots.slot(name, Role.PREFETCH), weights[op], budget) for op, name in ops.items()]
