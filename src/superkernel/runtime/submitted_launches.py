"""runtime.submitted_launches: launches in, futures out; a thread of the kernel runs them in their order."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ..errors import LaunchError

Outputs = dict[str, Any]


class SubmittedLaunches:
    """The launches submitted to one super kernel that have not completed. The first one starts their thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self._pending = 0

    def submit(self, launch: Callable[[], Outputs]) -> Future[Outputs]:
        """Run `launch` behind all that were submitted before."""
        if self._process != os.getpid():
            self._begin()  # a fork: thread and launches are in the parent, where the lock may be held
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"superkernel-submit-{self._name}")
            self._pending += 1
            try:
                future = self._executor.submit(self._run, launch)
            except BaseException as reason:
                self._pending -= 1
                if isinstance(reason, RuntimeError):  # no new thread: the process is ending
                    raise LaunchError(f"{self._name!r}: nothing can be submitted: {reason}") from reason
                raise
        future.add_done_callback(self._forget_cancelled)
        return future

    def _run(self, launch: Callable[[], Outputs]) -> Outputs:
        try:
            return launch()
        finally:
            self._completed()  # before the future has its result: a caller that waits for it may close the kernel

    def _forget_cancelled(self, future: Future[Outputs]) -> None:
        if future.cancelled():
            self._completed()

    def _completed(self) -> None:
        with self._lock:
            self._pending -= 1

    def pending(self) -> int:
        """How many launches wait or run."""
        return self._pending if self._process == os.getpid() else 0

    def stop(self) -> None:
        """Ends the thread; there is no pending launch."""
        if self._process != os.getpid():
            return
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)


def copied(passed: Any) -> Any:
    """What the caller does with its dict after a submission has no effect on that; the launch refuses other types."""
    return dict(passed) if isinstance(passed, Mapping) else passed
