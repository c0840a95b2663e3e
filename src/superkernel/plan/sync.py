"""plan.sync: dependency edges and a placement -> the fewest waits that keep every edge.

Each class of cores keeps a vector clock: per class, the last mark that all its cores are known to have reached; for the
own class, what a core knows of the other members. An edge costs a wait only where the clock does not cover it yet; a
wait hands over the clock of the signalling class. That is a transitive reduction at the grain of classes. What a core
knows of its own group stands in the second half of a clock (near_clocks.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ..model.graph import Graph
from ..model.hazards import Edge, Hazard
from ..model.options import EarlyStart, Options
from .classes import Classes, CoreClasses, Partners, sets_of_copies
from .machine import Machine
from .near_clocks import NearClasses
from .placement import Placement
from .plan import Sync, SyncKind
from .steps import (
    AwaitEvent,
    AwaitRanks,
    Barrier,
    ComputeTiling,
    Cores,
    Mark,
    Need,
    Notify,
    NotifyRanks,
    Point,
    Request,
    Select,
    Signal,
    Step,
    Wait,
)
from .sync_order import AT_ENTRY, SyncOrder, feeds_tiling, raise_to

Clock = tuple[int, ...]  # per class: the stamp of the last mark known of all its cores; then of those of the own group
Needs = dict[int, int]  # place of a producer class in a clock -> stamp; for the own class: the other members
MOST_CORES_APART = 64  # up to here a barrier is chosen core by core, so that it holds as few cores as possible


@dataclass
class OpSync:
    """The synchronising steps of one op."""

    ranks: list[Step] = field(default_factory=list)  # waits for other ranks; they come first
    before: list[Step] = field(default_factory=list)  # events, select, waits or barrier
    gate: int = 0  # how many of them stand before the signal that the events have been seen
    inside: list[Wait] = field(default_factory=list)
    notify: list[Step] = field(default_factory=list)  # after the op has signalled
    requests: list[Step] = field(default_factory=list)  # of tilings whose last producer is this op


@dataclass(frozen=True)
class Synced:
    ops: tuple[OpSync, ...]  # by op index
    first_requests: tuple[Step, ...]  # before any op
    signalled: dict[Mark, Cores]
    resets: tuple[tuple[int, str], ...]  # (core, event)
    syncs: tuple[Sync, ...]


def find_classes(
    graph: Graph, placement: Placement, options: Options, partners: Partners, near: bool = False
) -> CoreClasses:
    """The classes of cores that every op, event, tiling request and edge treats alike."""
    if options.early_start is EarlyStart.OFF and placement.cores <= MOST_CORES_APART:
        return CoreClasses(placement.cores, [(core,) for core in range(placement.cores)])
    led = [node.index for node in graph.nodes if node.awaits or node.notifies or node.dynamic or node.sends_to_ranks]
    leaders = [placement.of[op][:1] for op in led]
    sets = [*placement.of, *placement.teams, *leaders, *sets_of_copies(placement.copies, near), *partners.sets()]
    return CoreClasses(placement.cores, sets)


class SyncChooser(SyncOrder[int]):
    """Waits, signals, barriers, notifies and requests for every op, and the kind of sync of every edge."""

    def __init__(self, graph: Graph, place: Placement, options: Options, machine: Machine, partners: Partners) -> None:
        super().__init__(graph, graph.order)
        self.place, self.options, self.machine, self.partners = place, options, machine, partners
        self.classes = classes = find_classes(graph, place, options, partners, machine.near_needs)
        self.near = NearClasses(classes, machine.near_groups)
        self.of = [classes.split(cores) for cores in place.of]
        self.rank = {op: rank for rank, op in enumerate(graph.order)}
        self.nothing: Clock = (-1,) * self.near.span
        self.clocks: list[Clock] = [self.nothing] * len(classes)
        self.joins: dict[tuple[int, Classes], Clock] = {}
        self.published: dict[tuple[int, int], Clock] = {}  # (stamp, class) -> its clock then
        self.of_others: dict[tuple[int, int], int] = {}  # (stamp, class) -> what a member knew of the others then
        self.locks: dict[int, Clock] = {}  # dynamic op -> what its requesting core knew
        self.arrivals: dict[str, Clock] = {}  # collective -> what the core knew that published this rank's arrival
        # collective -> classes whose cores know that all ranks have arrived once they have reached the stamp
        self.arrivals_seen: dict[str, list[tuple[int, int]]] = {}
        self.signalled: dict[int, set[int]] = {}  # stamp -> classes
        self.gates: dict[str, tuple[int, int]] = {}  # event -> (class of the core that polls it, stamp)
        self.ops = [OpSync() for _ in graph.nodes]
        self.first_requests: list[Step] = []
        self.syncs: list[Sync] = []

    def run(self) -> Synced:
        self.choose()
        marks = {self._mark(stamp): self.classes.cores(classes) for stamp, classes in self.signalled.items()}
        resets = tuple((self._core(leader), event) for event, (leader, _) in self.gates.items())
        return Synced(tuple(self.ops), tuple(self.first_requests), marks, resets, tuple(self.syncs))

    # marks are numbered along the serial order, so that one integer per class is a clock

    def _stamp(self, op: int, point: Point) -> int:
        return 2 * self.rank[op] + point.value

    def _mark(self, stamp: int) -> Mark:
        return Mark(stamp // 2, stamp % 2, self.graph.order[stamp // 2])

    def _core(self, leader: int) -> int:
        """The core of a class that is one core: the core that deals with an op's events and tiling."""
        return self.classes.members[leader][0]

    def _leader(self, op: int) -> int:
        return self.classes.of_core[self.place.of[op][0]]

    def _others(self, core_class: int, wanted: Needs) -> Needs:
        """A class of one core has no other members to wait for, nor has one with a core per group in its group."""
        without = {core_class} if self.classes.sizes[core_class] == 1 else set[int]()
        if self.near.present and self.near.single[core_class]:
            without.add(self.near.index(core_class))
        return {of: stamp for of, stamp in wanted.items() if of not in without}

    def _select(self, op: int) -> None:
        self.ops[op].before.append(Select(self.place.of[op], op))
        for core_class in self.of[op]:
            self._learn(core_class, self.locks[op])

    def _await_ranks(self, op: int) -> None:
        """Each core polls the arrivals of all ranks, unless it knows of a core that has seen them for an earlier op.

        From the arrival of this rank it knows that the sending op is done.
        """
        for sync in self.graph.nodes[op].waits_for_ranks:
            seen = self.arrivals_seen.setdefault(sync.collective, [])
            polling = [
                core_class
                for core_class in self.of[op]
                if not any(core_class == of or self.clocks[core_class][of] >= stamp for of, stamp in seen)
            ]
            if polling:
                cores = tuple(core for core in self.place.of[op] if self.classes.of_core[core] in polling)
                self.ops[op].ranks.append(AwaitRanks(cores, op, sync.collective, sync.group))
            for core_class in polling:
                self._learn(core_class, self.arrivals.get(sync.collective, self.nothing))
            seen += [(core_class, self._stamp(op, Point.DONE)) for core_class in self.of[op]]

    def _notify_ranks(self, op: int) -> None:
        """One core knows that all blocks of the op are done, and publishes that this rank has arrived."""
        leader, sync = self._leader(op), self.ops[op]
        wanted = dict.fromkeys(self.of[op], self._stamp(op, Point.DONE))
        waited = self._minimal({leader: self._others(leader, wanted)})
        sync.notify += [replace(wait, behind=True) for wait in self._waits(op, waited, inside=False)]
        for sent in self.graph.nodes[op].sends_to_ranks:
            sync.notify.append(NotifyRanks((self._core(leader),), op, sent.collective, sent.group))
            self.arrivals[sent.collective] = self.near.from_all(self.clocks[leader], leader)

    def _call(self, op: int) -> None:
        self._await_ranks(op)
        node, classes, sync = self.graph.nodes[op], self.of[op], self.ops[op]
        edges = [(edge, self._edge_needs(edge)) for edge in self.graph.incoming[op]]
        inside = bool(node.kernel.waits_inside) and self.options.early_start is EarlyStart.FULL
        events_seen = {core_class: self._gate_needs(op, core_class) for core_class in classes}
        at_once = [self._edge_needs(edge, early=True) for edge, _ in edges] if inside else [needs for _, needs in edges]
        if self.options.early_start is EarlyStart.OFF:
            waited = self._meet_before(op, _join(classes, at_once), events_seen)
        else:
            waited = self._minimal(_join(classes, [events_seen, *at_once]))
            sync.before += self._waits(op, waited, inside=False)
        paid = {core_class: set(needs.items()) for core_class, needs in waited.items()}
        if inside:
            late = self._minimal(_join(classes, [needs for _, needs in edges]))
            sync.inside += self._waits(op, late, inside=True)
            paid = {core_class: paid[core_class] | set(late[core_class].items()) for core_class in classes}
        self._name_kinds(edges, paid)
        done = self._stamp(op, Point.DONE)
        for core_class in classes:
            self._publish(core_class, done)
        self._end(op, classes, done)
        if node.sends_to_ranks:
            self._notify_ranks(op)

    def _meet_before(self, op: int, data: dict[int, Needs], events_seen: dict[int, Needs]) -> dict[int, Needs]:
        """early-start=0: a barrier over the cores concerned, if any edge asks for one; events ask for flags only."""
        before, sync, classes = list(self.clocks), self.ops[op], self.of[op]
        flags = self._minimal(events_seen)
        if not any(self._minimal(data).values()):
            sync.before += self._waits(op, flags, inside=False)
            return flags
        self.clocks = list(before)
        gate = self._stamp(op, Point.GATE)  # the op's own events are seen at the barrier, those of earlier ops are not
        own = {c: {d: stamp for d, stamp in needs.items() if stamp == gate} for c, needs in events_seen.items()}
        waited = self._minimal(_join(classes, [data, own]))
        meeting = _participants(waited, before)
        sync.before.append(Barrier(self.classes.cores(meeting), op))
        self._meet(meeting, gate - 1)
        sync.before += self._waits(op, self._minimal(events_seen), inside=False)
        return waited

    def _poll(self, op: int) -> None:
        self.joins.clear()
        fresh = [event for event in self.graph.nodes[op].awaits if event not in self.gates]
        if fresh:
            leader, stamp = self._leader(op), self._stamp(op, Point.GATE)
            self.gates |= dict.fromkeys(fresh, (leader, stamp))
            self._publish(leader, stamp)
            self.ops[op].before += [AwaitEvent((self._core(leader),), op, event) for event in fresh]
            self.ops[op].gate = len(fresh)

    def _gate_needs(self, op: int, core_class: int) -> Needs:
        gates = [self.gates[event] for event in self.graph.nodes[op].awaits]
        return {leader: max(s for g, s in gates if g == leader) for leader, _ in gates if leader != core_class}

    def _edge_needs(self, edge: Edge, early: bool = False) -> dict[int, Needs]:
        """Per class of the consumer: which classes it must see, and how far; early: before its wait point."""
        needs: dict[int, Needs] = {core_class: {} for core_class in self.of[edge.consumer]}
        done = self._stamp(edge.producer, Point.DONE)
        for reason in edge.reasons:
            if early and not reason.before_wait:
                continue
            if reason.hazard is Hazard.EVENT:
                for core_class, wanted in needs.items():
                    raise_to(wanted, self._others(core_class, self.at_send[edge.producer]))
                continue
            for group in self.partners.groups(edge, reason):
                found = self.classes.split(group.producers)
                producers = dict.fromkeys(map(self.near.index, found) if group.near else found, done)
                for core_class in self.classes.split(group.consumers):
                    raise_to(needs[core_class], self._others(core_class, producers))
        return needs

    def _minimal(self, needs: dict[int, Needs]) -> dict[int, Needs]:
        """What the clocks do not cover; later marks first, for they carry the knowledge of earlier ones."""
        left: dict[int, Needs] = {}
        for core_class, wanted in needs.items():
            left[core_class] = {}
            clock = self.clocks[core_class]
            levels: dict[int, list[int]] = {}
            for of, stamp in wanted.items():
                if clock[of] < stamp:
                    levels.setdefault(stamp, []).append(of)
            for stamp in sorted(levels, reverse=True):
                missing = sorted(of for of in levels[stamp] if self.clocks[core_class][of] < stamp)
                # who waits for all cores of a class waits for those of its group
                missing = [of for of in missing if not (self.near.is_near(of) and self.near.class_at(of) in missing)]
                if missing:
                    left[core_class] |= dict.fromkeys(missing, stamp)
                    self._learn(core_class, self._known_behind(stamp, core_class, missing))
        return left

    def _known_behind(self, stamp: int, core_class: int, others: list[int]) -> Clock:
        """What a core knows once it has seen `stamp` of the others."""
        near = [self.near.class_at(of) for of in others if self.near.is_near(of)]
        known = self._known_from_all(stamp, core_class, [of for of in others if not self.near.is_near(of)])
        if near:
            heard = {of: (self.published[stamp, of], self.of_others[stamp, of]) for of in near}
            known = tuple(map(max, known, self.near.from_group(core_class, heard)))
        return known

    def _known_from_all(self, stamp: int, core_class: int, others: list[int]) -> Clock:
        """The same behind waits for all cores of other classes. Classes that wait alike share the answer."""
        seen = tuple(others)
        if (stamp, core_class) in self.published and not self.near.present:
            # a core's own knowledge behind the same stamp adds nothing to it, and makes the sets of all classes equal
            seen = tuple(sorted({*others, core_class}))
        if (stamp, seen) not in self.joins:
            heard = (self.near.from_all(self.published[stamp, of], of) for of in seen)
            self.joins[stamp, seen] = tuple(map(max, *heard, self.nothing)) if seen else self.nothing
        known = self.joins[stamp, seen]
        if core_class in others or core_class not in seen:
            return known
        # the other members of its class were not awaited: the awaited classes hand on what they knew of them
        behind = [self.published[stamp, of][core_class] for of in others]
        return (*known[:core_class], max(behind), *known[core_class + 1 :])

    def _waits(self, op: int, waited: dict[int, Needs], inside: bool) -> list[Wait]:
        """One step for all classes that wait for the same marks; no core waits for itself alone."""
        marks: dict[int, dict[int, set[int]]] = {}  # class -> stamp -> classes
        awaited_by_any: dict[int, set[int]] = {}
        for core_class, needs in waited.items():
            for of, stamp in needs.items():
                marks.setdefault(core_class, {}).setdefault(stamp, set()).add(of)
                awaited_by_any.setdefault(stamp, set()).add(of)
                self.signalled.setdefault(stamp, set()).add(self.near.class_at(of))
        alike: dict[tuple[tuple[int, Classes], ...], list[int]] = {}
        for core_class, by_stamp in marks.items():
            # a core that has signalled itself may stand among those it waits for: then all wait for one set
            alone = {core_class} if self.classes.sizes[core_class] == 1 else set[int]()
            key = tuple((s, tuple(sorted(of | (alone & awaited_by_any[s])))) for s, of in sorted(by_stamp.items()))
            alike.setdefault(key, []).append(core_class)
        steps = []
        for key, classes in alike.items():
            alone = set(classes) if len(classes) == 1 and self.classes.sizes[classes[0]] == 1 else set[int]()
            needs_of = [need for stamp, of in key for need in self._needs(stamp, set(of) - alone)]
            steps.append(Wait(self.classes.cores(classes), op, tuple(needs_of), inside))
        return steps

    def _needs(self, stamp: int, of: set[int]) -> Iterable[Need]:
        near = {place for place in of if self.near.is_near(place)}
        if of - near:
            yield Need(self._mark(stamp), self.classes.cores(of - near))
        if near:
            yield Need(self._mark(stamp), self.classes.cores(map(self.near.class_at, near)), near=True)

    def _notify(self, op: int) -> None:
        leader, sync = self._leader(op), self.ops[op]
        waited = self._minimal({leader: self._others(leader, self.at_send[op])})
        sync.notify += [replace(wait, behind=True) for wait in self._waits(op, waited, inside=False)]
        sync.notify += [Notify((self._core(leader),), op, event) for event in self.graph.nodes[op].notifies]

    def _request(self, op: int, behind: int) -> None:
        steps, stamp = self.first_requests, -1
        if behind == op:
            steps, stamp = self.ops[op].before, self._stamp(op, Point.GATE)
        elif behind != AT_ENTRY:
            steps, stamp = self.ops[behind].requests, self._stamp(behind, Point.DONE)
        leader = self._leader(op)
        needs = [self._edge_needs(edge)[leader] for edge in self.graph.incoming[op] if feeds_tiling(edge)]
        needs.append(self._gate_needs(op, leader))
        waited = self._minimal(_join((leader,), [{leader: need} for need in needs]))
        request = Request if self.graph.nodes[op].asks_agent else ComputeTiling
        steps += [*self._waits(op, waited, inside=False), request((self._core(leader),), op)]
        clock = self.clocks[leader]
        self.locks[op] = (*clock[:leader], max(clock[leader], stamp), *clock[leader + 1 :])

    def _publish(self, core_class: int, stamp: int) -> None:
        clock = self.clocks[core_class]
        own = self.near.with_own(clock, core_class, stamp)
        self.published[stamp, core_class] = own
        self.of_others[stamp, core_class] = clock[core_class]
        if self.classes.sizes[core_class] == 1:
            self.clocks[core_class] = own

    def _learn(self, core_class: int, known: Clock) -> None:
        self.clocks[core_class] = tuple(map(max, self.clocks[core_class], known))

    def _meet(self, classes: Classes, stamp: int) -> None:
        """After a barrier every participant knows what all of them knew, and that all have come this far."""
        known = list(map(max, *(self.clocks[core_class] for core_class in classes), self.nothing))
        for core_class in classes:
            known[core_class] = max(known[core_class], stamp)
        if self.near.present:  # of its own group a core knows at least what it knows of all groups
            known = known[: self.near.count] * 2
        for core_class in classes:
            self.clocks[core_class] = tuple(known)

    def _name_kinds(self, edges: list[tuple[Edge, dict[int, Needs]]], paid: dict[int, set[tuple[int, int]]]) -> None:
        """The kind of every edge, from the waits that were really made (`paid`: per class, of which and how far)."""
        everything = set(range(len(self.classes)))
        barrier = self.options.early_start is EarlyStart.OFF
        for edge, needs in edges:
            seen = {c: {d for d, s in wanted.items() if (d, s) in paid[c]} for c, wanted in needs.items()}
            producers = set[int]().union(*seen.values())
            if not any(needs.values()):
                kind = SyncKind.LOCAL
            elif not producers:
                locked = self.graph.nodes[edge.consumer].dynamic and feeds_tiling(edge)
                awaited = {sync.collective for sync in self.graph.nodes[edge.consumer].waits_for_ranks}
                sent = {sync.collective for sync in self.graph.nodes[edge.producer].sends_to_ranks}
                kind = SyncKind.LOCK if locked else SyncKind.RANKS if awaited & sent else SyncKind.NONE
            elif barrier or (producers == everything and all(seen.get(c) for c in everything)):
                kind = SyncKind.BARRIER
            elif all(map(self.near.is_near, producers)) or self.machine.near(
                self.classes.cores({*map(self.near.class_at, producers), *(c for c, of in seen.items() if of)})
            ):
                kind = SyncKind.NEAR
            else:
                cores = sum(self.classes.sizes[self.near.class_at(place)] for place in producers)
                kind = SyncKind.FLAG if cores == 1 else SyncKind.COUNTER
            self.syncs.append(Sync(edge, kind))


def _join(classes: Iterable[int], several: list[dict[int, Needs]]) -> dict[int, Needs]:
    joined: dict[int, Needs] = {core_class: {} for core_class in classes}
    for needs in several:
        for core_class, wanted in needs.items():
            raise_to(joined[core_class], wanted)
    return joined


def _participants(waited: dict[int, Needs], known: list[Clock]) -> Classes:
    """The classes that meet: those that wait, and of those awaited each whose progress no other participant knows."""
    waiting = {core_class for core_class, needs in waited.items() if needs}
    meeting = waiting | {of for needs in waited.values() for of in needs}
    for of in sorted(meeting - waiting):
        stamp = max(needs[of] for needs in waited.values() if of in needs)
        if any(known[other][of] >= stamp for other in meeting - {of}):
            meeting.remove(of)
    return tuple(sorted(meeting))


def signals_of(synced: Synced, op: int, rank: int, point: Point, inside: bool) -> list[Signal]:
    """The signal of one mark, if any core waits for it."""
    mark = Mark(rank, point.value, op)
    cores = synced.signalled.get(mark, ())
    return [Signal(cores, mark, inside)] if cores else []
