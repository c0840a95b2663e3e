"""runtime.super_kernel: SuperKernel, what `compile` and `load` return: call, inspect, dump, save, close it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import BuildError, LaunchError, UnsupportedError, counted, shown
from ..model.argument_layout import Layout
from ..model.graph import Graph
from ..model.options import Options
from ..model.plain_values import checked_path, whole_number
from ..plan.memory import MemoryPlan
from ..plan.spans import Span
from ..targets.protocol import (
    BoundArguments,
    EmulatedLaunch,
    Executable,
    LaunchInputs,
    LaunchPlan,
    LoadedKernel,
    Prepared,
    Target,
)
from .artefact import SavedKernel, write_artefact, write_pages
from .built_kernel import BuiltKernel
from .launch_choice import LaunchChoice
from .launch_events import LaunchedKernel, Provenance, ReportedLaunch, register
from .launch_inputs import Events, KernelInputs, TilingFunctions
from .prepared_launch import PreparedLaunch
from .replay import launch_each, replay, replay_values
from .submitted_launches import SubmittedLaunches, copied
from .unfused import Unfused


class SuperKernel:
    """Kernels linked into one, launched by calling it with buffers by name."""

    def __init__(
        self,
        graph: Graph,
        options: Options,
        target: Target,
        built: BuiltKernel,
        keeps_cores: bool,
        prepared: Prepared | None = None,
        rebuild: Callable[[Options], BuiltKernel] | None = None,
        saved: Callable[[], SavedKernel] | None = None,
    ) -> None:
        """`keeps_cores`: the caller gave the number of cores. `prepared` and `rebuild` are None for a loaded kernel;
        `saved` builds what save() writes.
        """
        self.graph, self.options, self.target = graph, options, target
        self._prepared, self._rebuild, self._keeps_cores, self._saved = prepared, rebuild, keeps_cores, saved
        self._launch_limit = target.planner.launch_limit
        self._where = f"super_kernel_scope {graph.name!r}: "
        self._built, self._choice = built, LaunchChoice(built, keeps_cores, self.crowded)
        self._lock = threading.RLock()  # a signal handler may launch or close where its thread holds it
        self._closed = False
        self._submitted = SubmittedLaunches(graph.name)
        self._twin: BuiltKernel | None = None  # takes time stamps
        self._unfused: dict[bool, Unfused] = {}  # by whether they take time stamps
        self.emulated: EmulatedLaunch | None = None  # of the last call of emulate
        self._reporting = self._recording = False
        self.provenance = Provenance(graph.name)
        self._inputs = KernelInputs(graph)
        self._launch_inputs = self._inputs.given
        self._asks = bool(self._inputs.dynamic_ops)
        self.events = self._launch_inputs.events
        if target.launcher is not None:
            register(self)

    # launching

    def __call__(
        self,
        buffers: Mapping[str, Any],
        *,
        events: Events | None = None,
        tiling: TilingFunctions | None = None,
    ) -> dict[str, Any]:
        """Launch once; returns the outputs that were allocated here, a dict by name."""
        if self._closed:
            raise self._refusal()
        # short on purpose: a call costs as much as a small op
        plain = events is None and tiling is None and not self._asks
        launch_inputs = self._launch_inputs if plain else self._inputs.merged(events, tiling)
        choice = self._choice
        loaded = choice.chosen if not choice.team or choice.team <= self._launch_limit() else choice.alone
        if loaded is None:
            raise self._no_launcher()
        if not self.options.debug_replay:
            return loaded.launch(buffers, launch_inputs)
        return self._replayed(loaded, buffers, launch_inputs)

    def _replayed(
        self, loaded: LoadedKernel, buffers: Mapping[str, Any], launch_inputs: LaunchInputs
    ) -> dict[str, Any]:
        alone = self.unfused()
        fused = partial(loaded.launch, launch_inputs=launch_inputs)
        assert self.target.launcher is not None
        memory = self.target.launcher.memory
        return replay(self.graph, buffers, fused, partial(alone, replayed=launch_inputs), memory)

    def bind(
        self,
        buffers: Mapping[str, Any],
        *,
        events: Events | None = None,
        tiling: TilingFunctions | None = None,
    ) -> PreparedLaunch:
        """Check the arguments once; calling the result launches with them."""
        if self._closed:
            raise self._refusal()
        launch_inputs, choice, launch_limit = self._inputs.merged(events, tiling), self._choice, self._launch_limit
        arguments = self.loaded.bind(buffers, launch_inputs)

        def launch(arguments: BoundArguments, launch_inputs: LaunchInputs) -> None:
            loaded = choice.chosen if not choice.team or choice.team <= launch_limit() else choice.alone
            assert loaded is not None
            if self.options.debug_replay:
                passed = {name: value for name, value in arguments.named.items() if value is not None}
                self._replayed(loaded, passed, launch_inputs)
            else:
                loaded.launch_bound(arguments, launch_inputs)

        again = None if self.options.debug_replay else arguments.again
        return PreparedLaunch(self.graph, arguments, launch_inputs, launch, again)

    def submit(
        self,
        buffers: Mapping[str, Any],
        *,
        events: Events | None = None,
        tiling: TilingFunctions | None = None,
    ) -> Future[dict[str, Any]]:
        """Launch in a thread of this kernel, behind earlier submissions; the future gets the outputs, or the error."""
        with self._lock:
            if self._closed:
                raise self._refusal()
            buffers, events, tiling = map(copied, (buffers, events, tiling))
            launch = partial(self._completed, buffers, events=events, tiling=tiling)
            launcher = self.target.launcher
            return self._submitted.submit(launch if launcher is None else launcher.deferred(launch))

    def _completed(self, buffers: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        outputs = self(buffers, **more)
        self.synchronize()
        return outputs

    def synchronize(self) -> None:
        """Wait for the launches of this kernel; raises the error of one that failed since it was started.

        Calls of a target that runs on this processor return when their launch has completed.
        """
        for kernel in self._loaded_kernels():
            kernel.synchronize()
        for unfused in self._unfused.values():
            unfused.synchronize()

    def emulate(
        self,
        buffers: Mapping[str, Any],
        *,
        seed: int = 0,
        events: Events | None = None,
        tiling: TilingFunctions | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """As a launch, on a model of the target's cores, where it has one; the seed decides their order."""
        if self._closed:
            raise self._refusal()
        emulator = self.target.emulator
        if emulator is None:
            raise UnsupportedError(f"{self._where}target {self.target.name!r} has no emulator: launch the kernel")
        if (order := whole_number(seed)) is None:
            raise LaunchError(f"{self._where}seed is {shown(seed)}; it must be a whole number")
        executable = self._built.executable
        alone_too = self.options.debug_replay and not emulator.has_reference(executable, **more)
        launch_inputs = self._inputs.merged(events, tiling, partly=True)

        def emulate(executable: Executable, buffers: Mapping[str, Any], inputs: LaunchInputs) -> EmulatedLaunch:
            return emulator.emulate(executable, buffers, inputs, seed=order, **more)

        def fused(live: Mapping[str, Any]) -> dict[str, Any]:
            self.emulated = emulate(executable, live, launch_inputs)
            return self.emulated.outputs

        if not alone_too:
            return fused(buffers)
        alone = partial(launch_each, self.graph, self.options, self.target, self._separate(), emulate, launch_inputs)
        return replay(self.graph, buffers, fused, alone)

    def emulator_inputs(self) -> LaunchInputs:
        """Events and tilings of an emulated launch that is given none."""
        if self._closed:
            raise self._refusal()
        return self._inputs.merged(None, None, partly=True)

    def argument_arrays(self) -> tuple[Any, Any]:
        """Values and sizes for launch_values: ctypes arrays, one place per name, in the order of graph.buffers.

        A value is an address, or the bits of a scalar; a size is in bytes, 0 for a scalar.
        """
        if self.target.launcher is None:
            count = len(self.graph.buffers)
            return (ctypes.c_uint64 * count)(), (ctypes.c_uint64 * count)()
        return self.loaded.argument_arrays()

    def launch_values(self, values: Any, sizes: Any) -> None:
        """Launch once with filled argument_arrays(). Nothing is checked: the caller knows what it passes."""
        choice = self._choice
        loaded = choice.chosen if not choice.team or choice.team <= self._launch_limit() else choice.alone
        if loaded is None:
            raise self._no_launcher()
        if not self.options.debug_replay:
            loaded.launch_values(values, sizes)
            return
        assert self.target.launcher is not None
        if not self.target.launcher.memory.on_host:
            raise UnsupportedError(f"{self._where}debug-replay copies buffers by name: launch with k(buffers)")
        arrays, alone = loaded.argument_arrays(), self.unfused()
        replay_values(self.graph, values, sizes, arrays, loaded.launch_values, alone.launch_values)

    @property
    def runs_alone(self) -> bool:
        """Whether launches may run on one core instead of a team: no op needs the team, the caller gave no number."""
        return self._choice.team > 1

    def launch_values_alone(self, values: Any, sizes: Any) -> None:
        """As launch_values, on the calling thread alone, without a team; the results have the same bits."""
        assert self._choice.alone is not None, "an op needs its team"
        self._choice.alone.launch_values(values, sizes)

    def _refusal(self) -> LaunchError:
        return LaunchError(f"{self._where}the kernel is closed")

    def _no_launcher(self) -> LaunchError:
        return LaunchError(f"{self._where}{self.target.why_no_launcher}")

    def unfused(self) -> Unfused:
        """The same sub-kernels launched one by one through the same run time."""
        if self.target.launcher is None:
            raise UnsupportedError(
                f"{self._where}target {self.target.name!r} launches nothing from here: neither the super kernel nor "
                "its ops alone"
            )
        prepared = self._separate()
        with self._lock:
            if self._closed:
                raise self._refusal()
            return self._unfused_with(self._recording, prepared)

    def _unfused_with(self, time_stamps: bool, prepared: Prepared) -> Unfused:
        """Built at the first request; the lock is held."""
        found = self._unfused.get(time_stamps)
        if found is None:
            options = replace(self.options, profiling=True) if time_stamps else self.options
            cores = self._built.cores if self._keeps_cores else None
            found = Unfused(self.graph, options, self.target, prepared, cores, self._launch_inputs, self.provenance)
            if self._reporting:
                found.start_reporting()
            self._unfused[time_stamps] = found
        return found

    def _separate(self) -> Prepared:
        """The sub-kernels before they were linked."""
        if self._prepared is None:
            raise LaunchError(f"{self._where}a loaded kernel has no separate sub-kernels to run alone")
        return self._prepared

    def _loaded_kernels(self) -> list[LoadedKernel]:
        return [kernel for built in (self._built, self._twin) if built is not None for kernel in built.kernels()]

    # what it is made of

    @property
    def name(self) -> str:
        return self.graph.name

    @property
    def plan(self) -> LaunchPlan:
        return self._built.plan

    @property
    def source(self) -> str:
        return self._built.executable.source

    @property
    def layout(self) -> Layout:
        return self._built.plan.layout

    @property
    def memory(self) -> MemoryPlan:
        """The arena of the buffers that a launch allocates for itself, for the present number of cores."""
        return self._built.plan.memory

    @property
    def executable(self) -> Executable:
        """What the target built."""
        return self._built.executable

    @property
    def loaded(self) -> LoadedKernel:
        """What a launch uses now: a team, or the calling thread alone."""
        loaded = self._launched()
        if loaded is None:
            raise self._no_launcher()
        return loaded

    def _launched(self) -> LoadedKernel | None:
        choice = self._choice
        return choice.chosen if not choice.team or choice.team <= self._launch_limit() else choice.alone

    def records(self) -> tuple[Span, ...]:
        """What each core did in the last launch, with profiling=1; without such a launch, in the last emulated one."""
        loaded = self._launched()
        if loaded is not None and (spans := loaded.spans()):
            return spans
        return tuple(self.emulated.spans) if self.emulated is not None else ()

    # reporting kernels take the place of the loaded ones while there are listeners: other launches ask nothing

    def start_reporting(self, detail: bool) -> None:
        """With detail, what takes time stamps is built here, so that no launch compiles."""
        with self._lock:
            if self._closed:
                return
            self._time_launches(True)
            self._reporting, self._recording = True, detail and not self.options.profiling and self._rebuild is not None
            if self._recording and self._twin is None:
                assert self._rebuild is not None
                self._twin = self._rebuild(replace(self.options, profiling=True))
            self._choice.start_reporting(partial(self._reported_launch, self._twin if self._recording else None))
            if self._recording and self._unfused and self._prepared is not None:
                self._unfused_with(True, self._prepared)
            for unfused in self._unfused.values():
                unfused.start_reporting()

    def stop_reporting(self) -> None:
        with self._lock:
            self._time_launches(False)
            self._reporting = self._recording = False
            self._choice.stop_reporting()
            for unfused in self._unfused.values():
                unfused.stop_reporting()

    def crowded(self) -> bool:
        """Whether other programs keep the machine busy now."""
        return self.target.launcher is not None and self.target.launcher.crowded()

    def _time_launches(self, enabled: bool) -> None:
        if self.target.launcher is not None:
            self.target.launcher.time_launches(enabled)

    def _reported_launch(self, twin: BuiltKernel | None, kernel: LoadedKernel) -> ReportedLaunch:
        """The kernel itself, or the twin that takes time stamps, with a team or alone as the kernel."""
        built = twin or self._built
        if twin is not None:
            assert twin.loaded is not None
            kernel = twin.alone if kernel is self._built.alone and twin.alone is not None else twin.loaded
        launched = LaunchedKernel(self.graph, self.provenance, kernel.plan, source=built.executable.source)
        return ReportedLaunch(kernel, launched)

    def dump(self, directory: str | Path) -> Path:
        """Write graph, plan, layout, emitted source and the commands that built it."""
        folder = checked_path(directory, f"{self._where}the folder to dump in", BuildError)
        built = self._built
        pages = {
            "graph.txt": str(self.graph),
            "plan.txt": str(built.plan),
            "validation.txt": str(self.target.planner.validate(built.plan)),
            "layout.txt": str(built.plan.layout),
            f"source{getattr(built.executable, 'source_suffix', '.cpp')}": built.executable.source,
            "commands.txt": "\n".join(built.executable.commands),
        }
        return write_pages(folder, pages, self._where)

    def save(self, directory: str | Path) -> Path:
        """An artefact that `load` runs in any process, without a compiler, also where there are fewer cores."""
        assert self._saved is not None, "neither compiled nor loaded"
        folder = checked_path(directory, f"{self._where}the folder to save in", BuildError)
        return write_artefact(folder, self.target, self._saved())

    def close(self) -> None:
        """Free the binary. Refused while a launch is running."""
        with self._lock:
            loaded = self._loaded_kernels()
            if self._closed:
                return
            if pending := self._submitted.pending():
                raise LaunchError(f"{self._where}close() while {pending} submitted launches are not done")
            running = sum(kernel.running() for kernel in loaded)
            if running:
                raise LaunchError(f"{self._where}close() while {running} launches are running")
            self._closed = True
        for kernel in loaded:
            kernel.close()
        for unfused in self._unfused.values():
            unfused.close()
        self.emulated = None

    def __enter__(self) -> SuperKernel:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else counted(len(self.graph.nodes), "op")
        return f"<SuperKernel {self.name!r} on {self.target.name}: {state}>"
