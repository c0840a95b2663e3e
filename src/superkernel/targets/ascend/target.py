"""targets.ascend.target: AI cores, cube and vector: emits Ascend C, builds it where CANN is installed, emulates it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import OptionError, PlanError, UnsupportedError
from ...model.graph import Graph
from ...model.opsfile import OpsFile
from ...model.options import Options
from ...model.subkernel import SubKernel
from ...model.tiling import CompiledTiling
from ...plan import CoreChoice, Machine
from ..checks import Check
from ..protocol import ChipChoice, EmulatedMachine, LaunchInputs, Progress, RankLaunch, Target
from .build import Built, plan_build
from .checks import check_cann, check_libclang, check_npu
from .chips import Chip, chip_fields, find_chip
from .describe_kernel import emit
from .descriptor import describe
from .executable import AscendExecutable
from .facts import as_type, complete, facts_from_json, facts_to_json
from .kernel_areas import core_names
from .kernels.collectives import is_for_emulator
from .objects import build
from .operators.describe_op import is_described
from .operators.model_support import AscendModelSupport
from .oplist import read_op_list
from .plan import AscendPlan, make_ascend_plan
from .rank_events import with_rank_events
from .runtime.acl_library import find_library, missing_library
from .runtime.launcher import AscendLauncher
from .source_check import check_emitted
from .validate import validate

if TYPE_CHECKING:
    from .emulator import Emulation

__all__ = ["TARGET", "as_type"]


@dataclass(frozen=True)
class AscendPlanner:
    chip: Chip

    def core_count(self) -> int:
        return self.chip.cube_cores + self.chip.vector_cores

    launch_limit = core_count

    def machine(self, cores: int) -> Machine:
        """Cube cores come first; a cube core and its vector cores are a group."""
        cubes = self.chip.cube_cores
        per_cube = self.chip.vector_cores // cubes
        groups = ((cube, *range(cubes + cube * per_cube, cubes + (cube + 1) * per_cube)) for cube in range(cubes))
        return Machine(cores, tuple(group for group in groups if group[-1] < cores))

    def forced_cores(self, options: Options, cores: int | None, name: str) -> None:
        """The launch follows from the ops; options can force it, a number of cores without a class cannot."""
        if cores is not None:
            raise PlanError(
                f"super_kernel_scope {name!r}: cores={cores!r}: an Ascend launch has cube and vector cores; "
                "use the options debug-aic-num and debug-aiv-num"
            )

    def choose_cores(self, graph: Graph, options: Options, available: int) -> CoreChoice:
        return CoreChoice(available)  # the launch follows from the ops

    def plan(self, graph: Graph, options: Options, cores: int, note: str = "") -> AscendPlan:
        plan = make_ascend_plan(with_rank_events(graph), options, self.chip)
        validate(plan).require_ok(graph.name)
        return plan

    def smaller_teams(self, plan: AscendPlan) -> tuple[int, ...]:
        return ()  # a launch has the cores that its ops need

    validate = staticmethod(validate)


@dataclass(frozen=True)
class AscendPrepared:
    kernels: Mapping[SubKernel, SubKernel]

    def build(self, plans: Sequence[AscendPlan]) -> list[AscendExecutable]:
        return [_build(plan) for plan in plans]


def _build(plan: AscendPlan) -> AscendExecutable:
    emitted = emit(plan)
    parsed = check_emitted(emitted)
    commands = plan_build(emitted, plan.options.compile_options)
    unknown = dict.fromkeys(node.kernel.type_name for node in plan.graph.nodes if not _has_device_code(node.kernel))
    built = build(commands, emitted.source) if not unknown else Built(None, _why_not_built(commands.product, unknown))
    return AscendExecutable(plan, emitted, describe(plan, emitted, built.binary), commands, built, parsed)


def _has_device_code(kernel: SubKernel) -> bool:
    return not is_described(kernel) and not is_for_emulator(kernel)


def _why_not_built(product: str, unknown: Iterable[str]) -> str:
    lacking = f"there is no compiled kernel of {', '.join(unknown)}"
    return f"{product} was not built: {lacking}; name the folder of their metadata (kernel_meta)"


@dataclass(frozen=True)
class AscendBuilder:
    chip: Chip

    def prepare(
        self, kernels: Sequence[SubKernel], tilings: Sequence[CompiledTiling], progress: Progress | None
    ) -> AscendPrepared:
        for tiling in tilings:
            raise UnsupportedError(
                f"tiling function {tiling.symbol!r}: on the ascend target the AI CPU chooses tilings, not a core that "
                "calls a C function; give the op a Python function, which the emulator calls in its place"
            )
        return AscendPrepared({kernel: complete(kernel, self.chip) for kernel in kernels})

    restore = staticmethod(AscendExecutable.restore)
    facts_to_json = staticmethod(facts_to_json)
    facts_from_json = staticmethod(facts_from_json)


class AscendEmulator:
    """Compiles the emitted source for the host and runs cube and vector cores as threads."""

    def emulate(
        self, executable: AscendExecutable, buffers: Mapping[str, Any], launch_inputs: LaunchInputs, **more: Any
    ) -> Emulation:
        from .emulator import emulate

        plan = executable.plan
        return emulate(executable.emitted, plan.graph, buffers, launch_inputs, options=plan.options, **more)

    def emulate_ranks(self, ranks: Sequence[RankLaunch], **more: Any) -> list[Emulation]:
        """A chip for each rank."""
        from .emulator import RankKernel, emulate_ranks

        return emulate_ranks(
            [
                RankKernel(each.executable.emitted, each.executable.plan.graph, each.buffers, each.launch_inputs)
                for each in ranks
            ],
            **more,
        )

    def machine(self, executable: AscendExecutable) -> EmulatedMachine:
        plan = executable.plan
        return EmulatedMachine(
            f"chip {plan.chip.name}, {plan.launch.cubes} cube and {plan.launch.vectors} vector cores",
            core_names(plan.launch),
            len(plan.pairs),
            plan.flag_actions,
            plan.full_barrier_actions * len(plan.graph.nodes),
        )

    def has_reference(self, executable: AscendExecutable, stand_ins: bool | None = None, **more: Any) -> bool:
        from .emulator import uses_stand_ins

        return uses_stand_ins(executable.emitted, stand_ins)


@dataclass(frozen=True)
class AscendTarget:
    planner: AscendPlanner
    name: str = "ascend"
    emulator: AscendEmulator = field(default_factory=AscendEmulator)
    package_support: None = None

    @cached_property
    def model_support(self) -> AscendModelSupport:
        return AscendModelSupport(self.chip)

    @property
    def chip(self) -> Chip:
        return self.planner.chip

    @property
    def builder(self) -> AscendBuilder:
        return AscendBuilder(self.chip)

    @property
    def launcher(self) -> AscendLauncher | None:
        """Where CANN's run time library is, whether there is an NPU or not: a launch finds that out."""
        library = find_library()
        return None if library is None else AscendLauncher(library)

    @property
    def why_no_launcher(self) -> str:
        if find_library() is not None:
            return ""
        return (
            f"an Ascend super kernel needs an NPU and CANN's run time; it cannot be launched here: {missing_library()}"
            ". Try it with k.emulate(buffers, seed=...), or load the saved object there"
        )

    def for_chip(self, chip: ChipChoice | None) -> AscendTarget:
        return self if chip is None else AscendTarget(AscendPlanner(find_chip(chip)))

    def for_march(self, march: str | None) -> AscendTarget:
        if march is not None:
            raise OptionError(f"march={march!r}: the ascend target compiles for a chip; choose it with chip=")
        return self

    def chip_fields(self, plan: AscendPlan | None = None) -> Mapping[str, Any]:
        return chip_fields(self.chip)

    def read_ops(self, path: Path) -> OpsFile:
        return read_op_list(path, self.chip)

    def checks(self) -> tuple[Check, ...]:
        return check_cann(), check_libclang(), check_npu()


TARGET: Target = AscendTarget(AscendPlanner(find_chip(None)))
