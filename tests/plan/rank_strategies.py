"""Hypothesis strategies for ranks: the ops of every rank of several groups, with ops between start and finish."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hypothesis import strategies as st
from plan.strategies import PLAIN, STATIC, Use, kernel

from superkernel.model.graph import build_graph
from superkernel.model.op import Op
from superkernel.model.options import Options
from superkernel.model.ranks import RankGroup, RankSync
from superkernel.model.subkernel import SubKernel
from superkernel.plan import Plan, make_plan

BUFFERS = "abcd"
LOCAL = (*STATIC[:10], Use(kernel("dynamic2", 2, "in:x", "out:y"), dynamic=True))
WINDOW = "uint8[4096]"
FLAGS: tuple[dict[str, Any], ...] = (
    {},
    {"signals_inside": True},
    {"waits_inside": True, "signals_inside": True},
    {"waits_inside": True, "early_start": ("w",)},
)


def sends(collective: str, group: RankGroup) -> RankSync:
    return RankSync(collective, group, f"window_{collective}", True, terms=f"terms of {collective}")


def awaits(collective: str, group: RankGroup) -> RankSync:
    return RankSync(collective, group, f"window_{collective}", False)


def publish(blocks: int, flags: int = 0) -> SubKernel:
    return kernel("publish", blocks, "in:x", f"out:w:{WINDOW}", **FLAGS[flags % 3])


def collect(blocks: int, flags: int = 0) -> SubKernel:
    return kernel("collect", blocks, f"in:w:{WINDOW}", "out:y", **FLAGS[flags])


def pass_on(blocks: int, flags: int = 0) -> SubKernel:
    """Waits for one collective and sends another."""
    return kernel("pass_on", blocks, f"in:w:{WINDOW}", "in:x", f"out:v:{WINDOW}", **FLAGS[flags])


@dataclass
class RankCase:
    """The ops of each rank of several groups."""

    ops: tuple[tuple[Op, ...], ...]
    options: Options
    cores: tuple[int, ...]

    @cached_property
    def plans(self) -> list[Plan]:
        return [
            make_plan(build_graph(ops, f"rank{rank}", self.options.stream_fusion), self.options, cores)
            for rank, (ops, cores) in enumerate(zip(self.ops, self.cores, strict=True))
        ]

    def __repr__(self) -> str:
        lines = [f"cores={self.cores} options={str(self.options)!r}"]
        for rank, ops in enumerate(self.ops):
            lines.append(f"rank {rank}:")
            for op in ops:
                syncs = [f"{'sends' if sync.sends else 'awaits'} {sync.collective} {sync.group}" for sync in op.ranks]
                lines.append(f"  {op.kernel} {op.args} stream {op.stream} {syncs}")
        return "\n".join(lines)


class _Program:
    """What all ranks do, one item after the other: so their orders have a common one."""

    def __init__(self, groups: list[tuple[int, ...]], ranks: int, rng: random.Random, streams: int) -> None:
        self.groups, self.ranks, self.rng, self.streams = groups, ranks, rng, streams
        self.ops: list[list[Op]] = [[] for _ in range(ranks)]
        self.started: list[tuple[str, int]] = []  # collectives without a receiver, with their groups
        self.count = 0

    def group(self, number: int, rank: int) -> RankGroup:
        members = self.groups[number]
        return RankGroup(f"g{number}", members, members.index(rank))

    def each(self, number: int, make: Callable[[RankGroup], tuple[SubKernel, list[Any], list[RankSync]]]) -> None:
        for rank in self.groups[number]:
            used, args, syncs = make(self.group(number, rank))
            name = f"op{len(self.ops[rank])}"
            self.ops[rank].append(Op(used, args, name, self.rng.randrange(self.streams), ranks=syncs))

    def start(self, number: int) -> None:
        name = f"c{self.count}"
        self.count += 1
        self.started.append((name, number))
        self.each(
            number,
            lambda group: (
                publish(self.rng.randint(1, 4), self.rng.randrange(3)),
                [self.rng.choice(BUFFERS), f"window_{name}"],
                [sends(name, group)],
            ),
        )

    def finish(self, name: str, number: int) -> None:
        self.each(
            number,
            lambda group: (
                collect(self.rng.randint(1, 4), self.rng.randrange(4)),
                [f"window_{name}", self.rng.choice(BUFFERS)],
                [awaits(name, group)],
            ),
        )

    def hand_on(self, name: str, number: int) -> None:
        """Finishes one collective and starts another."""
        second = f"c{self.count}"
        self.count += 1
        self.started.append((second, number))
        self.each(
            number,
            lambda group: (
                pass_on(self.rng.randint(1, 4), self.rng.randrange(4)),
                [f"window_{name}", self.rng.choice(BUFFERS), f"window_{second}"],
                [awaits(name, group), sends(second, group)],
            ),
        )

    def local(self, rank: int) -> None:
        use = self.rng.choice(LOCAL)
        args = [self.rng.choice(BUFFERS) for _ in use.kernel.params]
        task, name = "dynamic" if use.dynamic else "normal", f"op{len(self.ops[rank])}"
        self.ops[rank].append(Op(use.kernel, args, name, self.rng.randrange(self.streams), task=task))


def rank_case(seed: int, ranks: int, items: list[int], options: Options = PLAIN[0], least_ranks: int = 1) -> RankCase:
    """`items` say what comes next: a start, a finish, a finish that starts, or ops of some ranks alone."""
    rng = random.Random(seed)
    everyone = range(ranks)
    groups = [
        tuple(rng.sample(everyone, rng.randint(min(least_ranks, ranks), ranks))) for _ in range(rng.randint(1, 3))
    ]
    groups[0] = tuple(rng.sample(everyone, ranks))  # every rank takes part in something
    program = _Program(groups, ranks, rng, 2 if options.stream_fusion else 1)
    program.start(0)
    for item in items:
        waiting = program.started
        if item < 2 or (item < 6 and not waiting):
            program.start(rng.randrange(len(groups)))
        elif item < 5:
            program.finish(*waiting.pop(rng.randrange(len(waiting))))
        elif item < 6:
            program.hand_on(*waiting.pop(rng.randrange(len(waiting))))
        else:
            for rank in rng.sample(everyone, rng.randint(1, ranks)):
                program.local(rank)
    for name, number in program.started:
        program.finish(name, number)
    cores = tuple(rng.randint(1, 3) for _ in everyone)
    return RankCase(tuple(map(tuple, program.ops)), options, cores)


@st.composite
def rank_cases(
    draw: st.DrawFn, least_ranks: int = 1, options: tuple[Options, ...] = PLAIN, max_items: int = 7
) -> RankCase:
    ranks = draw(st.integers(least_ranks, 4))
    items = draw(st.lists(st.integers(0, 9), max_size=max_items))
    return rank_case(draw(st.integers(0, 1 << 20)), ranks, items, draw(st.sampled_from(options)), least_ranks)


def with_ops(case: RankCase, rank: int, change: Callable[[list[Op]], list[Op]]) -> RankCase:
    """The case with other ops on one rank."""
    ops = [tuple(change(list(own))) if number == rank else own for number, own in enumerate(case.ops)]
    return RankCase(tuple(ops), case.options, case.cores)


def with_syncs(op: Op, change: Callable[[RankSync], RankSync]) -> Op:
    return replace(op, ranks=[change(sync) for sync in op.ranks])
