"""targets.native.object_facts: an object and names of its functions -> what plan and link must know, cached."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ...cache import Cache, digest
from .objects import unique_name, versions

_VERSION = "facts 1"  # of the fields below and of how they are found


@dataclass(frozen=True)
class ObjectFacts:
    """What reading an object finds out: it takes milliseconds, and the reader's import many more."""

    symbols: tuple[str, ...]  # that the names mean
    unique: tuple[str, ...]  # what these are called when they stand beside others
    called: frozenset[str]  # symbols from elsewhere that the functions can come to call
    undefined: frozenset[str]  # all symbols that the object needs from elsewhere
    code_bytes: int  # of the largest


def facts_of(path: Path, contents: str, names: Sequence[str], reported_path: Path, cache: Cache) -> ObjectFacts:
    """`contents` is the object's digest. Errors name `reported_path`, and are not cached."""
    key = digest(_VERSION, contents, *names, versions())

    def build(output: Path) -> None:
        output.write_text(json.dumps(asdict(_find(path, names, reported_path)), default=sorted))

    fields = json.loads(cache.make(key, ".json", build).read_text())
    symbols, unique = tuple(fields["symbols"]), tuple(fields["unique"])
    called, undefined = frozenset(fields["called"]), frozenset(fields["undefined"])
    return ObjectFacts(symbols, unique, called, undefined, fields["code_bytes"])


def _find(path: Path, names: Sequence[str], reported_path: Path) -> ObjectFacts:
    from .call_graph import references
    from .elf import read_object, symbol_size
    from .symbols import find_symbol

    found = replace(read_object(path), path=reported_path)
    symbols = tuple(find_symbol(found, name) for name in names)
    return ObjectFacts(
        symbols,
        tuple(unique_name(symbol, path) for symbol in symbols),
        frozenset().union(*(references(path, symbol) for symbol in symbols)),
        found.undefined,
        max(symbol_size(found, symbol) for symbol in symbols),
    )
