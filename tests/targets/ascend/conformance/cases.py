"""Random super kernels for the emulator: kernel types, streams, events, options, early start, barriers, tilings."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from superkernel.errors import PlanError
from superkernel.model.graph import Graph, build_graph
from superkernel.model.op import Op
from superkernel.model.options import Options
from superkernel.model.subkernel import SubKernel
from superkernel.model.tiling import Tiling, TilingFunction
from superkernel.targets.ascend import TARGET
from superkernel.targets.ascend.calling_convention import SyncProtocol
from superkernel.targets.ascend.core_types import KernelType, OpClass
from superkernel.targets.ascend.describe_kernel import emit
from superkernel.targets.ascend.emulator import Outside
from superkernel.targets.ascend.facts import AscendFacts, Code
from superkernel.targets.ascend.kernel_description import EmittedKernel

KERNELS = Path(__file__).with_name("kernels.cpp")
LINES, LINE = 24, 16
ELEMENTS = LINES * LINE
BUFFERS = tuple(f"b{i}" for i in range(6))
TYPED = f"uint32[{ELEMENTS}]"
TYPES = tuple(KernelType)
DUMP_BYTES = 72 * 1024
CACHED = "Cached"  # the op type of kernels that leave the cache to the entry


@dataclass(frozen=True)
class Shape:
    """A sub-kernel of kernels.cpp: its function, what it runs on and how many buffers it takes."""

    function: str  # plain, prints, cached, early, early_wait, early_set, meets, tiled, tiled_meets
    type: KernelType
    blocks: int
    ins: int
    outs: int
    inouts: int
    own_cache: bool = False
    fenced: bool = False  # its metadata ask for cache maintenance

    @property
    def workers_per_block(self) -> int:
        return 1 + self.type.vectors_per_cube if self.type.op_class is OpClass.MIX else 1

    @property
    def word(self) -> int:
        counts = self.ins | self.outs << 4 | self.inouts << 8
        return counts | self.workers_per_block << 12 | self.own_cache << 16

    @property
    def dynamic(self) -> bool:
        return self.function.startswith("tiled")

    @property
    def meets(self) -> bool:
        return self.function in ("meets", "tiled_meets")

    @property
    def variants(self) -> dict[int, str]:
        if self.function == "tiled":
            return {1: "tiled_1", 5: "tiled_5"}
        return {2: "tiled_meets"} if self.function == "tiled_meets" else {}


@cache
def sub_kernel(shape: Shape) -> SubKernel:
    kinds = ["in"] * shape.ins + ["out"] * shape.outs + ["inout"] * shape.inouts
    params = ["scalar:salt:int64", "scalar:shape:int64"]
    params += [f"{kind}:p{i}:{TYPED}" for i, kind in enumerate(kinds)]
    if shape.meets:
        params.append(f"workspace:ws:{TYPED}")
    symbol = shape.function if not shape.dynamic else next(iter(shape.variants.values()))
    kernel = SubKernel.from_source(
        KERNELS,
        symbol,
        block_dim=shape.blocks,
        params=params,
        sync_all=shape.meets,
        early_start=False,
        op_type=CACHED if shape.function == "cached" else None,
        variants=shape.variants or None,
    )
    codes = tuple((one, key, Code(code)) for one in shape.type.op_class.classes for key, code in kernel.tiling_variants)
    waits, sets = shape.function in ("early", "early_wait"), shape.function in ("early", "early_set")
    return replace(
        kernel,
        early_start=None if waits or sets else False,
        waits_inside=waits,
        signals_inside=sets,
        target_facts=AscendFacts(
            shape.type,
            codes,
            fence_before=shape.fenced,
            fence_after=shape.fenced,
            debug_options=("printf",) if shape.function == "prints" else (),
            debug_bytes=DUMP_BYTES if shape.function == "prints" else 0,
            protocol=SyncProtocol.CANN if shape.blocks % 2 else SyncProtocol.SUBKERNEL_H,
        ),
    )


def tiling(buffers: Mapping[str, Any], shape: Shape, first_input: str | None) -> Tiling:
    """What the control agent decides from the contents of the op's first input; now and then there is nothing to do."""
    total = int(np.asarray(buffers[first_input]).sum()) if first_input is not None else 3
    keys = sorted(shape.variants)
    return Tiling(keys[total % len(keys)], total // 7 % (shape.blocks + 1))


@dataclass(frozen=True)
class Use:
    """One op of a case."""

    shape: Shape
    salt: int
    names: tuple[str, ...]
    stream: int = 0
    send: tuple[str, ...] = ()
    recv: tuple[str, ...] = ()

    def first_input(self) -> str | None:
        """The buffer whose contents the tiling depends on: what it reads and nobody else writes meanwhile."""
        if self.shape.ins:
            return self.names[0]
        return self.names[self.shape.outs] if self.shape.inouts else None

    def op(self, name: str) -> Op:
        extra = (f"ws_{name}",) if self.shape.meets else ()
        return Op(
            sub_kernel(self.shape),
            [self.salt, self.shape.word, *self.names, *extra],
            name=name,
            stream=self.stream,
            send=self.send,
            recv=self.recv,
            task="dynamic" if self.shape.dynamic else "normal",
        )


@dataclass(frozen=True)
class Case:
    name: str
    uses: tuple[Use, ...]
    options: str
    outside: tuple[Outside, ...] = ()
    prefix: str = "op"  # of the ops' names

    def ops(self) -> list[Op]:
        return [use.op(f"{self.prefix}{i}") for i, use in enumerate(self.uses)]

    def emitted(self) -> tuple[EmittedKernel, Graph]:
        return emitted_of(self.ops(), self.name, self.options)

    def tilings(self) -> dict[str, TilingFunction]:
        return {f"{self.prefix}{i}": _tiler(use) for i, use in enumerate(self.uses) if use.shape.dynamic}

    def buffers(self, seed: int) -> dict[str, np.ndarray[Any, Any]]:
        random_numbers = np.random.default_rng(seed)
        used = dict.fromkeys(name for use in self.uses for name in use.names)
        return {name: random_numbers.integers(0, 2**32, ELEMENTS, np.uint32) for name in used}


def _tiler(use: Use) -> TilingFunction:
    return lambda inputs: tiling(inputs, use.shape, use.first_input())


def emitted_of(ops: Sequence[Op], name: str, options: str) -> tuple[EmittedKernel, Graph]:
    """The stages up to the emitted text, without the build."""
    parsed = Options.parse(options)
    graph = build_graph(ops, name, parsed.stream_fusion)
    prepared = TARGET.builder.prepare(list(dict.fromkeys(node.kernel for node in graph.nodes)), (), None)
    graph = graph.with_kernels(dict(prepared.kernels))
    return emit(TARGET.planner.plan(graph, parsed, 0)), graph


def random_case(seed: int, name: str | None = None, most_blocks: int = 5) -> tuple[Case, EmittedKernel, Graph]:
    """The first draw that can be planned: what the planner refuses with good reason is drawn again."""
    rng = random.Random(seed)
    for _ in range(20):
        case = _draw(rng, name or f"case{seed}", most_blocks)
        try:
            return case, *case.emitted()
        except PlanError:
            continue
    raise AssertionError(f"seed {seed}: twenty draws in a row cannot be planned")


def plain_case(seed: int) -> Case:
    """Ops that depend on each other through buffers and on nothing else."""
    rng, uses = random.Random(seed), []
    for _ in range(rng.randint(3, 8)):
        shape = replace(_draw_shape(rng, TYPES, 4, False), function="plain", own_cache=False, fenced=False)
        names = rng.sample(BUFFERS, shape.ins + shape.outs + shape.inouts)
        uses.append(Use(shape, rng.randrange(1, 100), tuple(names)))
    fusion = int(rng.random() < 0.3)
    return Case(f"plain{seed}", tuple(uses), f"stream-fusion={fusion}:early-start=1:split-mode=1:preload-code=none")


def _draw(rng: random.Random, name: str, most_blocks: int) -> Case:
    fusion = rng.random() < 0.4
    options = _draw_options(rng, fusion)
    streams = rng.choice((1, 2, 3)) if fusion else rng.choice((1, 1, 2))
    types = rng.sample(TYPES, rng.randint(1, 3)) if rng.random() < 0.5 else list(TYPES)
    entry_cleans = "dcci-before" in options
    uses = []
    for _ in range(rng.randint(2, 8)):
        shape = _draw_shape(rng, types, most_blocks, entry_cleans)
        count = shape.ins + shape.outs + shape.inouts
        uses.append(Use(shape, rng.randrange(1, 100), tuple(rng.sample(BUFFERS, count)), rng.randrange(streams)))
    uses, outside = _draw_events(rng, uses)
    return Case(name, tuple(uses), options, outside)


def _draw_shape(rng: random.Random, types: Sequence[KernelType], most_blocks: int, entry_cleans: bool) -> Shape:
    function = rng.choices(
        ("plain", "prints", "cached", "early", "early_wait", "early_set", "meets", "tiled", "tiled_meets"),
        (4, 0.3, 2, 3, 1, 1, 1.5, 1, 0.3),
    )[0]
    ins, outs, inouts = rng.randint(0, 2), rng.randint(0, 2), rng.randint(0, 1)
    if outs + inouts == 0:
        outs = 1
    fenced = function == "cached" and not entry_cleans and rng.random() < 0.5
    own_cache = function == "cached" and not entry_cleans and not fenced
    return Shape(function, rng.choice(types), rng.randint(1, most_blocks), ins, outs, inouts, own_cache, fenced)


def _draw_options(rng: random.Random, fusion: bool) -> str:
    chosen = {"stream-fusion": int(fusion), "feed-sync-all": int(rng.random() < 0.8)}
    chosen["early-start"] = rng.choice((0, 1, 1, 2))
    chosen["split-mode"] = rng.choice((1, 2, 4))
    pieces = [f"{key}={value}" for key, value in chosen.items()]
    pieces.append(f"preload-code={rng.choice(('per-func', 'max', 'none'))}")
    for key, chance in (
        ("profiling", 0.3),
        ("debug-sync-all", 0.15),
        ("debug-dcci-all", 0.15),
        ("prefetch-weights", 0.2),
    ):
        if rng.random() < chance:
            pieces.append(f"{key}=1")
    if rng.random() < 0.6:
        pieces += [f"dcci-before-kernel-start={CACHED}", f"dcci-after-kernel-end={CACHED}"]
    return ":".join(pieces)


def _draw_events(rng: random.Random, uses: list[Use]) -> tuple[list[Use], tuple[Outside, ...]]:
    """Inner events from an earlier op to a later one; external ones that somebody outside sets or polls."""
    uses, outside, sent = list(uses), [], []
    for number in range(rng.choice((0, 0, 1, 2, 3))):
        kind, first, second = rng.choice(("inner", "sent", "received")), *sorted(rng.sample(range(len(uses)), 2))
        label = f"e{number}"
        if kind != "received":
            uses[first] = replace(uses[first], send=(*uses[first].send, label))
        if kind != "sent":
            uses[second] = replace(uses[second], recv=(*uses[second].recv, label))
        if kind == "sent":
            sent.append((first, label))
        if kind == "received":
            earlier = [event for op, event in sent if op < second]
            outside.append(Outside(label, rng.choice([None, *earlier])))
    return uses, tuple(outside)
