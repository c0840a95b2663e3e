"""runtime.submitted_launches: launches in, futures out; a thread of the kernel runs them in their order.

A signal handler or a finalizer may submit while its own thread is submitting, and an exception that it raises may end
a submission anywhere. So there is no lock to wait for, and what is counted as pending is run: to count, to queue and to
start the thread are steps that an exception comes before or after, each in a `finally` of the one before. The thread
ends when there is nothing to run for a while: a process that ends waits for it no longer than that.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

from ..errors import LaunchError

Outputs = dict[str, Any]
_IDLE_S = 0.1

_ending: list[bool] = []  # not empty: the process waits for its threads to end
# Before it waits for them, as for concurrent.futures. `main_thread().is_alive()` is no way to ask: where a signal
# handler interrupts it, Python 3.11 takes the main thread for ended.
getattr(threading, "_register_atexit", atexit.register)(_ending.append, True)


class _SubmittedLaunch(Future[Outputs]):
    """Leaves `unfinished` when it is cancelled. A callback would do so too; but to add one is to take the lock of the
    future, which an interrupt can leave taken, and the thread that runs launches would wait for it for ever.
    """

    def __init__(self, unfinished: set[Future[Outputs]]) -> None:
        super().__init__()
        self._unfinished = unfinished

    def cancel(self) -> bool:
        is_cancelled = super().cancel()
        if is_cancelled:
            self._unfinished.discard(self)
        return is_cancelled


class SubmittedLaunches:
    """The launches submitted to one super kernel that have not completed. The first one starts their thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begin()

    def _begin(self) -> None:
        self._unfinished: set[Future[Outputs]] = set()
        self._waiting: SimpleQueue[tuple[Future[Outputs], Callable[[], Outputs]]] = SimpleQueue()
        self._serving = threading.Lock()  # of the thread that runs launches; others end at once
        self._process = os.getpid()

    def submit(self, launch: Callable[[], Outputs]) -> Future[Outputs]:
        """Run `launch` behind all that were submitted before."""
        if _ending:
            raise LaunchError(f"{self._name!r}: nothing can be submitted: the process is ending")
        if self._process != os.getpid():
            self._begin()  # a fork: thread and launches are in the parent
        future = _SubmittedLaunch(self._unfinished)
        try:
            try:
                try:
                    self._unfinished.add(future)
                finally:
                    self._waiting.put((future, launch))
            finally:
                self._ensure_thread()
        except RuntimeError as reason:  # there can be no other thread
            future.cancel()
            raise LaunchError(f"{self._name!r}: nothing can be submitted: {reason}") from reason
        return future

    def _ensure_thread(self) -> None:
        try:
            self._start_thread()
        except BaseException:  # an interrupt, before or after the thread has started
            self._start_thread()
            raise

    def _start_thread(self) -> None:
        if not self._serving.locked():
            threading.Thread(target=self._serve, name=f"superkernel-submit-{self._name}").start()

    def _serve(self) -> None:
        if not self._serving.acquire(blocking=False):
            return
        try:
            while self._run_next():
                pass
        finally:
            self._serving.release()
            if not self._waiting.empty():  # submitted while this thread was about to end
                self._ensure_thread()

    def _run_next(self) -> bool:
        """False: there was nothing to run for a while."""
        try:
            future, launch = self._waiting.get(timeout=_IDLE_S)
        except Empty:
            return False
        if not future.set_running_or_notify_cancel():
            self._unfinished.discard(future)
            return True
        # A launch is done before its future is: a caller that waits for the result may close the kernel.
        try:
            outputs = launch()
        except BaseException as reason:
            self._unfinished.discard(future)
            future.set_exception(reason)
        else:
            self._unfinished.discard(future)
            future.set_result(outputs)
        finally:
            del future, launch  # the traceback of an exception refers to this frame
        return True

    def pending(self) -> int:
        """How many launches wait or run."""
        return len(self._unfinished) if self._process == os.getpid() else 0


def copied(passed: Any) -> Any:
    """What the caller does with its dict after a submission has no effect on that; the launch refuses other types."""
    return dict(passed) if isinstance(passed, Mapping) else passed
