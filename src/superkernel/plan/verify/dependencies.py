"""plan.verify.dependencies: clocks in; what is not in order out: P2, P3, P6, P7, P11, P16. For every target."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...model.hazards import Edge, Hazard
from ..plan import BasePlan
from ..steps import AwaitEvent, Barrier, Call, Notify, Request, ResetEvent, Select
from .agents import Agents, Clocks, Fault, behind, ends_of, named, steps_of

StreamEnds = dict[int, dict[Any, int]]


def check_edges(plan: BasePlan, clocks: Clocks, agents: Agents, ends: StreamEnds, fault: Fault) -> int:
    """P2, P20: every producer block is known to be done when a consumer block needs it. Returns the clocks compared."""
    compared = 0
    for edge in plan.graph.edges:
        for reason in edge.reasons:
            known = clocks.begins if reason.before_wait else clocks.bodies
            for agent in agents.of(edge.consumer):
                if (edge.consumer, agent) not in known:
                    continue  # never called: P1 says so
                compared += 1
                wanted, own_core = ends[edge.producer], True
                if reason.hazard is not Hazard.EVENT:
                    needed = agents.needed(edge, reason, agent)
                    done, own_core = ends_of(clocks, agents, edge.producer), needed.own_core
                    wanted = {other: done[other] for other in needed.agents if other in done}
                    wanted |= {place: done[other] for place, other in needed.near if other in done}
                late = behind(known[edge.consumer, agent], wanted)
                if own_core and clocks.ends.get((edge.producer, agent), 0) > clocks.called_at[edge.consumer, agent]:
                    late = (*late, agent)
                if late:
                    consumer = f"{named(plan, edge.consumer)} on {agents.spell((agent,))}"
                    done_where = f"{named(plan, edge.producer)} is done on {agents.spell(late)}"
                    fault("P2", f"{consumer} does not know that {done_where} ({reason})")
    return compared


def check_issue_order(plan: BasePlan, agents: Agents, fault: Fault) -> None:
    """P3: on each core the ops of a stream in list order; senders before receivers everywhere."""
    last: dict[tuple[Any, int], int] = {}
    place: dict[int, int] = {}
    for at, call in enumerate(steps_of(plan, Call)):
        place.setdefault(call.op, at)
        stream = plan.graph.nodes[call.op].stream
        for agent in agents.split(call.cores):
            before = last.get((agent, stream), -1)
            if before > call.op:
                ops = f"{named(plan, call.op)} after {named(plan, before)}"
                fault("P3", f"{agents.spell((agent,))}: {ops}, against the order of stream {stream}")
            last[agent, stream] = call.op
    for edge in plan.graph.edges:
        if edge.whole_stream and place.get(edge.producer, -1) > place.get(edge.consumer, len(place)):
            sender, receiver = named(plan, edge.producer), named(plan, edge.consumer)
            fault("P3", f"{receiver} is issued before {sender}, whose event it receives")


def check_events(plan: BasePlan, clocks: Clocks, agents: Agents, ends: StreamEnds, fault: Fault) -> None:
    """P6: an external wait is over before its op starts anywhere, a notify comes after all cores and earlier ops."""
    for node in plan.graph.nodes:
        for event in node.awaits:
            for agent in agents.of(node.index):
                clock = clocks.begins.get((node.index, agent))
                if clock is not None and not clocks.sees(clock, event):
                    where = agents.spell((agent,))
                    fault("P6", f"{named(plan, node.index)} may start on {where} before event {event} was seen")
    for notify, clock in clocks.notifies:
        if late := behind(clock, ends[notify.op]):
            what = f"{named(plan, notify.op)} and its stream are done on {agents.spell(late)}"
            fault("P6", f"event {notify.event} may be notified before {what}")


def check_event_words(plan: BasePlan, agents: Agents, fault: Fault) -> None:
    """P7: each word is touched by one core, reset once after its waits, or notified once. P6: no notify held up."""
    rank = {op: place for place, op in enumerate(plan.issue_order)}
    touched: dict[str, set[Any]] = {}
    resets: Counter[str] = Counter()
    notified: Counter[tuple[int, str]] = Counter()
    waiting = -1  # rank of the latest op whose external events have been waited for
    for step in steps_of(plan, (AwaitEvent, Notify, ResetEvent)):
        touched.setdefault(step.event, set()).update(step.cores)
        if isinstance(step, AwaitEvent):
            waiting = max(waiting, rank[step.op])
            if resets[step.event]:
                fault("P7", f"event {step.event} is waited for after its reset")
            if step.event not in plan.graph.nodes[step.op].awaits:
                fault("P6", f"{named(plan, step.op)} waits for event {step.event}, which it does not receive")
        elif isinstance(step, Notify):
            notified[step.op, step.event] += 1
            if waiting > rank[step.op]:
                later = named(plan, plan.issue_order[waiting])
                fault("P6", f"{plan.describe(step)} stands behind a wait of the later {later}")
        else:
            resets[step.event] += 1
    expected = Counter({event: 1 for node in plan.graph.nodes for event in node.awaits})
    for event in sorted(expected | resets):
        if resets[event] != expected[event]:
            fault("P7", f"event {event} is reset {resets[event]} times")
    sent = Counter((node.index, event) for node in plan.graph.nodes for event in node.notifies)
    for op, event in sorted(sent | notified):
        if notified[op, event] != sent[op, event]:
            fault("P7", f"event {event} is notified {notified[op, event]} times after {named(plan, op)}")
    for event, cores in touched.items():
        if len(cores) > 1:
            fault("P7", f"event {event} is touched by {agents.spell(agents.split(tuple(cores)))}; it must be one core")


def check_barriers(plan: BasePlan, clocks: Clocks, agents: Agents, ends: StreamEnds, fault: Fault) -> None:
    """P11: only cores of the op, of what it waits for, and those that poll its events."""
    for step in steps_of(plan, Barrier):
        if step.debug:
            continue
        concerned = set(agents.of(step.op))
        for edge in plan.graph.incoming[step.op]:
            concerned.update(ends[edge.producer] if edge.whole_stream else agents.of(edge.producer))
        for event in plan.graph.nodes[step.op].awaits:
            concerned.update(agent for agent, _ in clocks.polls.get(event, ()))
        if extra := tuple(agent for agent in agents.split(step.cores) if agent not in concerned):
            fault("P11", f"{agents.spell(extra)} have no part in the barrier before {named(plan, step.op)}")
        if len(step.cores) < 2:
            fault("P11", f"the barrier before {named(plan, step.op)} is over one core alone")


def check_dynamic(plan: BasePlan, clocks: Clocks, agents: Agents, ends: StreamEnds, fault: Fault) -> None:
    """P16: a dynamic op is requested once, after its inputs are there, and selected before it is called."""
    requests: Counter[int] = Counter()
    selected: dict[int, Counter[Any]] = {}
    for step in steps_of(plan, (Request, Select, Call)):
        if isinstance(step, Request):
            requests[step.op] += len(step.cores)
        elif isinstance(step, Select):
            selected.setdefault(step.op, Counter()).update(agents.split(step.cores))
        elif plan.graph.nodes[step.op].dynamic:
            for agent in set(agents.split(step.cores)).difference(selected.get(step.op, ())):
                where = agents.spell((agent,))
                fault("P16", f"{named(plan, step.op)} is called on {where} before a variant is selected")
    for node in plan.graph.nodes:
        name, chosen = named(plan, node.index), selected.get(node.index, Counter[Any]())
        if requests[node.index] != node.dynamic:
            fault("P16", f"the tiling of {name} is requested {requests[node.index]} times")
        if chosen != Counter(agents.of(node.index) if node.dynamic else ()):
            fault("P16", f"the variant of {name} is selected on {agents.spell(chosen) if chosen else 'no core'}")
    for op, clock in clocks.requests.items():
        request = f"the tiling of {named(plan, op)} is requested before"
        for edge in plan.graph.incoming[op]:
            if behind(clock, _seen_by_agent(edge, clocks, agents, ends)):
                fault("P2", f"{request} it is known that {named(plan, edge.producer)} is done")
        for event in plan.graph.nodes[op].awaits:
            if not clocks.sees(clock, event):
                fault("P6", f"{request} event {event} was seen")


def _seen_by_agent(edge: Edge, clocks: Clocks, agents: Agents, ends: StreamEnds) -> dict[Any, int]:
    """How far every agent must be before the control agent may read what the op reads."""
    if edge.whole_stream:
        return ends[edge.producer]
    reads = any(reason.hazard is Hazard.READ_AFTER_WRITE for reason in edge.reasons)
    return ends_of(clocks, agents, edge.producer) if reads else {}
