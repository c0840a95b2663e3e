"""targets.native.object_facts: an object and names of its functions -> what plan and link must know, cached."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ...cache import Cache, digest
from .objects import unique_name, versions

_VERSION = "facts 3"  # of the fields below and of how they are found
WAIT, SIGNAL = "sk_wait_previous", "sk_set_next"


@dataclass(frozen=True)
class ObjectFacts:
    """What reading an object finds out: it takes milliseconds, and the reader's import many more."""

    symbols: tuple[str, ...]  # that the names mean
    unique: tuple[str, ...]  # what these are called when they stand beside others
    called: frozenset[str]  # symbols from elsewhere that the functions can come to call
    undefined: frozenset[str]  # all symbols that the object needs from elsewhere
    code_bytes: int  # of the largest
    waits: tuple[bool, ...]  # per symbol: every path through the function calls wait_previous()
    signals: bool  # some function may call set_next()
    signatures: tuple[str | None, ...]  # per symbol, as C++ spells it; None: a C function has none


def facts_of(
    path: Path,
    contents: str,
    names: Sequence[str],
    reported_path: Path,
    cache: Cache,
    architecture: str | None = None,
) -> ObjectFacts:
    """`contents` is the object's digest. Errors name `reported_path`, and are not cached."""
    key = digest(_VERSION, contents, *names, architecture or "", versions())

    def build(output: Path) -> None:
        output.write_text(json.dumps(asdict(_find(path, names, reported_path, architecture)), default=sorted))

    fields = json.loads(cache.make(key, ".json", build).read_text())
    symbols, unique = tuple(fields["symbols"]), tuple(fields["unique"])
    called, undefined = frozenset(fields["called"]), frozenset(fields["undefined"])
    waits = tuple(fields["waits"])
    signatures = tuple(fields["signatures"])
    return ObjectFacts(symbols, unique, called, undefined, fields["code_bytes"], waits, fields["signals"], signatures)


def _find(path: Path, names: Sequence[str], reported_path: Path, architecture: str | None) -> ObjectFacts:
    from .call_graph import references
    from .elf import read_object, symbol_size
    from .symbols import find_symbol
    from .toolchain import demangle

    found = replace(read_object(path, architecture), path=reported_path)
    symbols = tuple(find_symbol(found, name) for name in names)
    called: frozenset[str] = frozenset().union(*(references(path, symbol) for symbol in symbols))
    waits, signals = _early_start(path, symbols, called)
    names_of = demangle(symbols)
    return ObjectFacts(
        symbols,
        tuple(unique_name(symbol, path) for symbol in symbols),
        called,
        found.undefined,
        max(symbol_size(found, symbol) for symbol in symbols),
        waits,
        signals,
        tuple(text if text != symbol else None for symbol, text in ((s, names_of[s]) for s in symbols)),
    )


def _early_start(path: Path, symbols: Sequence[str], called: frozenset[str]) -> tuple[tuple[bool, ...], bool]:
    """Which functions wait on every path, and whether one may signal. Code is read only where there is a reference."""
    if not called & {WAIT, SIGNAL}:
        return (False,) * len(symbols), False
    from .control_flow import ControlFlow

    code = ControlFlow(path)
    waits = tuple(WAIT in called and code.always_calls(symbol, WAIT) for symbol in symbols)
    # Code that is not understood counts as signalling: the run time signals where the function did not.
    return waits, SIGNAL in called and any(code.may_call(symbol, SIGNAL) is not False for symbol in symbols)
