"""observe.store: a profile -> the files of its directory, all of them or none; such a directory -> the profile."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import BuildError, OptionError, UnsupportedError
from .facts import FORMAT, VERSION, Profile
from .tables import details_csv, statistic_csv
from .timeline import trace_json

FACTS = "profile.json"
FILES = {"op_statistic.csv": statistic_csv, "kernel_details.csv": details_csv, "trace.json": trace_json}
REPORT = "report.html"
_REMEDY = "record it again: with superkernel.profile(directory), or superkernel trace script.py"


def prepare(directory: Path) -> None:
    """Fail before anything is run if nothing could be written afterwards."""
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
    """What stands there stays until everything new is on the disk; other files are left alone."""
    mark = f".{secrets.token_hex(6)}.unfinished"
    unfinished: dict[str, Path] = {}
    try:
        texts = {name: make(profile) for name, make in FILES.items()}
        sizes = {name: len(text.encode()) for name, text in texts.items()}
        texts[FACTS] = json.dumps({**profile.to_dict(), "files": sizes}, separators=(",", ":"), allow_nan=False)
        for name, text in texts.items():
            unfinished[name] = directory / f"{name}{mark}"
            _write(unfinished[name], text)
        # Between these steps a reader finds no profile.json, and says that the directory is half written.
        (directory / FACTS).unlink(missing_ok=True)
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


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # some file systems say only here that the disk is full


def read(directory: str | Path) -> Profile:
    """The profile that a directory holds; what is wrong with it is said."""
    folder = Path(directory)
    where = f"{str(directory)!r}"
    if not folder.exists():
        raise OptionError(f"{where}: there is no such directory; {_REMEDY}")
    if not folder.is_dir():
        raise OptionError(f"{where} is a file; a profile is a directory with {FACTS} in it")
    present = [name for name in FILES if (folder / name).is_file()]
    try:
        text = (folder / FACTS).read_text(encoding="utf-8")
    except FileNotFoundError:
        if present:
            raise OptionError(f"{where} is half written: it has {present[0]}, but no {FACTS}; {_REMEDY}") from None
        raise OptionError(f"{where} is no profile: it has no {FACTS}; {_REMEDY}") from None
    except (OSError, ValueError) as reason:
        raise OptionError(f"{folder / FACTS} cannot be read: {reason}") from reason
    found = _parsed(text, folder)
    for name, size in found["files"].items() if isinstance(found.get("files"), dict) else ():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            what = "has another size than" if path.is_file() else "is missing, or"
            raise OptionError(f"{where} is half written, or was changed: {name} {what} {FACTS} says; {_REMEDY}")
    try:
        return Profile.from_dict(found)
    except (KeyError, TypeError, ValueError, AttributeError) as reason:
        raise OptionError(f"{folder / FACTS}: not as a profile is: {reason!r}; {_REMEDY}") from reason


def _parsed(text: str, folder: Path) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as reason:
        raise OptionError(f"{folder / FACTS} is half written, or no JSON: {reason}; {_REMEDY}") from reason
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise OptionError(f'{folder / FACTS} is not ours: it has no "format": "{FORMAT}"')
    if found.get("version") != VERSION:
        package = found.get("package")
        raise UnsupportedError(
            f"{folder / FACTS} has version {found.get('version')!r}, written by superkernel {package}; this package "
            f"reads version {VERSION}: {_REMEDY}"
        )
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number in JSON")
