"""targets.ascend: AI cores, cube and vector: emits Ascend C, builds it where CANN is installed, emulates it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...errors import PlanError, UnsupportedError
from ...model.graph import Graph
from ...model.opsfile import OpsFile
from ...model.options import Options
from ...model.subkernel import SubKernel
from ...plan import Report
from ..protocol import LaunchSequence, Progress, SequencedLaunch, Text
from .build import plan_build
from .chips import Chip, find_chip
from .describe_kernel import emit
from .descriptor import describe
from .executable import AscendExecutable
from .facts import AscendFacts, as_type, complete, facts_from_json, facts_to_json
from .objects import build
from .oplist import read_op_list
from .plan import AscendPlan, make_ascend_plan
from .validate import validate

__all__ = ["TARGET", "as_type"]


@dataclass(frozen=True)
class AscendPrepared:
    kernels: Mapping[SubKernel, SubKernel]

    def build(self, plan: AscendPlan) -> AscendExecutable:
        emitted = emit(plan)
        commands = plan_build(emitted, plan.options.compile_options)
        built = build(commands, emitted.source)
        return AscendExecutable(plan, emitted, describe(plan, emitted, built.binary), commands, built)

    def build_together(self, plans: Sequence[AscendPlan]) -> list[AscendExecutable]:
        return [self.build(plan) for plan in plans]

    def launch_sequence(self, legs: Sequence[SequencedLaunch]) -> LaunchSequence:
        raise UnsupportedError(
            "an Ascend super kernel cannot be launched from here, nor can its ops: use k.emulate(...)"
        )


@dataclass(frozen=True)
class AscendTarget:
    chip: Chip
    name: str = "ascend"
    device: str = "npu"
    takes_models: bool = False
    launches: bool = False

    def for_chip(self, chip: str | Path | Mapping[str, Any] | None) -> AscendTarget:
        return self if chip is None else AscendTarget(find_chip(chip))

    def chip_fields(self) -> Mapping[str, Any]:
        return asdict(self.chip)

    def read_ops(self, path: Path) -> OpsFile:
        return read_op_list(path, self.chip)

    def core_count(self) -> int:
        return self.chip.cube_cores + self.chip.vector_cores

    def forced_cores(self, options: Options, cores: int | None, name: str) -> None:
        """The launch follows from the ops; options can force it, a number of cores without a class cannot."""
        if cores is not None:
            raise PlanError(
                f"super_kernel_scope {name!r}: cores={cores!r}: an Ascend launch has cube and vector cores; "
                "use the options debug-aic-num and debug-aiv-num"
            )

    def plan(self, graph: Graph, options: Options, cores: int) -> AscendPlan:
        plan = make_ascend_plan(graph, options, self.chip)
        report = validate(plan)
        if not report.ok:
            raise PlanError(
                f"super_kernel_scope {graph.name!r}: the plan does not validate, which is a defect of ours:\n{report}"
            )
        return plan

    def validate(self, plan: AscendPlan) -> Report:
        return validate(plan)

    def facts_to_json(self, kernel: SubKernel) -> Any:
        return facts_to_json(kernel)

    def facts_from_json(self, fields: Any) -> AscendFacts:
        return facts_from_json(fields)

    def prepare(self, kernels: Sequence[SubKernel], progress: Progress | None) -> AscendPrepared:
        return AscendPrepared({kernel: complete(kernel) for kernel in kernels})

    def warm_up(self) -> None:
        """Nothing here takes long to begin with."""

    def shipped_kernels(self) -> Mapping[str, str]:
        return {}  # sub-kernels are CANN's

    def compile_texts(self, texts: Sequence[Text], flags: Sequence[str]) -> list[Path]:
        raise UnsupportedError("the ascend target takes compiled sub-kernels; it has no compiler for generated ones")

    def restore(self, plan: AscendPlan, directory: Path) -> AscendExecutable:
        return AscendExecutable.restore(plan, directory)


TARGET = AscendTarget(find_chip(None))
