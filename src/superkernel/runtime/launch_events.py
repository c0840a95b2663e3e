"""watch: launches of this process -> whoever watches, with their times; while nobody does, nothing here is called."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any, Protocol

from ..model.graph import Graph
from ..model.node import Node
from ..plan import Plan
from ..targets.protocol import Recording


@dataclass
class Note:
    """What is known of a super kernel beside its graph; whoever made it fills it in."""

    scope: str
    reason: str = ""  # why it ends where it does, or why it is not fused
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # op -> lines of the model
    unfusible: tuple[str, ...] = ()  # what else stands in the scope


@dataclass(frozen=True)
class Whole:
    """A super kernel, launched as one."""

    graph: Graph
    note: Note
    plan: Plan
    source: str


@dataclass(frozen=True)
class Alone:
    """One op of a graph as a launch of its own."""

    graph: Graph
    note: Note
    node: Node
    plan: Plan  # of the op alone


@dataclass(frozen=True)
class Foreign:
    """A kernel or an operator that torch launched, between or outside of ours."""

    name: str
    operator: str  # what it computes: an operator's name, or that of a generated kernel
    scope: str = ""
    reason: str = ""  # why it is no part of a super kernel, if it might have been


@dataclass(frozen=True)
class Launched:
    """One launch that completed. Times are monotonic nanoseconds, from dispatch to completion."""

    what: Whole | Alone | Foreign
    begin_ns: int
    end_ns: int
    thread: int
    sizes: tuple[int, ...] = ()  # bytes of each buffer of the graph, where they are known
    recording: Recording | None = None


class Watcher(Protocol):
    detail: bool  # wants to know what every core did

    def launched(self, launch: Launched) -> None: ...


class Watchable(Protocol):
    """Something that launches: told to report its launches, or to stop that."""

    def begin_watch(self, detail: bool) -> None: ...  # may come again, with another wish
    def end_watch(self) -> None: ...


_lock = threading.RLock()
_watchers: tuple[Watcher, ...] = ()
_watchables: weakref.WeakSet[Any] = weakref.WeakSet()


def register(launcher: Watchable) -> None:
    """From now on whoever watches is told of its launches."""
    with _lock:
        _watchables.add(launcher)
        if _watchers:
            launcher.begin_watch(detailed())


def add(watcher: Watcher) -> None:
    with _lock:
        _change((*_watchers, watcher))


def remove(watcher: Watcher) -> None:
    with _lock:
        _change(tuple(one for one in _watchers if one is not watcher))


def _change(watchers: tuple[Watcher, ...]) -> None:
    global _watchers  # one per process, as launches are
    before, _watchers = (bool(_watchers), detailed()), watchers
    now = bool(watchers), detailed()
    if before == now:
        return
    for launcher in list(_watchables):
        if watchers:
            launcher.begin_watch(now[1])
        else:
            launcher.end_watch()


def watching() -> bool:
    return bool(_watchers)


def detailed() -> bool:
    return any(watcher.detail for watcher in _watchers)


def tell(launches: Sequence[Launched]) -> None:
    for watcher in _watchers:
        for launch in launches:
            watcher.launched(launch)


@contextmanager
def told(what: Foreign) -> Iterator[None]:
    """What runs inside is a launch of torch's."""
    with shown_to_torch(what.name):
        begin = monotonic_ns()
        yield
        end = monotonic_ns()
    tell([Launched(what, begin, end, threading.get_ident())])


def torch_profiles() -> bool:
    """Whether torch's own profiler is recording."""
    profiler = sys.modules.get("torch.autograd.profiler")
    return profiler is not None and bool(profiler._is_profiler_enabled)


@contextmanager
def shown_to_torch(name: str) -> Iterator[None]:
    """What runs inside has this name in the trace of torch's profiler, if one is recording."""
    if not torch_profiles():
        yield
        return
    with sys.modules["torch.autograd.profiler"].record_function(name):
        yield
