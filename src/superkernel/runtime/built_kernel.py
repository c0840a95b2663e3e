"""runtime.built_kernel: the products of the stages that depend on the number of cores."""

from __future__ import annotations

from dataclasses import dataclass

from ..targets.protocol import Executable, LaunchPlan, LoadedKernel


@dataclass(frozen=True)
class BuiltKernel:
    cores: int  # that the plan was made for
    plan: LaunchPlan
    executable: Executable
    loaded: LoadedKernel | None  # None: the target has no launcher
    alone: LoadedKernel | None = None  # the same binary on the calling thread alone; None: it needs its team
    measures_alone: bool = False  # the first launches measure which of both is faster

    def kernels(self) -> list[LoadedKernel]:
        return [kernel for kernel in (self.loaded, self.alone) if kernel is not None]
