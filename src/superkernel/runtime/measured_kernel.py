"""runtime.measured_kernel: a kernel with a team and on one core -> the faster, measured on its first launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any, TypeVar

from ..plan.spans import Span, TimeStamps
from ..targets.protocol import BoundArguments, LaunchInputs, LoadedKernel, OpLabel, RawValue
from . import launch_events
from .turns import Turns

TEAM, ALONE = "team", "one core"
Result = TypeVar("Result")


class MeasuredKernel:
    """Stands in for both kernels until it is known which is faster; `decided` then receives that one."""

    def __init__(
        self,
        team: LoadedKernel,
        alone: LoadedKernel,
        decided: Callable[[LoadedKernel], None],
        crowded: Callable[[], bool],
        clock: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self._kernels = {ALONE: alone, TEAM: team}
        self._decided, self._crowded, self._clock = decided, crowded, clock
        self._last = team
        self.turns = Turns((ALONE, TEAM))
        self.plan, self.argument_arrays, self.bind = team.plan, team.argument_arrays, team.bind

    def _timed(self, launch: Callable[[LoadedKernel], Result]) -> Result:
        name, counts = self.turns.take()
        kernel = self._last = self._kernels[name]
        begin = self._clock()
        result = launch(kernel)
        duration = self._clock() - begin
        # publishing a launch takes time
        if counts and not launch_events.has_listeners() and self.turns.record(name, duration):
            # on a crowded machine a team runs on one core too, and only it will use more when the crowd is gone
            chosen = TEAM if self._crowded() else self.turns.chosen
            self._decided(self._kernels[chosen or TEAM])
        return result

    def launch(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> dict[str, Any]:
        return self._timed(lambda kernel: kernel.launch(buffers, launch_inputs))

    def launch_bound(self, arguments: BoundArguments, launch_inputs: LaunchInputs) -> None:
        self._timed(lambda kernel: kernel.launch_bound(arguments, launch_inputs))

    def launch_values(self, values: Any, sizes: Any) -> None:
        self._timed(lambda kernel: kernel.launch_values(values, sizes))

    def launch_addresses(
        self, arguments: Sequence[RawValue], launch_inputs: LaunchInputs, named: Mapping[str, Any], op_label: OpLabel
    ) -> None:
        self._timed(lambda kernel: kernel.launch_addresses(arguments, launch_inputs, named, op_label))

    def running(self) -> int:
        return sum(kernel.running() for kernel in self._kernels.values())

    def synchronize(self) -> None:
        for kernel in self._kernels.values():
            kernel.synchronize()

    def spans(self) -> tuple[Span, ...]:
        return self._last.spans()

    def time_stamps(self) -> TimeStamps | None:
        return self._last.time_stamps()

    def last_launch(self) -> tuple[int, int]:
        return self._last.last_launch()

    def close(self) -> None:
        for kernel in self._kernels.values():
            kernel.close()
