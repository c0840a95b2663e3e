"""Ranks of one group for tests: a store without torch, and a function that runs as each rank in a thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from superkernel.model.ranks import RankGroup
from superkernel.targets.cpu.runtime.ranks.shared_area import SharedArea

_JOIN_S, _MEET_S = 800, 600  # for what hangs: on a busy machine a thread may get no time for many seconds


class FolderStore:
    """A store whose keys are files of a folder, for processes that do not import torch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / key.replace("/", "~")

    def set(self, key: str, value: str | bytes) -> None:
        path = self._path(key)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_bytes(value.encode() if isinstance(value, str) else value)
        draft.rename(path)

    def get(self, key: str) -> bytes:
        return self._path(key).read_bytes()

    def check(self, keys: list[str]) -> bool:
        return all(self._path(key).exists() for key in keys)


def group_of(rank: int, ranks: int, name: str = "tp") -> RankGroup:
    """Global ranks are not places: they begin at 4."""
    return RankGroup(name, tuple(range(4, 4 + ranks)), rank)


def as_ranks(ranks: int, body: Callable[[int], Any]) -> list[Any]:
    """What `body` returns, or the exception that it raises, for each rank, all at the same time."""
    results: list[Any] = [None] * ranks

    def run(rank: int) -> None:
        try:
            results[rank] = body(rank)
        except BaseException as error:  # given to the test
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_JOIN_S)
        assert not thread.is_alive(), "a rank hangs"
    return results


def make_area(rank: int, ranks: int, store: Any, windows: Mapping[str, int], **more: Any) -> SharedArea:
    digest, listing = more.pop("digest", "same"), more.pop("listing", ())
    return SharedArea(store, group_of(rank, ranks), windows, digest, listing, more.pop("timeout_s", _MEET_S), **more)
