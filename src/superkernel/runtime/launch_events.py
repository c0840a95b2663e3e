"""runtime.launch_events: every launch of this process -> its listeners, with its times.

A *reporter* launches kernels, and publishes a `LaunchEvent` for each launch while there are listeners. Without
listeners nothing here is called: the first listener makes reporters exchange their loaded kernels for
reporting ones. The launches of a *call* belong together: those of one compiled graph, or of all ops of a kernel.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from time import monotonic_ns
from typing import Any, Protocol, TypeVar

from ..errors import SuperKernelError
from ..model.graph import Graph
from ..model.node import Node
from ..plan import Plan
from ..plan.spans import TimeStamps
from ..targets.buffers import IN_ARENA
from ..targets.protocol import (
    BoundArguments,
    Launcher,
    LaunchInputs,
    LaunchSequence,
    LoadedKernel,
    OpLabel,
    RawValue,
    SequencedLaunch,
    TimedLaunch,
)

Result = TypeVar("Result")


@dataclass
class Provenance:
    """Where a super kernel comes from; the front end fills it in when it knows the reasons."""

    scope: str
    reason: str = ""  # why it ends where it does, or why it is not fused
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # op -> source lines of the model
    unfusible: tuple[str, ...] = ()  # descriptions of the other ops of the scope


@dataclass(frozen=True)
class LaunchedKernel:
    """A super kernel, or one op of its graph that is launched by itself."""

    graph: Graph
    provenance: Provenance
    plan: Plan  # of the launch
    node: Node | None = None  # the op; None: the whole graph in one launch
    source: str = ""

    @property
    def name(self) -> str:
        return self.graph.name if self.node is None else self.node.name


@dataclass(frozen=True)
class TorchKernel:
    """A kernel or an operator that torch launches, outside of super kernels."""

    name: str
    operator: str  # what it computes: the name of an operator, or of a generated kernel
    scope: str = ""
    reason: str = ""  # why it is not part of a super kernel, if a scope contains it


_call_numbers = itertools.count()
_call_of_thread = threading.local()


def current_call() -> int | None:
    """The number of the call that this thread is in; None: in none."""
    number: int | None = getattr(_call_of_thread, "number", None)
    return number


@contextmanager
def launch_call() -> Iterator[None]:
    """The launches of this thread inside are one call; inside another call they are part of that one."""
    if current_call() is not None:
        yield
        return
    _call_of_thread.number = next(_call_numbers)
    try:
        yield
    finally:
        _call_of_thread.number = None


@dataclass(frozen=True)
class LaunchEvent:
    """One launch that completed. Times are monotonic nanoseconds, from dispatch to completion."""

    kernel: LaunchedKernel | TorchKernel
    begin_ns: int
    end_ns: int
    thread: int
    sizes: tuple[int, ...] = ()  # bytes of each buffer of the graph, where they are known
    time_stamps: TimeStamps | None = None
    call: int | None = field(default_factory=current_call)  # None: the launch is a call by itself


class LaunchListener(Protocol):
    detail: bool  # whether it needs time stamps of every core

    def on_launch(self, event: LaunchEvent) -> None: ...  # in any thread


class LaunchReporter(Protocol):
    def start_reporting(self, detail: bool) -> None: ...  # may be called again, with another `detail`
    def stop_reporting(self) -> None: ...


_lock = threading.RLock()
_listeners: tuple[LaunchListener, ...] = ()
_unpublished = threading.local()
_reporters: weakref.WeakSet[Any] = weakref.WeakSet()


def register(reporter: LaunchReporter) -> None:
    """From now on listeners receive the launches of this reporter, as long as it lives."""
    with _lock:
        _reporters.add(reporter)
        if _listeners:
            reporter.start_reporting(detail_wanted())


def add_listener(listener: LaunchListener) -> None:
    """With detail, what takes time stamps is built here. If that fails, there are the listeners of before."""
    with _lock:
        before = _listeners
        try:
            _set_listeners((*before, listener))
        except SuperKernelError:
            _set_listeners(before)
            raise


def remove_listener(listener: LaunchListener) -> None:
    with _lock:
        _set_listeners(tuple(other for other in _listeners if other is not listener))


def _set_listeners(listeners: tuple[LaunchListener, ...]) -> None:
    global _listeners  # per process, as launches are
    before, _listeners = (bool(_listeners), detail_wanted()), listeners
    if before == (bool(listeners), detail_wanted()):
        return
    if not listeners:
        for reporter in list(_reporters):
            reporter.stop_reporting()
        return
    detail = detail_wanted()
    with ThreadPoolExecutor() as pool:  # compilers run side by side
        list(pool.map(lambda reporter: reporter.start_reporting(detail), list(_reporters)))


def has_listeners() -> bool:
    return bool(_listeners)


def detail_wanted() -> bool:
    return any(listener.detail for listener in _listeners)


@contextmanager
def unpublished() -> Iterator[None]:
    """Launches of this thread inside of the body are measurements, which no listener receives."""
    before, _unpublished.active = getattr(_unpublished, "active", False), True
    try:
        yield
    finally:
        _unpublished.active = before


def publish(events: Sequence[LaunchEvent]) -> None:
    if getattr(_unpublished, "active", False):
        return
    for listener in _listeners:
        for event in events:
            listener.on_launch(event)


@contextmanager
def torch_launch(kernel: TorchKernel) -> Iterator[None]:
    """The body launches this kernel through torch."""
    with torch_profiler_range(kernel.name):
        begin = monotonic_ns()
        yield
        end = monotonic_ns()
    publish([LaunchEvent(kernel, begin, end, get_ident())])


def torch_profiler_active() -> bool:
    profiler = sys.modules.get("torch.autograd.profiler")
    return profiler is not None and bool(profiler._is_profiler_enabled)


@contextmanager
def torch_profiler_range(name: str) -> Iterator[None]:
    """The body is a range of this name in the trace of torch's profiler, if that is recording."""
    if not torch_profiler_active():
        yield
        return
    with sys.modules["torch.autograd.profiler"].record_function(name):
        yield


@dataclass(frozen=True)
class ReportedLaunch:
    """A loaded kernel, and what its events say was launched."""

    loaded: LoadedKernel
    kernel: LaunchedKernel


class ReportingKernel:
    """Stands in for the loaded kernel `plain`, and publishes its launches.

    `reported` is launched instead: with detail, a binary that takes time stamps.
    """

    def __init__(self, plain: LoadedKernel, reported: ReportedLaunch) -> None:
        self.plain, self._reported = plain, reported
        self.plan, self.argument_arrays, self.bind = plain.plan, plain.argument_arrays, plain.bind
        self.spans, self.time_stamps, self.last_launch = plain.spans, plain.time_stamps, plain.last_launch

    def launch(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> dict[str, Any]:
        current = self._reported
        graph = current.kernel.graph
        return _reported(
            current, lambda: current.loaded.launch(buffers, launch_inputs), lambda: _sizes_of(graph, buffers)
        )

    def launch_bound(self, arguments: BoundArguments, launch_inputs: LaunchInputs) -> None:
        current = self._reported
        graph = current.kernel.graph
        _reported(
            current,
            lambda: current.loaded.launch_bound(arguments, launch_inputs),
            lambda: _bound_sizes(graph, arguments.sizes),
        )

    def launch_values(self, values: Any, sizes: Any) -> None:
        current = self._reported
        _reported(current, lambda: current.loaded.launch_values(values, sizes), lambda: tuple(sizes))

    def launch_addresses(
        self, arguments: Sequence[RawValue], launch_inputs: LaunchInputs, named: Mapping[str, Any], op_label: OpLabel
    ) -> None:
        current = self._reported
        _reported(
            current,
            lambda: current.loaded.launch_addresses(arguments, launch_inputs, named, op_label),
            lambda: tuple(size for _, size in arguments) if current.kernel.node is None else (),
        )

    def running(self) -> int:
        return sum(kernel.running() for kernel in self._kernels())

    def synchronize(self) -> None:
        for kernel in self._kernels():
            kernel.synchronize()

    def close(self) -> None:
        for kernel in self._kernels():
            kernel.close()

    def _kernels(self) -> list[LoadedKernel]:
        other = self._reported.loaded
        return [self.plain] if other is self.plain else [self.plain, other]


def _reported(launch: ReportedLaunch, start: Callable[[], Result], sizes: Callable[[], tuple[int, ...]]) -> Result:
    with torch_profiler_range(launch.kernel.name):
        result = start()
    begin, end = launch.loaded.last_launch()
    publish([LaunchEvent(launch.kernel, begin, end, get_ident(), sizes(), launch.loaded.time_stamps())])
    return result


def _bound_sizes(graph: Graph, sizes: Sequence[int]) -> tuple[int, ...]:
    """Bytes of the buffers of a prepared launch; those in the arena are typed."""
    named = zip(graph.buffers.values(), sizes, strict=False)  # events follow the buffers
    return tuple((buffer.nbytes or 0) if size == IN_ARENA else size for buffer, size in named)


def _sizes_of(graph: Graph, buffers: Mapping[str, Any]) -> tuple[int, ...]:
    """Bytes of the buffers that were passed, and of the typed ones that the launch allocated."""
    return tuple(
        int(getattr(buffers[name], "nbytes", 0) if name in buffers else buffer.nbytes or 0)
        for name, buffer in graph.buffers.items()
    )


class ReportingSequence:
    """Stands in for the launch sequence `plain`, and publishes each of its launches."""

    def __init__(
        self,
        plain: LaunchSequence,
        launches: Sequence[SequencedLaunch],
        kernels: Sequence[LaunchedKernel],
        launcher: Launcher,
    ) -> None:
        self._plain, self._launches, self._kernels, self._launcher = plain, launches, kernels, launcher
        self._singles: list[LaunchSequence] = []

    def launch_values(self, values: Any, sizes: Any) -> None:
        with launch_call():
            if torch_profiler_active():
                self._launch_each(values, sizes)
            else:
                self._launch(self._plain, self._kernels, values, sizes)

    def _launch_each(self, values: Any, sizes: Any) -> None:
        """Launch by launch: each is a range of torch's profiler."""
        if not self._singles:
            self._singles = [self._launcher.sequence([launch]) for launch in self._launches]
        for single, kernel in zip(self._singles, self._kernels, strict=True):
            with torch_profiler_range(kernel.name):
                self._launch(single, [kernel], values, sizes)

    def _launch(self, sequence: LaunchSequence, kernels: Sequence[LaunchedKernel], values: Any, sizes: Any) -> None:
        """In one call, so that recording adds no time between launches."""
        times: list[TimedLaunch] = []
        try:
            sequence.launch_timed(values, sizes, times)
        finally:
            thread, known = get_ident(), tuple(sizes)
            completed = zip(kernels, times, strict=False)
            publish(
                [LaunchEvent(kernel, begin, end, thread, known, stamps) for kernel, (begin, end, stamps) in completed]
            )

    def launch_timed(self, values: Any, sizes: Any, times: list[TimedLaunch]) -> None:
        self._plain.launch_timed(values, sizes, times)
