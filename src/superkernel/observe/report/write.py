"""observe.report.write: a report -> its page on disk, whole or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from ...errors import BuildError
from .data import ReportData
from .page import page


def write_report(path: str | os.PathLike[str], data: ReportData) -> Path:
    """Write one self-contained HTML file and return its path; folders that are missing are made.

    An existing report stays as it was until the new one is complete.
    """
    target = Path(path)
    content = page(data).encode(errors="backslashreplace")  # a name need not be text that UTF-8 knows
    try:
        if target.is_dir():
            raise BuildError(f"the report cannot be written to {target}: it is a folder; name a file in it")
        if target.exists() and not target.is_file():  # a pipe or a device cannot be put in place whole
            target.write_bytes(content)
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        _put(target.resolve(), content)
    except OSError as reason:
        raise BuildError(
            f"the report cannot be written to {target}: {reason.strerror or reason}; name another place, or make room"
        ) from reason
    return target


def _put(target: Path, content: bytes) -> None:
    unfinished = target.with_name(f".{secrets.token_hex(6)}.unfinished")
    try:
        with unfinished.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # some file systems say only here that the disk is full
        unfinished.replace(target)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
