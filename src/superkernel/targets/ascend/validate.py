"""targets.ascend.validate: a plan in, a proof or a list of what is wrong with it out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ...model.gc_pause import without_collection
from ...model.hazards import Edge, Hazard, Reason
from ...model.options import PreloadCode
from ...plan.verify.validate import Finding, Report
from .facts import facts_of
from .flag_counts import FlagCounts
from .happens_before import Clock, Fault, Walked, walk
from .launch_shape import OpSize, launch_of
from .plan import AscendPlan, cores_of
from .steps import Arrive, Call, Meet, Preload, Record, ResetEvent, ResetLock, Select, Step
from .types import CoreClass


@without_collection
def validate(plan: AscendPlan) -> Report:
    """Every property that one plan alone can show."""
    errors: dict[Finding, None] = {}

    def fault(which: str, message: str) -> None:
        errors[Finding(which, message)] = None

    plain = plan.without_debug()
    walked = walk(plain.steps, plan.launch, fault)
    most = walked.most_pending
    if plain.steps != plan.steps:  # with debug steps the flags must come out even as well
        most = max(most, walk(plan.steps, plan.launch, fault).most_pending)
    if most > plan.chip.flag_limit:
        fault("P5", f"{most} signals may be under way, a flag holds {plan.chip.flag_limit}")
    _check_calls(plan, walked, fault)
    if not errors:
        _check_edges(plan, walked, fault)
        _check_events(plan, walked, fault)
        _check_dynamic(plan, walked, fault)
    _check_order(plan, fault)
    _check_free_flags(plan, fault)
    _check_launch(plan, fault)
    _check_preloads(plan, fault)
    _check_records(plan, fault)
    _check_feeds(plan, fault)
    _check_slots(plan, fault)
    return Report(tuple(errors), _statistics(plan))


def _named(plan: AscendPlan, op: int) -> str:
    return f"op {plan.op_names[op]!r}"


def _classes(plan: AscendPlan, op: int) -> tuple[CoreClass, ...]:
    return facts_of(plan.graph.nodes[op].kernel).op_class.classes


def _check_calls(plan: AscendPlan, walked: Walked, fault: Fault) -> None:
    """P1: once on every class of the op, nowhere else."""
    wanted = {(node.index, core_class) for node in plan.graph.nodes for core_class in _classes(plan, node.index)}
    for op, core_class in sorted(wanted.symmetric_difference(walked.ends), key=lambda pair: (pair[0], pair[1].value)):
        what = "is never called" if (op, core_class) in wanted else "is called"
        fault("P1", f"{_named(plan, op)} {what} on {core_class.value} cores")


def _stream_ends(plan: AscendPlan, walked: Walked) -> dict[int, Clock]:
    """Per op, how far each class must be for that op and all earlier ones of its stream to be done."""
    ends: dict[int, Clock] = {}
    last: dict[int, Clock] = {}
    for op in plan.order.ops:
        stream = plan.graph.nodes[op].stream
        now = dict(last.get(stream, {}))
        for core_class in _classes(plan, op):
            now[core_class] = max(now.get(core_class, 0), walked.ends[op, core_class])
        last[stream] = ends[op] = now
    return ends


def _covers(known: Mapping[CoreClass, int], wanted: Mapping[CoreClass, int]) -> bool:
    return all(known.get(core_class, 0) >= position for core_class, position in wanted.items())


def _check_edges(plan: AscendPlan, walked: Walked, fault: Fault) -> None:
    """P2: when a class passes the wait point of an op, it knows that what the op needs is stored."""
    ends = _stream_ends(plan, walked)
    for edge in plan.graph.edges:
        for reason in edge.reasons:
            if _on_the_same_cores(plan, edge, reason):
                continue
            known = walked.begins if reason.before_wait else walked.bodies
            producers = _classes(plan, edge.producer)
            done = {core_class: walked.ends[edge.producer, core_class] for core_class in producers}
            wanted = ends[edge.producer] if reason.hazard is Hazard.EVENT else done
            for core_class in _classes(plan, edge.consumer):
                if not _covers(known[edge.consumer, core_class], wanted):
                    consumer, producer = _named(plan, edge.consumer), _named(plan, edge.producer)
                    fault(
                        "P2", f"{consumer} on {core_class.value} cores does not know that {producer} is done ({reason})"
                    )


def _on_the_same_cores(plan: AscendPlan, edge: Edge, reason: Reason) -> bool:
    first, second = plan.graph.nodes[edge.producer], plan.graph.nodes[edge.consumer]
    classes = {_classes(plan, edge.producer), _classes(plan, edge.consumer)}
    if reason.hazard is Hazard.EVENT or len(classes) > 1 or len(next(iter(classes))) > 1:
        return False
    return reason.block_local or first.blocks == second.blocks == 1


def _check_events(plan: AscendPlan, walked: Walked, fault: Fault) -> None:
    """P6, P7: waits are over before their op begins, notifies come after it; each word once."""
    ends = _stream_ends(plan, walked)
    for node in plan.graph.nodes:
        for event in node.awaits:
            if event not in walked.polls:
                fault("P6", f"no core waits for event {event} of {_named(plan, node.index)}")
                continue
            of, position = walked.polls[event]
            request = walked.requests.get(node.index)
            for core_class in _classes(plan, node.index):
                seen = walked.begins[node.index, core_class].get(of, 0) >= position
                # block 0 polls and asks: a core that has seen the lock knows
                seen |= request is not None and request[0] is of and request[1] > position
                if not seen:
                    fault(
                        "P6", f"{_named(plan, node.index)} may begin on {core_class.value} cores before event {event}"
                    )
    for notify, known in walked.notifies:
        if not _covers(known, ends[notify.op]):
            fault(
                "P6", f"event {notify.event} may be notified before {_named(plan, notify.op)} and its stream are done"
            )
    sent = Counter((node.index, event) for node in plan.graph.nodes for event in node.notifies)
    notified = Counter((notify.op, notify.event) for notify, _ in walked.notifies)
    if sent != notified:
        fault("P7", f"notified {sorted(notified)}, to be notified {sorted(sent)}")
    resets = Counter(step.event for step in plan.steps if isinstance(step, ResetEvent))
    if resets != Counter({event for node in plan.graph.nodes for event in node.awaits}):
        fault("P7", f"events reset: {dict(resets)}")


def _check_dynamic(plan: AscendPlan, walked: Walked, fault: Fault) -> None:
    """P16: requested when its inputs are there, selected before the call, its lock reset when all have seen it."""
    ends = _stream_ends(plan, walked)
    resets = Counter(step.op for step in plan.steps if isinstance(step, ResetLock))
    for node in plan.graph.nodes:
        if not node.dynamic:
            continue
        name, classes = _named(plan, node.index), _classes(plan, node.index)
        if node.index not in walked.requests or resets[node.index] != 1:
            fault("P16", f"the lock of {name} is not asked for and reset once")
            continue
        known = walked.requests[node.index][2]
        for edge in plan.graph.incoming[node.index]:
            for reason in edge.reasons:
                done = {
                    core_class: walked.ends[edge.producer, core_class] for core_class in _classes(plan, edge.producer)
                }
                event = reason.hazard is Hazard.EVENT
                reads = event or reason.hazard is Hazard.READ_AFTER_WRITE
                if reads and not _covers(known, ends[edge.producer] if event else done):
                    fault("P2", f"the tiling of {name} is requested before {_named(plan, edge.producer)} is done")
        for core_class in classes:
            if walked.locks_seen.get((node.index, core_class), 10**18) > walked.ends[node.index, core_class]:
                fault("P16", f"{name} is called on {core_class.value} cores before its variant is selected")
            if walked.lock_resets[node.index].get(core_class, 0) < walked.locks_seen.get((node.index, core_class), 0):
                fault("P16", f"the lock of {name} is reset before all {core_class.value} cores have seen it")


def _check_order(plan: AscendPlan, fault: Fault) -> None:
    """P3: each class issues the ops of a stream in list order; senders come first."""
    last: dict[tuple[CoreClass, int], int] = {}
    place: dict[int, int] = {}
    for at, step in enumerate(plan.steps):
        if not isinstance(step, Call):
            continue
        place[step.op] = at
        stream = plan.graph.nodes[step.op].stream
        for core_class in step.classes:
            before = last.get((core_class, stream), -1)
            if before > step.op:
                fault("P3", f"{core_class.value} cores issue {_named(plan, step.op)} after {_named(plan, before)}")
            last[core_class, stream] = step.op
    for edge in plan.graph.edges:
        if edge.whole_stream and place.get(edge.producer, -1) > place.get(edge.consumer, len(plan.steps)):
            fault("P3", f"{_named(plan, edge.consumer)} is issued before {_named(plan, edge.producer)}")


def _check_free_flags(plan: AscendPlan, fault: Fault) -> None:
    """P5: a sub-kernel that uses the flags itself finds none of the plan's under way."""
    pending = FlagCounts()
    for step in plan.steps:
        if isinstance(step, Call) and plan.graph.nodes[step.op].kernel.sync_all:
            arrivals = [pending.arrivals[core_class] for core_class in step.classes]
            both = list(pending.signals.values()) if len(step.classes) > 1 else []
            if any(arrivals) or any(both):
                fault("P5", f"{_named(plan, step.op)} calls sync_all while signals of the plan are under way")
            if any(inside.actions or inside.arrives for inside in step.inside):
                fault("P5", f"{_named(plan, step.op)} calls sync_all and would wait or arrive inside itself as well")
        pending.take(step)


def _check_launch(plan: AscendPlan, fault: Fault) -> None:
    """P9: sufficient and minimal, unless numbers were forced."""
    ops = [OpSize(node.name, facts_of(node.kernel).type, node.blocks) for node in plan.graph.nodes]
    forced = plan.options.debug_aic_num or plan.options.debug_aiv_num
    if not forced and plan.launch != launch_of(ops, plan.chip, 0, 0, ""):
        fault("P9", f"{plan.launch} is not the smallest launch")
    for node in plan.graph.nodes:
        for core_class in _classes(plan, node.index):
            if cores_of(node, plan.launch, core_class) > plan.launch.cores(core_class):
                fault("P9", f"{_named(plan, node.index)} has more blocks than the launch has {core_class.value} cores")


def _check_preloads(plan: AscendPlan, fault: Fault) -> None:
    """P10: code is asked for before it is called: one op ahead, unless it is the first, or chosen at run time."""
    if plan.options.preload_code is not PreloadCode.PER_FUNC:
        return
    nodes = plan.graph.nodes
    for core_class in plan.launch.classes:
        asked: dict[int, int] = {}  # op -> calls before
        calls: list[int] = []
        for step in plan.steps:
            if core_class not in step.classes:
                continue
            if isinstance(step, Preload):
                asked[step.op] = len(calls)
            if not isinstance(step, Call):
                continue
            node = nodes[step.op]
            there = calls and not node.dynamic and nodes[calls[-1]].kernel == node.kernel
            place = len(calls) if node.dynamic or not calls else len(calls) - 1
            if not there and asked.get(step.op) != place:
                problem = "is never asked for" if step.op not in asked else f"is asked for after {asked[step.op]} calls"
                fault(
                    "P10",
                    f"the code of {_named(plan, step.op)} {problem} on {core_class.value} cores, not after {place}",
                )
            calls.append(step.op)


def _check_records(plan: AscendPlan, fault: Fault) -> None:
    """P13: marks nest on each class."""
    open_marks: dict[CoreClass, list[tuple[object, int]]] = {core_class: [] for core_class in CoreClass}
    for step in plan.steps:
        if not isinstance(step, Record):
            continue
        for core_class in step.classes:
            if step.begin:
                open_marks[core_class].append((step.what, step.op))
            elif not open_marks[core_class] or open_marks[core_class].pop() != (step.what, step.op):
                fault("P13", f"the end of {step.what.value} of op {step.op} closes another mark")
    if any(open_marks.values()):
        fault("P13", "marks are left open")


def _check_feeds(plan: AscendPlan, fault: Fault) -> None:
    """P14: cores without a block join, and only they."""
    for step in plan.steps:
        if not isinstance(step, Call):
            continue
        node = plan.graph.nodes[step.op]
        idle = tuple(
            core_class
            for core_class in step.classes
            if node.kernel.sync_all
            and (node.dynamic or cores_of(node, plan.launch, core_class) < plan.launch.cores(core_class))
        )
        if step.fed != idle:
            fault("P14", f"{_named(plan, step.op)}: idle cores join on {step.fed}, should on {idle}")


def _check_slots(plan: AscendPlan, fault: Fault) -> None:
    """P8: every slot once, and each op's together."""
    for place, slot in enumerate(plan.layout):
        if slot.index != place:
            fault("P8", f"slot {slot.name} says {slot.index} and stands at {place}")
    for node in plan.graph.nodes:
        indices = [slot.index for slot in plan.layout.of_op.get(node.name, ())]
        if indices and indices != list(
            range(plan.slots.first[node.index], plan.slots.first[node.index] + len(indices))
        ):
            fault(
                "P8", f"the slots of {_named(plan, node.index)} are {indices}, from {plan.slots.first[node.index]} on"
            )


def _statistics(plan: AscendPlan) -> dict[str, int]:
    def count(kind: type[Step]) -> int:
        return sum(isinstance(step, kind) for step in plan.steps)

    return {
        "ops": len(plan.graph.nodes),
        "cube cores": plan.launch.cubes,
        "vector cores": plan.launch.vectors,
        "steps": len(plan.steps),
        "edges": len(plan.graph.edges),
        "syncs": len(plan.pairs),
        "arrivals": count(Arrive),
        "meetings": count(Meet),
        "selects": count(Select),
        "flag actions": plan.flag_actions,
    }
