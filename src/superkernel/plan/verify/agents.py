"""plan.verify.agents: how the cores of a plan fall into agents, and the clocks that a walk along its steps finds.

An agent is a class of cores that follow one list of steps; checks never look at single cores. Each target supplies the
agents of its plans and a walk; the checks are the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...model.hazards import Edge, Reason
from ..plan import BasePlan
from ..steps import Agent, Notify, NotifyRanks, Step

Clock = Any  # clock[agent]: how many steps all cores of that agent are known to have done
Fault = Callable[[str, str], None]  # property, message


@dataclass(frozen=True)
class Needed:
    """What must be known of a producer: that it is done on the (other) cores of some agents; on the own core."""

    agents: tuple[Any, ...]
    own_core: bool
    near: tuple[tuple[Any, Any], ...] = ()  # of agents: the place in a clock that speaks of the own group; the agent


class Agents(Protocol):
    def split(self, cores: tuple[Any, ...]) -> tuple[Any, ...]:
        """The agents that take a step of these cores."""

    def of(self, op: int) -> tuple[Any, ...]:
        """The agents that run an op."""

    def needed(self, edge: Edge, reason: Reason, agent: Any) -> Needed:
        """For a hazard on a buffer: which producers' progress the blocks of the consumer on an agent need."""

    def spell(self, agents: Iterable[Any]) -> str:
        """For messages: 'core 3', 'cores 0-3', 'cube cores'."""


@dataclass
class Clocks:
    """Positions count from 1 along the list of each agent; 0 means never."""

    begins: dict[tuple[int, Agent], Clock] = field(default_factory=dict)  # (op, agent): known when its call begins
    bodies: dict[tuple[int, Agent], Clock] = field(default_factory=dict)  # ... and past its wait point
    called_at: dict[tuple[int, Agent], int] = field(default_factory=dict)  # the own position when the call begins
    ends: dict[tuple[int, Agent], int] = field(default_factory=dict)  # the own position behind the call
    notifies: list[tuple[Notify, Clock]] = field(default_factory=list)
    arrivals: list[tuple[NotifyRanks, Clock]] = field(default_factory=list)
    requests: dict[int, Clock] = field(default_factory=dict)
    polls: dict[str, list[tuple[Agent, int]]] = field(default_factory=dict)  # event -> agent, position

    # collective -> agent, position: its cores have seen that all ranks have arrived
    rank_polls: dict[str, list[tuple[Agent, int]]] = field(default_factory=dict)

    def sees(self, clock: Clock, event: str) -> bool:
        return any(clock[agent] >= position for agent, position in self.polls.get(event, ()))


def named(plan: BasePlan, op: int) -> str:
    return f"op {plan.op_names[op]!r}"


def ends_of(clocks: Clocks, agents: Agents, op: int) -> dict[Agent, int]:
    """How far each agent of an op must be for it to be done."""
    return {agent: clocks.ends[op, agent] for agent in agents.of(op) if (op, agent) in clocks.ends}


def stream_ends(plan: BasePlan, clocks: Clocks, agents: Agents) -> dict[int, dict[Agent, int]]:
    """Per op, how far each agent must be for that op and all earlier ones of its stream to be done."""
    ends: dict[int, dict[Agent, int]] = {}
    last: dict[int, dict[Agent, int]] = {}
    for op in plan.issue_order:
        stream = plan.graph.nodes[op].stream
        now = dict(last.get(stream, {}))
        for agent, position in ends_of(clocks, agents, op).items():
            now[agent] = max(now.get(agent, 0), position)
        last[stream] = ends[op] = now
    return ends


def behind(clock: Clock, wanted: Mapping[Any, int]) -> tuple[Any, ...]:
    """The agents that are not known to have come far enough."""
    return tuple(agent for agent, position in wanted.items() if clock[agent] < position)


def steps_of(plan: BasePlan, kind: type[Step] | tuple[type[Step], ...]) -> Iterable[Any]:
    return (step for step in plan.steps if isinstance(step, kind))
