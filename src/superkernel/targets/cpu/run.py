"""targets.cpu.run: a built super kernel and buffers by name -> one launch; faults come back as errors that name ops."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import tempfile
import threading
import weakref
from _signal import getsignal  # type: ignore[import-not-found]  # signal.getsignal without its conversion to an enum, which costs microseconds
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_void_p
from pathlib import Path
from threading import get_ident
from typing import Any

from ...cache import default_directory
from ...errors import BuildError, LaunchError, UnsupportedError
from ...plan import Plan
from ...plan.steps import Step
from .. import LaunchWishes, StepTime
from .agent import Agent
from .bind import Arguments, FastBinder
from .hostlib import CLOSED, MISFIT, Caller, Facts, Fault, TimeStamp, load_host, load_library
from .numbering import Numbering
from .openmp import forked
from .toolchain import cpu_features

_KERNEL, _HOST, _SOURCE, _FEATURES = "kernel.so", "runtime.so", "source.cpp", "processor.txt"
_MAIN = threading.main_thread().ident
_PARTS = ("begin", "run", "end")
DELAYS = "SUPERKERNEL_TEST_DELAYS"  # a seed: every step of a launch may be late, in kernels built while it is set


class CpuExecutable:
    """One shared object, loaded. Each launch has a state of its own, so that threads may launch at once."""

    def __init__(
        self, plan: Plan, numbers: Numbering, source: str, binary: Path, host: Path, commands: Sequence[str]
    ) -> None:
        self.plan, self.numbers = plan, numbers
        self.source, self.binary, self.commands = source, binary, commands
        self._host = load_host(host)
        self._free = self._host.free
        library = load_library(binary)
        self._program = _create_program(plan, numbers, library, self._free)
        # At close, or when nobody holds this object any more; a thread on its way into a launch does hold it.
        self._unload = _at_last(self, _dlclose, library._handle)
        _at_last(self, self._free.sk_program_destroy, self._program)
        self._binder = FastBinder(plan.graph)
        self._events = tuple(event.label for event in plan.graph.events)
        self._call = self._host.held.sk_call
        caller = Caller(self._program, self._binder.wanted, self._binder.count)
        self._keep, self._caller = caller, c_void_p(ctypes.addressof(caller))
        self._times: Sequence[StepTime] = ()
        self._dynamic = bool(numbers.tilings)
        self._observed = self._dynamic or bool(numbers.records)
        self._plain = not self._observed and not plan.graph.events

    @classmethod
    def restore(cls, plan: Plan, numbers: Numbering, directory: Path) -> CpuExecutable:
        for name in (_KERNEL, _HOST, _SOURCE, _FEATURES):
            if not (directory / name).is_file():
                raise LaunchError(f"{directory} is no saved super kernel: {name} is missing")
        lacking = sorted({*(directory / _FEATURES).read_text().split()} - {*cpu_features().split()})
        if lacking:
            some = ", ".join(lacking[:8])
            raise UnsupportedError(f"{directory} was compiled for a processor with {some}, which this one lacks")
        source = (directory / _SOURCE).read_text()
        return cls(plan, numbers, source, directory / _KERNEL, directory / _HOST, ())

    def launch(self, buffers: Mapping[str, Any], wishes: LaunchWishes) -> dict[str, Any]:
        if self._plain and not forked() and (capsules := self._binder.arrays(buffers)) is not None:
            outcome = self._call(self._caller, capsules, None, None, _may_interrupt())
            if outcome == 0:
                return {}
            if outcome != MISFIT:
                raise self._stopped(outcome, wishes)
        events = [wishes.events[label].address for label in self._events]
        arguments = self._binder.bind_fast(buffers, events)
        if arguments is None or self._run(arguments, wishes) == MISFIT:
            arguments = self._binder.bind_carefully(buffers, events)
            self._run(arguments, wishes)
        return arguments.made

    def _run(self, arguments: Arguments, wishes: LaunchWishes) -> int:
        """One launch; MISFIT: an array was not what the ops take, nothing was run."""
        if forked():
            raise LaunchError(
                f"super_kernel_scope {self.plan.graph.name!r}: launch in a forked process: the OpenMP threads of the "
                "parent are not here and a launch would hang. Start the process with the 'spawn' method"
            )
        if self._observed:
            return self._run_observed(arguments, wishes)
        outcome: int = self._call(self._caller, arguments[0], arguments[1], arguments[2], _may_interrupt())
        if outcome not in (0, MISFIT):
            raise self._stopped(outcome, wishes)
        return outcome

    def _stopped(self, outcome: int, wishes: LaunchWishes) -> BaseException:
        """What sk_call says of a launch that was refused or stopped."""
        if outcome == CLOSED:
            return self._closed()
        error = self._error(self._free.sk_launch_fault(outcome), outcome, None, wishes)
        self._free.sk_launch_end(outcome)
        return error

    def _closed(self) -> LaunchError:
        return LaunchError(f"super_kernel_scope {self.plan.graph.name!r}: the kernel is closed")

    def launch_addresses(
        self, values: Sequence[int], sizes: Sequence[int], wishes: LaunchWishes, named: Mapping[str, Any]
    ) -> None:
        """A launch whose arguments have been checked already."""
        self._run(self._binder.addresses(values, sizes, named), wishes)

    def _run_observed(self, arguments: Arguments, wishes: LaunchWishes) -> int:
        """A launch with a control agent beside it, or with time stamps to collect."""
        free, binder = self._free, self._binder
        values, sizes = arguments.values, arguments.sizes
        if values is None:
            values, sizes = binder.blank()
        if self._host.held.sk_bind(arguments.capsules, binder.count, binder.wanted, values, sizes) == MISFIT:
            return MISFIT
        running = free.sk_launch_begin(self._program)
        if not running:
            raise self._closed()
        agent = None
        if self._dynamic:
            agent = Agent(self.plan, self.numbers, free, running, wishes.tilings, arguments.named, keep=self)
        try:
            if agent:
                agent.start()
            status: int = free.sk_launch_run(running, values, sizes, _may_interrupt())
            if status:
                raise self._error(status, running, agent, wishes)
            if self.numbers.records:
                self._times = self._collect(running)
        finally:
            if agent is None or agent.finished():
                free.sk_launch_end(running)
        return status

    def _collect(self, running: int) -> list[StepTime]:
        """Ticks to nanoseconds, by the two clock readings of the launch."""
        clock = (ctypes.c_uint64 * 4)()
        self._free.sk_launch_clock(running, clock)
        began_ns, ended_ns, began_ticks, ended_ticks = clock
        rate = (ended_ns - began_ns) / max(1, ended_ticks - began_ticks)
        times = []
        for core in range(self.plan.cores):
            stamps: ctypes.Array[TimeStamp] = self._free.sk_launch_stamps(running, core)
            for i in range(self._free.sk_launch_stamp_count(running, core)):
                ns = began_ns + (stamps[i].ticks - began_ticks) * rate
                times.append(StepTime(core, stamps[i].step, ns))
        return times

    def repeat(self, buffers: Mapping[str, Any], loop: Any, times: int) -> float:
        """Launch from a C loop (as in bench/clock.cpp); what the loop returns."""
        arguments = self._binder.bind_carefully(buffers, ())
        parts = (c_void_p(ctypes.cast(getattr(self._free, f"sk_launch_{part}"), c_void_p).value) for part in _PARTS)
        return float(loop(*parts, c_void_p(self._program), arguments.values, arguments.sizes, ctypes.c_int64(times)))

    def step_times(self) -> Sequence[StepTime]:
        return self._times

    def _error(
        self, status: int, running: int | None, agent: Agent | None, wishes: LaunchWishes
    ) -> LaunchError | KeyboardInterrupt:
        """Why the launch was stopped. The words it may have waited for are 0 again, as after any launch."""
        for node in self.plan.graph.nodes:
            for event in node.awaits:
                wishes.events[event].clear()
        fault = Fault(status)
        report = self._free.sk_launch_report(running).decode("utf-8", "replace")
        step = self._free.sk_launch_fault_step(running)
        detail = self._free.sk_launch_fault_detail(running)
        if fault is Fault.INTERRUPTED:
            return KeyboardInterrupt()
        where = f"super_kernel_scope {self.plan.graph.name!r}: "
        if fault is Fault.STALLED:
            return LaunchError(report.rstrip())
        if fault is Fault.TILING_FAILED and agent is not None:
            error = LaunchError(f"{where}the tiling function of op {self._dynamic_op(detail)!r} failed: {agent.error}")
            error.__cause__ = agent.error
            return error
        return LaunchError(where + self._explain(fault, step, detail))

    def _explain(self, fault: Fault, step: int, detail: int) -> str:
        node = self.plan.graph.nodes[_op_of(self.plan.steps[step])]
        if fault is Fault.UNKNOWN_KEY:
            keys = ", ".join(str(key) for key, _ in node.kernel.tiling_variants)
            return f"op {node.name!r} was given the unknown tiling key {detail}; its keys are {keys}"
        if fault is Fault.BLOCK_COUNT:
            return f"op {node.name!r} was given {detail} blocks; it can run with 0 to {node.blocks}"
        return f"op {node.name!r} called sync_all, but sub-kernel {node.kernel.name!r} was declared with sync_all=False"

    def _dynamic_op(self, index: int) -> str:
        return next(self.plan.graph.nodes[op].name for op, i in self.numbers.tilings.items() if i == index)

    def save(self, directory: Path) -> None:
        shutil.copyfile(self.binary, directory / _KERNEL)
        shutil.copyfile(self._host.path, directory / _HOST)
        (directory / _SOURCE).write_text(self.source)
        (directory / _FEATURES).write_text(cpu_features() + "\n")

    def running(self) -> int:
        return int(self._free.sk_program_running(self._program))

    def close(self) -> None:
        """Refuse launches from now on and unload; a launch that is running keeps its binary until this object goes."""
        if self._free.sk_program_close(self._program) == 0:
            self._unload()


def _at_last(owner: object, act: Callable[..., object], *args: object) -> weakref.finalize[..., object]:
    finalizer = weakref.finalize(owner, act, *args)
    finalizer.atexit = False  # other threads may be launching while the process ends
    return finalizer


def _dlclose(handle: int) -> None:
    ctypes.CDLL(None).dlclose(c_void_p(handle))


def _op_of(step: Step) -> int:
    op = getattr(step, "op", None)
    assert isinstance(op, int)
    return op


def _may_interrupt() -> int:
    """1 where Ctrl-C would raise KeyboardInterrupt: in the main thread, with Python's own handler."""
    if get_ident() != _MAIN:
        return 0
    return int(getsignal(signal.SIGINT) is signal.default_int_handler)


def _create_program(plan: Plan, numbers: Numbering, library: ctypes.CDLL, host: ctypes.CDLL) -> int:
    from .build import entry_name

    steps, slots = plan.steps, numbers.layout.slots
    entry = ctypes.cast(getattr(library, entry_name(plan.graph.name)), ctypes.c_void_p)
    texts = [plan.describe(step).encode() for step in steps]
    facts = Facts(
        entry=entry,
        name=plan.graph.name.encode(),
        cores=plan.cores,
        slot_count=len(slots),
        source_count=len(numbers.sources),
        slot_source=(ctypes.c_int32 * len(slots))(*numbers.slot_sources(plan)),
        slot_literal=(ctypes.c_uint64 * len(slots))(*(slot.literal for slot in slots)),
        rendezvous_count=len(numbers.rendezvous),
        tiling_count=len(numbers.tilings),
        step_count=len(steps),
        step_text=(ctypes.c_char_p * len(steps))(*texts),
        stamp_room=numbers.records,
        needs_team=bool(numbers.rendezvous),
        watchdog_s=plan.options.debug_watchdog,
        report_path=str(report_path(plan.graph.name)).encode(),
        delay_seed=int(os.environ.get(DELAYS) or 0),
    )
    program: int = host.sk_program_create(ctypes.byref(facts))
    return program


def report_path(name: str) -> Path:
    """Where a stalled or crashed launch leaves its report."""
    try:
        folder = default_directory() / "reports"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, BuildError):  # nothing of ours can be written: a saved kernel runs all the same
        folder = Path(tempfile.gettempdir())
    plain = "".join(c if c.isalnum() else "_" for c in name)[:80]
    return folder / f"{plain}-{os.getpid()}.txt"
