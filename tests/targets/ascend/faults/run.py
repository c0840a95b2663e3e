"""Runs faulty kernels on the emulator, with stand-ins for their sub-kernels, until something is found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from targets.ascend.faults.plant import Fault

from superkernel.cache import Cache
from superkernel.errors import BuildError, LaunchError
from superkernel.model.tiling import Tiling, TilingFunction
from superkernel.targets.ascend.core_types import CoreClass
from superkernel.targets.ascend.emulator import launch as emulator_launch
from superkernel.targets.ascend.emulator.launch import Emulation
from superkernel.targets.ascend.emulator.modules import HostModule, build_modules
from superkernel.targets.ascend.emulator.stand_in_launch import StandInEmulator
from superkernel.targets.ascend.plan import AscendPlan
from superkernel.targets.protocol import LaunchInputs

BATCH = 40  # texts that are compiled together
STALL = 60_000  # steps without progress: a fault that makes an endless loop is found soon
_REFUSED = re.compile(r"^(\w+)_kernel\.cpp:\d+:\d+: (?:fatal )?error", re.M)
VALUES = "run one after the other"  # in the complaint of a stand-in
SEEDS = range(4)


class By(Enum):
    """Who finds a fault."""

    EMULATOR = "emulator"
    VALUES = "values"
    BUILD = "build"
    NOBODY = "nobody"


@dataclass(frozen=True)
class Finding:
    fault: Fault
    by: By
    complaint: str = ""


def run_faults(plan: AscendPlan, faults: Sequence[Fault]) -> list[Finding]:
    found: list[Finding] = []
    for first in range(0, len(faults), BATCH):
        found += _run_batch(plan, faults[first : first + BATCH])
    return found


def _run_batch(plan: AscendPlan, faults: Sequence[Fault]) -> list[Finding]:
    try:
        modules = build_modules([fault.emitted for fault in faults], Cache(), True)
    except BuildError as error:
        refused = set(_REFUSED.findall(error.stderr))  # the compiler names every text that it refuses
        rest = [fault for fault in faults if fault.emitted.name not in refused]
        if len(rest) == len(faults):
            raise
        findings = {id(finding.fault): finding for finding in _run_batch(plan, rest)} if rest else {}
        return [findings.get(id(fault), Finding(fault, By.BUILD, str(error))) for fault in faults]
    return [_finding(plan, fault, modules) for fault in faults]


def _finding(plan: AscendPlan, fault: Fault, modules: Mapping[CoreClass, HostModule]) -> Finding:
    for seed, tilings in _right_launches(plan):
        launches = 2 if seed == SEEDS[1] else 1
        if complaint := _complaint(plan, fault, modules, seed, tilings, launches=launches):
            return Finding(fault, By.VALUES if VALUES in complaint else By.EMULATOR, complaint)
    for tilings, more_blocks in _wrong_tilings(plan):
        complaint = _complaint(plan, fault, modules, SEEDS[0], tilings, more_blocks)
        if "trap" not in complaint:
            return Finding(fault, By.EMULATOR, complaint or "an answer that must trap does not")
    return Finding(fault, By.NOBODY)


def emulations_of(plan: AscendPlan, fault: Fault) -> Iterator[Emulation]:
    """What the cores do in launches in which nothing is found, with every tiling key."""
    modules = build_modules([fault.emitted], Cache(), True)
    for seed, tilings in _right_launches(plan):
        settings = fault.emitted, plan.graph, modules, Cache(), seed, None, (), True, True
        yield StandInEmulator(*settings, options=plan.options).run({}, LaunchInputs({}, tilings))


def _complaint(
    plan: AscendPlan,
    fault: Fault,
    modules: Mapping[CoreClass, HostModule],
    seed: int,
    tilings: dict[str, TilingFunction],
    more_blocks: int = 0,
    launches: int = 1,
) -> str:
    usual, emulator_launch.STALL_LIMIT = emulator_launch.STALL_LIMIT, STALL
    settings = fault.emitted, plan.graph, modules, Cache(), seed, None, (), True, True
    emulator = _Exaggerating(*settings, options=plan.options, more_blocks=more_blocks, launches=launches)
    try:
        emulator.run({}, LaunchInputs({}, tilings))
    except LaunchError as error:
        return str(error)
    finally:
        emulator_launch.STALL_LIMIT = usual
    return ""


@dataclass
class _Exaggerating(StandInEmulator):
    """Its control agents write a larger block count than they decided."""

    more_blocks: int = 0

    def _writer(self, machine: int, values: Mapping[int, int]) -> Callable[[int], None]:
        if self.more_blocks and len(values) == 3:  # key, block count, lock
            key, blocks, lock = values.items()
            values = dict((key, (blocks[0], blocks[1] + self.more_blocks), lock))
        return super()._writer(machine, values)


def _right_launches(plan: AscendPlan) -> Iterable[tuple[int, dict[str, TilingFunction]]]:
    """Some seeds; and every tiling key with the most blocks."""
    for seed in SEEDS:
        yield seed, {}
    for node in plan.graph.nodes:
        for key, _ in node.kernel.tiling_variants if node.dynamic else ():
            yield SEEDS[-1], {node.name: lambda inputs, key=key, most=node.blocks: Tiling(key, most)}


def _wrong_tilings(plan: AscendPlan) -> Iterable[tuple[dict[str, TilingFunction], int]]:
    """Answers of the control agent on which the kernel must trap: an unknown key, or too many blocks."""
    for node in plan.graph.nodes:
        if node.dynamic:
            known, _ = node.kernel.tiling_variants[0]
            yield {node.name: lambda inputs: Tiling(12345, 0)}, 0
            yield {node.name: lambda inputs, most=node.blocks: Tiling(12345, most)}, 0
            yield {node.name: lambda inputs, key=known, most=node.blocks: Tiling(key, most)}, 1
