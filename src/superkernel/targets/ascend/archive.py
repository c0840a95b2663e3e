"""targets.ascend.archive: an object file or an ar archive in, its members and what is in them out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

from ...errors import BuildError, nearest
from .elf_object import ElfObject, Processor, parse_object, read_processor

_MAGIC = b"!<arch>\n"
_THIN = b"!<thin>\n"
_HEADER = 60


def is_archive(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(len(_MAGIC)) in (_MAGIC, _THIN)
    except OSError as reason:
        raise BuildError(f"{path}: cannot be read: {reason.strerror or reason}") from reason


def members(path: Path) -> dict[str, bytes]:
    """Name -> content. An object file is its own only member."""
    content = read_binary(path)
    if content.startswith(_THIN):
        raise BuildError(f"{path} is a thin archive, which holds names of files only: make it with ar rc, not with T")
    if not content.startswith(_MAGIC):
        return {path.name: content}
    found: dict[str, bytes] = {}
    for name, body in _entries(path, content):
        if name in found:
            raise BuildError(f"archive {path} holds {name!r} twice: only one of them could be unpacked")
        found[name] = body
    return found


def _entries(path: Path, content: bytes) -> Iterator[tuple[str, bytes]]:
    long_names = b""
    at = len(_MAGIC)
    while at + _HEADER <= len(content):
        header = content[at : at + _HEADER]
        if header[58:60] != b"`\n":
            raise BuildError(f"archive {path} is corrupt: no member begins at byte {at}")
        try:
            size = int(header[48:58])
        except ValueError:
            raise BuildError(f"archive {path} is corrupt: the member at byte {at} has no size") from None
        body = content[at + _HEADER : at + _HEADER + size]
        if len(body) < size:
            raise BuildError(f"archive {path} is truncated: it has {len(content)} bytes")
        raw = header[:16].rstrip()
        if raw == b"//":
            long_names = body
        elif raw not in (b"/", b"/SYM64/"):
            yield _name(path, raw, long_names), body
        at += _HEADER + size + size % 2


def _name(path: Path, raw: bytes, long_names: bytes) -> str:
    if raw.startswith(b"/") and raw[1:].isdigit():
        begin = int(raw[1:])
        raw = long_names[begin : long_names.find(b"\n", begin)]
    return raw.rstrip(b"/").decode("utf-8", "backslashreplace")


def check_members(path: Path, wanted: tuple[str, ...], where: str) -> None:
    """Every object that metadata names is there."""
    found = members(path)
    for name in wanted:
        if name not in found:
            held = ", ".join(found) or "nothing"
            raise BuildError(f"{where}: {path} has no object {name!r}{nearest(name, found)}; it holds {held}")


def check_function(path: Path, wanted: tuple[str, ...], names: tuple[str, ...], where: str) -> None:
    """One of the objects defines the function, under one of its names."""
    defined = [function for found in objects(path, wanted).values() for function in found.functions]
    if not set(names) & set(defined):
        held = ", ".join(defined) or "none"
        given = f"{path} ({', '.join(wanted)})" if wanted else str(path)
        raise BuildError(
            f"{where}: {given} defines no function {names[0]!r}{nearest(names[0], defined)}; its functions are {held}"
        )


def code_bytes(path: Path, wanted: tuple[str, ...] = ()) -> int:
    """The bytes of code in an object, or in some members of an archive; whatever processor it is for."""
    return sum(found.code_bytes for found in objects(path, wanted).values())


def objects(path: Path, wanted: tuple[str, ...] = ()) -> dict[str, ElfObject]:
    """Some members of an archive, or all, parsed."""
    found = members(path)
    return {name: _parsed(found[name], f"{path}: {name}") for name in wanted or tuple(found)}


_parsed = lru_cache(maxsize=64)(parse_object)  # by content: several functions of one object are looked at in turn


@cache
def host_processor() -> Processor:
    """This machine's, as its objects name it."""
    with open("/proc/self/exe", "rb") as program:
        return read_processor(program.read(64), "this program")


def foreign_member(path: Path) -> str | None:
    """The first member that is compiled for another processor than this machine's; None: there is none."""
    machine = host_processor().machine
    return next((name for name, found in objects(path).items() if found.processor.machine != machine), None)


def read_binary(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as reason:
        raise BuildError(f"{path}: cannot be read: {reason.strerror or reason}") from reason
