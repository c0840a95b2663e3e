"""Emitted sources of random op lists."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from targets.ascend.random_lists import random_ops, random_options

from superkernel.errors import PlanError
from superkernel.model.graph import build_graph
from superkernel.model.op import Op
from superkernel.model.options import Options
from superkernel.targets.ascend.calling_convention import CallingConvention, SyncProtocol
from superkernel.targets.ascend.chips import find_chip
from superkernel.targets.ascend.describe_kernel import emit
from superkernel.targets.ascend.facts import facts_of
from superkernel.targets.ascend.kernel_description import EmittedKernel
from superkernel.targets.ascend.plan import make_ascend_plan


def _spoken(ops: list[Op], choose: random.Random) -> list[Op]:
    """The ops with sub-kernels of any calling convention and protocol."""
    chosen = []
    for op in ops:
        facts = facts_of(op.kernel)
        spoken = {"convention": choose.choice(list(CallingConvention)), "protocol": choose.choice(list(SyncProtocol))}
        chosen.append(replace(op, kernel=replace(op.kernel, target_facts=replace(facts, **spoken))))
    return chosen


def random_emissions(first: int, count: int) -> Iterator[EmittedKernel]:
    """One per seed; what the planner refuses is drawn again."""
    for seed in range(first, first + count):
        choose = random.Random(seed)
        while True:
            options = Options.parse(random_options(choose))
            ops = _spoken(random_ops(choose, choose.randint(2, 9)), choose)
            try:
                plan = make_ascend_plan(
                    build_graph(ops, f"list{seed}", options.stream_fusion), options, find_chip(None)
                )
            except PlanError:
                continue
            yield emit(plan)
            break
