"""runtime.launch_inputs: events and tiling functions of a launch: the kernel's, replaced by those of the caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import LaunchError, nearest, shown
from ..model.events import Event
from ..model.graph import Graph
from ..model.op import EventId
from ..model.plain_values import plain_number
from ..model.tiling import CompiledTiling, TilingFunction
from ..targets.protocol import LaunchInputs

Events = Mapping[EventId, Event]
TilingFunctions = Mapping[str, TilingFunction]


class KernelInputs:
    """The events and tiling functions that the ops of a graph were given."""

    def __init__(self, graph: Graph) -> None:
        self._where = f"super_kernel_scope {shown(graph.name)}: "
        asking = [node for node in graph.nodes if node.asks_agent]
        functions = {node.name: function for node in asking if (function := node.tiling_function) is not None}
        self.dynamic_ops = tuple(node.name for node in asking)  # that need a Python function
        self._compiled_ops = tuple(node.name for node in graph.nodes if node.compiled_tiling)
        self.given = LaunchInputs({e.label: e.bound or Event(e.label) for e in graph.events}, functions)

    def merged(self, events: Events | None, tiling: TilingFunctions | None, partly: bool = False) -> LaunchInputs:
        """With what the caller of one launch passes; a LaunchError if that, or a function, is missing or wrong.

        partly: functions may be missing, for an emulator that can choose tilings itself.
        """
        all_events, functions = dict(self.given.events), dict(self.given.tilings)
        for label, event in self._passed(events, "events", "event ids to Events").items():
            name = label if isinstance(label, str) else shown(plain_number(label))
            if name not in all_events:
                raise LaunchError(f"{self._where}no op uses the external event {name}{nearest(name, all_events)}")
            if not isinstance(event, Event):
                raise LaunchError(f"{self._where}event {name} needs an Event, not {shown(event)}")
            all_events[name] = event
        for op, function in self._passed(tiling, "tiling", "ops to functions").items():
            self._check_function(op, function)
            functions[op] = function
        for op in self.dynamic_ops:
            if op not in functions and not partly:
                raise LaunchError(
                    f"{self._where}op {op!r} is dynamic: pass tiling={{{op!r}: function}} or give it to its Op"
                )
        return LaunchInputs(all_events, functions)

    def _passed(self, given: object, argument: str, what: str) -> Mapping[Any, Any]:
        if given is not None and not isinstance(given, Mapping):
            raise LaunchError(f"{self._where}{argument} is a dict from {what}, not {shown(given)}")
        return given or {}

    def _check_function(self, op: str, function: object) -> None:
        if op in self._compiled_ops:
            raise LaunchError(
                f"{self._where}op {op!r} has a compiled tiling, which is linked into the kernel; to pass a function "
                "with a launch, compile the op without one"
            )
        if isinstance(function, CompiledTiling):
            raise LaunchError(
                f"{self._where}op {shown(op)}: a compiled tiling is linked into the kernel: give it to its Op"
            )
        if op not in self.dynamic_ops:
            raise LaunchError(f"{self._where}no dynamic op is called {shown(op)}{nearest(op, self.dynamic_ops)}")
        if not callable(function):
            raise LaunchError(f"{self._where}op {shown(op)}: its tiling must be a function, not {shown(function)}")
