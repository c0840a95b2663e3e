"""plan.classes: sets of cores in; the coarsest classes of which every set is a union out; and which cores need which.

All cores of a class follow the same list of steps, so the planner and the proof follow classes: 528 cores that do six
different things cost as much as six cores.

Block b of an op runs on cores[b % len(cores)]. With equal block counts consumer block i needs producer block i; with P
and C blocks over equal elements it needs the producer blocks floor(i P / C) to ceil((i + 1) P / C) - 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import lcm

from ..model.graph import Graph
from ..model.hazards import Edge, Hazard, Reason
from .replication import Copies
from .steps import Cores

Classes = tuple[int, ...]
MOST_GROUPS = 64  # beyond this, consumers wait for all producers: one counter costs less than many flags
MOST_BLOCKS = 1 << 16


class CoreClasses:
    """The coarsest partition of `cores` cores in which every one of `sets` is a union of classes."""

    def __init__(self, cores: int, sets: Iterable[Cores]) -> None:
        labels = [0] * cores
        for members in dict.fromkeys(sets):
            if len(members) == cores:
                continue
            inside = set(members)
            fresh: dict[tuple[int, bool], int] = {}
            labels = [fresh.setdefault((label, core in inside), len(fresh)) for core, label in enumerate(labels)]
        numbers: dict[int, int] = {}  # classes are numbered by their first core
        self.of_core: tuple[int, ...] = tuple(numbers.setdefault(label, len(numbers)) for label in labels)
        members_of: list[list[int]] = [[] for _ in numbers]
        for core, number in enumerate(self.of_core):
            members_of[number].append(core)
        self.members: tuple[Cores, ...] = tuple(map(tuple, members_of))
        self._split: dict[Cores, Classes] = {}
        self._cores: dict[Classes, Cores] = {}

    def __len__(self) -> int:
        return len(self.members)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(map(len, self.members))

    def split(self, cores: Cores) -> Classes:
        """The classes that a set of cores consists of, in rising order."""
        found = self._split.get(cores)
        if found is None:
            found = self._split[cores] = tuple(sorted({self.of_core[core] for core in cores}))
        return found

    def cores(self, classes: Iterable[int]) -> Cores:
        """The cores of some classes, in rising order."""
        key = tuple(sorted(set(classes)))
        found = self._cores.get(key)
        if found is None:
            found = self._cores[key] = tuple(sorted(core for number in key for core in self.members[number]))
        return found


def sets_of_copies(copies: Mapping[int, Copies], near: bool) -> Iterable[Cores]:
    """The sets of cores that compute and that read copies; near: those of all groups are alike."""
    for found in copies.values():
        if near:
            yield tuple(sorted(core for copy in found for core in copy.cores))
            yield tuple(sorted(core for copy in found for core in copy.readers))
            continue
        for copy in found:  # cores that read only what they compute themselves are alike
            if len(copy.readers) > 1:
                yield copy.cores
                yield copy.readers


@dataclass(frozen=True)
class PartnerGroup:
    """Consumer cores whose blocks need what the same cores have stored."""

    consumers: Cores
    producers: Cores  # empty: each consumer core needs only what it has stored itself
    near: bool = False  # each consumer core needs the producers of its own group of cores alone


class Partners:
    """Per edge: the producer cores that must have stored before a consumer core may load."""

    def __init__(
        self, graph: Graph, placements: tuple[Cores, ...], copies: Mapping[int, Copies], near_groups: tuple[Cores, ...]
    ) -> None:
        """`near_groups`: the groups of cores that can wait for each other by near needs, if there are such."""
        self._graph, self._placements, self._copies = graph, placements, copies
        self._near = bool(near_groups)
        self._groups: dict[object, tuple[PartnerGroup, ...]] = {}

    def groups(self, edge: Edge, reason: Reason) -> tuple[PartnerGroup, ...]:
        """Consumer cores with the same producers, for a hazard on a buffer."""
        producers, consumers = self._placements[edge.producer], self._placements[edge.consumer]
        copies = self._copies.get(edge.producer)
        if copies is not None and reason.hazard is Hazard.READ_AFTER_WRITE:
            key: object = (copies, consumers)
            if key not in self._groups:
                readers = _near_readers if self._near else _readers_of_copies
                self._groups[key] = tuple(readers(copies, set(consumers)))
            return self._groups[key]
        if not (reason.block_local or reason.ranged) or copies is not None or edge.consumer in self._copies:
            return (PartnerGroup(consumers, producers),)
        blocks = self._graph.nodes[edge.producer].blocks, self._graph.nodes[edge.consumer].blocks
        key = producers, consumers, blocks
        if key not in self._groups:
            self._groups[key] = partner_groups(producers, consumers, blocks)
        return self._groups[key]

    def sets(self) -> Iterable[Cores]:
        """The sets of consumers and of producers of every edge."""
        for edge in self._graph.edges:
            for reason in edge.reasons:
                if reason.hazard is not Hazard.EVENT:
                    for group in self.groups(edge, reason):
                        yield group.consumers
                        yield group.producers


def _readers_of_copies(copies: Copies, consumers: set[int]) -> Iterable[PartnerGroup]:
    """Every consumer core reads the copy of its own group."""
    alone = tuple(copy.cores[0] for copy in copies if copy.cores == copy.readers and len(copy.cores) == 1)
    if reading := tuple(core for core in alone if core in consumers):
        yield PartnerGroup(reading, ())
    for copy in copies:
        reading = tuple(core for core in copy.readers if core in consumers)
        if reading and copy.readers != copy.cores[:1]:
            yield PartnerGroup(reading, copy.cores)


def _near_readers(copies: Copies, consumers: set[int]) -> Iterable[PartnerGroup]:
    """The same where each copy belongs to one group of cores, and all groups wait for theirs alike."""
    computing = tuple(sorted(core for copy in copies for core in copy.cores))
    alone = {copy.cores[0] for copy in copies if len(copy.cores) == 1} & consumers
    if alone:
        yield PartnerGroup(tuple(sorted(alone)), ())
    reading = {core for copy in copies for core in copy.readers} & consumers - alone
    if reading:
        yield PartnerGroup(tuple(sorted(reading)), computing, near=True)


def partner_groups(producers: Cores, consumers: Cores, blocks: tuple[int, int]) -> tuple[PartnerGroup, ...]:
    """The exact groups, or one group that needs all producers where there would be too many groups."""
    everything = (PartnerGroup(consumers, producers),)
    if blocks[0] == blocks[1]:
        if producers == consumers:
            return (PartnerGroup(consumers, ()),)
        count = min(blocks[0], lcm(len(producers), len(consumers)))
        if count > MOST_BLOCKS:
            return everything
        pairs = [(b, range(b, b + 1)) for b in range(count)]
    else:
        if sum(blocks) > MOST_BLOCKS:
            return everything
        pairs = [(i, _needed_blocks(i, *blocks)) for i in range(blocks[1])]
    needed: dict[int, set[int]] = {core: set() for core in consumers}
    for consumer_block, producer_blocks in pairs:
        found = needed[consumers[consumer_block % len(consumers)]]
        if len(found) < len(producers):
            found.update(producers[b % len(producers)] for b in producer_blocks)
    groups: dict[Cores, list[int]] = {}
    for core, cores in needed.items():
        groups.setdefault(tuple(sorted(cores)) if cores != {core} else (), []).append(core)
    if len(groups) > MOST_GROUPS:
        return everything
    return tuple(PartnerGroup(tuple(cores), partners) for partners, cores in groups.items())


def _needed_blocks(i: int, producer_blocks: int, consumer_blocks: int) -> range:
    return range(i * producer_blocks // consumer_blocks, -(-(i + 1) * producer_blocks // consumer_blocks))
