"""package.one_folder: the path of a package -> what is read of one folder, also where another takes its place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ..errors import BuildError, SuperKernelError

_MOST_FOLDERS = 16
_T = TypeVar("_T")


def read_one_folder(path: Path, read: Callable[[], _T]) -> _T:
    """What `read` returns; called anew where an export has put another folder in the place of the one that it reads."""
    for _ in range(_MOST_FOLDERS):
        with _held(path) as is_in_place:
            try:
                found = read()
            except SuperKernelError:
                if is_in_place():
                    raise
            else:
                if is_in_place():
                    return found
    raise BuildError(f"{path} was replaced {_MOST_FOLDERS} times while it was read; open it again")


@contextmanager
def _held(path: Path) -> Iterator[Callable[[], bool]]:
    """Whether the path still leads to the folder that is there now, which is held: no other one gets its number."""
    try:
        folder = os.open(path, os.O_PATH | os.O_DIRECTORY)
    except OSError:  # reading it tells why
        yield lambda: True
        return
    try:
        yield lambda: _leads_to(path, folder)
    finally:
        os.close(folder)


def _leads_to(path: Path, folder: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(folder))
    except OSError:
        return False
