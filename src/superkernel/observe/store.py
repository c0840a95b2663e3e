"""observe.store: a profile <-> the files of its directory; they are written all or none, and checked when read.

A file that would be large is compressed instead, and has `.gz` behind its name.
"""

from __future__ import annotations

import gzip
import json
import os
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BuildError, OptionError, UnsupportedError
from ..model.gc_pause import without_collection
from .json_form import decode, encode
from .profile import Profile
from .tables import calls_csv, details_csv, inner_types_csv, statistic_csv, waits_csv
from .timeline import trace_pieces

FORMAT, VERSION = "superkernel profile", 4
PROFILE = "profile.json"
FILES: dict[str, Callable[[Profile], Iterable[str]]] = {  # name -> its text, in pieces
    "op_statistic.csv": lambda profile: [statistic_csv(profile)],
    "kernel_details.csv": lambda profile: [details_csv(profile)],
    "calls.csv": lambda profile: [calls_csv(profile)],
    "inner_op_statistic.csv": lambda profile: [inner_types_csv(profile)],
    "waits.csv": lambda profile: [waits_csv(profile)],
    "trace.json": trace_pieces,
}
REPORT = "report.html"
COMPRESSED = ".gz"
LARGE = 8_000_000  # bytes of a file from which on it is compressed
_LEVEL = 3  # of gzip: three times as fast as the default, and a tenth larger
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


@without_collection
def write(directory: Path, profile: Profile) -> list[str]:
    """The names of the files. An earlier profile stays until all of them are on the disk; others are left alone."""
    mark = f".{secrets.token_hex(6)}.unfinished"
    unfinished: dict[str, Path] = {}

    def add(name: str, pieces: Iterable[str]) -> tuple[str, int]:
        """The final name of a file, and its size."""
        path = unfinished[name] = directory / f"{name}{mark}"
        if not _write_pieces(path, pieces):
            return name, path.stat().st_size
        unfinished[name + COMPRESSED] = unfinished.pop(name)
        return name + COMPRESSED, path.stat().st_size

    try:
        sizes = dict(add(name, to_pieces(profile)) for name, to_pieces in FILES.items())
        add(PROFILE, _profile_pieces(profile, sizes))
        # Between these steps a reader finds no profile.json, and says that the directory is half written.
        for name in (PROFILE, REPORT, *FILES):
            (directory / name).unlink(missing_ok=True)
            (directory / f"{name}{COMPRESSED}").unlink(missing_ok=True)
        for name, path in unfinished.items():
            path.replace(directory / name)
        return list(unfinished)
    except OSError as reason:
        raise BuildError(
            f"the profile cannot be written to {str(directory)!r}: {reason.strerror or reason}; make room, or choose "
            "another directory"
        ) from reason
    finally:
        for path in unfinished.values():
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _profile_pieces(profile: Profile, sizes: dict[str, int]) -> Iterator[str]:
    """The launches come last, one by one: with detail they hold nearly everything."""
    content = {"format": FORMAT, "version": VERSION, "files": sizes, **encode(replace(profile, launches=()))}
    del content["launches"]
    yield f'{_dumped(content)[:-1]},"launches":['
    for place, launch in enumerate(profile.launches):
        yield f"{',' if place else ''}{_dumped(encode(launch))}"
    yield "]}"


def _dumped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _write_pieces(path: Path, pieces: Iterable[str]) -> bool:
    """Whether the file was compressed."""
    small: list[bytes] = []
    size, remaining = 0, iter(pieces)
    for piece in remaining:
        small.append(piece.encode(errors="backslashreplace"))
        size += len(small[-1])
        if size > LARGE:
            break
    else:
        write_synced(path, b"".join(small))
        return False
    with path.open("wb") as file:
        with gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as compressed:
            compressed.write(b"".join(small))
            for piece in remaining:
                compressed.write(piece.encode(errors="backslashreplace"))
        file.flush()
        os.fsync(file.fileno())
    return True


def write_synced(path: Path, content: bytes) -> None:
    """The bytes are on the disk when this returns."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # some file systems say only here that the disk is full


@without_collection
def read(directory: str | Path) -> Profile:
    """The profile of a directory. An OptionError or UnsupportedError says why it holds none."""
    folder = Path(directory)
    where = f"{str(directory)!r}"
    if not folder.exists():
        raise OptionError(f"{where}: there is no such directory; {_REMEDY}")
    if not folder.is_dir():
        raise OptionError(f"{where} is a file; a profile is a directory with {PROFILE} in it")
    present = [path.name for name in FILES if (path := plain_or_compressed(folder / name)).is_file()]
    try:
        text = read_text(plain_or_compressed(folder / PROFILE))
    except FileNotFoundError:
        if present:
            raise OptionError(f"{where} is half written: it has {present[0]}, but no {PROFILE}; {_REMEDY}") from None
        raise OptionError(f"{where} is no profile: it has no {PROFILE}; {_REMEDY}") from None
    except (OSError, ValueError, EOFError, zlib.error) as reason:
        raise OptionError(f"{folder / PROFILE} cannot be read: {reason}") from reason
    content = _parsed(text, folder)
    sizes = content.pop("files", None)
    for name in FILES:
        path = plain_or_compressed(folder / name)
        if not path.is_file() or not isinstance(sizes, dict) or path.stat().st_size != sizes.get(path.name):
            what = "has another size than" if path.is_file() else "is missing, or"
            raise OptionError(f"{where} is half written, or was changed: {name} {what} {PROFILE} says; {_REMEDY}")
    try:
        return decode(Profile, content, "profile")
    except BuildError as reason:
        raise OptionError(f"{folder / PROFILE}: not as a profile is: {reason}; {_REMEDY}") from reason


def plain_or_compressed(path: Path) -> Path:
    """The file of that name, or the compressed one where only that exists."""
    compressed = path.with_name(path.name + COMPRESSED)
    return compressed if compressed.is_file() and not path.exists() else path


def read_text(path: Path) -> str:
    """The text of a file; one whose name ends in .gz is decompressed."""
    if path.suffix == COMPRESSED:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return file.read()
    return path.read_text(encoding="utf-8")


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
