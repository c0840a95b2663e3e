"""runtime.built_kernel: the products of the stages that depend on the number of cores."""

from __future__ import annotations

from dataclasses import dataclass

from ..targets.protocol import Executable, LaunchPlan, LoadedKernel


@dataclass(frozen=True)
class BuiltKernel:
    cores: int  # that were asked for
    plan: LaunchPlan
    executable: Executable
    loaded: LoadedKernel | None  # None: the target has no launcher
