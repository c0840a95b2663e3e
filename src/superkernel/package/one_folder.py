"""package.one_folder: the path of a package -> what is read of one folder, also where another takes its place."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, TypeVar

from ..errors import BuildError, SuperKernelError
from ..model.json_value import JsonValue, parse_json_stream

AGAIN = "export the model again, or copy the package again"
_MOST_FOLDERS = 16
_T = TypeVar("_T")


@dataclass(frozen=True)
class HeldFolder:
    """The folder of a package. Files are opened by its descriptor: the path may lead to another folder by now."""

    path: Path
    descriptor: int

    def has_file(self, relative: str) -> bool:
        try:
            return stat.S_ISREG(os.stat(relative, dir_fd=self.descriptor).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def open(self, relative: str) -> BinaryIO:
        """A regular file of the package; links that lead out of the folder are refused."""
        path = self.path / relative
        try:
            if self._has_link(relative) and not path.resolve(strict=True).is_relative_to(self.path.resolve()):
                raise BuildError(f"{path} is a symbolic link that leads out of the package; copy the file in its place")
            if not stat.S_ISREG(os.stat(relative, dir_fd=self.descriptor).st_mode):
                raise BuildError(f"{path} is no regular file")
            return os.fdopen(os.open(relative, os.O_RDONLY | os.O_NONBLOCK, dir_fd=self.descriptor), "rb")
        except FileNotFoundError as missing:
            raise BuildError(f"{path} is missing; {AGAIN}") from missing
        except (OSError, RuntimeError) as reason:  # no permission, or a loop of links
            raise BuildError(f"{path} cannot be read: {reason}") from reason

    def read_json(self, relative: str) -> JsonValue:
        with self.open(relative) as stream:
            return parse_json_stream(stream, self.path / relative)

    def files(self) -> list[str]:
        """All files and links, by their paths in the folder."""
        found = []
        try:
            for root, folders, files, descriptor in os.fwalk(".", onerror=_refuse, dir_fd=self.descriptor):
                links = [name for name in folders if _is_link(name, descriptor)]
                found += [PurePosixPath(root, name).as_posix() for name in (*files, *links)]
        except OSError as reason:
            raise BuildError(f"{self.path} cannot be read: {reason}") from reason
        return sorted(found)

    def is_in_place(self) -> bool:
        """Whether the path still leads to the folder. While it is held, no other one gets its number."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self.descriptor))
        except OSError:
            return False

    def _has_link(self, relative: str) -> bool:
        """Whether the file or a folder on the way to it is a symbolic link."""
        steps = (path.as_posix() for path in (PurePosixPath(relative), *PurePosixPath(relative).parents[:-1]))
        return any(_is_link(step, self.descriptor) for step in steps)


def read_one_folder(path: Path, read: Callable[[HeldFolder], _T]) -> _T:
    """What `read` returns; called anew where an export has put another folder in the place of the one that it reads."""
    for _ in range(_MOST_FOLDERS):
        with hold(path) as folder:
            try:
                found = read(folder)
            except SuperKernelError:
                if folder.is_in_place():
                    raise
            else:
                if folder.is_in_place():
                    return found
    raise BuildError(f"{path} was replaced {_MOST_FOLDERS} times while it was read; open it again")


@contextmanager
def hold(path: Path) -> Iterator[HeldFolder]:
    """The folder that is at the path now."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY)
    except FileNotFoundError:
        raise BuildError(f"{path} does not exist; a package is a folder that sk.export has written") from None
    except NotADirectoryError:
        raise BuildError(f"{path} is not a package: it is not a folder; sk.export writes packages") from None
    except OSError as reason:  # no permission, or a path that is too long
        raise BuildError(f"{path} cannot be opened: {reason.strerror}") from reason
    try:
        yield HeldFolder(path, descriptor)
    finally:
        os.close(descriptor)


def _is_link(name: str, folder: int) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def _refuse(reason: OSError) -> None:
    raise reason
