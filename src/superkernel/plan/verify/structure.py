"""plan.structure: a plan in; what is wrong with its parts, whoever knows what when: P1, P8 to P10, P12 to P14."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ...model.argument_layout import Layout, Role
from ...model.node import Node
from ...model.op import Place, place_of
from ...model.options import PreloadCode
from ..plan import Plan
from ..steps import AwaitEvent, Barrier, Call, Feed, Fence, Notify, Preload, Record, What, spell
from .vector_clocks import Fault, named


def check_launch_size(plan: Plan, fault: Fault) -> bool:
    """P9; False if cores are named that do not exist, so that nothing else can be said."""
    used = {core for cores in plan.placements for core in cores}
    named = used.union(*(step.cores for step in plan.steps))
    idle = set(range(plan.cores)) - used
    forced = plan.options.debug_aic_num or plan.options.debug_aiv_num
    if idle and not forced:
        fault("P9", f"cores {spell(tuple(sorted(idle)))} are launched, but no op is placed on them")
    outside = sorted(core for core in named if not 0 <= core < plan.cores)
    if outside:
        fault("P9", f"cores {spell(tuple(outside))} are used in a launch of {plan.cores} cores")
    for step in plan.steps:
        if not step.cores or len(set(step.cores)) < len(step.cores):
            fault("P9", f"{plan.describe(step)}: its cores are {step.cores}")
    return not outside


def check_calls(plan: Plan, fault: Fault) -> None:
    """P1: every op once, on its cores, with its blocks. P14: who joins the barriers of a sync_all op."""
    calls: dict[int, list[Call]] = {}
    feeders: dict[int, list[int]] = {}
    for step in plan.steps:
        if isinstance(step, Call):
            calls.setdefault(step.op, []).append(step)
        elif isinstance(step, Feed):
            feeders.setdefault(step.op, []).extend(step.cores)
            if not plan.options.feed_sync_all:
                fault("P14", f"cores {spell(step.cores)} feed {named(plan, step.op)}, but feed-sync-all is 0")
    for node, placed in zip(plan.graph.nodes, plan.placements, strict=True):
        made, name = calls.get(node.index, []), named(plan, node.index)
        if len(made) != 1:
            fault("P1", f"{name} is called {len(made)} times")
        for call in made:
            if call.cores != placed:
                fault("P1", f"{name} is called on cores {call.cores}, placed on {placed}")
            if call.blocks != node.blocks:
                fault("P1", f"{name} is called with {call.blocks} blocks, it has {node.blocks}")
            if len(call.cores) > call.blocks:
                fault("P1", f"{name} is called on {len(call.cores)} cores, but has {call.blocks} blocks")
            _check_team(plan, node, call, feeders.get(node.index, []), fault)
    for step in plan.steps:
        if isinstance(step, Feed) and not any(call.team == step.team for call in calls.get(step.op, ())):
            fault("P14", f"{plan.describe(step)}: team {step.team} is not that of the call")


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


def check_preloads(plan: Plan, fault: Fault) -> None:
    """P10, on every core. Code that was preloaded or run there before counts as preloaded."""
    mode = plan.options.preload_code
    called = [0] * plan.cores
    there: list[set[object]] = [set() for _ in range(plan.cores)]
    ahead: dict[tuple[int, int], int] = {}  # (core, op) -> calls made when its code was preloaded
    for step in plan.steps:
        if isinstance(step, Preload):
            if mode is PreloadCode.NONE:
                fault("P10", f"{plan.describe(step)}, but preload-code is none")
            for core in step.cores:
                if mode is PreloadCode.MAX and called[core]:
                    fault("P10", f"core {core}: {plan.describe(step)} comes after the first call")
                for op in step.ops:
                    ahead[core, op] = called[core]
                    there[core].add(plan.graph.nodes[op].kernel)
        elif isinstance(step, Call) and mode is not PreloadCode.NONE:
            kernel = plan.graph.nodes[step.op].kernel
            for core in step.cores:
                if kernel not in there[core]:
                    fault("P10", f"core {core} calls {named(plan, step.op)} without a preload")
                distance = called[core] - ahead.pop((core, step.op), called[core] - min(1, called[core]))
                if mode is PreloadCode.PER_FUNC and distance != min(1, called[core]):
                    fault("P10", f"core {core}: the code of {named(plan, step.op)} is preloaded {distance} calls ahead")
                called[core] += 1
                there[core].add(kernel)
    if mode is PreloadCode.PER_FUNC:
        for core, op in ahead:
            fault("P10", f"core {core} preloads {named(plan, op)}, which it does not call afterwards")


def check_debug(plan: Plan, fault: Fault) -> None:
    """P12: debug steps where the options ask for them, one after every op, and nowhere else."""
    everyone = tuple(range(plan.cores))
    done: set[int] = set()
    found: Counter[tuple[type, int]] = Counter()
    for step in plan.steps:
        if isinstance(step, Call):
            done.add(step.op)
        elif isinstance(step, Barrier | Fence) and step.debug:
            found[type(step), step.op] += 1
            right = everyone if isinstance(step, Barrier) else plan.placements[step.op]
            if step.op not in done or set(step.cores) != set(right):
                fault("P12", f"{plan.describe(step)}: on cores {step.cores}, or not behind its op")
    asked = {Barrier: plan.options.debug_sync_all and plan.cores > 1, Fence: plan.options.debug_dcci_all}
    for kind, wanted in asked.items():
        for op in range(len(plan.graph.nodes)):
            if found[kind, op] != wanted:
                fault("P12", f"{found[kind, op]} debug {kind.__name__.lower()}s after {named(plan, op)}")


def check_records(plan: Plan, fault: Fault) -> None:
    """P13: on each core marks nest, the kernel's outermost, every call and event inside its own pair."""
    stacks: list[list[tuple[What, int | None]]] = [[] for _ in range(plan.cores)]
    enclosing = {Call: What.OP, AwaitEvent: What.WAIT, Notify: What.NOTIFY}
    profiling = plan.options.profiling
    for step in plan.steps:
        for core in step.cores:
            stack = stacks[core]
            if isinstance(step, Record):
                whose = (step.what, step.op)
                if not profiling or (step.begin and (step.what is What.KERNEL) != (not stack)):
                    fault("P13", f"core {core}: {plan.describe(step)} is out of place")
                if step.begin:
                    stack.append(whose)
                elif not stack or stack.pop() != whose:
                    fault("P13", f"core {core}: {plan.describe(step)} does not close the mark opened last")
            elif profiling and not stack:
                fault("P13", f"core {core}: {plan.describe(step)} outside the marks of the kernel")
            elif (
                profiling
                and isinstance(step, Call | AwaitEvent | Notify)
                and stack[-1] != (enclosing[type(step)], step.op)
            ):
                fault("P13", f"core {core}: {plan.describe(step)} outside its own marks")
    for core, stack in enumerate(stacks):
        if stack:
            fault("P13", f"core {core} never closes {', '.join(what.value for what, _ in stack)}")


def check_layout(plan: Plan, layout: Layout, fault: Fault) -> None:
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
        held = Counter((slot.role, slot.source, slot.addend) for slot in layout.of_op.get(node.name, ()))
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
