"""The threads of models; some of the lowest priority keep the processors of callers busy, with wait="spin"."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path


def awake_threads() -> list[int]:
    return [task for task in map(int, os.listdir("/proc/self/task")) if _name(task) == "sk-awake"]


def model_threads() -> set[int]:
    """Also those of teams, but none that other parts of the process may start at any time."""
    return {task for task in map(int, os.listdir("/proc/self/task")) if _name(task) in ("sk-awake", "superkernel")}


def _name(task: int) -> str | None:
    with suppress(OSError):  # it has ended meanwhile
        return Path(f"/proc/self/task/{task}/comm").read_text().strip()
    return None


def await_end_of_awake_threads() -> None:
    """The system removes a thread a moment after it was joined; on a busy machine a close may leave it for longer."""
    end = time.monotonic() + 240
    while awake_threads():
        assert time.monotonic() < end, "the thread has not ended"
        time.sleep(0.001)
