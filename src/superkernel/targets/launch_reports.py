"""targets.launch_reports: where the report of a launch that stalled or crashed is written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ..cache import default_directory
from ..errors import BuildError

STALLED_STATUS = 70  # of a process that debug-watchdog-action=exit has ended


def report_path(name: str) -> Path:
    """Where a stalled or crashed launch leaves its report."""
    try:
        folder = default_directory() / "reports"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, BuildError):  # nothing of ours can be written: a saved kernel runs all the same
        folder = Path(tempfile.gettempdir())
    plain = "".join(c if c.isalnum() else "_" for c in name)[:80]
    return folder / f"{plain}-{os.getpid()}.txt"
