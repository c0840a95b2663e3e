"""observe.rank_of_process: this process -> which rank of a torch.distributed job it is, and its folder of a profile."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from .profile import ProfiledRank

FOLDER = "rank"  # with the number behind it


def find_rank(monotonic_ns: int) -> ProfiledRank | None:
    """By torch's process group where there is one, otherwise by the environment that torchrun gives; None: alone."""
    found = _from_group() or _from_environment()
    if found is None or found[1] < 2:
        return None
    return ProfiledRank(*found, _boot(), monotonic_ns)


def folder_of(directory: Path, rank: ProfiledRank | None) -> Path:
    return directory if rank is None else directory / f"{FOLDER}{rank.rank}"


def _from_group() -> tuple[int, int] | None:
    distributed = sys.modules.get("torch.distributed")  # what is not imported has no group
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _from_environment() -> tuple[int, int] | None:
    with suppress(KeyError, ValueError):
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if 0 <= rank < ranks:
            return rank, ranks
    return None


def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
