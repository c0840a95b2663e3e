"""runtime.launch_choice: a built kernel -> what a launch uses: its team, the calling thread alone, or a reporter."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..targets.protocol import LoadedKernel
from .built_kernel import BuiltKernel
from .launch_events import ReportedLaunch, ReportingKernel
from .measured_kernel import MeasuredKernel

Reported = Callable[[LoadedKernel], ReportedLaunch]


class LaunchChoice:
    """Nothing is compiled when the choice changes: one binary holds the plan of the team and the whole plan.

    A launch that may use fewer than `team` threads takes `alone`, every other launch `chosen`.
    """

    def __init__(self, built: BuiltKernel, keeps_cores: bool, crowded: Callable[[], bool]) -> None:
        """`keeps_cores`: the caller gave the number of cores, so launches use it whatever torch's threads are."""
        self._lock = threading.Lock()
        self._reported: Reported | None = None
        self.alone = self._plain_alone = built.alone
        self.team = 0 if keeps_cores or built.alone is None else built.plan.cores
        self._plain: LoadedKernel | None = built.loaded
        if built.measures_alone and not keeps_cores and built.loaded is not None and built.alone is not None:
            self._plain = MeasuredKernel(built.loaded, built.alone, self._decide, crowded)
        self.chosen = self._plain

    def _decide(self, kernel: LoadedKernel) -> None:
        with self._lock:
            self._plain = kernel
            self._show()

    def start_reporting(self, reported: Reported) -> None:
        """Reporting kernels take the place of the plain ones; `reported` says what each launches."""
        with self._lock:
            self._reported = reported
            self._show()

    def stop_reporting(self) -> None:
        with self._lock:
            self._reported = None
            self._show()

    def _show(self) -> None:
        self.chosen, self.alone = self._shown(self._plain), self._shown(self._plain_alone)

    def _shown(self, kernel: LoadedKernel | None) -> LoadedKernel | None:
        if kernel is None or self._reported is None:
            return kernel
        return ReportingKernel(kernel, self._reported(kernel))
