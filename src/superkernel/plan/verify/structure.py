"""plan.verify.structure: a plan in; what is wrong with its single steps out: P1, P8 to P10, P12 to P14, P19."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ...model.argument_layout import Layout, Role
from ...model.node import Node
from ...model.op import Place, place_of
from ...model.options import PreloadCode
from ..plan import BasePlan, Plan
from ..replication import count_writers, replicable
from ..steps import (
    AwaitEvent,
    AwaitRanks,
    Barrier,
    Call,
    Feed,
    Fence,
    Notify,
    NotifyRanks,
    OpStep,
    Preload,
    Record,
    SpanKind,
    Step,
    spell,
)
from .agents import Agents, Fault, named, steps_of

# words that follow from an option, and slots that no step uses
_NOT_OF_STEPS = (Role.PREFETCH, Role.INNER_SEND, Role.INNER_RECV)
# steps that stand between time stamps of their own, and of which kind
_SPANS: dict[type[Step], SpanKind] = {
    Call: SpanKind.OP,
    AwaitEvent: SpanKind.WAIT,
    Notify: SpanKind.NOTIFY,
    NotifyRanks: SpanKind.NOTIFY,
    AwaitRanks: SpanKind.RANKS,
}


def check_launch_size(plan: Plan, fault: Fault) -> bool:
    """P9; False if cores are named that do not exist, so that nothing else can be said."""
    used = set[int]().union(*dict.fromkeys(plan.placements))
    sets = dict.fromkeys(step.cores for step in plan.steps)
    idle = set(range(plan.cores)) - used
    forced = plan.options.debug_aic_num or plan.options.debug_aiv_num
    if idle and not forced:
        fault("P9", f"cores {spell(tuple(sorted(idle)))} are launched, but no op is placed on them")
    outside = sorted(core for core in used.union(*sets) if not 0 <= core < plan.cores)
    if outside:
        fault("P9", f"cores {spell(tuple(outside))} are used in a launch of {plan.cores} cores")
    wrong = {cores for cores in sets if not cores or len(set(cores)) < len(cores)}
    for step in plan.steps if wrong else ():
        if step.cores in wrong:
            fault("P9", f"{plan.describe(step)}: its cores are {step.cores}")
    return not outside


def check_calls(plan: Plan, fault: Fault) -> None:
    """P1: every op once, on its cores, with its blocks. P14: which cores join the barriers of a sync_all op."""
    calls: dict[int, list[Call]] = {}
    feeders: dict[int, list[int]] = {}
    for step in steps_of(plan, (Call, Feed)):
        if isinstance(step, Call):
            calls.setdefault(step.op, []).append(step)
            continue
        feeders.setdefault(step.op, []).extend(step.cores)
        if not plan.options.feed_sync_all:
            fault("P14", f"cores {spell(step.cores)} feed {named(plan, step.op)}, but feed-sync-all is 0")
    for node, placed in zip(plan.graph.nodes, plan.placements, strict=True):
        found, name = calls.get(node.index, []), named(plan, node.index)
        if len(found) != 1:
            fault("P1", f"{name} is called {len(found)} times")
        for call in found:
            if call.cores != placed:
                fault("P1", f"{name} is called on cores {call.cores}, placed on {placed}")
            if call.blocks != node.blocks:
                fault("P1", f"{name} is called with {call.blocks} blocks, it has {node.blocks}")
            if call.width > call.blocks or call.width * call.copies != len(call.cores):
                fault("P1", f"{name} is called on {len(call.cores)} cores, but has {call.blocks} blocks")
            _check_team(plan, node, call, feeders.get(node.index, []), fault)
            _check_copies(plan, node, call, fault)
    for feed in steps_of(plan, Feed):
        if not any(call.team == feed.team for call in calls.get(feed.op, ())):
            fault("P14", f"{plan.describe(feed)}: team {feed.team} is not that of the call")
    _check_readers(plan, fault)


def _check_team(plan: Plan, node: Node, call: Call, feeders: list[int], fault: Fault) -> None:
    name = named(plan, node.index)
    if not node.kernel.sync_all:
        if call.team or feeders:
            fault("P14", f"{name} does not call sync_all, but cores {call.team or tuple(feeders)} join its barriers")
        return
    if len(call.cores) < call.blocks:
        fault("P1", f"{name} calls sync_all with {call.blocks} blocks on {len(call.cores)} cores: not all are resident")
    if sorted([*call.cores, *feeders]) != sorted(call.team):
        fault("P14", f"{name}: cores {call.cores} call and {tuple(feeders)} feed, but the team is {call.team}")


def _check_copies(plan: Plan, node: Node, call: Call, fault: Fault) -> None:
    """P19: a replicated op runs once per copy, on the cores of that copy."""
    copies = plan.copies.get(node.index, ())
    runs = tuple(call.cores[i : i + call.width] for i in range(0, len(call.cores), max(1, call.width)))
    if call.copies != max(1, len(copies)) or (copies and runs != tuple(copy.cores for copy in copies)):
        fault("P19", f"{named(plan, node.index)} has {len(copies)} copies, but its call computes {call.copies}")


def _check_readers(plan: Plan, fault: Fault) -> None:
    """P19: what is copied has no effect but its outputs; every reader has exactly one copy."""
    if not plan.copies:
        return
    writers = count_writers(plan.graph)
    for op, copies in plan.copies.items():
        node, name = plan.graph.nodes[op], named(plan, op)
        if not replicable(plan.graph, node, writers, bool(plan.near_groups)):
            fault("P19", f"{name} is replicated, but it is not pure, or writes in place, or shares its outputs")
        readers = Counter(core for copy in copies for core in copy.readers)
        if any(count > 1 for count in readers.values()):
            fault("P19", f"{name}: some cores are given two copies to read")
        if any(not set(copy.cores) <= set(copy.readers) for copy in copies):
            fault("P19", f"{name}: a copy is computed by cores of another group")
        if plan.near_groups and any(len({plan.group_of[core] for core in copy.readers}) > 1 for copy in copies):
            fault("P19", f"{name}: a copy is read by cores of several groups")
        outputs = {argument for param, argument in node.arguments() if param.kind.writes}
        for other, placed in zip(plan.graph.nodes, plan.placements, strict=True):
            if not any(argument in outputs and param.kind.reads for param, argument in other.arguments()):
                continue
            if lost := [core for core in placed if core not in readers]:
                what = f"{named(plan, other.index)} reads it on cores {spell(tuple(lost))}"
                fault("P19", f"{name} is replicated, but {what}, which have no copy")


def check_preloads(plan: BasePlan, agents: Agents, fault: Fault, keeps_code: bool = True) -> None:
    """P10, on every agent. keeps_code: code that was preloaded or run there before is there; else only that of the last
    call is, and the code of a dynamic op is known right before its call. A preload without ops is of everything."""
    mode = plan.options.preload_code
    called: Counter[Any] = Counter()
    there: set[tuple[Any, object]] = set()
    whole: set[Any] = set()  # agents that have asked for everything
    last: dict[Any, object] = {}  # agent -> the kernel of its last call
    ahead: dict[tuple[Any, int], int] = {}  # (agent, op) -> calls made when its code was preloaded
    for step in steps_of(plan, (Preload, Call)):
        if isinstance(step, Preload):
            if mode is PreloadCode.NONE:
                fault("P10", f"{plan.describe(step)}, but preload-code is none")
            for agent in agents.split(step.cores):
                if mode is PreloadCode.MAX and called[agent]:
                    fault("P10", f"{agents.spell((agent,))}: {plan.describe(step)} comes after the first call")
                for op in step.ops:
                    ahead[agent, op] = called[agent]
                    there.add((agent, plan.graph.nodes[op].kernel))
                if not step.ops:
                    whole.add(agent)
        elif mode is not PreloadCode.NONE:
            kernel, late = plan.graph.nodes[step.op].kernel, plan.graph.nodes[step.op].dynamic and not keeps_code
            for agent in agents.split(step.cores):
                where, before = agents.spell((agent,)), called[agent]
                wanted = 0 if late else min(1, before)
                kept = (agent, kernel) in there if keeps_code else last.get(agent) == kernel and not late
                if not (agent in whole or kept or (agent, step.op) in ahead):
                    fault("P10", f"{where}: {named(plan, step.op)} is called without a preload")
                distance = before - ahead.pop((agent, step.op), before - wanted)
                if mode is PreloadCode.PER_FUNC and distance != wanted:
                    fault("P10", f"{where}: the code of {named(plan, step.op)} is preloaded {distance} calls ahead")
                called[agent] += 1
                last[agent] = kernel
                there.add((agent, kernel))
    if mode is PreloadCode.PER_FUNC:
        for agent, op in ahead:
            where = agents.spell((agent,))
            fault("P10", f"{where}: {named(plan, op)} is preloaded, but not called afterwards")


def check_debug(
    plan: BasePlan, everything: tuple[Any, ...], placements: tuple[tuple[Any, ...], ...], meets: bool, fault: Fault
) -> None:
    """P12: debug steps where the options ask for them, one after every op, and nowhere else; meets: barriers too."""
    done: set[int] = set()
    found: Counter[tuple[type, int]] = Counter()
    for step in plan.steps:
        if isinstance(step, Call):
            done.add(step.op)
        elif isinstance(step, Barrier | Fence) and step.debug:
            found[Barrier if isinstance(step, Barrier) else Fence, step.op] += 1
            right = everything if isinstance(step, Barrier) else placements[step.op]
            if step.op not in done or set(step.cores) != set(right):
                fault("P12", f"{plan.describe(step)}: on cores {step.cores}, or not behind its op")
    asked = {Barrier: plan.options.debug_sync_all and meets, Fence: plan.options.debug_dcci_all}
    for kind, wanted in asked.items():
        for op in range(len(plan.graph.nodes)):
            if found[kind, op] != wanted:
                fault("P12", f"{found[kind, op]} debug {kind.__name__.lower()}s after {named(plan, op)}")


def check_records(plan: BasePlan, agents: Agents, fault: Fault) -> None:
    """P13: on each agent marks nest, the kernel's outermost, every call and event inside its own pair."""
    stacks: dict[Any, list[tuple[SpanKind, int | None]]] = {}
    profiling = plan.options.profiling
    for step in plan.steps if profiling else steps_of(plan, Record):
        for agent in agents.split(step.cores):
            stack = stacks.setdefault(agent, [])
            where = agents.spell((agent,))
            if isinstance(step, Record):
                whose = (step.what, step.op)
                if not profiling or (step.begin and (step.what is SpanKind.KERNEL) != (not stack)):
                    fault("P13", f"{where}: {plan.describe(step)} is out of place")
                if step.begin:
                    stack.append(whose)
                elif not stack or stack.pop() != whose:
                    fault("P13", f"{where}: {plan.describe(step)} does not close the mark opened last")
            elif not stack:
                fault("P13", f"{where}: {plan.describe(step)} outside the marks of the kernel")
            elif (enclosing := _enclosing(step)) is not None and stack[-1] != enclosing:
                fault("P13", f"{where}: {plan.describe(step)} outside its own marks")
    for agent, stack in stacks.items():
        if stack:
            fault("P13", f"{agents.spell((agent,))}: {', '.join(what.value for what, _ in stack)} is never closed")


def _enclosing(step: Step) -> tuple[SpanKind, int] | None:
    """The marks between which a step stands; None: any."""
    kinds = (what for kind, what in _SPANS.items() if isinstance(step, kind))
    return next(((what, step.op) for what in kinds if isinstance(step, OpStep)), None)


def check_layout(plan: BasePlan, layout: Layout, fault: Fault) -> None:
    """P8: one slot for every argument, tiling word and event word; slots neither overlap nor share a name."""
    ends = 0
    for slot in sorted(layout, key=lambda slot: slot.offset):
        if slot.offset < ends:
            fault("P8", f"slot {slot.name} at {slot.offset} overlaps the one before")
        ends = slot.offset + 8
    for name, count in Counter(slot.name for slot in layout).items():
        if count > 1:
            fault("P8", f"{count} slots are called {name}")
    for node in plan.graph.nodes:
        slots = [slot for slot in layout.of_op.get(node.name, ()) if slot.role not in _NOT_OF_STEPS]
        held = Counter((slot.role, slot.source, slot.addend) for slot in slots)
        if held != Counter(_words(node)):
            fault("P8", f"the slots of {named(plan, node.index)} do not match its parameters and events")


def _words(node: Node) -> Iterable[tuple[Role, str | None, int]]:
    for arg in node.op.args:
        place = place_of(arg) if isinstance(arg, str | Place) else None
        yield (Role.PARAM, place.name, place.offset) if place else (Role.PARAM, None, 0)
    if node.dynamic:
        yield from ((role, None, 0) for role in (Role.TILING_KEY, Role.BLOCK_COUNT, Role.LOCK))
    yield from ((Role.SEND, event, 0) for event in node.notifies)
    yield from ((Role.RECV, event, 0) for event in node.awaits)
