"""Random lists, as large as the chip, with stand-ins: everything that an op may be, in every order, holds."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from targets.ascend.random_lists import random_ops, random_options

from superkernel.cache import Cache
from superkernel.errors import PlanError
from superkernel.model.graph import build_graph
from superkernel.model.op import Op
from superkernel.model.options import Options
from superkernel.targets.ascend import TARGET
from superkernel.targets.ascend.calling_convention import SyncProtocol
from superkernel.targets.ascend.describe_kernel import emit
from superkernel.targets.ascend.emulator.modules import build_modules
from superkernel.targets.ascend.emulator.stand_in_launch import StandInEmulator
from superkernel.targets.ascend.facts import facts_of
from superkernel.targets.ascend.plan import AscendPlan
from superkernel.targets.protocol import LaunchInputs

CHUNK, LISTS, SEEDS = 20, 200, 4


def random_plan(seed: int) -> AscendPlan:
    """The first draw that can be planned."""
    choose = random.Random(seed)
    while True:
        ops = [as_compiled(op) for op in random_ops(choose, choose.randint(2, 16))]
        options = Options.parse(random_options(choose))
        try:
            plan = TARGET.planner.plan(build_graph(ops, f"list{seed}", options.stream_fusion), options, 0)
        except PlanError:
            continue
        assert isinstance(plan, AscendPlan)
        return plan


def as_compiled(op: Op) -> Op:
    """What CANN built waits and arrives by itself; no option can switch that off."""
    facts = facts_of(op.kernel)
    built = replace(facts, flags_declared=facts.protocol is SyncProtocol.CANN)
    return replace(op, kernel=replace(op.kernel, target_facts=built))


def passed_buffers(plan: AscendPlan, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Some of the names, with sizes that no op was made for."""
    choose = random.Random(seed)
    passed = [name for name in plan.graph.buffers if choose.random() < 0.5] if seed else []
    return {name: np.full(choose.choice((0, 1, 7, 64, 200, 1023, 5000)), seed, np.uint8) for name in passed}


def run_lists(first: int, count: int, seeds: int) -> None:
    plans = [random_plan(seed) for seed in range(first, first + count)]
    emitted = [emit(plan) for plan in plans]
    modules = build_modules(emitted, Cache(), stand_ins=True)
    for plan, kernel in zip(plans, emitted, strict=True):
        for seed in range(seeds):
            settings = kernel, plan.graph, modules, Cache(), seed, None, (), True, False
            StandInEmulator(*settings, options=plan.options).run(passed_buffers(plan, seed), LaunchInputs({}, {}))


def test_random_lists() -> None:
    run_lists(0, 10, 2)


@pytest.mark.conformance
@pytest.mark.parametrize("first", range(1000, 1000 + LISTS, CHUNK))
def test_many_random_lists(first: int) -> None:
    run_lists(first, CHUNK, SEEDS)
