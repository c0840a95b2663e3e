"""P5 on what an emulated launch did: flags are counters, so each wait takes the signal with as many before it.

What a signal says is what its core knew when it gave it. The n-th wait of a core is matched with the n-th signals for
its flag; then no block may pass the wait point of an op without a chain of such pairs from all that its op needs. When
it really happened does not matter: an order that came out right by luck is found wanting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from superkernel.model.graph import Graph
from superkernel.targets.ascend.core_types import CoreClass
from superkernel.targets.ascend.emulator.trace import TracedStep, TracePoint
from superkernel.targets.ascend.kernel_areas import core_name
from superkernel.targets.ascend.kernel_description import EmittedKernel, EmittedOp

Known = list[int]  # per core: the step with which it stored last, as far as somebody knows


def wait_point(op: EmittedOp) -> TracePoint:
    return TracePoint.OP_WAITED if op.kernel.waits_inside else TracePoint.OP_BEGIN


def stored(op: EmittedOp) -> TracePoint:
    return TracePoint.OP_SET if op.kernel.signals_inside else TracePoint.OP_END


def producers_of(graph: Graph) -> dict[str, set[str]]:
    """Consumer -> the ops that must have stored; an event orders all that its sender's stream did before."""
    found: dict[str, set[str]] = defaultdict(set)
    for edge in graph.edges:
        producer, consumer = graph.nodes[edge.producer], graph.nodes[edge.consumer]
        found[consumer.name].add(producer.name)
        if edge.whole_stream:
            earlier = graph.nodes[: producer.index]
            found[consumer.name] |= {node.name for node in earlier if node.stream == producer.stream}
    return found


def check_pairing(emitted: EmittedKernel, graph: Graph, steps: Sequence[TracedStep]) -> None:
    """Of launches without dynamic ops: what their cores learn from a lock is not among the steps."""
    ops = {op.name: op for op in emitted.ops}
    needed = producers_of(graph)
    stores: dict[str, list[TracedStep]] = defaultdict(list)
    for step in steps:
        if step.op is not None and step.what is stored(ops[step.op]):
            stores[step.op].append(step)
    flags = _Flags(emitted)
    for step in steps:
        if step.what in (TracePoint.SIGNAL, TracePoint.WAIT_END):
            flags.take(step)
        if step.op is None or step.what is TracePoint.AGENT:
            continue
        if step.what is stored(ops[step.op]):
            flags.known[step.core][step.core] = step.sequence
        if step.what is wait_point(ops[step.op]):
            _check_known(flags.known[step.core], step, {name: stores[name] for name in needed[step.op]})


def _check_known(known: Known, step: TracedStep, stores: Mapping[str, Iterable[TracedStep]]) -> None:
    for name, done in stores.items():
        for store in done:
            assert known[store.core] >= store.sequence, (
                f"P5: no signal that core {step.core} waited for before {step.op} says that {name} has stored on core "
                f"{store.core}"
            )


class _Flags:
    def __init__(self, emitted: EmittedKernel) -> None:
        launch, chip = emitted.launch, emitted.chip
        count = launch.cubes + launch.vectors
        self.names = [core_name(launch, core) for core in range(count)]
        self.of_class = {chip.cube_flag, chip.vector_flag}
        self.known: list[Known] = [[-1] * count for _ in range(count)]
        self.signals: dict[tuple[int, int], list[Known]] = defaultdict(list)  # flag, core -> what each signal said
        self.waits: dict[tuple[int, int], int] = defaultdict(int)
        self.joined: dict[tuple[int, object, int], Known] = {}

    def take(self, step: TracedStep) -> None:
        flag, core = step.detail, step.core
        if step.what is TracePoint.SIGNAL:
            self.signals[flag, core].append(list(self.known[core]))
            return
        number = self.waits[flag, core]
        self.waits[flag, core] += 1
        self.known[core] = [max(pair) for pair in zip(self.known[core], self._said(flag, core, number), strict=True)]

    def _said(self, flag: int, core: int, number: int) -> Known:
        """What the signals of one round say together; all cores that they are for take the same."""
        own = self.names[core]
        group: tuple[CoreClass, int | None] = (own.kind, None if flag in self.of_class else own.block)
        if (flag, group, number) not in self.joined:
            senders = [other for other in range(len(self.names)) if self._signals(flag, core, other)]
            given = [self.signals[flag, other] for other in senders]
            assert all(len(one) > number for one in given), (
                f"P5: wait {number + 1} of core {core} for flag {flag} takes a signal that was not given"
            )
            self.joined[flag, group, number] = [max(column) for column in zip(*(g[number] for g in given), strict=True)]
        return self.joined[flag, group, number]

    def _signals(self, flag: int, core: int, other: int) -> bool:
        """Whether a flag of one core is set by another: all of its class, or those of the other class in its block."""
        own, sender = self.names[core], self.names[other]
        if flag in self.of_class:
            return own.kind is sender.kind
        return own.kind is not sender.kind and own.block == sender.block
