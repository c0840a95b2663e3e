"""observe.store: a profile <-> the files of its directory; they are written all or none, and checked when read."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import BuildError, OptionError, UnsupportedError
from .json_form import decode, encode
from .profile import Profile
from .tables import details_csv, statistic_csv
from .timeline import trace_json

FORMAT, VERSION = "superkernel profile", 2
PROFILE = "profile.json"
FILES = {"op_statistic.csv": statistic_csv, "kernel_details.csv": details_csv, "trace.json": trace_json}
REPORT = "report.html"
_REMEDY = "record it again: with superkernel.profile(directory), or superkernel trace script.py"


def check_writable(directory: Path) -> None:
    """Fail before anything runs if the profile could not be written afterwards."""
    probe = directory / f".{secrets.token_hex(6)}.unfinished"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as reason:
        raise BuildError(
            f"profile directory {str(directory)!r} cannot be written: {reason.strerror or reason}; choose another"
        ) from reason


def write(directory: Path, profile: Profile) -> None:
    """An earlier profile stays until all new files are on the disk; other files are left alone."""
    mark = f".{secrets.token_hex(6)}.unfinished"
    unfinished: dict[str, Path] = {}
    try:
        texts = {name: to_text(profile) for name, to_text in FILES.items()}
        sizes = {name: len(text.encode()) for name, text in texts.items()}
        content = {"format": FORMAT, "version": VERSION, "files": sizes, **encode(profile)}
        texts[PROFILE] = json.dumps(content, separators=(",", ":"), allow_nan=False)
        for name, text in texts.items():
            unfinished[name] = directory / f"{name}{mark}"
            write_synced(unfinished[name], text.encode(errors="backslashreplace"))
        # Between these steps a reader finds no profile.json, and says that the directory is half written.
        (directory / PROFILE).unlink(missing_ok=True)
        (directory / REPORT).unlink(missing_ok=True)
        for name, path in unfinished.items():
            path.replace(directory / name)
    except OSError as reason:
        raise BuildError(
            f"the profile cannot be written to {str(directory)!r}: {reason.strerror or reason}; make room, or choose "
            "another directory"
        ) from reason
    finally:
        for path in unfinished.values():
            with suppress(OSError):
                path.unlink(missing_ok=True)


def write_synced(path: Path, content: bytes) -> None:
    """The bytes are on the disk when this returns."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # some file systems say only here that the disk is full


def read(directory: str | Path) -> Profile:
    """The profile of a directory. An OptionError or UnsupportedError says why it holds none."""
    folder = Path(directory)
    where = f"{str(directory)!r}"
    if not folder.exists():
        raise OptionError(f"{where}: there is no such directory; {_REMEDY}")
    if not folder.is_dir():
        raise OptionError(f"{where} is a file; a profile is a directory with {PROFILE} in it")
    present = [name for name in FILES if (folder / name).is_file()]
    try:
        text = (folder / PROFILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        if present:
            raise OptionError(f"{where} is half written: it has {present[0]}, but no {PROFILE}; {_REMEDY}") from None
        raise OptionError(f"{where} is no profile: it has no {PROFILE}; {_REMEDY}") from None
    except (OSError, ValueError) as reason:
        raise OptionError(f"{folder / PROFILE} cannot be read: {reason}") from reason
    content = _parsed(text, folder)
    sizes = content.pop("files", None)
    for name in FILES:
        path = folder / name
        if not path.is_file() or not isinstance(sizes, dict) or path.stat().st_size != sizes.get(name):
            what = "has another size than" if path.is_file() else "is missing, or"
            raise OptionError(f"{where} is half written, or was changed: {name} {what} {PROFILE} says; {_REMEDY}")
    try:
        return decode(Profile, content, "profile")
    except BuildError as reason:
        raise OptionError(f"{folder / PROFILE}: not as a profile is: {reason}; {_REMEDY}") from reason


def _parsed(text: str, folder: Path) -> dict[str, Any]:
    try:
        content = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as reason:
        raise OptionError(f"{folder / PROFILE} is half written, or no JSON: {reason}; {_REMEDY}") from reason
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise OptionError(f'{folder / PROFILE} is not ours: it has no "format": "{FORMAT}"')
    if (version := content.pop("version", None)) != VERSION:
        raise UnsupportedError(
            f"{folder / PROFILE} has version {version!r}, written by superkernel {content.get('package')}; "
            f"this package reads version {VERSION}: {_REMEDY}"
        )
    return content


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number in JSON")
