"""Emitted sources of random op lists."""

from __future__ import annotations

import random
from collections.abc import Iterator

from targets.ascend.random_lists import random_ops, random_options

from superkernel.errors import PlanError
from superkernel.model.graph import build_graph
from superkernel.model.options import Options
from superkernel.targets.ascend.chips import find_chip
from superkernel.targets.ascend.describe_kernel import emit
from superkernel.targets.ascend.kernel_description import EmittedKernel
from superkernel.targets.ascend.plan import make_ascend_plan


def random_emissions(first: int, count: int) -> Iterator[EmittedKernel]:
    """One per seed; what the planner refuses is drawn again."""
    for seed in range(first, first + count):
        choose = random.Random(seed)
        while True:
            options = Options.parse(random_options(choose))
            ops = random_ops(choose, choose.randint(2, 9))
            try:
                plan = make_ascend_plan(
                    build_graph(ops, f"list{seed}", options.stream_fusion), options, find_chip(None)
                )
            except PlanError:
                continue
            yield emit(plan)
            break
