"""Runs cases on the emulator, many at a time, and checks what they did against the properties of spec/sync.md."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from targets.ascend.conformance.cases import Case, random_case, tiling
from targets.ascend.conformance.oracle import expected
from targets.ascend.conformance.trace_order import check_order, producers_of, stored, wait_point

from superkernel.cache import Cache
from superkernel.model.graph import Graph
from superkernel.model.options import Options, PreloadCode
from superkernel.targets.ascend.core_types import CUBE, VECTOR, CoreClass, KernelType, OpClass
from superkernel.targets.ascend.emulator.launch import ChipEmulator, Emulation
from superkernel.targets.ascend.emulator.modules import HostModule, build_modules
from superkernel.targets.ascend.emulator.trace import TracedStep, TracePoint
from superkernel.targets.ascend.kernel_areas import core_name
from superkernel.targets.ascend.kernel_description import EmittedKernel, EmittedOp
from superkernel.targets.protocol import LaunchInputs


@dataclass(frozen=True)
class Ready:
    """A case that can be run."""

    case: Case
    emitted: EmittedKernel
    graph: Graph
    modules: Mapping[CoreClass, HostModule]


def prepare(found: Sequence[tuple[Case, EmittedKernel, Graph]]) -> list[Ready]:
    """Compiles all of them together, once per class."""
    modules = build_modules([emitted for _, emitted, _ in found], Cache())
    return [Ready(case, emitted, graph, modules) for case, emitted, graph in found]


def random_cases(seeds: Iterable[int], most_blocks: int = 5) -> list[Ready]:
    return prepare([random_case(seed, most_blocks=most_blocks) for seed in seeds])


def launch(ready: Ready, seed: int, races: bool = True) -> tuple[Emulation, dict[str, np.ndarray]]:
    """One emulated launch, and the buffers after it."""
    buffers = ready.case.buffers(seed)
    outside = ready.case.outside
    emulator = ChipEmulator(ready.emitted, ready.graph, ready.modules, Cache(), seed, None, outside, races, True)
    return emulator.run(buffers, LaunchInputs({}, ready.case.tilings())), buffers


def check(ready: Ready, seed: int) -> Emulation:
    """Launches and checks everything that can be seen of it."""
    before = ready.case.buffers(seed)
    emulation, after = launch(ready, seed)
    wanted = expected(ready.case, ready.graph, before)
    for name, array in after.items():
        assert np.array_equal(array, wanted[name]), f"{ready.case}, seed {seed}: buffer {name} is wrong"
    steps = by_op(emulation.steps)
    check_cores(ready, steps, wanted, before)
    check_orders(ready, steps)
    check_streams(ready, emulation.steps)
    check_order(ready.emitted, ready.graph, emulation)
    check_events(ready, emulation, steps)
    check_preloads(ready, emulation)
    check_copies(ready, emulation.steps)
    check_profiling(ready, emulation)
    check_printed(ready, emulation)
    return emulation


OpSteps = Mapping[str, Mapping[TracePoint, Sequence[TracedStep]]]


def by_op(steps: Iterable[TracedStep]) -> OpSteps:
    found: dict[str, dict[TracePoint, list[TracedStep]]] = defaultdict(lambda: defaultdict(list))
    for step in steps:
        if step.op is not None:
            found[step.op][step.what].append(step)
    return found


def cores_of(ready: Ready, op: EmittedOp, blocks: int) -> set[int]:
    """The cores that run an op with so many blocks."""
    launch = ready.emitted.launch
    kind, found = op.kernel_type, set()
    for core in range(launch.cubes + launch.vectors):
        name = core_name(launch, core)
        if name.kind is CUBE and kind.op_class is not OpClass.AIV and name.block < blocks:
            found.add(core)
        if name.kind is VECTOR:
            if kind.op_class is OpClass.AIV:
                wanted = name.block * launch.type.vectors + name.sub_block < blocks
            elif kind.op_class is OpClass.MIX:
                wanted = name.block < blocks and (kind is KernelType.MIX_AIC_1_2 or name.sub_block == 0)
            else:
                wanted = False
            if wanted:
                found.add(core)
    return found


def check_cores(
    ready: Ready, steps: OpSteps, wanted: Mapping[str, np.ndarray], before: Mapping[str, np.ndarray]
) -> None:
    """P1: every op once on every block below its count, never elsewhere."""
    blocks = _block_counts(ready, before)
    for op, use in zip(ready.emitted.ops, ready.case.uses, strict=True):
        begun = [step.core for step in steps[op.name][TracePoint.OP_BEGIN]] if op.name in steps else []
        assert len(begun) == len(set(begun)), f"P1: {op.name} ran twice on a core"
        assert set(begun) == cores_of(ready, op, blocks[op.name]), f"P1: {op.name} ({use}) ran on {sorted(begun)}"
        counts = {step.value for step in steps[op.name][TracePoint.OP_END]} if begun else set()
        wanted_barriers = {0 if not use.shape.meets else 1 + use.salt % 2} if begun else set()
        assert counts == wanted_barriers, f"barriers of {op.name}: {counts}"


def _block_counts(ready: Ready, before: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Of dynamic ops: what the agent says for the contents at that point of the serial order."""
    counts = {op.name: op.blocks for op in ready.emitted.ops}
    buffers = dict(before)
    for place, index in enumerate(ready.graph.order):
        use = ready.case.uses[index]
        if use.shape.dynamic:
            buffers = expected(ready.case, _cut(ready.graph, place), before)
            counts[ready.emitted.ops[index].name] = tiling(buffers, use.shape, use.first_input()).blocks
    return counts


@dataclass(frozen=True)
class _Cut:
    order: tuple[int, ...]


def _cut(graph: Graph, place: int) -> Graph:
    return _Cut(graph.order[:place])  # type: ignore[return-value]


def first_of(steps: OpSteps, op: EmittedOp) -> float:
    """When the first core passed the op's wait point; never, for a dynamic op without a block."""
    return min((step.sequence for step in steps[op.name][wait_point(op)]), default=inf)


def last_of(steps: OpSteps, op: EmittedOp) -> float:
    """When the last core had stored."""
    return max((step.sequence for step in steps[op.name][stored(op)]), default=-inf)


def check_orders(ready: Ready, steps: OpSteps) -> None:
    """P2: no block passes its wait point before all blocks of its producers have stored."""
    ops = {op.name: op for op in ready.emitted.ops}
    for consumer, producers in producers_of(ready.graph).items():
        passed = first_of(steps, ops[consumer])
        for name in producers:
            assert last_of(steps, ops[name]) < passed, f"P2: {consumer} passed its wait point before {name} had stored"


def check_streams(ready: Ready, steps: Iterable[TracedStep]) -> None:
    """P3: each core issues the ops of one stream in list order."""
    ops = {op.name: op for op in ready.emitted.ops}
    last: dict[tuple[int, int], int] = {}
    for step in steps:
        if step.what is TracePoint.OP_BEGIN and step.op is not None:
            op = ops[step.op]
            key = (step.core, op.stream)
            assert last.get(key, -1) < op.index, f"P3: core {step.core} issued {op.name} too late"
            last[key] = op.index


def check_events(ready: Ready, emulation: Emulation, steps: OpSteps) -> None:
    """P6: a notify comes after all cores of its op, an op after what it waits for. P7: words 0 and 1 at the end."""
    slots, ops = ready.emitted.layout.slots, {op.name: op for op in ready.emitted.ops}
    acts = [step for step in emulation.steps if step.what is TracePoint.AGENT]
    set_at = {one.sets: act.sequence for n, one in enumerate(ready.case.outside) for act in acts if act.detail == n}
    for event in ready.emitted.events:
        word = slots[event.slot].name
        assert emulation.words[word] == int(event.sent), (
            f"P7: event {event.label} is {emulation.words[word]} at the end"
        )
        stores = [
            s.sequence
            for s in emulation.steps
            if s.what is TracePoint.STORE and emulation.addresses.get(s.value) == word
        ]
        assert len(stores) == 1, f"P6: the word of event {event.label} is stored {len(stores)} times"
        op = ops[event.op]
        if event.sent:
            last = last_of(steps, op)
            assert stores[0] > last, f"P6: {event.label} is notified before {op.name} has stored"
        else:
            first = first_of(steps, op)
            assert set_at[event.label] < first, f"P6: {op.name} did not wait for {event.label}"
    for words in (*ready.emitted.tilings,):
        assert emulation.words[slots[words.lock_slot].name] == 0, f"the lock of {words.op} is left set"
    for prefetch in ready.emitted.prefetches:
        assert emulation.words[slots[prefetch.go_slot].name] == 0, f"the go word of {prefetch.op} is left set"


def check_preloads(ready: Ready, emulation: Emulation) -> None:
    """P10: with per-func the code of an op is preloaded before its call, on the core that calls it."""
    if Options.parse(ready.case.options).preload_code is not PreloadCode.PER_FUNC:
        return
    ops = {op.name: op for op in ready.emitted.ops}
    loaded: dict[int, set[str]] = defaultdict(set)
    for step in emulation.steps:
        if step.what is TracePoint.PRELOAD:
            loaded[step.core].add(emulation.preloads[step.detail])
        elif step.what is TracePoint.OP_BEGIN and step.op is not None and not ops[step.op].dynamic:
            kind = core_name(ready.emitted.launch, step.core).kind
            function = ops[step.op].variants[kind][0].functions[step.detail]
            assert function in loaded[step.core], f"P10: core {step.core} calls {function} without having preloaded it"


def check_copies(ready: Ready, steps: Iterable[TracedStep]) -> None:
    """Every core calls one and the same copy of all ops with so many copies."""
    ops = {op.name: op for op in ready.emitted.ops}
    chosen: dict[tuple[int, int], int] = {}
    for step in steps:
        if step.what is TracePoint.OP_BEGIN and step.op is not None:
            key = (step.core, ops[step.op].copies)
            assert step.detail < ops[step.op].copies
            assert chosen.setdefault(key, step.detail) == step.detail


def check_profiling(ready: Ready, emulation: Emulation) -> None:
    """P13: marks nest (reading them checks that), and there is one span per op and core that runs it, and a kernel."""
    if "profiling=1" not in ready.case.options:
        assert not emulation.profiled
        return
    cores = ready.emitted.launch.cubes + ready.emitted.launch.vectors
    assert sorted(span.core for span in emulation.profiled if span.what == "kernel") == list(range(cores))
    ran = {(s.core, s.op) for s in emulation.steps if s.what is TracePoint.OP_BEGIN}
    seen = {(span.core, span.op) for span in emulation.profiled if span.what == "op"}
    assert ran <= seen, f"P13: no op span for {sorted(ran - seen)[:4]}"


def check_printed(ready: Ready, emulation: Emulation) -> None:
    """One line per core that ran an op that prints, under the name of that core."""
    ops = dict(zip((op.name for op in ready.emitted.ops), ready.case.uses, strict=True))
    wanted = Counter()
    for step in emulation.steps:
        if step.what is TracePoint.OP_BEGIN and step.op is not None and ops[step.op].shape.function == "prints":
            use, name = ops[step.op], core_name(ready.emitted.launch, step.core)
            wanted[f"[{name}] salt {use.salt} block {step.value} of {use.shape.blocks}"] += 1
    assert Counter(emulation.printed.splitlines()) == wanted
