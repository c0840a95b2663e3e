"""targets.ascend: AI cores, cube and vector: emits Ascend C, builds it where CANN is installed, emulates it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...errors import PlanError, UnsupportedError
from ...graph import Graph
from ...opsfile import OpsFile
from ...options import Options
from ...subkernel import SubKernel
from .. import Leg, Progress, Series, Text
from .chips import Chip, find_chip
from .facts import complete
from .plan import AscendPlan, make_ascend_plan
from .run import AscendExecutable

__all__ = ["TARGET"]


@dataclass(frozen=True)
class AscendPrepared:
    kernels: Mapping[SubKernel, SubKernel]

    def build(self, plan: AscendPlan) -> AscendExecutable:
        from .build import BuildPlan, Built
        from .descriptor import describe
        from .make import emit

        emitted = emit(plan)
        return AscendExecutable(plan, emitted, describe(plan, emitted, None), BuildPlan(), Built(None, "not built"))

    def line_up(self, legs: Sequence[Leg]) -> Series:
        raise UnsupportedError(
            "an Ascend super kernel cannot be launched from here, nor can its ops: use k.emulate(...)"
        )


@dataclass(frozen=True)
class AscendTarget:
    chip: Chip
    name: str = "ascend"
    device: str = "npu"

    def on(self, chip: str | Path | Mapping[str, Any] | None) -> AscendTarget:
        return self if chip is None else AscendTarget(find_chip(chip))

    def chip_fields(self) -> Mapping[str, Any]:
        return asdict(self.chip)

    def read_ops(self, path: Path) -> OpsFile:
        from ...opsfile import read_ops

        return read_ops(path)

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
        return make_ascend_plan(graph, options, self.chip)

    def validate(self, plan: AscendPlan) -> object:
        return ""

    def prepare(self, kernels: Sequence[SubKernel], progress: Progress | None) -> AscendPrepared:
        return AscendPrepared({kernel: complete(kernel) for kernel in kernels})

    def warm_up(self) -> None:
        """Nothing here takes long to begin with."""

    def register_kernels(self) -> None:
        """None come with this target: sub-kernels are CANN's."""

    def compile_texts(self, texts: Sequence[Text], flags: Sequence[str]) -> list[Path]:
        raise UnsupportedError("the ascend target takes compiled sub-kernels; it has no compiler for generated ones")

    def restore(self, plan: AscendPlan, directory: Path) -> AscendExecutable:
        raise UnsupportedError("not yet")


TARGET = AscendTarget(find_chip(None))
