"""Sync choice core by core: one clock per core, one need per pair of cores. What the walk of classes must equal."""

from __future__ import annotations

from dataclasses import replace

from plan.oracle import producers_needed

from superkernel.model.graph import Graph
from superkernel.model.hazards import Edge, Hazard
from superkernel.model.options import EarlyStart, Options
from superkernel.plan import Machine, Plan, make_plan
from superkernel.plan.assemble import assemble
from superkernel.plan.classes import CoreClasses
from superkernel.plan.placement import Placement, place
from superkernel.plan.plan import Sync, SyncKind
from superkernel.plan.steps import AwaitEvent, Barrier, Cores, Mark, Need, Notify, Point, Request, Select, Step, Wait
from superkernel.plan.sync import OpSync, Synced, feeds_tiling

Clock = tuple[int, ...]  # per core: the stamp of the last mark known of it
Needs = dict[int, int]  # producer core -> stamp


def plan_per_core(graph: Graph, options: Options, cores: int) -> Plan:
    """The same placement, every core its own class, each wait chosen for one core."""
    machine = Machine(cores, replicates=False)
    placement = place(graph, options, machine)
    synced = PerCoreChooser(graph, placement, options).run()
    apart = CoreClasses(placement.cores, [(core,) for core in range(placement.cores)])
    steps = assemble(graph, placement, synced, options, apart, machine)
    return replace(make_plan(graph, options, machine), steps=steps, syncs=synced.syncs)


class PerCoreChooser:
    def __init__(self, graph: Graph, placement: Placement, options: Options) -> None:
        self.graph, self.place, self.options = graph, placement, options
        self.rank = {op: rank for rank, op in enumerate(graph.order)}
        self.clocks: list[Clock] = [(-1,) * placement.cores for _ in range(placement.cores)]
        self.nothing: Clock = (-1,) * placement.cores
        self.joins: dict[tuple[int, Cores], Clock] = {}
        self.published: dict[tuple[int, int], Clock] = {}  # (stamp, core) -> what it knew then
        self.locks: dict[int, Clock] = {}  # dynamic op -> what its requesting core knew
        self.signalled: dict[int, set[int]] = {}  # stamp -> cores
        self.gates: dict[str, tuple[int, int]] = {}  # event -> (core that polls it, stamp)
        self.stream_ends: dict[int, dict[int, int]] = {}  # stream -> core -> stamp of its last op
        self.at_send: dict[int, dict[int, int]] = {}  # sending op -> a copy of the above
        self.ops = [OpSync() for _ in graph.nodes]
        self.first_requests: list[Step] = []
        self.syncs: list[Sync] = []

    def run(self) -> Synced:
        early: dict[int, list[int]] = {}  # op, or -1 -> the dynamic ops whose last producer it is
        for op in self.graph.order:
            if self.graph.nodes[op].dynamic and not self.graph.nodes[op].awaits:
                producers = [e.producer for e in self.graph.incoming[op] if feeds_tiling(e)]
                early.setdefault(max(producers, key=self.rank.__getitem__, default=-1), []).append(op)
        for dynamic in early.get(-1, ()):
            self.first_requests += self._request(dynamic, stamp=-1)
        for op in self.graph.order:
            self._synchronise(op)
            for dynamic in early.get(op, ()):
                self.ops[op].requests += self._request(dynamic, self._stamp(op, Point.DONE))
        marks = {self._mark(stamp): tuple(sorted(cores)) for stamp, cores in self.signalled.items()}
        resets = tuple((core, event) for event, (core, _) in self.gates.items())
        return Synced(tuple(self.ops), tuple(self.first_requests), marks, resets, tuple(self.syncs))

    # marks are numbered along the serial order, so that one integer per core is a clock

    def _stamp(self, op: int, point: Point) -> int:
        return 2 * self.rank[op] + point.value

    def _mark(self, stamp: int) -> Mark:
        return Mark(stamp // 2, stamp % 2, self.graph.order[stamp // 2])

    def _synchronise(self, op: int) -> None:
        node, cores, sync = self.graph.nodes[op], self.place.of[op], self.ops[op]
        self.joins.clear()
        sync.before += self._poll(op)
        sync.gate = len(sync.before)
        if node.dynamic:
            if node.awaits:  # what the tiling reads may be what the event announces
                sync.before += self._request(op, self._stamp(op, Point.GATE))
            sync.before.append(Select(cores, op))
            for core in cores:
                self._learn(core, self.locks[op])
        edges = [(edge, self._edge_needs(edge)) for edge in self.graph.incoming[op]]
        inside = bool(node.kernel.waits_inside) and self.options.early_start is EarlyStart.FULL
        events_seen = {core: self._gate_needs(op, core) for core in cores}
        at_once = [self._edge_needs(edge, early=True) for edge, _ in edges] if inside else [needs for _, needs in edges]
        if self.options.early_start is EarlyStart.OFF:
            waited = self._meet_before(op, self._join(cores, at_once), events_seen)
        else:
            waited = self._minimal(self._join(cores, [events_seen, *at_once]))
            sync.before += self._waits(op, waited, inside=False)
        paid = {core: set(needs.items()) for core, needs in waited.items()}
        if inside:
            late = self._minimal(self._join(cores, [needs for _, needs in edges]))
            sync.inside += self._waits(op, late, inside=True)
            paid = {core: paid[core] | set(late[core].items()) for core in cores}
        self._name_kinds(edges, paid)
        self._finish(op)

    def _meet_before(self, op: int, data: dict[int, Needs], events_seen: dict[int, Needs]) -> dict[int, Needs]:
        """early-start=0: a barrier over the cores concerned, if any edge asks for one; events ask for flags only."""
        before, sync, cores = list(self.clocks), self.ops[op], self.place.of[op]
        flags = self._minimal(events_seen)
        if not any(self._minimal(data).values()):
            sync.before += self._waits(op, flags, inside=False)
            return flags
        self.clocks = list(before)
        gate = self._stamp(op, Point.GATE)  # the op's own events are seen at the barrier, those of earlier ops are not
        own = {core: {d: s for d, s in needs.items() if s == gate} for core, needs in events_seen.items()}
        waited = self._minimal(self._join(cores, [data, own]))
        meeting = _participants(waited, before)
        sync.before.append(Barrier(meeting, op))
        self._meet(meeting, gate - 1)
        sync.before += self._waits(op, self._minimal(events_seen), inside=False)
        return waited

    def _poll(self, op: int) -> list[Step]:
        """External events: one core polls each word, unless another has for an earlier op."""
        leader, stamp = self.place.of[op][0], self._stamp(op, Point.GATE)
        fresh = [event for event in self.graph.nodes[op].awaits if event not in self.gates]
        if fresh:
            self.gates |= dict.fromkeys(fresh, (leader, stamp))
            self._publish(leader, stamp)
        return [AwaitEvent((leader,), op, event) for event in fresh]

    def _gate_needs(self, op: int, core: int) -> Needs:
        gates = [self.gates[event] for event in self.graph.nodes[op].awaits]
        return {d: max(s for g, s in gates if g == d) for d, _ in gates if d != core}

    def _edge_needs(self, edge: Edge, early: bool = False) -> dict[int, Needs]:
        """Per core of the consumer: which cores it must see, and how far; early: before its wait point."""
        reasons = [reason for reason in edge.reasons if reason.before_wait or not early]
        consumers = self.place.of[edge.consumer]
        data = [reason for reason in reasons if reason.hazard is not Hazard.EVENT]
        wanted = dict(self.at_send[edge.producer]) if len(data) < len(reasons) else {}
        needs = {core: {d: stamp for d, stamp in wanted.items() if d != core} for core in consumers}
        if not data:
            return needs
        done = self._stamp(edge.producer, Point.DONE)
        pairs: set[tuple[int, int]] = set()
        for reason in data:
            pairs |= {
                (core, d) for core in consumers for d in producers_needed(self.graph, self.place.of, edge, reason, core)
            }
        for core, d in sorted(pairs):
            if core != d:
                needs[core][d] = max(done, needs[core].get(d, -1))
        return needs

    def _join(self, cores: Cores, several: list[dict[int, Needs]]) -> dict[int, Needs]:
        joined: dict[int, Needs] = {core: {} for core in cores}
        for needs in several:
            for core, wanted in needs.items():
                for d, stamp in wanted.items():
                    joined[core][d] = max(stamp, joined[core].get(d, -1))
        return joined

    def _minimal(self, needs: dict[int, Needs]) -> dict[int, Needs]:
        """What is left after the clocks; later marks first, for they carry the knowledge of earlier ones."""
        left: dict[int, Needs] = {}
        for core, wanted in needs.items():
            left[core] = {}
            clock = self.clocks[core]
            levels: dict[int, list[int]] = {}
            for d, stamp in wanted.items():
                if clock[d] < stamp:
                    levels.setdefault(stamp, []).append(d)
            for stamp in sorted(levels, reverse=True):
                missing = sorted(d for d in levels[stamp] if self.clocks[core][d] < stamp)
                if missing:
                    left[core] |= dict.fromkeys(missing, stamp)
                    self._learn(core, self._known_behind(stamp, core, missing))
        return left

    def _known_behind(self, stamp: int, core: int, others: list[int]) -> Clock:
        """What a core knows once it has seen `stamp` of the others. Cores that wait alike share the answer."""
        # a core's own knowledge behind the same stamp adds nothing to it, and makes the sets of all cores equal
        seen = tuple(sorted({*others, core})) if (stamp, core) in self.published else tuple(others)
        if (stamp, seen) not in self.joins:
            self.joins[stamp, seen] = tuple(map(max, *(self.published[stamp, d] for d in seen), self.nothing))
        return self.joins[stamp, seen]

    def _waits(self, op: int, waited: dict[int, Needs], inside: bool) -> list[Wait]:
        """One step for all cores that wait for the same; a core is never told to wait for itself."""
        by_core: dict[int, dict[int, set[int]]] = {}
        everyone: dict[int, set[int]] = {}
        for core, needs in waited.items():
            for d, stamp in needs.items():
                by_core.setdefault(core, {}).setdefault(stamp, set()).add(d)
                everyone.setdefault(stamp, set()).add(d)
                self.signalled.setdefault(stamp, set()).add(d)
        alike: dict[tuple[tuple[int, Cores], ...], list[int]] = {}
        for core, marks in by_core.items():
            key = tuple((s, tuple(sorted(ds | ({core} & everyone[s])))) for s, ds in sorted(marks.items()))
            alike.setdefault(key, []).append(core)
        steps = []
        for key, cores in alike.items():
            alone = set(cores) if len(cores) == 1 else set[int]()
            awaited = tuple(Need(self._mark(s), tuple(d for d in ds if d not in alone)) for s, ds in key)
            steps.append(Wait(tuple(cores), op, awaited, inside))
        return steps

    def _finish(self, op: int) -> None:
        """The op is done on its cores; senders of external events then tell the world."""
        node, cores, stamp = self.graph.nodes[op], self.place.of[op], self._stamp(op, Point.DONE)
        ends = self.stream_ends.setdefault(node.stream, {})
        for core in cores:
            self._publish(core, stamp)
            ends[core] = stamp
        if node.op.send:
            self.at_send[op] = dict(ends)
        if node.notifies:
            leader = cores[0]
            waited = self._minimal({leader: {d: s for d, s in ends.items() if d != leader}})
            self.ops[op].notify += [replace(wait, behind=True) for wait in self._waits(op, waited, inside=False)]
            self.ops[op].notify += [Notify((leader,), op, event) for event in node.notifies]

    def _request(self, op: int, stamp: int) -> list[Step]:
        """One core sees the producers of the inputs done, then asks the agent."""
        leader = self.place.of[op][0]
        needs = [self._edge_needs(edge)[leader] for edge in self.graph.incoming[op] if feeds_tiling(edge)]
        needs.append(self._gate_needs(op, leader))
        waited = self._minimal(self._join((leader,), [{leader: need} for need in needs]))
        steps: list[Step] = [*self._waits(op, waited, inside=False), Request((leader,), op)]
        clock = self.clocks[leader]
        self.locks[op] = (*clock[:leader], max(clock[leader], stamp), *clock[leader + 1 :])
        return steps

    def _publish(self, core: int, stamp: int) -> None:
        clock = self.clocks[core]
        self.clocks[core] = self.published[stamp, core] = (*clock[:core], stamp, *clock[core + 1 :])

    def _learn(self, core: int, news: Clock) -> None:
        self.clocks[core] = tuple(map(max, self.clocks[core], news))

    def _meet(self, cores: Cores, stamp: int) -> None:
        """After a barrier every participant knows what all of them knew, and that all have come this far."""
        known = tuple(map(max, *(self.clocks[core] for core in cores)))
        known = tuple(max(s, stamp) if core in cores else s for core, s in enumerate(known))
        for core in cores:
            self.clocks[core] = known

    def _name_kinds(self, edges: list[tuple[Edge, dict[int, Needs]]], paid: dict[int, set[tuple[int, int]]]) -> None:
        """The kind of every edge, from the waits that were really made (`paid`: per core, of whom and how far)."""
        everyone = set(range(self.place.cores))
        barrier = self.options.early_start is EarlyStart.OFF
        for edge, needs in edges:
            seen = {c: {d for d, s in wanted.items() if (d, s) in paid[c]} for c, wanted in needs.items()}
            producers = set[int]().union(*seen.values())
            if not any(needs.values()):
                kind = SyncKind.LOCAL
            elif not producers:
                locked = self.graph.nodes[edge.consumer].dynamic and feeds_tiling(edge)
                kind = SyncKind.LOCK if locked else SyncKind.NONE
            elif barrier or (producers == everyone and all(seen.get(c) for c in everyone)):
                kind = SyncKind.BARRIER
            else:
                kind = SyncKind.FLAG if len(producers) == 1 else SyncKind.COUNTER
            self.syncs.append(Sync(edge, kind))


def _participants(waited: dict[int, Needs], known: list[Clock]) -> Cores:
    """The cores that wait, and of those awaited each whose progress no other participant knows."""
    waiting = {core for core, needs in waited.items() if needs}
    meeting = waiting | {d for needs in waited.values() for d in needs}
    for d in sorted(meeting - waiting):
        stamp = max(needs[d] for needs in waited.values() if d in needs)
        if any(known[other][d] >= stamp for other in meeting - {d}):
            meeting.remove(d)
    return tuple(sorted(meeting))
