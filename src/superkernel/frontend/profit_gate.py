"""frontend.profit_gate: the ways to launch a segment -> the fastest, measured on real calls that alternate."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..cache import GATE_SUFFIX, Cache, digest
from ..errors import SuperKernelError
from ..runtime import launch_events
from ..runtime.turns import TURNS, Turns
from .gate_conditions import GateConditions

__all__ = ["FUSED", "ON_ONE_CORE", "TURNS", "UNFUSED", "LaunchFunction", "ProfitGate"]

FUSED, ON_ONE_CORE, UNFUSED = "fused", "fused on one core", "unfused"

LaunchFunction = Callable[[Any, Any], None]  # values and sizes of the arguments


@dataclass
class ProfitGate:
    """Launches a segment: fused with a team, fused on the calling thread alone, or op by op.

    All give the same bits, so any call may be any of them.
    """

    fused: Mapping[str, LaunchFunction]  # the alternatives that are built already, those to prefer first
    build_unfused: Callable[[], LaunchFunction] | None  # None: a segment of one op
    clock: Callable[[], int]  # of the target: nanoseconds, read when all launches have completed
    key: str
    cache: Cache | None
    crowded: Callable[[], bool] = lambda: False  # others keep the machine busy: times say little
    turns: Turns = field(init=False)
    conditions: GateConditions | None = None  # when and under which load it decided; None: not decided yet
    _launch: LaunchFunction | None = None  # of the alternative that was chosen
    _unfused: LaunchFunction | None = None
    _builder: threading.Thread | None = None

    def __post_init__(self) -> None:
        self.turns = Turns((*self.fused, *([UNFUSED] if self.build_unfused is not None else [])))
        self._read_times()

    def __call__(self, values: Any, sizes: Any) -> None:
        if self._launch is not None:
            self._launch(values, sizes)
        elif self.chosen is None:
            self._measure(values, sizes)
        else:
            self._launch = self._function(self.chosen)
            self._launch(values, sizes)

    @property
    def chosen(self) -> str | None:
        """The name of the alternative that stays; None: not decided yet."""
        return self.turns.chosen

    @property
    def medians_us(self) -> dict[str, float]:
        return self.turns.medians_us

    def begin_build(self) -> None:
        """Build the unfused launches in a thread, unless they are known to be slower: no call should compile."""
        if self.build_unfused is not None and self.chosen in (None, UNFUSED):
            self._builder = threading.Thread(target=self._build, name="superkernel-gate", daemon=True)
            self._builder.start()

    def finish_build(self) -> None:
        """Wait for what `begin_build` started."""
        if self._builder is not None:
            self._builder.join()

    def _build(self) -> None:
        with suppress(SuperKernelError):  # raised again by the call that needs the launches
            self._unfused = self._built_unfused()

    def _built_unfused(self) -> LaunchFunction:
        assert self.build_unfused is not None, "unfused is no alternative"
        return self.build_unfused()

    def _function(self, name: str) -> LaunchFunction:
        if name != UNFUSED:
            return self.fused[name]
        self.finish_build()
        if self._unfused is None:
            self._unfused = self._built_unfused()
        return self._unfused

    def _measure(self, values: Any, sizes: Any) -> None:
        name, counts = self.turns.take()
        launch = self._function(name)
        begin = self.clock()
        launch(values, sizes)
        duration = self.clock() - begin
        # publishing a launch takes time
        if counts and not launch_events.has_listeners() and self.turns.record(name, duration):
            self._keep_decision()

    def _keep_decision(self) -> None:
        """What a crowded machine decides is not kept for others, nor against a team, which runs on one core there."""
        self.conditions = GateConditions.now()
        if not self.crowded():
            self._write_times()
        elif self.turns.chosen == ON_ONE_CORE:
            self.turns.chosen = FUSED

    def _entry(self) -> str:
        return digest("gate", self.key)

    def _write_times(self) -> None:
        if self.cache is not None and self.conditions is not None:
            fields = {"times_ns": self.turns.times, "conditions": self.conditions.to_dict()}
            self.cache.write_text(self._entry(), GATE_SUFFIX, json.dumps(fields))

    def _read_times(self) -> None:
        if self.cache is None or (text := self.cache.read_text(self._entry(), GATE_SUFFIX)) is None:
            return
        try:
            fields = json.loads(text)
            conditions = GateConditions.read(fields["conditions"])
            times = {str(name): [int(time) for time in times] for name, times in fields["times_ns"].items()}
        except (ValueError, TypeError, AttributeError, KeyError):
            return
        self.turns.adopt(times)
        if self.turns.chosen is not None:
            self.conditions = conditions
