"""plan.plan: the Plan: which cores run which op, the steps, and a page of text that explains them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Self

from ..errors import counted
from ..model import notebook_html
from ..model.argument_layout import Layout, make_layout
from ..model.graph import Graph
from ..model.hazards import Edge
from ..model.options import Options
from .memory import MemoryPlan
from .replication import Copies
from .steps import AwaitRanks, Barrier, Cores, Fence, Step, Wait, spell


class SyncKind(Enum):
    """How a dependency edge is kept."""

    NONE = "none"  # implied by another edge
    LOCAL = "local"  # producer and consumer blocks share a core
    NEAR = "near"  # producers and consumers are in one group of cores
    FLAG = "flag"  # one producer core
    COUNTER = "counter"  # several producer cores
    BARRIER = "barrier"  # everything waits for everything
    LOCK = "lock"  # through the tiling request of a dynamic op
    RANKS = "ranks"  # through the wait for all ranks of a group, this rank as well


@dataclass(frozen=True)
class Sync:
    """A dependency edge and the sync that keeps it."""

    edge: Edge
    kind: SyncKind


@dataclass(frozen=True)
class Lane:
    """A set of cores that follows one list of steps."""

    name: str
    cores: Cores
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class BasePlan:
    """What the plans of all targets have: the steps of a graph, and the sync of every edge."""

    graph: Graph
    options: Options
    steps: tuple[Step, ...]
    syncs: tuple[Sync, ...]

    @property
    def sync_counts(self) -> dict[str, int]:
        """Edges by the kind of sync that keeps them."""
        counts = Counter(sync.kind for sync in self.syncs)
        return {kind.value: counts[kind] for kind in SyncKind if counts[kind]}

    @property
    def issue_order(self) -> tuple[int, ...]:
        return self.graph.order

    @cached_property
    def op_names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.graph.nodes)

    def describe(self, step: Step) -> str:
        """One line of text for one step."""
        return step.text(self.op_names)

    @property
    def summary(self) -> tuple[str, ...]:
        """The first lines of the page that a target prints."""
        return (f"plan {self.graph.name}: {counted(len(self.graph.nodes), 'op')}",)

    def _repr_html_(self) -> str:
        """For notebooks: the summary, and the steps folded away."""
        first, *others = self.summary
        steps = str(self).splitlines()[len(self.summary) :]
        return notebook_html.page(
            notebook_html.heading(first),
            notebook_html.listing(others),
            notebook_html.folded("steps", notebook_html.listing(steps)),
        )

    def without_debug(self) -> Self:
        """The plain plan: all that debug options added taken out."""
        steps = tuple(s for s in self.steps if not (isinstance(s, Barrier | Fence) and s.debug))
        return replace(self, steps=steps, options=replace(self.options, debug_sync_all=False, debug_dcci_all=False))


@dataclass(frozen=True)
class Plan(BasePlan):
    cores: int  # launch size
    placements: tuple[Cores, ...]  # per op of the graph: block b runs on placements[op][b % len], once per copy
    lane_cores: tuple[Cores, ...]
    notes: tuple[str, ...] = ()
    copies: Mapping[int, Copies] = field(default_factory=dict, hash=False)  # replicated op -> its copies
    memory: MemoryPlan = field(default_factory=MemoryPlan)
    near_groups: tuple[Cores, ...] = ()  # of which near needs speak
    teams: tuple[Cores, ...] = ()  # cores that ops between wide ops use, cores that wide ops use; empty: no teams

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        names = ["all"] if len(self.lane_cores) == 1 else [f"lane{i}" for i in range(len(self.lane_cores))]
        lanes = []
        for name, cores in zip(names, self.lane_cores, strict=True):
            members = frozenset(cores)
            steps = [step for step in self.steps if len(cores) == self.cores or not members.isdisjoint(step.cores)]
            lanes.append(Lane(name, cores, tuple(steps)))
        return tuple(lanes)

    @property
    def layout(self) -> Layout:
        """One argument slot per op parameter."""
        return make_layout(self.graph)

    @cached_property
    def group_of(self) -> tuple[int, ...]:
        """Core -> the number of its group among those of which near needs speak; -1: of none."""
        found = [-1] * self.cores
        for number, group in enumerate(self.near_groups):
            for core in group:
                if core < self.cores:
                    found[core] = number
        return tuple(found)

    @property
    def blocking_steps(self) -> int:
        """Steps at which a core may have to wait for another one."""
        return sum(isinstance(step, Wait | Barrier) for step in self.steps)

    @property
    def rank_syncs(self) -> int:
        """Steps at which cores wait for other ranks."""
        return sum(isinstance(step, AwaitRanks) for step in self.steps)

    def program(self, core: int) -> tuple[Step, ...]:
        """What one core does."""
        return tuple(step for step in self.steps if core in step.cores)

    @property
    def summary(self) -> tuple[str, ...]:
        """The first lines of the page: sizes, syncs, what was decided."""
        counts = ", ".join(f"{n} {kind}" for kind, n in self.sync_counts.items()) or "none"
        options = str(self.options) or "defaults"
        return (
            f"plan {self.graph.name}: {counted(len(self.graph.nodes), 'op')} on {counted(self.cores, 'core')}, "
            f"options {options}",
            f"  dependency edges: {len(self.graph.edges)}, kept by {counts}; blocking steps: {self.blocking_steps}",
            *([self._ranks_in_words()] if self.graph.collectives else []),
            *([f"  memory: {self.memory}"] if self.memory.buffers else []),
            *([self._teams_in_words()] if self.teams else []),
            *(f"  {note}" for note in self.notes),
        )

    def _ranks_in_words(self) -> str:
        groups = ", ".join(dict.fromkeys(str(collective.group) for collective in self.graph.collectives))
        count = len(self.graph.collectives)
        return f"  collectives: {count} with the ranks of {groups}; waits for ranks: {self.rank_syncs}"

    def _teams_in_words(self) -> str:
        small, wide = map(spell, self.teams)
        return f"  two teams: cores {wide} run the ops that start early, cores {small} the ops between them"

    def __str__(self) -> str:
        lines = [*self.summary]
        for lane in self.lanes:
            lines.append(f"  lane {lane.name} (cores {spell(lane.cores)}):")
            width = max((len(spell(step.cores)) for step in lane.steps), default=0)
            for step in lane.steps:
                here = tuple(c for c in step.cores if c in lane.cores)
                lines.append(f"    [{spell(here):>{width}}] {self.describe(step)}")
        return "\n".join(lines)
