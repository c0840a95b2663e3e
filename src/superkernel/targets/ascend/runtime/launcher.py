"""targets.ascend.runtime.launcher: the Launcher of the ascend target: loaded kernels, and launches in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....errors import UnsupportedError
from ...protocol import Outputs, SequencedLaunch, TimedLaunch
from ..executable import AscendExecutable
from .launch import MEMORY, AscendLoadedKernel


class AscendLaunchSequence:
    """One launch after the other; between two of them the buffers are on the host."""

    def __init__(self, launches: Sequence[SequencedLaunch]) -> None:
        self._launches = launches

    def launch_values(self, values: Any, sizes: Any) -> None:
        self.launch_timed(values, sizes, [])

    def launch_timed(self, values: Any, sizes: Any, times: list[TimedLaunch]) -> None:
        for launch in self._launches:
            kernel = launch.kernel
            assert isinstance(kernel, AscendLoadedKernel)
            own_values, own_sizes = kernel.argument_arrays()
            for i, source in enumerate(launch.sources):
                own_values[i] = source.addend + (0 if source.place is None else values[source.place])
                own_sizes[i] = 0 if source.place is None else max(0, sizes[source.place] - source.addend)
            kernel.launch_values(own_values, own_sizes, launch.op_label)
            times.append((*kernel.last_launch(), kernel.time_stamps()))


@dataclass(frozen=True)
class AscendLauncher:
    """`library` is opened at the first launch: where there is a toolkit and no NPU, kernels are still built."""

    library: Path

    def load(self, executable: AscendExecutable) -> AscendLoadedKernel:
        return AscendLoadedKernel(executable, self.library)

    def load_alone(self, executable: AscendExecutable) -> None:
        return None  # a launch has the cores that its ops need

    def load_original(self, plan: object) -> None:
        return None

    memory = MEMORY

    def deferred(self, call: Callable[[], Outputs]) -> Callable[[], Outputs]:
        return call

    sequence = staticmethod(AscendLaunchSequence)

    def connect_ranks(self, kernel: AscendLoadedKernel, store: object, timeout_s: float) -> None:
        raise UnsupportedError(
            f"super_kernel_scope {kernel.plan.graph.name!r}: launches on several NPUs are not connected: run it with "
            "sk.emulate_ranks"
        )

    def time_launches(self, enabled: bool) -> None: ...  # every launch takes its times

    def crowded(self) -> bool:
        return False
