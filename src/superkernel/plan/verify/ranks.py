"""plan.verify.ranks: clocks in; what is not in order between the ranks of a group out: P23.

Three premises that no single plan can show are checked elsewhere: every rank states the same collectives of a group in
the same order (at the first launch), the orders of ranks in several groups have a common one (rank_order), and the
rounds of a rank do not overlap (the run time). With them, what is checked here proves that

- no wait for ranks lasts forever. Before a rank notifies a collective it waits, along its serial order, for collectives
  only that are earlier in the common order. By induction over that order every rank arrives at each.
- no rank reads a slot before its signal: each core waits for all ranks of a window before it reads the window.
- no rank overwrites a slot that another one reads. In round n it stores into the slot of round n - 2. It has waited for
  all ranks of this window in round n - 1, at which they arrived after the end of their round n - 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...model.collectives import Collective
from ..plan import BasePlan
from ..steps import AwaitRanks, NotifyRanks
from .agents import Agents, Clocks, Fault, behind, ends_of, named, steps_of


def check_ranks(plan: BasePlan, clocks: Clocks, agents: Agents, fault: Fault) -> None:
    """P23: arrivals in order and after all blocks, no wait before them, and no access to a window without a wait."""
    known = {collective.name: collective for collective in plan.graph.collectives}
    _check_steps(plan, known, fault)
    _check_arrivals(plan, clocks, agents, fault)
    _check_waits(plan, clocks, agents, fault)
    _check_windows(plan, fault)


def _check_steps(plan: BasePlan, known: dict[str, Collective], fault: Fault) -> None:
    """Each step is of a collective of the graph, of an op that takes part in it, and of its group."""
    for step in steps_of(plan, (NotifyRanks, AwaitRanks)):
        collective = known.get(step.collective)
        text = f"{plan.describe(step)} (collective {step.collective!r})"
        if collective is None:
            fault("P23", f"{text}: the graph has no such collective")
            continue
        ops = (collective.sender,) if isinstance(step, NotifyRanks) else collective.receivers
        if step.op not in ops or step.group != collective.group:
            fault("P23", f"{text}: neither its op nor its ranks are those of the collective")
        if collective.group.size == 1:
            fault("P23", f"{text}: a group of one rank needs no sync")
    sent = (each for each in plan.graph.collectives if each.group.size > 1 and each.sender is not None)
    between = [collective.name for collective in sent]
    notified = [step.collective for step in steps_of(plan, NotifyRanks)]
    for name, count in (Counter(between) - Counter(notified)).items():
        fault("P23", f"collective {name!r} is notified {1 - count} times: the other ranks would wait forever")
    for name, count in (Counter(notified) - Counter(between)).items():
        fault("P23", f"collective {name!r} is notified {count} times too often")
    if sorted(notified) == sorted(between) and notified != between:
        fault("P23", f"collectives are notified in the order {notified}; the other ranks expect {between}")


def _check_arrivals(plan: BasePlan, clocks: Clocks, agents: Agents, fault: Fault) -> None:
    """A rank has arrived when all blocks of the sending op are done."""
    for step, clock in clocks.arrivals:
        if len(step.cores) != 1:
            fault("P23", f"{plan.describe(step)}: {len(step.cores)} cores publish the arrival; it must be one")
        if late := behind(clock, ends_of(clocks, agents, step.op)):
            where = f"{named(plan, step.op)} is done on {agents.spell(late)}"
            fault("P23", f"{plan.describe(step)}: the ranks may be notified before {where}")


def _check_waits(plan: BasePlan, clocks: Clocks, agents: Agents, fault: Fault) -> None:
    """Every core of an op that reads a window knows that all its ranks have arrived: from its own wait before the call,
    or from a core that has waited."""
    for collective in plan.graph.collectives:
        if collective.group.size == 1:
            continue
        polls = clocks.rank_polls.get(collective.name, ())
        for op in collective.receivers:
            missing = tuple(agent for agent in agents.of(op) if not _sees(clocks, op, agent, polls))
            if missing:
                fault(
                    "P23",
                    f"{named(plan, op)} on {agents.spell(missing)} reads the window {collective.window!r} before "
                    f"the ranks of {collective.group} have arrived at collective {collective.name!r}",
                )


def _sees(clocks: Clocks, op: int, agent: Any, polls: Sequence[tuple[Any, int]]) -> bool:
    """Whether an op, when its call begins on an agent, comes after a wait for the ranks."""
    clock = clocks.begins.get((op, agent))
    if clock is None:
        return True  # never called: P1 says so
    called_at = clocks.called_at[op, agent]
    return any(clock[other] >= position or (other == agent and position <= called_at) for other, position in polls)


def _check_windows(plan: BasePlan, fault: Fault) -> None:
    """A window serves one collective, is awaited in the round in which it is notified, and no other op touches it."""
    windows: dict[str, Collective] = {}
    for collective in plan.graph.collectives:
        first = windows.setdefault(collective.window, collective)
        if first is not collective:
            names = f"{first.name!r} and {collective.name!r}"
            fault("P23", f"the collectives {names} share the window {collective.window!r}: slots could be overwritten")
        if not collective.receivers and not plan.graph.part:
            fault("P23", f"no op waits for collective {collective.name!r}: its window could be overwritten in use")
    for node in plan.graph.nodes:
        for _, name in node.arguments():
            owner = windows.get(name)
            if owner is not None and node.index != owner.sender and node.index not in owner.receivers:
                fault("P23", f"{named(plan, node.index)} accesses {name!r}, the window of collective {owner.name!r}")
