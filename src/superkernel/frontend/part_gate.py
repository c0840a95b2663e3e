"""frontend.part_gate: a part and its first inputs -> what runs it from then on: super kernels, or stock Inductor."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from ..cache import Cache, cache_in
from ..runtime.launch_events import unpublished
from .capture.partition import GraphPart
from .comparable_parts import TrialInputs, library_calls, written_inputs
from .gate_conditions import GateConditions
from .gate_timing import Clock, alternate, is_faster, least_gain, microseconds
from .lowering.inductor import MATMULS
from .lowering.program_trace import KernelCall, LibraryCall
from .op_timing import kernel_times, library_times
from .part_verdict import INDUCTOR, VERDICTS, LibraryCallTimes, PartChoice, PartVerdict
from .profit_gate import FUSED, ON_ONE_CORE
from .program import Program
from .program_memory import SegmentLaunch
from .run_parts import PartFunction
from .segments import MatchedProgram, Segment

_log = logging.getLogger("superkernel")
WITH_LIBRARY_CALLS = "fused, with library calls"
_LAUNCH_NS = 2_000  # the least that Inductor spends on starting a kernel
_SPLIT_NS = 8_000  # what a torch call between two segments costs, beside its function
_LIBRARY_MARGIN = 1.1  # by which torch's function for an op must be faster
_MOST_SAMPLES, _SAMPLING_NS = 30, 50_000_000  # launches from which the least time is taken, and how long they may take
_WORTH_ALL_TIMES_NS = 100_000  # shorter launches are kept without a look at single ops
# Operators whose sub-kernels are rarely slower than torch's functions: parts with these alone are decided by their sum
_USUALLY_FASTER = (*MATMULS, "aten::baddbmm", "aten::_scaled_dot_product_flash_attention_for_cpu")
_measuring = threading.RLock()  # measurements of one process do not disturb each other


@dataclass(frozen=True)
class MeasuredPart:
    """A part that is built, and how to build the alternatives. Builders are called when their result may be faster."""

    part: GraphPart
    matched: MatchedProgram
    segments: Sequence[Segment]
    program: Program
    key: str
    cache_directory: str | None
    clock: Clock
    build_stock: Callable[[str], PartFunction]  # stock Inductor's code; takes the reason for profiles
    build_with_library_calls: Callable[[Sequence[LibraryCallTimes]], Program]
    report: Callable[[PartVerdict], None]

    def choose(self, args: Sequence[Any]) -> PartFunction:
        """Measure, unless there is a verdict for this part; return the function that runs it."""
        with cache_in(self.cache_directory), _measuring:
            store = Cache()
            built: dict[PartChoice, PartFunction] = {PartChoice.SUPER_KERNELS: self.program}
            verdict = VERDICTS.find(self.key, store)
            if verdict is None:
                self.program.prepare(args)
                verdict = self._measured(args, built, store)
            if verdict.choice not in built:
                built[verdict.choice] = self.build(verdict)
            self.report(verdict)
            return built[verdict.choice]

    def _measured(self, args: Sequence[Any], built: dict[PartChoice, PartFunction], store: Cache) -> PartVerdict:
        """What a busy machine decides, and what could not be measured, is not kept for other processes."""
        crowded = self.is_crowded()
        try:
            with unpublished(), torch.no_grad():
                trial = TrialInputs(args, written_inputs(self.part))
                measured = PartMeasurement(self, trial, built, crowded).verdict()
        except Exception as reason:  # the third fallback point: what fails on trial stays as it is
            _log.debug("the profit gate cannot measure a part", exc_info=reason)
            note = f"not compared with stock Inductor: {type(reason).__name__}: {reason}"
            verdict = PartVerdict(PartChoice.SUPER_KERNELS, {}, GateConditions.now(), (), note)
            return VERDICTS.keep(self.key, verdict, None)
        return VERDICTS.keep(self.key, measured, None if crowded or self.is_crowded() else store)

    def build(self, verdict: PartVerdict) -> PartFunction:
        """The function of a verdict that another part with this key has got."""
        if verdict.choice is PartChoice.INDUCTOR:
            return self.build_stock(verdict.reason)
        return self.build_with_library_calls(verdict.library_calls)

    def is_crowded(self) -> bool:
        return any(segment.kernel is not None and segment.kernel.crowded() for segment in self.segments)


@dataclass
class PartMeasurement:
    """Measures the alternatives of a part on trial inputs."""

    measured: MeasuredPart
    trial: TrialInputs
    built: dict[PartChoice, PartFunction]  # receives what was built for the measurement
    crowded: bool  # other programs keep the machine busy

    def verdict(self) -> PartVerdict:
        """Inductor is asked only where the library functions that it would call leave room for a gain."""
        launches = self._super_kernel_launches()
        least = min(map(self._least_launch_time, launches.values()))
        calls = self._calls()
        library = self._library_times(calls)
        generated = sum(isinstance(call, KernelCall) for call, _ in self.measured.matched.calls)
        room = least - sum(library.values()) - generated * _LAUNCH_NS
        is_usual = all(call.op._schema.name in _USUALLY_FASTER for call in calls.values())
        if room < least_gain(least, self.crowded) and (is_usual or least < _WORTH_ALL_TIMES_NS):
            return self._keep({FUSED: [least]})
        kernels = self._kernel_times(calls)
        losses = {index: kernels[index] - library[index] for index in library if index in kernels}
        losing = {
            index: loss
            for index, loss in losses.items()
            if _LIBRARY_MARGIN * library[index] < kernels[index] and loss > _SPLIT_NS
        }
        functions = {name: self._trial(launch) for name, launch in launches.items()}
        if sum(losses.values()) >= least_gain(least, self.crowded):
            stock = self._stock()
            functions[INDUCTOR] = lambda: stock(list(self.trial.args))
        times = self._alternate(functions)
        typical = min if self.crowded else median
        best = min(typical(samples) for samples in times.values())
        expected = min(typical(times[name]) for name in launches) - sum(losing.values()) + len(losing) * _SPLIT_NS
        library_calls = tuple(
            LibraryCallTimes(index, kernels[index] / 1000, library[index] / 1000) for index in sorted(losing)
        )
        if losing and best - expected > least_gain(best, self.crowded):
            program = self.measured.build_with_library_calls(library_calls)
            self.built[PartChoice.LIBRARY_CALLS] = program
            functions[WITH_LIBRARY_CALLS] = lambda: program(self.trial.args)
            times = self._alternate(functions)
        return self._decide(times, library_calls)

    def _decide(self, times: Mapping[str, Sequence[int]], library_calls: tuple[LibraryCallTimes, ...]) -> PartVerdict:
        choice = decide(times, self.crowded)
        kept_calls = library_calls if choice is PartChoice.LIBRARY_CALLS else ()
        return PartVerdict(choice, microseconds(times, self.crowded), GateConditions.now(), kept_calls)

    def _keep(self, times: Mapping[str, Sequence[int]]) -> PartVerdict:
        return PartVerdict(PartChoice.SUPER_KERNELS, microseconds(times, self.crowded), GateConditions.now())

    def _calls(self) -> dict[int, LibraryCall]:
        matched = self.measured.matched
        return {
            index: call for index in library_calls(matched) if isinstance(call := matched.calls[index][0], LibraryCall)
        }

    def _super_kernel_launches(self) -> dict[str, Callable[[SegmentLaunch, Any, Any], None]]:
        """The ways to launch the super kernels, whatever `fuse` is."""
        ways: dict[str, Callable[[SegmentLaunch, Any, Any], None]] = {
            FUSED: lambda step, values, sizes: step.kernel.launch_values(values, sizes)
        }
        kernels = [segment.kernel for segment in self.measured.segments]
        if all(kernel is not None and kernel.runs_alone for kernel in kernels):
            ways[ON_ONE_CORE] = lambda step, values, sizes: step.kernel.launch_values_alone(values, sizes)
        return ways

    def _trial(self, launch: Callable[[SegmentLaunch, Any, Any], None]) -> Callable[[], object]:
        return lambda: self.measured.program(self.trial.args, launch)

    def _alternate(self, functions: Mapping[str, Callable[[], object]]) -> dict[str, list[int]]:
        return alternate(functions, self.measured.clock, self.trial.restore, self.crowded)

    def _least_launch_time(self, launch: Callable[[SegmentLaunch, Any, Any], None]) -> int:
        """The nanoseconds inside of launches, without the host's work between them."""
        clock = self.measured.clock
        totals: list[int] = []

        def timed(step: SegmentLaunch, values: Any, sizes: Any) -> None:
            begin = clock()
            launch(step, values, sizes)
            totals[-1] += clock() - begin

        while len(totals) < 2 or (len(totals) < _MOST_SAMPLES and sum(totals) < _SAMPLING_NS):
            totals.append(0)
            self.trial.restore()
            self.measured.program(self.trial.args, timed)
        return min(totals)

    def _library_times(self, calls: Mapping[int, LibraryCall]) -> dict[int, int]:
        return library_times(calls, self.measured.program, self.trial.args, self.measured.clock)

    def _kernel_times(self, calls: Mapping[int, LibraryCall]) -> dict[int, int]:
        self.trial.restore()
        found = kernel_times(self.measured.program, self.measured.segments, self.trial.args, self.measured.clock)
        return {index: found[id(call)] for index, call in calls.items() if id(call) in found}

    def _stock(self) -> PartFunction:
        stock = self.built[PartChoice.INDUCTOR] = self.measured.build_stock("left out: stock Inductor is faster")
        return stock


def decide(times: Mapping[str, Sequence[int]], crowded: bool) -> PartChoice:
    """What runs the part: the super kernels, unless an alternative is faster beyond noise."""
    super_kernels = [times[name] for name in (FUSED, ON_ONE_CORE) if name in times]
    choice, best = PartChoice.SUPER_KERNELS, min(super_kernels, key=min if crowded else median)
    for name, alternative in (
        (WITH_LIBRARY_CALLS, PartChoice.LIBRARY_CALLS),
        (INDUCTOR, PartChoice.INDUCTOR),
    ):
        if name in times and is_faster(times[name], best, crowded):
            choice, best = alternative, times[name]
    return choice


@dataclass
class PartGate:
    """A part before its first call. That call measures; from then on the chosen function runs."""

    measured: MeasuredPart | None  # None: the choice is made
    program: Program
    _chosen: PartFunction | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        chosen = self._chosen
        if chosen is None:
            chosen = self.settle(args)
        return chosen(args)

    def settle(self, args: Sequence[Any]) -> PartFunction:
        """The function that runs the part; threads that call meanwhile wait for it."""
        with self._lock:
            if self._chosen is None:
                assert self.measured is not None
                self._chosen = self.measured.choose(args)
                self.measured = None
            return self._chosen

    def bound(self, order: Sequence[int]) -> Callable[[tuple[Any, ...]], Sequence[Any]]:
        """As Program.bound, with the choice before the first call."""
        direct: Callable[[tuple[Any, ...]], Sequence[Any]] | None = None

        def call(args: tuple[Any, ...]) -> Sequence[Any]:
            nonlocal direct
            if direct is None:
                chosen = self.settle([args[index] for index in order])
                direct = self.program.bound(order) if chosen is self.program else reordered(chosen, order)
            return direct(args)

        return call


def reordered(function: PartFunction, order: Sequence[int]) -> Callable[[tuple[Any, ...]], Sequence[Any]]:
    """A function of a tuple, whose part function takes the arguments in this order."""
    return lambda args: function([args[index] for index in order])
