"""plan.assemble: placement and syncs -> the sequence of steps, with preloads, fences, records, debug steps."""

from __future__ import annotations

from collections.abc import Iterable

from ..model.graph import Graph
from ..model.node import Node
from ..model.options import EarlyStart, Options, PreloadCode
from .classes import CoreClasses
from .placement import Placement
from .steps import (
    Barrier,
    Call,
    Cores,
    Feed,
    Fence,
    FenceWhen,
    Point,
    PrefetchWeights,
    Preload,
    Record,
    ResetEvent,
    SpanKind,
    Step,
)
from .sync import Synced, signals_of

WEIGHT_BUDGET = 256 * 1024  # bytes per core with prefetch-weights=1: a quarter of a common second-level cache


def assemble(
    graph: Graph, placement: Placement, synced: Synced, options: Options, classes: CoreClasses
) -> tuple[Step, ...]:
    everyone = tuple(range(placement.cores))
    steps: list[Step] = [*_record(everyone, SpanKind.KERNEL, True, None, options)]
    preloads = _preloads(graph, placement, options, classes)
    steps += preloads.get(-1, ())
    steps += synced.first_requests
    for rank, op in enumerate(graph.order):
        steps += _op_steps(graph, op, rank, placement, synced, options, preloads.get(op, ()))
        steps += synced.ops[op].requests
    steps += [ResetEvent((core,), event) for core, event in synced.resets]
    steps += _record(everyone, SpanKind.KERNEL, False, None, options)
    return tuple(steps)


def _op_steps(
    graph: Graph,
    op: int,
    rank: int,
    placement: Placement,
    synced: Synced,
    options: Options,
    preloads: Iterable[Preload],
) -> Iterable[Step]:
    node, cores, sync = graph.nodes[op], placement.of[op], synced.ops[op]
    cleaned = list(_fence(node, cores, FenceWhen.AFTER, options.dcci_after_kernel_end, options))
    # what is flushed after the call must not be announced during it
    early = options.early_start is EarlyStart.FULL and bool(node.kernel.signals_inside) and not cleaned
    yield from _prefetch(graph, node, cores, options)
    gate = signals_of(synced, op, rank, Point.GATE, inside=False)
    yield from _recorded([*sync.before[: sync.gate], *gate, *sync.before[sync.gate :]], SpanKind.WAIT, op, options)
    yield from _fence(node, cores, FenceWhen.BEFORE, options.dcci_before_kernel_start, options)
    yield from preloads
    yield from _record(cores, SpanKind.OP, True, op, options)
    yield from sync.inside
    team = placement.teams[op]
    yield Call(cores, op, node.blocks, team, len(placement.copies.get(op, ())) or 1)
    idle = tuple(core for core in team if core not in set(cores)) if team else ()
    if idle:
        yield Feed(idle, op, team)
    yield from cleaned
    yield from _record(cores, SpanKind.OP, False, op, options)
    yield from signals_of(synced, op, rank, Point.DONE, early)
    if options.debug_dcci_all:
        yield Fence(cores, op, FenceWhen.DEBUG)
    if options.debug_sync_all and placement.cores > 1:
        yield Barrier(tuple(range(placement.cores)), op, debug=True)
    yield from _recorded(sync.notify, SpanKind.NOTIFY, op, options)


def _preloads(graph: Graph, placement: Placement, options: Options, classes: CoreClasses) -> dict[int, list[Preload]]:
    """Op -> preloads to issue before its call; -1: at entry. Code that a core has run before is there already."""
    if options.preload_code is PreloadCode.NONE:
        return {}
    first_use = {graph.nodes[op].kernel: op for op in reversed(graph.order)}
    if options.preload_code is PreloadCode.MAX:
        return {-1: [Preload(tuple(range(placement.cores)), tuple(sorted(first_use.values())))]}
    previous = [-1] * len(classes)
    seen: list[set[object]] = [set() for _ in range(len(classes))]
    wanted: dict[int, dict[int, list[int]]] = {}  # op before -> op to preload -> classes
    for op in graph.order:
        kernel = graph.nodes[op].kernel
        for core_class in classes.split(placement.of[op]):
            if kernel not in seen[core_class]:
                seen[core_class].add(kernel)
                wanted.setdefault(previous[core_class], {}).setdefault(op, []).append(core_class)
            previous[core_class] = op
    return {at: [Preload(classes.cores(found), (op,)) for op, found in ops.items()] for at, ops in wanted.items()}


def _prefetch(graph: Graph, node: Node, cores: Cores, options: Options) -> Iterable[Step]:
    if not options.prefetch_weights:
        return
    if names := graph.weights_of(node):
        budget = WEIGHT_BUDGET if options.prefetch_weights == 1 else options.prefetch_weights
        yield PrefetchWeights(cores, node.index, names, budget)


def _fence(node: Node, cores: Cores, when: FenceWhen, types: tuple[str, ...], options: Options) -> Iterable[Step]:
    named = node.kernel.type_name in types and node.kernel.type_name not in options.dcci_disable_on_kernel
    if named:
        yield Fence(cores, node.index, when)


def _record(cores: Cores, what: SpanKind, begin: bool, op: int | None, options: Options) -> Iterable[Step]:
    if options.profiling:
        yield Record(cores, what, begin, op)


def _recorded(steps: list[Step], what: SpanKind, op: int, options: Options) -> Iterable[Step]:
    """`steps` between a pair of marks on the cores that take part in them."""
    sets = dict.fromkeys(step.cores for step in steps)
    cores = next(iter(sets)) if len(sets) == 1 else tuple(sorted({core for members in sets for core in members}))
    if cores:
        yield from _record(cores, what, True, op, options)
        yield from steps
        yield from _record(cores, what, False, op, options)
