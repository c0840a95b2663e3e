"""Hypothesis strategies for the planner: small graphs in which every hazard, event, lane and option occurs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from superkernel.errors import PlanError
from superkernel.model.binary import Binary, Form
from superkernel.model.graph import Graph, build_graph
from superkernel.model.op import Op, Place
from superkernel.model.options import EarlyStart, Options, PreloadCode
from superkernel.model.params import Param
from superkernel.model.subkernel import SubKernel
from superkernel.plan import Plan, make_plan

BUFFERS = "abcde"
TYPES = (":float32[12]@block", "", ":float32[12]", "@block", ":float32[3,4]@block")
KINDS = ("in", "out", "inout", "workspace")
LETTERS = "xyzw"


def kernel(name: str, block_dim: int, *params: str, **more: object) -> SubKernel:
    """A sub-kernel without a file."""
    return SubKernel(
        name,
        Binary(Form.SOURCE, Path(f"{name}.cpp")),
        block_dim,
        tuple(Param.parse(param) for param in params),
        **more,  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class Use:
    """A sub-kernel and how ops use it."""

    kernel: SubKernel
    dynamic: bool = False


def _random_kernel(
    rng: random.Random,
    number: int,
    dims: Sequence[int] = (1, 2, 3, 4),
    types: Sequence[str] = TYPES,
    pure: bool = False,
) -> Use:
    memory = [rng.choice(KINDS[: 2 + number % 3]) for _ in range(rng.randint(1, 3))]
    typing = [rng.choice(types) if rng.random() < 0.6 else types[0] for _ in memory]
    params = [f"{kind}:{letter}{text}" for kind, letter, text in zip(memory, LETTERS, typing, strict=False)]
    before = tuple(letter for letter in LETTERS[: len(memory)] if rng.random() < 0.3)
    if rng.random() < 0.2:
        params.insert(rng.randrange(len(params) + 1), "scalar:n")
    dynamic, early = rng.random() < 0.15, rng.random() < 0.5
    return Use(
        kernel(
            f"k{number}",
            rng.choice(dims),
            *params,
            sync_all=rng.random() < 0.15,
            early_start=before or None if early else None,
            waits_inside=early,
            signals_inside=rng.random() < 0.5,
            op_type=rng.choice((None, "Cube", "Add")),
            variants=((1, f"k{number}_a"), (5, f"k{number}_b")) if dynamic and rng.random() < 0.5 else (),
        ),
        dynamic,
    )


def _pool() -> tuple[Use, ...]:
    """Simple ones first, for that is where examples shrink to."""
    simple = [
        kernel("write1", 1, "out:x"),
        kernel("read1", 1, "in:x"),
        kernel("copy1", 1, "in:x", "out:y"),
        kernel("write2", 2, "out:x"),
        kernel("read2", 2, "in:x"),
        kernel("copy2", 2, "in:x", "out:y"),
        kernel("part2", 2, "in:x@block", "out:y@block"),
        kernel("update2", 2, "inout:x@block"),
        kernel("early2", 2, "in:x", "out:y", waits_inside=True, signals_inside=True),
        kernel("both2", 2, "in:x", "in:w", "out:y", waits_inside=True, early_start=("w",)),
        kernel("sync2", 2, "in:x", "out:y", sync_all=True),
    ]
    rng = random.Random(20)
    return (
        *(Use(one) for one in simple),
        Use(kernel("dynamic2", 2, "in:x", "out:y"), dynamic=True),
        *(_random_kernel(rng, number) for number in range(200)),
    )


POOL = _pool()
STATIC = tuple(use for use in POOL if not use.dynamic and not use.kernel.sync_all)
DYNAMIC = (*(use for use in POOL if use.dynamic), *STATIC[:30])
SYNC_ALL = (*(use for use in POOL if use.kernel.sync_all), *STATIC[:30])

OPTIONS = tuple(
    Options(
        early_start=early,
        stream_fusion=fusion,
        preload_code=preload,
        profiling=profiling,
        debug_sync_all=barriers,
        debug_dcci_all=fences,
        dcci_before_kernel_start=("Cube",) if fences else (),
        dcci_after_kernel_end=("Cube", "Add") if fences else (),
        dcci_disable_on_kernel=("Add",) if profiling else (),
        prefetch_weights=int(fences),
    )
    for fences, barriers, profiling, preload, fusion, early in itertools.product(
        (False, True), (False, True), (False, True), PreloadCode, (False, True), (EarlyStart.FULL, *EarlyStart)
    )
)
PLAIN = tuple(
    replace(one, dcci_after_kernel_end=(), dcci_before_kernel_start=())
    for one in OPTIONS
    if not (one.debug_sync_all or one.debug_dcci_all or one.profiling) and one.preload_code is PreloadCode.NONE
)


@dataclass(frozen=True)
class Case:
    """The input of the planner, and what it makes of it."""

    ops: tuple[Op, ...]
    options: Options
    cores: int

    @cached_property
    def graph(self) -> Graph:
        return build_graph(self.ops, "case", self.options.stream_fusion)

    @cached_property
    def plan(self) -> Plan:
        return make_plan(self.graph, self.options, self.cores)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def __repr__(self) -> str:
        lines = [f"cores={self.cores} options={str(self.options)!r}"]
        for op in self.ops:
            more = f" {op.task.value}" if op.dynamic else ""  # type: ignore[union-attr]
            flags = [
                n for n in ("sync_all", "waits_inside", "signals_inside", "read_before_wait") if getattr(op.kernel, n)
            ]
            events = f" sends {op.send} receives {op.recv}" if op.send or op.recv else ""
            lines.append(f"{op.kernel}{flags} {op.args} stream {op.stream}{events}{more}")
        return "\n".join(lines)


@dataclass
class _Events:
    sends: list[list[str]]
    receives: list[list[str]]

    def inner(self, sender: int, receiver: int, number: int) -> None:
        shared = [event for event in self.sends[sender] if event.startswith("inner")]
        event = shared[0] if shared and number % 2 else f"inner{number}"
        if event not in self.receives[receiver]:
            self.receives[receiver].append(event)
            if event not in self.sends[sender]:
                self.sends[sender].append(event)


WIDE = (1, 2, 3, 4, 6, 8, 12, 16)
WIDE_TYPES = (":float32[48]@block", "", ":float32[48]", ":float32[3,16]@block")


def wide_case(seed: int) -> Case:
    """A random graph on up to 16 cores, with streams, events, dynamic ops, @block with unequal counts, early start."""
    rng = random.Random(seed)
    pool = tuple(_random_kernel(rng, number, WIDE, WIDE_TYPES) for number in range(12))
    options = rng.choice(PLAIN)
    rows = [
        (rng.randrange(len(pool)), rng.randrange(len(BUFFERS) ** 3), rng.randrange(3), rng.randrange(18))
        for _ in range(rng.randint(2, 14))
    ]
    ops = _ops(rows, pool, options.stream_fusion, backwards=False)
    cores = rng.randint(2, 16)
    joined = [op.kernel.block_dim for op in ops if op.kernel.sync_all]
    if joined:
        options, cores = replace(options, feed_sync_all=True), max(cores, *joined)
    return Case(ops, options, cores)


def layered_case(seed: int) -> Case:
    """Narrow, pure ops between wide ones on up to 16 cores, as norms between matmuls: what may be replicated."""
    rng = random.Random(seed)
    ops = []
    for i in range(rng.randint(3, 14)):
        part = rng.choice(("", "@block"))
        blocks = rng.choice((1, 1, 2, *WIDE))
        params = [f"in:x:float32[48]{part}", "in:w:float32[48]", f"out:y:float32[48]{part}"]
        args = [f"t{rng.randint(max(0, i - 3), i)}", f"t{rng.randint(0, i)}", f"t{i + 1}"]
        if rng.random() < 0.15:
            params, args = [f"inout:x:float32[48]{part}"], [f"t{rng.randint(0, i)}"]
        made = kernel(f"k{i}", blocks, *params, pure=rng.random() < 0.8, may_fail=False)
        ops.append(Op(made, args, f"op{i}", send=[f"out{i}"] if rng.random() < 0.1 else []))
    return Case(tuple(ops), rng.choice(PLAIN), rng.randint(2, 16))


Row = tuple[int, int, int, int]  # kernel, buffers, stream, events


def _ops(rows: list[Row], pool: tuple[Use, ...], fusion: bool, backwards: bool) -> tuple[Op, ...]:
    events = _Events([[] for _ in rows], [[] for _ in rows])
    for i, (_, _, stream, code) in enumerate(rows):
        if code in (10, 12, 17):
            events.sends[i].append(f"out{i}")
        if code in (11, 12) and i:
            events.receives[i].append(f"in{i}")
        if code == 13 and i:
            shared = [
                event
                for received in events.receives[:i]
                for event in received
                if event.startswith("in") and event[2].isdigit()
            ]
            events.receives[i].append(shared[-1] if shared else f"in{i}")
        if code in (14, 15, 17) and i:
            events.inner(max(0, i - 1 - code % 2 * 2), i, i)
        if code == 16 and backwards and fusion and 0 < i < len(rows) - 1 and rows[i + 1][2] != stream:
            events.inner(i + 1, i, 100 + i)
    ops = []
    for i, (chosen, buffers, stream, _) in enumerate(rows):
        use = pool[chosen % len(pool)]
        names = iter(BUFFERS[buffers // len(BUFFERS) ** k % len(BUFFERS)] for k in range(3))
        args = [7 if param.kind.value == "scalar" else next(names) for param in use.kernel.params]
        kernel = use.kernel
        if buffers % 6 == 1:  # a part of a buffer, of which nothing more is said: it may be of any size
            args = [Place(arg, 8) if isinstance(arg, str) and at % 2 == i % 2 else arg for at, arg in enumerate(args)]
            params = zip(kernel.params, args, strict=True)
            kernel = replace(
                kernel, params=tuple(arg.seen_as(param) if isinstance(arg, Place) else param for param, arg in params)
            )
        task = "dynamic" if use.dynamic else "normal"
        ops.append(Op(kernel, args, f"op{i}", stream, events.sends[i], events.receives[i], task))
    return tuple(ops)


@st.composite
def cases(
    draw: st.DrawFn,
    pool: tuple[Use, ...] = POOL,
    options: tuple[Options, ...] = OPTIONS,
    events: bool = True,
    streams: int = 3,
    max_ops: int = 10,
    min_cores: int = 1,
) -> Case:
    """Inputs that can be planned."""
    row = st.tuples(
        st.integers(0, len(pool) - 1),
        st.integers(0, len(BUFFERS) ** 3 - 1),
        st.integers(0, streams - 1),
        st.integers(0, 17 if events else 0),
    )
    chosen, cores = draw(st.sampled_from(options)), draw(st.integers(min_cores, 4))
    rows = draw(st.lists(row, min_size=2, max_size=max_ops))
    ops = _ops(rows, pool, chosen.stream_fusion, backwards=True)
    try:
        build_graph(ops, "case", chosen.stream_fusion)
    except PlanError:  # the events that point backwards close a cycle
        ops = _ops(rows, pool, chosen.stream_fusion, backwards=False)
    joined = [op.kernel.block_dim for op in ops if op.kernel.sync_all]
    if joined:
        chosen, cores = replace(chosen, feed_sync_all=True), max(cores, *joined)
    return Case(ops, chosen, cores)
