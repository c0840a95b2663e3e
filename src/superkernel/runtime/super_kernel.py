"""kernel: SuperKernel, what `compile` and `load` return: call it, look into it, dump it, save it, close it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import BuildError, LaunchError, UnsupportedError, nearest
from ..model.argument_layout import Layout
from ..model.events import Event
from ..model.graph import Graph
from ..model.op import EventId, TilingFunction
from ..model.options import Options
from ..model.params import Kind
from ..plan import Plan
from ..plan.spans import Span
from ..targets.protocol import Emulated, Executable, LaunchInputs, LaunchPlan, Prepared, Target
from .buffers import bind, bytes_at, copy_at, copy_of, same_bits
from .launch_events import LaunchedKernel, Provenance, ReportedLaunch, ReportingExecutable, register
from .unfused import Unfused


class SuperKernel:
    """Kernels linked into one, launched by calling it with buffers by name."""

    def __init__(
        self,
        graph: Graph,
        options: Options,
        target: Target,
        prepared: Prepared | None,
        cores: int | None,
        restored: tuple[LaunchPlan, Executable] | None = None,
    ) -> None:
        self.graph, self.options, self.target = graph, options, target
        self._prepared, self._fixed_cores = prepared, cores
        self._built: dict[int, tuple[LaunchPlan, Executable]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._replays = options.debug_replay
        self._unfused: dict[tuple[int, bool], Unfused] = {}  # by cores, and whether they take time stamps
        self._reporting = self._recording = False
        self.provenance = Provenance(graph.name)
        self.events: Mapping[str, Event] = {e.label: e.bound or Event(e.label) for e in graph.events}
        self._tilings = {node.name: node.op.tiling for node in graph.nodes if node.op.tiling is not None}
        self._wishes = LaunchInputs(self.events, self._tilings)
        self._needs_tiling = tuple(node.name for node in graph.nodes if node.dynamic)
        if restored is not None:
            self._fixed_cores = self._fixed_cores or restored[0].cores
            self._built[self._cores()] = restored
        self._current()
        if target.launches:
            register(self)

    # launching

    def __call__(
        self,
        buffers: Mapping[str, Any],
        *,
        events: Mapping[EventId, Event] | None = None,
        tiling: Mapping[str, TilingFunction] | None = None,
    ) -> dict[str, Any]:
        """Launch once; returns the typed names that were allocated here and written."""
        if self._closed:
            raise self._refusal()
        launch_inputs = self._wishes_of(events, tiling)
        _, executable = self._current()
        if self._replays:
            return self._replayed(executable, buffers, launch_inputs)
        return executable.launch(buffers, launch_inputs)

    def emulate(
        self,
        buffers: Mapping[str, Any],
        *,
        seed: int = 0,
        events: Mapping[EventId, Event] | None = None,
        tiling: Mapping[str, TilingFunction] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """As a launch, on a model of the target's cores, where it has one; the seed decides who is late."""
        if self._closed:
            raise self._refusal()
        executable = self._current()[1]
        if not isinstance(executable, Emulated):
            raise UnsupportedError(
                f"super_kernel_scope {self.name!r}: target {self.target.name!r} has no emulator: launch the kernel"
            )
        return executable.emulate(buffers, self._wishes_of(events, tiling), seed=seed, **more)

    def argument_arrays(self) -> tuple[Any, Any]:
        """Values and sizes for launch_values: ctypes arrays, one place per name, in the order of graph.buffers.

        A value is an address, or the bits of a scalar; a size is in bytes, 0 for a scalar.
        """
        return self._current()[1].argument_arrays()

    def launch_values(self, values: Any, sizes: Any) -> None:
        """Launch once with the arrays of blank(), filled in. Nothing is checked: the caller knows what it passes."""
        found = self._built.get(self._fixed_cores or self.target.core_count()) or self._current()
        if self._replays:
            self._replayed_values(found[1], values, sizes)
        else:
            found[1].launch_values(values, sizes)

    def _refusal(self) -> LaunchError:
        return LaunchError(f"super_kernel_scope {self.name!r}: the kernel is closed")

    def _wishes_of(
        self, events: Mapping[EventId, Event] | None, tiling: Mapping[str, TilingFunction] | None
    ) -> LaunchInputs:
        launch_inputs = self._wishes if events is None and tiling is None else self._joined(events or {}, tiling or {})
        for op in self._needs_tiling:
            if op not in launch_inputs.tilings:
                raise LaunchError(
                    f"super_kernel_scope {self.name!r}: op {op!r} is dynamic: "
                    f"pass tiling={{{op!r}: function}} or give it to its Op"
                )
        return launch_inputs

    def _joined(self, events: Mapping[EventId, Event], tiling: Mapping[str, TilingFunction]) -> LaunchInputs:
        where = f"super_kernel_scope {self.name!r}: "
        joined = dict(self.events)
        for key, event in events.items():
            label = str(key)
            if label not in joined:
                raise LaunchError(f"{where}no op uses the external event {label}{nearest(label, joined)}")
            if not isinstance(event, Event):
                raise LaunchError(f"{where}event {label} needs an Event, not {event!r}")
            joined[label] = event
        for op in tiling:
            if op not in self._needs_tiling:
                raise LaunchError(f"{where}no dynamic op is called {op!r}{nearest(op, self._needs_tiling)}")
        return LaunchInputs(joined, {**self._tilings, **tiling})

    def _replayed(
        self, executable: Executable, buffers: Mapping[str, Any], launch_inputs: LaunchInputs
    ) -> dict[str, Any]:
        """debug-replay: run every op alone as well, on copies, and compare bit for bit."""
        bound = bind(self.graph, buffers)
        names = list(self.graph.buffers)
        live = dict(zip(names, bound.keep, strict=True))
        copies = {name: copy_of(value) for name, value in live.items()}
        alone = self.unfused()
        executable.launch(live, launch_inputs)
        alone.replay(copies, launch_inputs)
        self._compare(live, copies)
        return bound.made

    def _replayed_values(self, executable: Executable, values: Any, sizes: Any) -> None:
        """The same by addresses; a scalar has no memory."""
        spans = dict(zip(self.graph.buffers, zip(values, sizes, strict=True), strict=True))
        memory = {name: span for name, span in spans.items() if not self.graph.buffers[name].scalar}
        copies = {name: copy_at(*span) for name, span in memory.items()}
        alone, (own_values, own_sizes) = self.unfused(), executable.argument_arrays()
        for place, (name, (value, size)) in enumerate(spans.items()):
            own_values[place], own_sizes[place] = copies[name].ctypes.data if name in copies else value, size
        executable.launch_values(values, sizes)
        alone.launch_values(own_values, own_sizes)
        self._compare({name: bytes_at(*span) for name, span in memory.items()}, copies)

    def _compare(self, live: Mapping[str, Any], copies: Mapping[str, Any]) -> None:
        for name, op in self._last_writers().items():
            if not same_bits(live[name], copies[name]):
                raise LaunchError(
                    f"super_kernel_scope {self.name!r}: debug-replay: op {self.graph.nodes[op].name!r} is the first "
                    f"whose output {name!r} differs from the same op run alone"
                )

    def _last_writers(self) -> dict[str, int]:
        """Buffer -> the op that writes it last, in the order of those ops."""
        last: dict[str, int] = {}
        for index in self.graph.order:
            for param, name in self.graph.nodes[index].arguments():
                if param.kind in (Kind.OUT, Kind.INOUT):
                    last.pop(name, None)
                    last[name] = index
        return last

    def unfused(self) -> Unfused:
        """The same sub-kernels launched one by one through the same run time."""
        if not self.target.launches:
            raise UnsupportedError(
                f"super_kernel_scope {self.name!r}: target {self.target.name!r} launches nothing from here: neither "
                "the super kernel nor its ops alone"
            )
        if self._prepared is None:
            raise LaunchError(
                f"super_kernel_scope {self.name!r}: a loaded kernel has no separate sub-kernels to run alone"
            )
        cores = self._cores()
        with self._lock:
            if self._closed:
                raise self._refusal()
            found = self._unfused.get((cores, self._recording))
            if found is None:
                options = replace(self.options, profiling=True) if self._recording else self.options
                found = Unfused(self.graph, options, self._prepared, cores, self._wishes, self.provenance)
                if self._reporting:
                    found.start_reporting()
                self._unfused[cores, self._recording] = found
            return found

    # what it is made of

    @property
    def name(self) -> str:
        return self.graph.name

    @property
    def plan(self) -> LaunchPlan:
        return self._current()[0]

    @property
    def source(self) -> str:
        return self._current()[1].source

    @property
    def layout(self) -> Layout:
        return self._current()[0].layout

    @property
    def executable(self) -> Executable:
        """What the target built for the present number of cores."""
        return self._current()[1]

    def records(self) -> tuple[Span, ...]:
        """What each core did in the last launch, with profiling=1."""
        return self._current()[1].spans()

    def _cores(self) -> int:
        return self._fixed_cores or self.target.core_count()

    def _current(self) -> tuple[LaunchPlan, Executable]:
        """The plan and binary for the present number of cores; another number plans and links anew."""
        cores = self._cores()
        found = self._built.get(cores)
        if found is None:
            with self._lock:
                if self._closed:
                    raise self._refusal()
                found = self._built.get(cores)
                if found is None:
                    plan, executable = self._build(cores, self.options)
                    found = plan, self._reported(plan, executable, cores) if self._reporting else executable
                    self._built[cores] = found
        return found

    def _build(self, cores: int, options: Options) -> tuple[LaunchPlan, Executable]:
        assert self._prepared is not None
        plan = self.target.plan(self.graph, options, cores)
        return plan, self._prepared.build(plan)

    # reporting launches: other executables take the place of the plain ones, so that without listeners nothing is asked

    def start_reporting(self, detail: bool) -> None:
        with self._lock:
            self._reporting, self._recording = (
                True,
                detail and not self.options.profiling and self._prepared is not None,
            )
            for cores, (plan, executable) in list(self._built.items()):
                self._built[cores] = plan, self._reported(plan, _plain(executable), cores)
            for unfused in self._unfused.values():
                unfused.start_reporting()

    def stop_reporting(self) -> None:
        with self._lock:
            self._reporting = self._recording = False
            for cores, (plan, executable) in list(self._built.items()):
                plain = _plain(executable)
                plain.time_launches(False)
                self._built[cores] = plan, plain
            for unfused in self._unfused.values():
                unfused.stop_reporting()

    def _reported(self, plan: LaunchPlan, executable: Executable, cores: int) -> ReportingExecutable:
        return ReportingExecutable(executable, partial(self._reported_launch, plan, executable, cores, self._recording))

    def _reported_launch(self, plan: LaunchPlan, executable: Executable, cores: int, recording: bool) -> ReportedLaunch:
        """What is launched while there are listeners: the kernel itself, or its twin that takes time stamps."""
        if recording:
            plan, executable = self._build(cores, replace(self.options, profiling=True))
        assert isinstance(plan, Plan)  # of every target that launches
        return ReportedLaunch(executable, LaunchedKernel(self.graph, self.provenance, plan, source=executable.source))

    def dump(self, directory: str | Path) -> Path:
        """Write graph, plan, layout, emitted source and the commands that built it."""
        folder = Path(directory)
        plan, executable = self._current()
        pages = {
            "graph.txt": str(self.graph),
            "plan.txt": str(plan),
            "validation.txt": str(self.target.validate(plan)),
            "layout.txt": str(self.layout),
            "source.cpp": executable.source,
            "commands.txt": "\n".join(executable.commands),
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in pages.items():
                (folder / name).write_text(text + "\n")
        except OSError as reason:
            raise BuildError(f"super_kernel_scope {self.name!r}: cannot be dumped in {folder}: {reason}") from reason
        return folder

    def save(self, directory: str | Path) -> Path:
        """An artefact that `load` runs in any process, without a compiler."""
        from .artefact import write_artefact

        plan, executable = self._current()
        return write_artefact(Path(directory), self, plan, executable, self._cores())

    def close(self) -> None:
        """Free the binary. Launches that still run are waited for by nobody: closing then is refused."""
        with self._lock:
            if self._closed:
                return
            running = sum(executable.running() for _, executable in self._built.values())
            if running:
                raise LaunchError(f"super_kernel_scope {self.name!r}: close() while {running} launches are running")
            self._closed = True
        for _, executable in self._built.values():
            executable.close()
        for unfused in self._unfused.values():
            unfused.close()

    def __enter__(self) -> SuperKernel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self.graph.nodes)} ops"
        return f"<SuperKernel {self.name!r} on {self.target.name}: {state}>"


def _plain(executable: Executable) -> Executable:
    return executable.plain if isinstance(executable, ReportingExecutable) else executable
