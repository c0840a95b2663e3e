"""targets.cpu.run: a built super kernel and buffers by name -> one launch; faults come back as errors that name ops."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...cache import default_directory
from ...errors import LaunchError
from ...events import Event
from ...plan import Plan
from ...plan.steps import Call, Step
from .. import LaunchWishes, StepTime
from .agent import Agent
from .bind import FastBinder
from .hostlib import Facts, Fault, TimeStamp, load_host
from .numbering import Numbering
from .openmp import forked

_KERNEL, _HOST, _SOURCE = "kernel.so", "runtime.so", "source.cpp"
DELAYS = "SUPERKERNEL_TEST_DELAYS"  # a seed: every step of a launch may be late


class CpuExecutable:
    """One shared object, loaded. Each launch has a state of its own, so that threads may launch at once."""

    def __init__(
        self, plan: Plan, numbers: Numbering, source: str, binary: Path, host: Path, commands: Sequence[str]
    ) -> None:
        self.plan, self.numbers = plan, numbers
        self.source, self.binary, self.commands = source, binary, commands
        self._host = load_host(host)
        self._library: ctypes.CDLL | None = ctypes.CDLL(str(binary))
        self._program = _create_program(plan, numbers, self._library, self._host.free)
        self._binder = FastBinder(plan.graph, self._host)
        self._free = self._host.free
        self._times: Sequence[StepTime] = ()
        self._dynamic = bool(numbers.tilings)
        self._special = self._dynamic or bool(numbers.records)

    @classmethod
    def restore(cls, plan: Plan, numbers: Numbering, directory: Path) -> CpuExecutable:
        for name in (_KERNEL, _HOST, _SOURCE):
            if not (directory / name).is_file():
                raise LaunchError(f"{directory} is no saved super kernel: {name} is missing")
        source = (directory / _SOURCE).read_text()
        return cls(plan, numbers, source, directory / _KERNEL, directory / _HOST, ())

    def launch(self, buffers: Mapping[str, Any], wishes: LaunchWishes) -> dict[str, Any]:
        if forked():
            raise LaunchError(
                f"super_kernel_scope {self.plan.graph.name!r}: launch in a forked process: the OpenMP threads of the parent "
                "are not here and a launch would hang. Start the process with the 'spawn' method"
            )
        arguments = self._binder.bind(buffers, self._event_addresses(wishes.events))
        if self._special:
            self._launch_observed(arguments.values, arguments.sizes, wishes, arguments.named)
            return arguments.made
        self.launch_bound(arguments.values, arguments.sizes)
        return arguments.made

    def launch_bound(self, values: Any, sizes: Any) -> None:
        """A launch whose arguments have been checked already."""
        failed = ctypes.c_void_p()
        status = self._free.sk_launch(self._program, values, sizes, _may_interrupt(), ctypes.byref(failed))
        if status:
            self._raise(status, failed.value, None)

    def _event_addresses(self, events: Mapping[str, Event]) -> list[int]:
        return [events[event.label].address for event in self.plan.graph.events]

    def _launch_observed(self, values: Any, sizes: Any, wishes: LaunchWishes, named: Mapping[str, Any]) -> None:
        """A launch with a control agent beside it, or with time stamps to collect."""
        running = self._free.sk_launch_begin(self._program)
        agent = Agent(self.plan, self.numbers, self._free, running, wishes.tilings, named) if self._dynamic else None
        if agent:
            agent.start()
        status = self._free.sk_launch_run(running, values, sizes, _may_interrupt())
        if agent:
            agent.join()
        if status:
            self._raise(status, running, agent)
        if self.numbers.records:
            self._times = self._collect(running)
        self._free.sk_launch_end(running)

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

    def step_times(self) -> Sequence[StepTime]:
        return self._times

    def _raise(self, status: int, running: int | None, agent: Agent | None) -> None:
        """The launch was stopped: say why, then give its state back, reset."""
        assert running is not None
        fault = Fault(status)
        report = self._free.sk_launch_report(running).decode("utf-8", "replace")
        step = self._free.sk_launch_fault_step(running)
        detail = self._free.sk_launch_fault_detail(running)
        self._free.sk_launch_end(running)
        if fault is Fault.INTERRUPTED:
            raise KeyboardInterrupt
        where = f"super_kernel_scope {self.plan.graph.name!r}: "
        if fault is Fault.STALLED:
            raise LaunchError(report.rstrip())
        if fault is Fault.TILING_FAILED and agent is not None:
            op = self._dynamic_op(detail)
            raise LaunchError(f"{where}the tiling function of op {op!r} failed: {agent.error}") from agent.error
        raise LaunchError(where + self._explain(fault, step, detail))

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

    def close(self) -> None:
        if self._library is None:
            return
        self._free.sk_program_destroy(self._program)
        handle, self._library = self._library._handle, None
        ctypes.CDLL(None).dlclose(ctypes.c_void_p(handle))


def _op_of(step: Step) -> int:
    op = getattr(step, "op", None)
    assert isinstance(op, int)
    return op


def _may_interrupt() -> int:
    """1 where Ctrl-C would raise KeyboardInterrupt: in the main thread, with Python's own handler."""
    if threading.current_thread() is not threading.main_thread():
        return 0
    return int(signal.getsignal(signal.SIGINT) is signal.default_int_handler)


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
        step_is_call=(ctypes.c_uint8 * len(steps))(*(isinstance(step, Call) for step in steps)),
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
    folder = default_directory() / "reports"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    plain = "".join(c if c.isalnum() else "_" for c in name)
    return folder / f"{plain}-{os.getpid()}.txt"
