"""plan.machine: the machine of a target as the planner sees it: its cores, their groups, and costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .steps import Cores


@dataclass(frozen=True)
class Costs:
    """Estimates, only good enough to compare two placements."""

    call_ns: float = 200.0  # an op of unknown size
    bytes_per_ns: float = 8.0  # what one core streams
    sync_ns: float = 150.0  # one core learns of another core's progress
    near_sync_ns: float = 150.0  # the same within a group
    team_ns: float = 0.0  # the cores of a launch start and end together, where one core starts at once
    shared_bytes_per_ns: float = 8.0  # what each core reads of other cores' stores when all of them read at once


@dataclass(frozen=True)
class Machine:
    """Cores, the groups among which a sync is cheap, and costs. Without groups all cores are alike."""

    cores: int
    groups: tuple[Cores, ...] = ()
    costs: Costs = Costs()
    replicates: bool = True  # cheap ops may be computed by every group that needs them
    near_bytes: int = 128 * 1024  # ops that move more than this are spread over groups: one group fetches too slowly
    early_loads: bool = False  # cores fetch the constant inputs of ops that wait inside while they wait
    # small ops run on the last cores, which have the fewest blocks of wide ops; False: on the first
    small_ops_last: bool = False
    # the cores of a group can wait for each other by a need that is the same in all groups
    near_needs: bool = False
    # two sets of cores with members in every group: ops that start early use the second, so that its cores can ask for
    # their inputs while the ops between them run on the first; empty: all ops use the same cores
    teams: tuple[Cores, ...] = ()
    # bytes that a cache of all cores may hold ahead of the ops that read them: prefetch-weights then pulls the inputs
    # of later ops there, in the order of the ops; 0: cores prefetch for themselves, one op ahead
    prefetch_window: int = 0
    # every core has a ring in memory of its own, which is filled beside its steps: inputs of later ops are staged there
    stages: bool = False
    # the all-core barriers of a sync_all op count every core of the launch, so that idle cores must feed them; False:
    # its blocks meet among themselves, and only have to be resident
    feeds_sync_all: bool = True

    @cached_property
    def group_of(self) -> tuple[int, ...]:
        """Core -> the index of its group; without groups every core is a group by itself."""
        found = list(range(len(self.groups), len(self.groups) + self.cores))
        for index, group in enumerate(self.groups):
            for core in group:
                found[core] = index
        return tuple(found)

    @cached_property
    def near_groups(self) -> tuple[Cores, ...]:
        """The groups of which near needs speak."""
        return self.groups if self.near_needs else ()

    def near(self, cores: Cores) -> bool:
        """Whether the cores lie in one group of several."""
        return len(self.groups) > 1 and len({self.group_of[core] for core in cores}) == 1
