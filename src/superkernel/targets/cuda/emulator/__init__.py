"""targets.cuda.emulator: runs emitted PTX on a GPU emulated on the host, and finds what would go wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from superkernel.targets.protocol import EmulatedMachine, LaunchInputs, RankLaunch

from .schedule import WarpSchedule

if TYPE_CHECKING:
    from ..executable import CudaExecutable
    from .launch import GpuEmulation

__all__ = ["CudaEmulator", "WarpSchedule"]


class CudaEmulator:
    """Decodes the PTX of a super kernel and runs its warps, interleaved by a seed."""

    def emulate(
        self, executable: CudaExecutable, buffers: Mapping[str, Any], launch_inputs: LaunchInputs, **more: Any
    ) -> GpuEmulation:
        """`more`: what launch.emulate takes."""
        from .launch import emulate

        return emulate(executable, buffers, launch_inputs, **more)

    def emulate_ranks(self, ranks: Sequence[RankLaunch], **more: Any) -> list[GpuEmulation]:
        """A GPU for each rank. `more`: what rank_launch.emulate_ranks takes."""
        from .rank_launch import emulate_ranks

        return emulate_ranks(ranks, **more)

    def machine(self, executable: CudaExecutable) -> EmulatedMachine:
        plan, shape = executable.plan, executable.plan.shape
        slots = f", {shape.slots} slots each" if shape.slots > 1 else ""
        return EmulatedMachine(
            f"{executable.architecture}, {shape.sms} SM{'s' if shape.sms > 1 else ''}{slots}",
            tuple(f"SM {core % shape.sms} slot {core // shape.sms}" for core in range(shape.cores)),
            sum(count for kind, count in plan.sync_counts.items() if kind != "none"),
            plan.blocking_steps,
            max(0, len(plan.graph.nodes) - 1),
        )

    def has_reference(self, executable: CudaExecutable, **more: Any) -> bool:
        return False
