"""targets.ascend.validate: a plan in; a proof, or a list of what is wrong with it, out.

The properties that all plans have are checked by `plan.verify`, on the clocks that `happens_before` finds. Here are the
checks of the chip: flags, locks, launch shape, the barriers that idle cores join.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ...model.gc_pause import without_collection
from ...model.hazards import Edge, Reason
from ...plan.steps import Fence, Record, Select, Step
from ...plan.verify import dependencies, structure
from ...plan.verify.agents import Fault, Needed, named, stream_ends
from ...plan.verify.validate import Finding, Report
from .argument_layout import RECEIVES, SENDS, listed_events
from .assemble import NEEDS_DRAINED
from .calling_convention import SyncProtocol
from .core_types import CoreClass
from .facts import facts_of
from .flag_counts import FlagCounts
from .happens_before import FlagClocks, walk
from .launch_shape import OpSize, launch_of
from .plan import AscendPlan, cores_of
from .rank_events import check_rank_events
from .steps import Arrive, ClassCall, Classes, Drain, Meet, ResetLock, WholeBarrier


class AscendAgents:
    """The classes of cores: steps name them, so that nothing need be split."""

    def __init__(self, plan: AscendPlan) -> None:
        self.nodes = plan.graph.nodes
        self.classes = tuple(facts_of(node.kernel).op_class.classes for node in self.nodes)

    def split(self, cores: Classes) -> Classes:
        return cores

    def of(self, op: int) -> Classes:
        return self.classes[op]

    def needed(self, edge: Edge, reason: Reason, agent: CoreClass) -> Needed:
        """A consumer that needs only what its own cores stored needs no flag."""
        producers, consumers = self.classes[edge.producer], self.classes[edge.consumer]
        first, second = self.nodes[edge.producer], self.nodes[edge.consumer]
        same_cores = reason.block_local or first.blocks == second.blocks == 1
        if producers == consumers and len(producers) == 1 and same_cores:
            return Needed((), True)
        return Needed(producers, True)

    def spell(self, agents: Iterable[Any]) -> str:
        return " and ".join(core_class.value for core_class in agents) + " cores"


@without_collection
def validate(plan: AscendPlan) -> Report:
    """Every property that one plan alone can show."""
    errors: dict[Finding, None] = {}

    def fault(which: str, message: str) -> None:
        errors[Finding(which, message)] = None

    agents, plain = AscendAgents(plan), plan.without_debug()
    clocks = walk(plain.steps, plan.launch, fault)
    most = clocks.most_pending
    if plain.steps != plan.steps:  # with debug steps the flags must come out even as well
        most = max(most, walk(plan.steps, plan.launch, fault).most_pending)
    if most > plan.chip.flag_limit:
        fault("P5", f"{most} signals may be under way, a flag holds {plan.chip.flag_limit}")
    _check_calls(plan, clocks, agents, fault)
    ends = stream_ends(plan, clocks, agents)
    dependencies.check_edges(plan, clocks, agents, ends, fault)
    dependencies.check_issue_order(plan, agents, fault)
    dependencies.check_events(plan, clocks, agents, ends, fault)
    dependencies.check_event_words(plan, agents, fault)
    check_rank_events(plan, fault)
    dependencies.check_dynamic(plan, clocks, agents, ends, fault)
    _check_locks(plan, clocks, agents, fault)
    _check_free_flags(plan, fault)
    _check_drains(plan, fault)
    _check_launch(plan, agents, fault)
    structure.check_preloads(plan, agents, fault, keeps_code=False)
    structure.check_debug(plan, plan.launch.classes, agents.classes, True, fault)
    structure.check_records(plan, agents, fault)
    _check_feeds(plan, fault)
    structure.check_layout(plan, plan.layout, fault)
    _check_slots(plan, fault)
    return Report(tuple(errors), _statistics(plan))


def _check_calls(plan: AscendPlan, clocks: FlagClocks, agents: AscendAgents, fault: Fault) -> None:
    """P1: once on every class of the op, nowhere else."""
    wanted = {(node.index, core_class) for node in plan.graph.nodes for core_class in agents.of(node.index)}
    for op, core_class in sorted(wanted.symmetric_difference(clocks.ends), key=lambda found: (found[0], str(found[1]))):
        what = "is never called" if (op, core_class) in wanted else "is called"
        fault("P1", f"{named(plan, op)} {what} on {agents.spell((core_class,))}")


def _check_locks(plan: AscendPlan, clocks: FlagClocks, agents: AscendAgents, fault: Fault) -> None:
    """P16: the lock of a dynamic op is reset once, when all cores have seen it."""
    resets = Counter(step.op for step in plan.steps if isinstance(step, ResetLock))
    for node in plan.graph.nodes:
        if resets[node.index] != node.dynamic:
            fault("P16", f"the lock of {named(plan, node.index)} is reset {resets[node.index]} times")
    for op, clock in clocks.lock_resets.items():
        for core_class in agents.of(op):
            if clock[core_class] < clocks.locks_seen.get((op, core_class), 0):
                fault("P16", f"the lock of {named(plan, op)} is reset before all {core_class.value} cores have seen it")


def _check_free_flags(plan: AscendPlan, fault: Fault) -> None:
    """P5: a sub-kernel that uses the flags itself finds none of the plan's under way."""
    pending = FlagCounts()
    for step in plan.steps:
        if isinstance(step, ClassCall) and plan.graph.nodes[step.op].kernel.sync_all:
            arrivals = [pending.arrivals[core_class] for core_class in step.cores]
            both = list(pending.signals.values()) if len(step.cores) > 1 else []
            if any(arrivals) or any(both):
                fault("P5", f"{named(plan, step.op)} calls sync_all while signals of the plan are under way")
            # an object of CANN's arrives in any case, behind its last barrier
            cann = facts_of(plan.graph.nodes[step.op].kernel).protocol is SyncProtocol.CANN
            if any(inside.actions or (inside.arrives and not cann) for inside in step.inside):
                fault("P5", f"{named(plan, step.op)} calls sync_all and would wait or arrive inside itself as well")
        pending.take(step)


def _check_drains(plan: AscendPlan, fault: Fault) -> None:
    """P2: transfers of an op have landed before its cores go on to what relies on them. P18: nothing waits for them
    between an op and its arrival, unless a time stamp or cache maintenance stands there."""
    busy: dict[CoreClass, int] = {}  # class -> the op whose transfers may be under way
    drained: dict[CoreClass, int] = {}  # class -> the op that was drained last, if nothing needed it so far
    for step in plan.steps:
        needs = isinstance(step, NEEDS_DRAINED) and not (isinstance(step, Record) and step.begin)
        debug = isinstance(step, Fence) and step.debug
        for core_class in step.cores:
            if isinstance(step, Drain):
                if core_class in busy:
                    drained[core_class] = busy.pop(core_class)
            elif needs and not debug:
                drained.pop(core_class, None)
                if core_class in busy:
                    what = f"{plan.describe(step)}: {core_class.value} cores may still store for"
                    fault("P2", f"{what} {named(plan, busy[core_class])}")
            elif isinstance(step, Arrive | Meet | WholeBarrier) and core_class in drained:
                fault("P18", f"{core_class.value} cores drain their pipes before {plan.describe(step)}")
            if isinstance(step, ClassCall):
                busy[core_class] = step.op
    for core_class, op in busy.items():
        fault("P2", f"the kernel ends while {core_class.value} cores may still store for {named(plan, op)}")


def _check_launch(plan: AscendPlan, agents: AscendAgents, fault: Fault) -> None:
    """P9: sufficient and minimal, unless numbers were forced."""
    ops = [OpSize(node.name, facts_of(node.kernel).type, node.blocks) for node in plan.graph.nodes]
    forced = plan.options.debug_aic_num or plan.options.debug_aiv_num
    if not forced and plan.launch != launch_of(ops, plan.chip, 0, 0, ""):
        fault("P9", f"{plan.launch} is not the smallest launch")
    for node in plan.graph.nodes:
        for core_class in agents.of(node.index):
            if cores_of(node, core_class) > plan.launch.cores(core_class):
                fault("P9", f"{named(plan, node.index)} has more blocks than the launch has {core_class.value} cores")


def _check_feeds(plan: AscendPlan, fault: Fault) -> None:
    """P14: cores without a block join, and only they."""
    for step in plan.steps:
        if not isinstance(step, ClassCall):
            continue
        node = plan.graph.nodes[step.op]
        partly = [c for c in step.cores if node.dynamic or cores_of(node, c) < plan.launch.cores(c)]
        idle = tuple(partly) if node.kernel.sync_all else ()
        if step.fed != idle:
            fault("P14", f"{named(plan, step.op)}: idle cores join on {step.fed}, should on {idle}")


def _check_slots(plan: AscendPlan, fault: Fault) -> None:
    """P8: every slot once, and each op's together."""
    for place, slot in enumerate(plan.layout):
        if slot.index != place:
            fault("P8", f"slot {slot.name} says {slot.index} and stands at {place}")
    for node in plan.graph.nodes:
        indices = [slot.index for slot in plan.layout.of_op.get(node.name, ())]
        first = plan.slots.first[node.index]
        if indices != list(range(first, first + len(indices))):
            fault("P8", f"the slots of {named(plan, node.index)} are {indices}, from {first} on")
        for roles, events in ((SENDS, node.sends), (RECEIVES, node.receives)):
            words = len(plan.slots.of_events(node.name, roles))
            if words != len(listed_events(events)):
                fault("P8", f"{named(plan, node.index)} has {words} slots for its events {', '.join(events)}")


def _statistics(plan: AscendPlan) -> dict[str, int]:
    def count(kind: type[Step]) -> int:
        return sum(isinstance(step, kind) for step in plan.steps)

    return {
        "ops": len(plan.graph.nodes),
        "cube cores": plan.launch.cubes,
        "vector cores": plan.launch.vectors,
        "steps": len(plan.steps),
        "edges": len(plan.graph.edges),
        "syncs": len(plan.pairs) + plan.barriers,
        "arrivals": count(Arrive),
        "meetings": count(Meet),
        "selects": count(Select),
        "flag actions": plan.flag_actions,
    }
