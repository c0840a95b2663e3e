"""targets.cuda.runtime.launch_timing: whether launches are timed; then each call waits for its launch."""

from __future__ import annotations


class LaunchTiming:
    """A switch for all kernels of the process, set while launches are reported to listeners."""

    def __init__(self) -> None:
        self.enabled = False

    def switch(self, enabled: bool) -> None:
        self.enabled = enabled


TIMING = LaunchTiming()
