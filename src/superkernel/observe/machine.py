"""observe.machine: the launches of a run -> named facts about the machine that ran them."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from ..runtime.launch_events import LaunchedKernel, LaunchEvent


def machine_facts(events: Sequence[LaunchEvent]) -> dict[str, str | int]:
    cores = max((event.kernel.plan.cores for event in events if isinstance(event.kernel, LaunchedKernel)), default=0)
    facts: dict[str, str | int] = {"processor": _processor()}
    facts |= {"cores used": cores, "cores there": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    with suppress(metadata.PackageNotFoundError):
        facts["torch"] = metadata.version("torch")
    return facts


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
