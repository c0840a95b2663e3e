"""Every scenario, emulated with stand-ins on two chips: values, races, flags and words must come out right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from targets.ascend.conformance.scenarios import SCENARIOS, Kernels, Scenario
from targets.ascend.device_lists import write_list

from superkernel.cache import Cache
from superkernel.model.graph import build_graph
from superkernel.targets.ascend import TARGET
from superkernel.targets.ascend.core_types import CoreClass
from superkernel.targets.ascend.describe_kernel import emit
from superkernel.targets.ascend.emulator.modules import HostModule, build_modules
from superkernel.targets.ascend.emulator.stand_in_launch import StandInEmulator
from superkernel.targets.ascend.kernel_description import EmittedKernel
from superkernel.targets.ascend.plan import AscendPlan
from superkernel.targets.protocol import LaunchInputs, Target

pytestmark = pytest.mark.slow

CHIPS = {"a3": (24, 48), "double": (48, 96)}  # cube and vector cores
MANY_SEEDS = 20
SAMPLE = tuple(SCENARIOS)[::3]


@dataclass(frozen=True)
class Ready:
    plans: Mapping[str, AscendPlan]
    emitted: Mapping[str, EmittedKernel]
    modules: Mapping[CoreClass, HostModule]

    def emulate(self, name: str, seed: int) -> None:
        plan, emitted = self.plans[name], self.emitted[name]
        settings = emitted, plan.graph, self.modules, Cache(), seed, None, (), True, False
        emulation = StandInEmulator(*settings, options=plan.options).run({}, LaunchInputs({}, {}))
        for event in emitted.events:
            word = emulation.words[emitted.layout.slots[event.slot].name]
            assert word == int(event.sent), f"event {event.label} is {word} at the end"


@cache
def ready(chip: str, names: tuple[str, ...]) -> Ready:
    """Scenarios on one chip, compiled together."""
    cubes, vectors = CHIPS[chip]
    target = TARGET.for_chip({**(TARGET.chip_fields() or {}), "cube_cores": cubes, "vector_cores": vectors})
    kernels = Kernels(cubes, vectors)
    with TemporaryDirectory() as folder:
        plans = {name: planned(target, Path(folder, name), name, SCENARIOS[name](kernels)) for name in names}
        emitted = {name: emit(plan) for name, plan in plans.items()}
        return Ready(plans, emitted, build_modules(list(emitted.values()), Cache(), stand_ins=True))


def planned(target: Target, folder: Path, name: str, scenario: Scenario) -> AscendPlan:
    """As `superkernel compile` plans a list; kernels get names that no other scenario uses."""
    entries = [replace(e, kernel=replace(e.kernel, name=f"{name}_{e.kernel.name}")) for e in scenario.entries]
    described = target.read_ops(write_list(folder, entries, scenario.options, name))
    graph = build_graph(described.ops, name, described.options.stream_fusion)
    prepared = target.builder.prepare(list(dict.fromkeys(node.kernel for node in graph.nodes)), (), None)
    plan = target.planner.plan(graph.with_kernels(dict(prepared.kernels)), described.options, 0)
    assert isinstance(plan, AscendPlan)
    return plan


def test_there_are_thirty_one_scenarios() -> None:
    assert len(SCENARIOS) == 31


@pytest.mark.parametrize("name", SAMPLE)
def test_a_scenario_holds(name: str) -> None:
    for seed in (0, 1 + len(name)):
        ready("a3", SAMPLE).emulate(name, seed)


@pytest.mark.conformance
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_holds_under_many_timings(chip: str, name: str) -> None:
    for seed in range(MANY_SEEDS):
        ready(chip, tuple(SCENARIOS)).emulate(name, seed)
