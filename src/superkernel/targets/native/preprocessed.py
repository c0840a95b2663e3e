"""targets.native.preprocessed: a source -> its preprocessed text; or, without a compiler, the key of its last object.

The cache key of a source's object depends on what the preprocessor makes of it. A record of the key, and of the user's
headers that went in, lets a machine without a compiler find the object as long as none of these files has changed.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ...cache import Cache, digest
from ...errors import BuildError
from .toolchain import run

_SPACE = re.compile(r"(?<!\\)\s+")


def preprocess(command: Sequence[str], source: Path) -> tuple[str, list[Path]]:
    """The preprocessed text, and the headers in it that are not the system's."""
    with tempfile.TemporaryDirectory(prefix="superkernel-") as folder:
        rule = Path(folder, "headers.d")
        arguments = ["-E", "-P", "-MMD", "-MF", str(rule), "-MT", "text", str(source.absolute())]
        text = run([*command, *arguments], what=f"preprocessing {source}")
        return text, _headers(rule)


def _headers(rule: Path) -> list[Path]:
    """The prerequisites of a rule for make, of which the first is the source."""
    try:
        listed = rule.read_bytes().decode("utf-8", "surrogateescape")
    except OSError:  # a compiler that writes none: the record will not be found to fit
        return []
    words = _SPACE.split(listed.replace("\\\n", " ").strip())
    return [Path(re.sub(r"\\([ #\\])", r"\1", word).replace("$$", "$")).absolute() for word in words[2:]]


def write_record(record: str, key: str, headers: Sequence[Path], cache: Cache) -> None:
    digests = {str(header): _digest(header) for header in headers}
    text = json.dumps({"key": key, "headers": digests})
    if cache.read_text(record, ".json") != text:
        cache.write_text(record, ".json", text)


def recorded_key(record: str, source: Path, cache: Cache) -> str:
    """The key under which the object of an unchanged source is; a BuildError where there is none."""
    missing = "there is no C++ compiler on PATH"
    text = cache.read_text(record, ".json")
    if text is None:
        raise BuildError(f"compiling {source}: {missing}, and the cache {cache.directory} has no object of it{_REMEDY}")
    fields = json.loads(text)
    for header, expected in fields["headers"].items():
        if _digest(Path(header)) != expected:
            raise BuildError(f"compiling {source}: {missing}, and {header} is not as it was at the last build{_REMEDY}")
    return str(fields["key"])


_REMEDY = ": install one (apt-get install g++ binutils), or load a saved super kernel"


def _digest(path: Path) -> str | None:
    try:
        return digest(path.read_bytes())
    except OSError:
        return None
