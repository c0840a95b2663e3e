"""The order that a launch keeps under every timing, found from what its cores did in one; without its clocks.

Flags are counters: the n-th wait of a core takes the n-th signals for its flag. A signal tells what its core knew when
it gave it. Copies to memory may be under way until their core drains its pipes; a signal in the pipe of the copies is
given behind them. What a core does does not depend on the timing, so one launch shows the order of all: an order that
came out right by luck is found wanting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from superkernel.model.graph import Graph
from superkernel.model.hazards import Hazard, Reason
from superkernel.targets.ascend.core_types import CUBE, VECTOR, CoreClass, OpClass
from superkernel.targets.ascend.emulator.expectations import Need, WordKind, needs_of, words_of
from superkernel.targets.ascend.emulator.launch import Emulation
from superkernel.targets.ascend.emulator.trace import TracedStep, TracePoint
from superkernel.targets.ascend.kernel_areas import core_name
from superkernel.targets.ascend.kernel_description import EmittedKernel, EmittedOp
from superkernel.targets.ascend.parameter_block import word_names

ALL_PIPES = 6
COPY_PIPE = {CUBE: 10, VECTOR: 5}  # PIPE_FIX, PIPE_MTE3
Times = list[int]  # per core: the sequence number of a step


def wait_point(op: EmittedOp) -> TracePoint:
    return TracePoint.OP_WAITED if op.kernel.waits_inside else TracePoint.OP_BEGIN


def stored(op: EmittedOp) -> TracePoint:
    return TracePoint.OP_SET if op.kernel.signals_inside else TracePoint.OP_END


def producers_of(graph: Graph) -> dict[str, set[str]]:
    """Consumer -> the ops that must have stored; an event orders all that its sender's stream did before."""
    found: dict[str, set[str]] = defaultdict(set)
    for need in needs_of(graph):
        found[graph.nodes[need.consumer].name].add(graph.nodes[need.producer].name)
    return found


@dataclass
class Knowledge:
    """What a core knows of each core: the last step, and the last store that is in memory."""

    steps: Times
    stores: Times

    def copy(self) -> Knowledge:
        return Knowledge(list(self.steps), list(self.stores))

    def join(self, other: Knowledge) -> None:
        self.steps = list(map(max, self.steps, other.steps))
        self.stores = list(map(max, self.stores, other.stores))


@dataclass
class CoreState:
    known: Knowledge
    under_way: int = -1  # its last store, while no drain has followed
    called: str = ""  # the op since whose call no drain has followed


@dataclass
class Words:
    """The words of events and locks, by their address."""

    kinds: Mapping[int, WordKind]
    ops: Mapping[int, tuple[int, ...]]
    seen: dict[int, list[TracedStep]] = field(default_factory=lambda: defaultdict(list))
    requested: dict[int, Knowledge] = field(default_factory=dict)  # lock -> what the asking core knew


def check_order(emitted: EmittedKernel, graph: Graph, emulation: Emulation) -> None:
    """No block passes its wait point, no word is set or reset, and no core ends, before all that must come first."""
    _TraceOrder(emitted, graph, emulation).check()


def flags_stay_below_the_limit(emitted: EmittedKernel, emulation: Emulation) -> bool:
    """Whether no flag is set more often in the whole launch than it may be set at once: then no timing matters."""
    given = Counter((step.detail, step.core) for step in emulation.steps if step.what is TracePoint.SIGNAL)
    return max(given.values(), default=0) <= emitted.chip.flag_limit


class _TraceOrder:
    def __init__(self, emitted: EmittedKernel, graph: Graph, emulation: Emulation) -> None:
        self.graph, self.steps = graph, emulation.steps
        self.ops = {op.name: op for op in emitted.ops}
        count = emitted.launch.cubes + emitted.launch.vectors
        self.names = [core_name(emitted.launch, core) for core in range(count)]
        self.cores = [CoreState(Knowledge([-1] * count, [-1] * count)) for _ in range(count)]
        self.flags = _Flags(emitted, [name.kind for name in self.names], [name.block for name in self.names])
        self.words = _words(emitted, emulation)
        self.needs: dict[str, list[Need]] = defaultdict(list)
        for need in needs_of(graph):
            self.needs[graph.nodes[need.consumer].name].append(need)
        self.stores: dict[str, list[TracedStep]] = defaultdict(list)
        self.blocks: dict[tuple[str, int], int] = {}
        for step in self.steps:
            if step.op is not None and step.what is stored(self.ops[step.op]):
                self.stores[step.op].append(step)
            if step.op is not None and step.what is TracePoint.OP_BEGIN:
                self.blocks[step.op, step.core] = step.value

    def check(self) -> None:
        for step in self.steps:
            if step.what is not TracePoint.AGENT:
                core = self.cores[step.core]
                core.known.steps[step.core] = step.sequence
                self._take(step, core)

    def _take(self, step: TracedStep, core: CoreState) -> None:
        what = step.what
        if what is TracePoint.DRAIN:
            self._drain(step, core)
        elif what is TracePoint.SIGNAL:
            self.flags.signal(step, self._told(step, core))
        elif what is TracePoint.WAIT_END:
            core.known.join(self.flags.waited(step))
        elif what is TracePoint.WORD_SEEN:
            self.words.seen[step.value].append(step)
            if step.value in self.words.requested:
                core.known.join(self.words.requested[step.value])
        elif what is TracePoint.STORE:
            self._store(step, core)
        elif what is TracePoint.KERNEL_END:
            assert not core.called, f"core {step.core} ends before its pipes are drained of {core.called}"
        if step.op is not None:
            self._take_of_op(step, core, self.ops[step.op])

    def _take_of_op(self, step: TracedStep, core: CoreState, op: EmittedOp) -> None:
        if step.what is TracePoint.OP_BEGIN:
            assert not core.called, f"core {step.core} runs {op.name} before its pipes are drained of {core.called}"
            core.called = op.name
            self._check_needs(step, core, op.name, [need for need in self.needs[op.name] if need.before_wait])
        if step.what is wait_point(op):
            self._check_needs(step, core, op.name, self.needs[op.name])
            self._check_events(step, core, op)
        if step.what is stored(op):
            core.under_way = step.sequence

    def _drain(self, step: TracedStep, core: CoreState) -> None:
        if step.detail in (ALL_PIPES, COPY_PIPE[self.names[step.core].kind]):
            core.known.stores[step.core] = max(core.known.stores[step.core], core.under_way)
            core.under_way = -1
        if step.detail == ALL_PIPES and step.op is None:
            core.called = ""

    def _told(self, step: TracedStep, core: CoreState) -> Knowledge:
        """In the pipe of the copies, a signal is given behind them; in another one it may overtake them."""
        told = core.known.copy()
        if step.value >> 8 == COPY_PIPE[self.names[step.core].kind]:
            told.stores[step.core] = max(told.stores[step.core], core.under_way)
        return told

    def _store(self, step: TracedStep, core: CoreState) -> None:
        """To a word: a notify, a request for a tiling, a reset."""
        kind, ops = self.words.kinds.get(step.value), self.words.ops.get(step.value, ())
        seen = self.words.seen[step.value]
        if kind is WordKind.NOTIFY:
            self._check_stored(step, core, "its event is sent", [self.graph.nodes[op].name for op in ops])
        elif kind is WordKind.LOCK and step.detail:
            node = self.graph.nodes[ops[0]]
            read = [edge for edge in self.graph.incoming[node.index] if _is_read(edge.reasons)]
            names = [self.graph.nodes[edge.producer].name for edge in read]
            self._check_stored(step, core, f"the tiling of {node.name} is asked for", names)
            self.words.requested[step.value] = core.known.copy()
        elif kind is WordKind.LOCK:
            classes = self.ops[self.graph.nodes[ops[0]].name].kernel_type.op_class
            asked = {number for number, name in enumerate(self.names) if _runs_on(classes, name.kind)}
            late = [one.core for one in seen if core.known.steps[one.core] < one.sequence]
            missing = sorted(asked - {one.core for one in seen}) or late
            assert not missing, f"core {step.core} resets a lock before cores {missing} are known to have seen it"
        elif kind is WordKind.WAIT:
            assert any(one.core == step.core for one in seen), f"core {step.core} resets an event that it has not seen"

    def _check_needs(self, step: TracedStep, core: CoreState, name: str, needs: Sequence[Need]) -> None:
        for need in needs:
            producer = self.graph.nodes[need.producer].name
            stores = self.stores[producer]
            if need.block_local:
                mine = self.blocks[name, step.core]
                stores = [store for store in stores if self.blocks[producer, store.core] == mine]
            self._check_known(step, core, f"{name} passes its wait point", producer, stores)

    def _check_stored(self, step: TracedStep, core: CoreState, doing: str, producers: Sequence[str]) -> None:
        for producer in producers:
            self._check_known(step, core, doing, producer, self.stores[producer])

    def _check_known(
        self, step: TracedStep, core: CoreState, doing: str, producer: str, stores: Sequence[TracedStep]
    ) -> None:
        for store in stores:
            assert core.known.stores[store.core] >= store.sequence, (
                f"core {step.core}: {doing}, and nothing says that {producer} has stored on core {store.core}"
            )

    def _check_events(self, step: TracedStep, core: CoreState, op: EmittedOp) -> None:
        for address, kind in self.words.kinds.items():
            if kind is WordKind.WAIT and op.index in self.words.ops[address]:
                seen = self.words.seen[address]
                assert any(core.known.steps[one.core] >= one.sequence for one in seen), (
                    f"core {step.core}: {op.name} passes its wait point, and no core that saw its event comes before it"
                )


def _is_read(reasons: Sequence[Reason]) -> bool:
    return any(reason.hazard is Hazard.READ_AFTER_WRITE for reason in reasons)


def _runs_on(op_class: OpClass, core_class: CoreClass) -> bool:
    return core_class in op_class.classes


def _words(emitted: EmittedKernel, emulation: Emulation) -> Words:
    names, slots = word_names(emitted), emitted.layout.slots
    slot_of = {slots[slot].name: slot for slot in names}
    addresses = {names[slot_of[name]]: address for address, name in emulation.addresses.items()}
    expected = {addresses[names[word.slot]]: word for word in words_of(emitted)}
    return Words(
        {address: word.kind for address, word in expected.items()},
        {address: tuple(dict.fromkeys(word.ops)) for address, word in expected.items()},
    )


class _Flags:
    def __init__(self, emitted: EmittedKernel, kinds: Sequence[CoreClass], blocks: Sequence[int]) -> None:
        chip = emitted.chip
        self.kinds, self.blocks = kinds, blocks
        self.of_class = {chip.cube_flag, chip.vector_flag}
        self.signals: dict[tuple[int, int], list[Knowledge]] = defaultdict(list)  # flag, core -> what each signal said
        self.waits: dict[tuple[int, int], int] = defaultdict(int)
        self.joined: dict[tuple[int, object, int], Knowledge] = {}

    def signal(self, step: TracedStep, told: Knowledge) -> None:
        self.signals[step.detail, step.core].append(told)

    def waited(self, step: TracedStep) -> Knowledge:
        """What the signals of one round say together; all cores that they are for take the same."""
        flag, core = step.detail, step.core
        number = self.waits[flag, core]
        self.waits[flag, core] += 1
        group = self.kinds[core], None if flag in self.of_class else self.blocks[core]
        if (flag, group, number) not in self.joined:
            senders = [other for other in range(len(self.kinds)) if self._signals(flag, core, other)]
            given = [self.signals[flag, other] for other in senders]
            assert all(len(one) > number for one in given), (
                f"P5: wait {number + 1} of core {core} for flag {flag} takes a signal that was not given"
            )
            said = given[0][number].copy()
            for other in given[1:]:
                said.join(other[number])
            self.joined[flag, group, number] = said
        return self.joined[flag, group, number]

    def _signals(self, flag: int, core: int, other: int) -> bool:
        """Whether a flag of one core is set by another: all of its class, or those of the other class in its block."""
        if flag in self.of_class:
            return self.kinds[core] is self.kinds[other]
        return self.kinds[core] is not self.kinds[other] and self.blocks[core] == self.blocks[other]
