"""observe.machine: the launches of a run -> what to know of the machine that ran them."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from ..runtime.launch_events import LaunchedKernel, LaunchEvent


def machine_facts(launches: Sequence[LaunchEvent]) -> dict[str, Any]:
    cores = max((event.kernel.plan.cores for event in launches if isinstance(event.kernel, LaunchedKernel)), default=0)
    found: dict[str, Any] = {"processor": _processor()}
    found |= {"cores used": cores, "cores there": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    with suppress(metadata.PackageNotFoundError):
        found["torch"] = metadata.version("torch")
    return found


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
