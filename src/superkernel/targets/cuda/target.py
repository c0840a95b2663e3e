"""targets.cuda.target: slots of SMs as cores, PTX as binaries: one persistent kernel on an NVIDIA GPU, or emulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ...errors import OptionError, UnsupportedError, shown
from ...model.binary import Core
from ...model.graph import Graph
from ...model.opsfile import OpsFile, read_ops
from ...model.options import Options
from ...model.subkernel import SubKernel
from ...model.tiling import CompiledTiling
from ...plan import MOST_CORES, CoreChoice, Machine, Report, forced_cores, validate
from ..checks import Check
from ..protocol import ChipChoice, Launcher, Progress, Target
from .build import assembled_slots, build, check_architecture, registers_alone, spilled_bytes
from .checks import checks
from .cluster_choice import SyncTimes
from .device import DeviceDescription, device_fields, find_device
from .emulator import CudaEmulator
from .executable import CudaExecutable, restore
from .facts import complete, facts_from_json, facts_of, facts_to_json
from .machine import fitting_slots, machine_of
from .plan import CudaPlan, make_cuda_plan, staging_kernels
from .runtime.driver import why_no_driver
from .runtime.launcher import CudaLauncher
from .runtime.time_syncs import time_syncs
from .super_kernel_text import read_module
from .task_layout import MOST_SLOTS

__all__ = ["TARGET"]


@dataclass(frozen=True)
class CudaPlanner:
    """A core is a slot of an SM: cores= counts slots."""

    device: DeviceDescription

    def core_count(self) -> int:
        return min(MOST_SLOTS * self.device.sms, MOST_CORES)

    launch_limit = core_count

    def machine(self, cores: int) -> Machine:
        return machine_of(cores, max(1, -(-cores // self.device.sms)), self.device)

    def forced_cores(self, options: Options, cores: int | None, name: str) -> int | None:
        return forced_cores(options, cores, self.core_count(), name)

    def choose_cores(self, graph: Graph, options: Options, available: int) -> CoreChoice:
        """As many slots per SM as registers and shared memory allow; a plan uses no more than it has blocks."""
        slots = fitting_slots(graph, self.device, streams=options.prefetch_weights > 0)
        # plans, for some sub-kernels then wait inside
        slots, reason = assembled_slots(
            lambda count: self.plan(graph, options, count * self.device.sms), slots, self.device
        )
        return CoreChoice(slots * self.device.sms, reason=reason)

    def plan(self, graph: Graph, options: Options, cores: int, note: str = "") -> CudaPlan:
        _refuse_dynamic(graph)
        _refuse_parts(graph)
        device, timer = self.device, partial(time_syncs, self.device)
        plan = make_cuda_plan(graph, options, cores, device, note, timer)
        if device.staging_spills is None and staging_kernels(plan):
            spilled = spilled_bytes(plan, device)
            if spilled:  # the threads that fill the ring take registers from the others
                plan = make_cuda_plan(graph, options, cores, replace(device, staging_spills=spilled), note, timer)
        return plan

    def smaller_teams(self, plan: CudaPlan) -> tuple[int, ...]:
        return ()  # a binary is for one device

    def validate(self, plan: CudaPlan) -> Report:
        return validate(plan, plan.layout)


def _refuse_dynamic(graph: Graph) -> None:
    for node in graph.nodes:
        if node.dynamic:
            raise UnsupportedError(
                f"super_kernel_scope {shown(graph.name)}: op {node.name!r} is dynamic: the cuda target runs ops with a "
                "fixed grid; give the op task='normal'"
            )


def _refuse_parts(graph: Graph) -> None:
    for collective in graph.collectives if graph.part else ():
        if collective.group.size > 1:
            raise UnsupportedError(
                f"super_kernel_scope {shown(graph.name)}: collective {shown(collective.name)} with the ranks of "
                f"{collective.group}: on the cuda target it runs inside one super kernel, not op by op"
            )


@dataclass(frozen=True)
class CudaPrepared:
    kernels: Mapping[SubKernel, SubKernel]
    device: DeviceDescription

    def build(self, plans: Sequence[CudaPlan]) -> list[CudaExecutable]:
        return [build(plan, self.device) for plan in plans]


@dataclass(frozen=True)
class CudaBuilder:
    device: DeviceDescription

    def prepare(
        self, kernels: Sequence[SubKernel], tilings: Sequence[CompiledTiling], progress: Progress | None
    ) -> CudaPrepared:
        for tiling in tilings:
            raise UnsupportedError(
                f"tiling function {tiling.symbol!r}: the cuda target has no dynamic ops; give the op a fixed grid"
            )
        return CudaPrepared({kernel: self._completed(kernel, progress) for kernel in kernels}, self.device)

    def _completed(self, kernel: SubKernel, progress: Progress | None) -> SubKernel:
        if kernel.core is not Core.ANY:
            raise UnsupportedError(
                f"sub-kernel {shown(kernel.name)}: core={kernel.core.value!r}: the cores of a GPU are all alike; leave "
                "core out"
            )
        if progress is not None:
            progress(f"reading {kernel.name}")
        module = read_module(kernel.binary.path) if kernel.binary.path.suffix == ".ptx" else None
        completed = complete(kernel, module)
        facts = facts_of(completed)
        check_architecture(kernel, facts, self.device)
        facts = replace(facts, registers=registers_alone(completed, self.device))
        return replace(completed, target_facts=facts)

    restore = staticmethod(restore)
    facts_to_json = staticmethod(facts_to_json)
    facts_from_json = staticmethod(facts_from_json)


@dataclass(frozen=True)
class CudaTarget:
    chip: ChipChoice | None = None  # None: the GPU of this machine
    name: str = "cuda"
    model_support: None = None
    package_support: None = None

    @cached_property
    def device(self) -> DeviceDescription:
        return find_device(self.chip)

    @cached_property
    def planner(self) -> CudaPlanner:
        return CudaPlanner(self.device)

    @cached_property
    def builder(self) -> CudaBuilder:
        return CudaBuilder(self.device)

    @property
    def launcher(self) -> Launcher | None:
        return None if why_no_driver() else CudaLauncher(self.device)

    @property
    def why_no_launcher(self) -> str:
        reason = why_no_driver()
        return f"{reason}. Try it with k.emulate(buffers, seed=...)" if reason else ""

    @cached_property
    def emulator(self) -> CudaEmulator:
        return CudaEmulator()

    def for_chip(self, chip: ChipChoice | None) -> CudaTarget:
        if chip is None:
            return self
        find_device(chip)
        return CudaTarget(chip)

    def for_march(self, march: str | None) -> CudaTarget:
        if march is not None:
            raise OptionError(f"march={march!r}: the cuda target assembles for a chip; choose it with chip=")
        return self

    def chip_fields(self, plan: CudaPlan | None = None) -> Mapping[str, Any]:
        """With what was measured for the plan: a saved kernel is planned again, on any machine, as it was."""
        if plan is None:
            return device_fields(self.device)
        times, spilled = plan.sync_times or SyncTimes(), plan.staging_spills
        return device_fields(replace(self.device, sync_times=times, staging_spills=spilled))

    def read_ops(self, path: Path) -> OpsFile:
        return read_ops(path)

    def checks(self) -> tuple[Check, ...]:
        return checks()


TARGET: Target = CudaTarget()
