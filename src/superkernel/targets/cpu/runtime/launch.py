"""targets.cpu.runtime.launch: a loaded kernel and buffers by name -> a launch; faults become errors that name ops."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import weakref
from _signal import getsignal  # type: ignore[import-not-found]  # signal.getsignal without its conversion to an enum, which costs microseconds
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_void_p
from pathlib import Path
from threading import get_ident
from typing import Any

from ....errors import LaunchError, UnsupportedError
from ....model.node import Node
from ....model.options import Options, WatchdogAction
from ....plan import Plan
from ....plan.memory import MemoryPlan
from ....plan.spans import Span, StepTime, spans_of
from ....plan.steps import AwaitRanks
from ...launch_outputs import LaunchOutputs
from ...launch_reports import report_path
from ...protocol import BoundArguments, LaunchInputs, OpLabel, RawValue
from ..executable import CpuExecutable
from ..launch_facts import launch_facts
from ..numbering import Numbering
from .access_tables import AccessTables, access_tables
from .arguments import Arguments, FastBinder
from .host_library import CLOSED, MISFIT, Caller, Facts, Fault, forked, load_host, load_library
from .tiling_agent import TilingRequests
from .time_stamps import CpuTimeStamps, stamp_buffer

_MAIN = threading.main_thread().ident
_NO_INPUTS = LaunchInputs({}, {})
_DEFAULT_WATCHDOG_S = Options().debug_watchdog  # ranks wait longer for each other, unless the user gave a limit
DELAYS = "SUPERKERNEL_TEST_DELAYS"  # a seed: every step of a launch may be late, in kernels built while it is set


class CpuLoadedKernel:
    """A super kernel whose shared object is loaded. Every launch has its own state: threads may launch at once."""

    def __init__(self, executable: CpuExecutable, alone: bool = False) -> None:
        """`alone`: the calling thread runs the whole plan, without a team."""
        self.plan, self.numbers = plan, numbers = executable.plan, executable.numbers
        self.cores = 1 if alone else plan.cores
        self._where = f"super_kernel_scope {plan.graph.name!r}: "
        self.host = load_host(executable.host)
        self._library = self.host.gil_released
        library = _loaded(executable.binary, plan)
        self._access_tables = access_tables(plan, numbers) if plan.options.debug_check else None
        self.program = _create_program(plan, numbers, library, self._library, alone, self._access_tables)
        # At close, or when the last reference is gone; a thread that enters a launch holds one.
        self._unload = _finalize(self, _dlclose, library._handle)
        _finalize(self, self._library.sk_program_destroy, self.program)
        # debug-check=1 tells buffers apart by their memory: then none is shared
        self._binder = FastBinder(plan.graph, MemoryPlan() if plan.options.debug_check else plan.memory)
        self._events = tuple(event.label for event in plan.graph.events)
        self._call, self._call_values = self.host.gil_held.sk_call, self.host.unconverted("sk_call_values")
        caller = Caller(self.program, self._binder.wanted, self._binder.count)
        self._keep, self._caller = caller, c_void_p(ctypes.addressof(caller))
        self._handle = c_void_p(self.program)
        self._stamps: CpuTimeStamps | None = None  # of the last launch
        self._of_thread = threading.local()  # the time stamps of each thread's last launch
        nodes = plan.graph.nodes
        self._asking = {index: nodes[op] for op, index in numbers.tilings.items() if nodes[op].asks_agent}
        self._dynamic = bool(self._asking)
        self.recorded = bool(numbers.stamp_room)
        self.stamp_buffer = stamp_buffer(self.cores, numbers.stamp_room)
        self._observed = self._dynamic or self.recorded
        self._plain = not self._observed and not plan.graph.events
        # one core waits for ranks at most; otherwise it could stop at its end only: Python's handler serves as well
        waits = self.cores > 1 or bool(plan.rank_syncs) or not self._plain
        self._may_interrupt = may_interrupt if waits else lambda: 0

    def launch(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> dict[str, Any]:
        if self._plain and not forked() and (arrays := self._binder.arrays(buffers)) is not None:
            outcome = self._call(self._caller, arrays[0], arrays[1], arrays[2], self._may_interrupt())
            if outcome == 0:
                outputs = LaunchOutputs()
                outputs.graph = self.plan.graph
                return outputs
            if outcome != MISFIT:
                raise self.stopped(outcome, launch_inputs)
        events = [launch_inputs.events[label].address for label in self._events]
        arguments = self._binder.bind_fast(buffers, events)
        if arguments is None or self._run(arguments, launch_inputs) == MISFIT:
            arguments = self._binder.bind_carefully(buffers, events)
            self.check_process()
            self._run_bound(arguments.values, arguments.sizes, launch_inputs, arguments.named)
        return arguments.outputs

    def _run(self, arguments: Arguments, launch_inputs: LaunchInputs) -> int:
        """One launch; MISFIT: an array was not what the ops take, nothing was run."""
        self.check_process()
        if self._observed:
            binder = self._binder
            values, sizes = (arguments.values, arguments.sizes) if arguments.values else binder.argument_arrays()
            if self.host.gil_held.sk_bind(arguments.capsules, binder.count, binder.wanted, values, sizes) == MISFIT:
                return MISFIT
            self._run_bound(values, sizes, launch_inputs, arguments.named)
            return 0
        outcome: int = self._call(self._caller, arguments[0], arguments[1], arguments[2], self._may_interrupt())
        if outcome not in (0, MISFIT):
            raise self.stopped(outcome, launch_inputs)
        return outcome

    def check_process(self) -> None:
        if forked():
            raise LaunchError(
                f"{self._where}launch in a forked process: the parent has launched, and its threads are not here. "
                "Start the process with the 'spawn' method, or fork before the first launch"
            )

    def stopped(
        self, outcome: int, inputs: LaunchInputs = _NO_INPUTS, op_label: OpLabel | None = None
    ) -> BaseException:
        """The error of a launch that the library refused or stopped."""
        if outcome == CLOSED:
            return self._closed()
        error = self._error(self._library.sk_launch_fault(outcome), outcome, None, inputs, op_label)
        self._library.sk_launch_end(outcome)
        return error

    def _closed(self) -> LaunchError:
        return LaunchError(f"{self._where}the kernel is closed")

    def bind(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> BoundArguments:
        events = [launch_inputs.events[label].address for label in self._events]
        arguments = self._binder.bind_carefully(buffers, events)
        return BoundArguments(arguments.values, arguments.sizes, arguments.outputs, dict(arguments.named))

    def launch_bound(self, arguments: BoundArguments, launch_inputs: LaunchInputs) -> None:
        if self._observed or forked():
            self.check_process()
            self._run_bound(arguments.values, arguments.sizes, launch_inputs, arguments.named)
        elif outcome := self._call_values(self._handle, arguments.values, arguments.sizes, self._may_interrupt()):
            raise self.stopped(outcome, launch_inputs)

    def argument_arrays(self) -> tuple[Any, Any]:
        """Arrays for launch_values, in the order of the graph's buffers."""
        if self._dynamic or self._events:
            what = "a dynamic op" if self._dynamic else "an external event"
            raise LaunchError(f"{self._where}a kernel with {what} cannot be launched by values alone")
        return self._binder.argument_arrays()

    def launch_values(self, values: Any, sizes: Any, op_label: OpLabel | None = None) -> None:
        """A launch with filled argument_arrays(); checked is only that buffers have an address."""
        if forked() or not self._plain:
            assert not self._dynamic and not self._events
            self.check_process()
            self._run_bound(values, sizes, _NO_INPUTS, {}, op_label)
        elif outcome := self._call_values(self._handle, values, sizes, self._may_interrupt()):
            raise self.stopped(outcome, op_label=op_label)

    def launch_addresses(
        self, arguments: Sequence[RawValue], launch_inputs: LaunchInputs, named: Mapping[str, Any], op_label: OpLabel
    ) -> None:
        """A launch whose arguments, events included, have been checked already."""
        self.check_process()
        self._run_bound(*self._binder.filled(arguments), launch_inputs, named, op_label)

    def _run_bound(
        self, values: Any, sizes: Any, inputs: LaunchInputs, named: Mapping[str, Any], op_label: OpLabel | None = None
    ) -> None:
        """One launch of values that fit; where the plan has them, with a control agent and with time stamps."""
        library = self._library
        if self.recorded and not self._dynamic:
            stamps = self.stamp_buffer()
            if outcome := library.sk_call_recorded(self.program, values, sizes, may_interrupt(), stamps):
                raise self.stopped(outcome, inputs, op_label)
            self.keep_stamps(stamps)
            return
        running = library.sk_launch_begin(self.program)
        if not running:
            raise self._closed()
        requests = agent = None
        stopped = True
        try:
            if self._dynamic:
                requests = TilingRequests(running, self._asking, inputs.tilings, named, keep=self)
                agent = self.host.tiling_agents.take()
                agent.serve(requests)
            if status := library.sk_launch_run(running, values, sizes, may_interrupt()):
                raise self._error(status, running, requests, inputs, op_label)
            stopped = False
            if self.recorded:
                stamps = self.stamp_buffer()
                library.sk_launch_record(running, stamps)
                self.keep_stamps(stamps)
        finally:
            if agent is None or agent.leave(stopped):
                library.sk_launch_end(running)

    def keep_stamps(self, raw: Any) -> CpuTimeStamps:
        """Those of the last launch; they are decoded on demand, not during a launch."""
        self._stamps = self._of_thread.stamps = stamps = CpuTimeStamps(self.cores, raw)
        return stamps

    def repeat(self, buffers: Mapping[str, Any], loop: Any, times: int) -> float:
        """Launch from a C loop (as in bench/clock.cpp); what the loop returns."""
        arguments = self._binder.bind_carefully(buffers, ())
        functions = (getattr(self._library, f"sk_launch_{part}") for part in ("begin", "run", "end"))
        parts = (c_void_p(ctypes.cast(function, c_void_p).value) for function in functions)
        return float(loop(*parts, c_void_p(self.program), arguments.values, arguments.sizes, ctypes.c_int64(times)))

    def step_times(self) -> Sequence[StepTime]:
        return self._stamps.step_times() if self._stamps else ()

    def time_stamps(self) -> CpuTimeStamps | None:
        stamps: CpuTimeStamps | None = getattr(self._of_thread, "stamps", None)
        return stamps

    def last_launch(self) -> tuple[int, int]:
        times = (ctypes.c_uint64 * 2)()
        self._library.sk_last_launch(times)
        return times[0], times[1]

    def spans(self) -> tuple[Span, ...]:
        return spans_of(self.plan, self.step_times())

    def _error(
        self, status: int, running: int, requests: TilingRequests | None, inputs: LaunchInputs, op_label: OpLabel | None
    ) -> LaunchError | KeyboardInterrupt:
        """Why the launch was stopped. Events that it awaited are cleared, as after any launch."""
        for node in self.plan.graph.nodes:
            for event in node.awaits:
                inputs.events[event].clear()
        fault = Fault(status)
        report = self._library.sk_launch_report(running).decode("utf-8", "replace")
        step = self._library.sk_launch_fault_step(running)
        detail = self._library.sk_launch_fault_detail(running)
        if fault is Fault.INTERRUPTED:
            return KeyboardInterrupt()
        where = f"super_kernel_scope {op_label.scope!r}: " if op_label else self._where
        if fault is Fault.NO_ROOM:
            return LaunchError(
                f"{where}debug-check: there is no memory for copies of the buffers, with gaps between them"
            )
        if fault is Fault.STALLED:
            return LaunchError(report.rstrip())
        if fault is Fault.NO_MEMORY:
            return LaunchError(f"{where}no memory for the buffers inside: {self.plan.memory}")
        if fault is Fault.TILING_FAILED and requests is not None:
            op = op_label.op if op_label else self._asking[detail].name
            error = LaunchError(f"{where}the tiling function of op {op!r} failed: {requests.error}")
            error.__cause__ = requests.error
            return error
        if fault is Fault.RANK_FAILED:
            return LaunchError(f"{where}{_explain_failed_rank(self.plan, step, detail, op_label)}")
        if fault is Fault.NULL_BUFFER:
            return LaunchError(f"{where}{_explain_null_buffer(self.plan, self.numbers.sources[detail], op_label)}")
        op_index = getattr(self.plan.steps[step], "op", None)
        assert isinstance(op_index, int)
        node = self.plan.graph.nodes[op_index]
        message = self._library.sk_launch_failure(running).decode("utf-8", "replace")
        why = f": {message}" if fault is Fault.FAILED else _explain(fault, node, detail)
        return LaunchError(f"{where}op {op_label.op if op_label else node.name!r}{why}")

    def synchronize(self) -> None: ...  # a launch has completed when its call returns

    def running(self) -> int:
        return int(self._library.sk_program_running(self.program))

    def close(self) -> None:
        """Refuse launches from now on and unload; a launch that is running keeps its binary until this object goes."""
        if self._library.sk_program_close(self.program) == 0:
            self._unload()


def load_alone(executable: CpuExecutable) -> CpuLoadedKernel | None:
    """The kernel as the calling thread runs it alone; None: an op calls sync_all, which needs its team."""
    return None if executable.numbers.rendezvous else CpuLoadedKernel(executable, alone=True)


def _loaded(binary: Path, plan: Plan) -> ctypes.CDLL:
    try:
        return load_library(binary)
    except OSError as reason:
        libraries = dict.fromkeys(name for node in plan.graph.nodes for name in node.kernel.libraries)
        needs = f"; its sub-kernels need {', '.join(libraries)}" if libraries else ""
        raise UnsupportedError(
            f"super_kernel_scope {plan.graph.name!r}: {binary} cannot be loaded here: {reason}{needs}"
        ) from reason


def _finalize(owner: object, act: Callable[..., object], *args: object) -> weakref.finalize[..., object]:
    finalizer = weakref.finalize(owner, act, *args)
    finalizer.atexit = False  # other threads may be launching while the process ends
    return finalizer


def _dlclose(handle: int) -> None:
    ctypes.CDLL(None).dlclose(c_void_p(handle))


def _explain(fault: Fault, node: Node, detail: int) -> str:
    """What the op did, or was given."""
    if fault is Fault.UNKNOWN_KEY:
        keys = ", ".join(str(key) for key, _ in node.kernel.tiling_variants)
        return f" was given the unknown tiling key {detail}; its keys are {keys}"
    if fault is Fault.BLOCK_COUNT:
        return f" was given {detail} blocks; it can run with 0 to {node.blocks}"
    if fault is Fault.NOT_WAITED:
        return (
            f" did not call wait_previous() in block {detail}, but sub-kernel {node.kernel.name!r} is declared to wait "
            f"inside (early_start={node.kernel.early_start!r}): what it read may be old. Call wait_previous() on every "
            "path before set_next() and return, or declare early_start=False"
        )
    if fault is Fault.TILING_STATUS:
        assert node.compiled_tiling is not None
        return f": its tiling function {node.compiled_tiling.symbol!r} returned {detail} instead of 0"
    return f" called sync_all, but sub-kernel {node.kernel.name!r} was declared with sync_all=False"


def _explain_null_buffer(plan: Plan, name: str, op_label: OpLabel | None) -> str:
    """Which op takes it first, as what."""
    uses = (
        (node.name, param.name) for node in plan.graph.nodes for param, buffer in node.arguments() if buffer == name
    )
    op, parameter = next(uses)
    return (
        f"op {op_label.op if op_label else op!r}: argument {parameter!r}, buffer {name!r}, has no memory: it is a fake "
        "tensor, wraps other tensors, or its storage was freed"
    )


def _explain_failed_rank(plan: Plan, step: int, rank: int, op_label: OpLabel | None) -> str:
    """Which op waited for which rank of which group."""
    awaited = plan.steps[step]
    assert isinstance(awaited, AwaitRanks)
    op = op_label.op if op_label else plan.graph.nodes[awaited.op].name
    return (
        f"op {op!r} waits for rank {rank} of group {awaited.group}, which will not come: it has failed, its process "
        "has ended, or it is in another model. Start all ranks of the group again, or make the process group anew"
    )


def may_interrupt() -> int:
    """1 where Ctrl-C would raise KeyboardInterrupt: in the main thread, with Python's own handler."""
    if get_ident() != _MAIN:
        return 0
    return int(getsignal(signal.SIGINT) is signal.default_int_handler)


def _create_program(
    plan: Plan,
    numbers: Numbering,
    library: ctypes.CDLL,
    host: ctypes.CDLL,
    alone: bool,
    checked: AccessTables | None,
) -> int:
    known = launch_facts(plan, numbers)
    slots, sources, steps = len(known.slot_source), len(known.source_offset), len(known.steps)
    facts = Facts(
        entry=ctypes.cast(getattr(library, known.entry), ctypes.c_void_p),
        name=plan.graph.name.encode(),
        cores=1 if alone else known.cores,
        slot_count=slots,
        source_count=sources,
        slot_source=(ctypes.c_int32 * slots)(*known.slot_source),
        slot_literal=(ctypes.c_uint64 * slots)(*known.slot_literal),
        rendezvous_count=known.rendezvous,
        tiling_count=len(numbers.tilings),
        counter_count=known.counters,
        copies_bytes=known.copies_bytes,
        step_count=steps,
        step_text=(ctypes.c_char_p * steps)(*(text.encode() for text in known.steps)),
        stamp_room=known.stamp_room,
        needs_team=known.needs_team,
        watchdog_s=plan.options.debug_watchdog,
        report_path=str(report_path(plan.graph.name)).encode(),
        delay_seed=int(os.environ.get(DELAYS) or 0),
        alone=alone,
        watchdog_exits=plan.options.debug_watchdog_action is WatchdogAction.EXIT,
        arena_bytes=known.arena_bytes,
        source_offset=(ctypes.c_int64 * sources)(*known.source_offset),
        source_bytes=(ctypes.c_int64 * sources)(*known.source_bytes),
        blocking_steps=known.blocking_steps,
        rank_watchdog_s=0.0 if plan.options.debug_watchdog == _DEFAULT_WATCHDOG_S else plan.options.debug_watchdog,
    )
    if checked is not None:
        facts.checked_slots = ctypes.addressof(checked.slots)
        facts.checked_steps = ctypes.addressof(checked.steps)
        facts.buffer_use = ctypes.addressof(checked.buffer_use)
    program: int = host.sk_program_create(ctypes.byref(facts))
    return program
