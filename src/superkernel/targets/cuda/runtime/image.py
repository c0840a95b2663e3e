"""targets.cuda.runtime.image: a built super kernel -> what the run time loads and launches of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ....errors import LaunchError
from ....model.options import WatchdogAction
from ....plan import Plan
from ..assemble import missing_assembler
from ..executable import CudaExecutable


@dataclass(frozen=True)
class KernelImage:
    """One kernel: its cubin, the tables that are written into it, its launch, and the memory that a launch needs."""

    plan: Plan
    cubin: Path
    entry: str
    symbols: Mapping[str, bytes]  # of the module -> what is written there when it is loaded
    sms: int  # blocks, one per SM
    slots: int  # of a block; core = slot * sms + sm
    cores: int  # at most slots * sms
    slot_threads: int
    shared_bytes: int  # dynamic, of a block
    state_bytes: int
    stamp_room: int  # time stamps per core; 0: none are taken
    values: int  # how many 64-bit values the kernel takes: buffers, events, areas of copies and scratch, then zeros
    copies_bytes: int
    scratch_bytes: int
    task_steps: Sequence[Sequence[int]]  # per core: the step of the plan of each of its tasks
    stamp_steps: Sequence[Sequence[int]]  # per core: the step of the plan of each of its time stamps
    extra_threads: int = 0  # of a block, beside those of its slots
    cluster: int = 1  # blocks that reach each other's shared memory

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.slots * self.slot_threads + self.extra_threads

    @property
    def where(self) -> str:
        """How errors begin."""
        return f"super_kernel_scope {self.plan.graph.name!r}: "

    @property
    def watchdog_s(self) -> float:
        return self.plan.options.debug_watchdog

    @property
    def watchdog_exits(self) -> bool:
        return self.plan.options.debug_watchdog_action is WatchdogAction.EXIT


def image_of(executable: CudaExecutable) -> KernelImage:
    if executable.cubin is None:
        raise LaunchError(
            f"super_kernel_scope {executable.plan.graph.name!r}: there is no binary to launch: {missing_assembler()}"
        )
    return KernelImage(
        plan=executable.plan,
        cubin=executable.cubin,
        entry=executable.entry,
        symbols=executable.symbols,
        sms=executable.sms,
        slots=executable.slots,
        cores=executable.shape.cores,
        slot_threads=executable.threads,
        shared_bytes=executable.shared_bytes,
        state_bytes=executable.state_bytes,
        stamp_room=executable.stamp_room,
        values=executable.value_room,
        copies_bytes=executable.copies_bytes,
        scratch_bytes=executable.scratch_bytes,
        task_steps=executable.task_steps,
        stamp_steps=executable.stamp_steps,
        extra_threads=executable.slot_shape.block_threads - executable.slot_shape.slot_threads,
        cluster=executable.shape.cluster,
    )
