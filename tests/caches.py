"""Caches of a test's own that begin with the run time's host library, which takes seconds to compile."""

from __future__ import annotations

import shutil
from pathlib import Path

from superkernel.targets.cpu.build import build_context, host_library


def with_host_library(folder: Path) -> Path:
    """The folder as a cache directory that holds the host library and nothing else."""
    library = host_library(build_context())
    shard = folder / library.parent.name
    shard.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    for entry in library.parent.glob(f"{library.stem}*"):
        shutil.copy2(entry, shard)
    return folder
