"""plan.assemble: placement and syncs -> the sequence of steps, with preloads, fences, records, debug steps.

`preloads_ahead`, `wants_fence`, `record` and `between_marks` serve every target: they work for any kind of agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..model.graph import Graph
from ..model.node import Node
from ..model.options import EarlyStart, Options, PreloadCode
from .classes import CoreClasses
from .machine import Machine
from .placement import Placement
from .prefetch import prefetch_steps
from .staging import stage_steps
from .steps import (
    Barrier,
    Call,
    Cores,
    Feed,
    Fence,
    FenceWhen,
    Point,
    Preload,
    Record,
    ResetEvent,
    SpanKind,
    Step,
)
from .sync import Synced, signals_of

Agents = tuple[Any, ...]  # cores, or classes of cores


def assemble(
    graph: Graph, placement: Placement, synced: Synced, options: Options, classes: CoreClasses, machine: Machine
) -> tuple[Step, ...]:
    everyone = tuple(range(placement.cores))
    steps: list[Step] = [*record(everyone, SpanKind.KERNEL, True, None, options)]
    preloads = _preloads(graph, placement, options, classes)
    steps += preloads.get(-1, ())
    steps += synced.first_requests
    staged = stage_steps(graph, placement, options, machine)
    steps += staged
    prefetches = prefetch_steps(graph, placement, options, machine, {step.name for step in staged})
    for rank, op in enumerate(graph.order):
        steps += prefetches.get(rank, ())
        steps += _op_steps(graph, placement, synced, options, rank, preloads.get(op, ()))
        steps += synced.ops[op].requests
    steps += [ResetEvent((core,), event) for core, event in synced.resets]
    steps += record(everyone, SpanKind.KERNEL, False, None, options)
    return tuple(steps)


def _op_steps(
    graph: Graph, placement: Placement, synced: Synced, options: Options, rank: int, preloads: Iterable[Preload]
) -> Iterable[Step]:
    op = graph.order[rank]
    node, cores, sync = graph.nodes[op], placement.of[op], synced.ops[op]
    cleaned = list(_fence(node, cores, FenceWhen.AFTER, options))
    # what is flushed after the call must not be announced during it
    early = options.early_start is EarlyStart.FULL and bool(node.kernel.signals_inside) and not cleaned
    gate = signals_of(synced, op, rank, Point.GATE, inside=False)
    yield from _recorded(sync.ranks, SpanKind.RANKS, op, options)
    yield from _recorded([*sync.before[: sync.gate], *gate, *sync.before[sync.gate :]], SpanKind.WAIT, op, options)
    yield from _fence(node, cores, FenceWhen.BEFORE, options)
    yield from preloads
    yield from record(cores, SpanKind.OP, True, op, options)
    yield from sync.inside
    team = placement.teams[op]
    yield Call(cores, op, node.blocks, team, len(placement.copies.get(op, ())) or 1)
    idle = tuple(core for core in team if core not in set(cores)) if team else ()
    if idle:
        yield from _recorded([Feed(idle, op, team)], SpanKind.WAIT, op, options)
    yield from cleaned
    yield from record(cores, SpanKind.OP, False, op, options)
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
    wanted = preloads_ahead(graph, graph.order, lambda op: classes.split(placement.of[op]), keeps_code=True)
    return {at: [Preload(classes.cores(found), (op,)) for op, found in ops.items()] for at, ops in wanted.items()}


def preloads_ahead(
    graph: Graph, order: Sequence[int], agents_of: Callable[[int], Iterable[Any]], *, keeps_code: bool
) -> Mapping[int, Mapping[int, list[Any]]]:
    """The call before which a preload stands (-1: the entry) -> the op whose code it pulls -> on which agents.

    One op ahead. keeps_code: what a core has run once it need not pull again; otherwise only the code of the last call
    is kept, and which code a dynamic op runs is known right before its call.
    """
    previous: dict[Any, int] = {}
    kept: dict[Any, set[object]] = {}
    wanted: dict[int, dict[int, list[Any]]] = {}
    for op in order:
        kernel, late = graph.nodes[op].kernel, graph.nodes[op].dynamic and not keeps_code
        for agent in agents_of(op):
            held = kept.setdefault(agent, set())
            if late or kernel not in held:
                before = op if late else previous.get(agent, -1)
                wanted.setdefault(before, {}).setdefault(op, []).append(agent)
            if not keeps_code:
                held.clear()
            held.add(kernel)
            previous[agent] = op
    return wanted


def wants_fence(node: Node, when: FenceWhen, options: Options, asked: bool = False) -> bool:
    """Whether an option, or the sub-kernel itself (`asked`), wants cache maintenance; disabling wins over both."""
    before = when is FenceWhen.BEFORE
    types = options.dcci_before_kernel_start if before else options.dcci_after_kernel_end
    kind = node.kernel.type_name
    return (asked or kind in types) and kind not in options.dcci_disable_on_kernel


def _fence(node: Node, cores: Cores, when: FenceWhen, options: Options) -> Iterable[Step]:
    if wants_fence(node, when, options):
        yield Fence(cores, node.index, when)


def record(
    agents: Agents, what: SpanKind, begin: bool, op: int | None, options: Options, kind: type[Record] = Record
) -> Iterable[Step]:
    if options.profiling:
        yield kind(agents, what, begin, op)


def between_marks(
    steps: Iterable[Step], agents: Agents, what: SpanKind, op: int, options: Options, kind: type[Record] = Record
) -> Iterable[Step]:
    """`steps` between a pair of marks on `agents`."""
    yield from record(agents, what, True, op, options, kind)
    yield from steps
    yield from record(agents, what, False, op, options, kind)


def _recorded(steps: list[Step], what: SpanKind, op: int, options: Options) -> Iterable[Step]:
    """`steps` between a pair of marks on the cores that take part in them."""
    sets = dict.fromkeys(step.cores for step in steps)
    cores = next(iter(sets)) if len(sets) == 1 else tuple(sorted({core for members in sets for core in members}))
    return between_marks(steps, cores, what, op, options) if cores else ()
