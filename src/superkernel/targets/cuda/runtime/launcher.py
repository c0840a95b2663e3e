"""targets.cuda.runtime.launcher: the Launcher of the cuda target: loaded kernels, and launches in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....plan import Plan
from ...protocol import Outputs, SequencedLaunch, TimedLaunch
from ...ranks.store_exchange import Store
from ..device import DeviceDescription
from ..executable import CudaExecutable
from .arguments import CudaMemory, cuda_torch
from .image import image_of
from .launch import CudaLoadedKernel
from .launch_timing import TIMING
from .original_entry import OriginalKernel, find_original


class CudaLaunchSequence:
    """One launch after the other on the current stream."""

    def __init__(self, launches: Sequence[SequencedLaunch]) -> None:
        self._launches = launches

    def launch_values(self, values: Any, sizes: Any) -> None:
        for launch in self._launches:
            self._launch(launch, values, sizes)

    def launch_timed(self, values: Any, sizes: Any, times: list[TimedLaunch]) -> None:
        for launch in self._launches:
            self._launch(launch, values, sizes)
            times.append((*launch.kernel.last_launch(), launch.kernel.time_stamps()))

    def _launch(self, launch: SequencedLaunch, values: Any, sizes: Any) -> None:
        kernel = launch.kernel
        assert isinstance(kernel, CudaLoadedKernel | OriginalKernel)
        taken = [(0 if source.place is None else values[source.place]) + source.addend for source in launch.sources]
        left = [0 if source.place is None else max(0, sizes[source.place] - source.addend) for source in launch.sources]
        kernel.launch_values(taken, left, launch.op_label)


@dataclass(frozen=True)
class CudaLauncher:
    """Loads and launches what was built for a device."""

    device: DeviceDescription
    memory: CudaMemory = field(default_factory=CudaMemory)

    def load(self, executable: CudaExecutable) -> CudaLoadedKernel:
        return CudaLoadedKernel(image_of(executable))

    def load_alone(self, executable: Any) -> None:
        return None  # a launch has the SMs that its plan is made for

    def load_original(self, plan: Plan) -> OriginalKernel:
        return OriginalKernel(find_original(plan, self.device))

    def deferred(self, call: Callable[[], Outputs]) -> Callable[[], Outputs]:
        """On the stream that is current now; torch's current stream is another in another thread."""
        torch = cuda_torch()
        if torch is None:
            return call
        stream = torch.cuda.current_stream()

        def on_stream() -> Outputs:
            with torch.cuda.stream(stream):
                return call()

        return on_stream

    def connect_ranks(self, kernel: CudaLoadedKernel, store: Store, timeout_s: float) -> None:
        kernel.connect_ranks(store, timeout_s)

    sequence = staticmethod(CudaLaunchSequence)
    time_launches = staticmethod(TIMING.switch)

    def crowded(self) -> bool:
        return False
