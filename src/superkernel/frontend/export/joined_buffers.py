"""frontend.export.joined_buffers: what calls did to buffers -> a refusal where two become one memory that is written.

In a package every state has memory of its own. Buffers may be one memory as long as they are only assigned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ...errors import UnsupportedError
from .assigned_buffers import AssignedBuffer, BufferChanges


def check_joined_buffers(calls: Sequence[tuple[str, BufferChanges]]) -> None:
    """`calls`: of all entries and shapes, which may follow each other in any order."""
    writers = {name: entry for entry, changes in calls for name in changes.written}
    moved = {move for _, changes in calls for move in changes.moved}
    for entry, changes in calls:
        for alias in changes.aliases:
            names = _one_memory({(alias.name, alias.other)}, moved)
            if written := next((name for name in (alias.other, alias.name, *sorted(names)) if name in writers), None):
                raise UnsupportedError(
                    f"entry {entry!r}: the model assigns {_what(alias)}, and entry {writers[written]!r} writes into "
                    f"{written!r} in place{_later(alias, written)}: assign a copy, as with .clone()"
                )


def _one_memory(pairs: set[tuple[str, str]], moved: Iterable[tuple[str, str]]) -> Collection[str]:
    """Buffers that may be in one memory with another one, by calls that give them the memory of one of the pair."""
    size = 0
    while size < len(pairs):
        size = len(pairs)
        both = pairs | {(right, left) for left, right in pairs}
        pairs |= {(target, other) for name, other in both for source, target in moved if source == name}
    return {name for pair in pairs for name in pair}


def _what(alias: AssignedBuffer) -> str:
    if alias.other == alias.name:
        return f"a tensor with elements that are one memory, as of expand(), to its buffer {alias.name!r}"
    if alias.is_other_assigned:
        return f"one memory to its buffers {alias.name!r} and {alias.other!r}"
    return f"{alias.other!r}, or a view of it, to its buffer {alias.name!r}"


def _later(alias: AssignedBuffer, written: str) -> str:
    return "" if written in (alias.name, alias.other) else ", which later calls may give the same memory"
