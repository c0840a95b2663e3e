"""unfused: the same sub-kernels, each a launch of its own through the same run time; what fusion is compared with."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..errors import GraphError, LaunchError
from ..model.graph import Graph, build_graph
from ..model.node import Node
from ..model.op import Op, Place, Tiling, place_of
from ..model.options import EarlyStart, Options
from ..model.params import Number, scalar_bits
from ..plan import make_plan
from ..targets.protocol import Executable, LaunchInputs, LaunchSequence, OpLabel, Origin, Prepared, SequencedLaunch
from .buffers import Bound, bind
from .launch_events import LaunchedKernel, Provenance, ReportedLaunch, ReportingExecutable, ReportingSequence

_ALONE = "alone"


@dataclass(frozen=True)
class Solo:
    """One op as a launch. The binary is shared by all ops that use the kernel alike, under names of its own."""

    node: Node
    leg: SequencedLaunch
    names: Mapping[str, Place | Number]  # name in the binary -> the op's argument
    series: LaunchSequence | None  # the launch as a series of one; None: dynamic, or part of a longer one

    @property
    def executable(self) -> Executable:
        return self.leg.executable


class Unfused:
    def __init__(
        self,
        graph: Graph,
        options: Options,
        prepared: Prepared,
        cores: int,
        launch_inputs: LaunchInputs,
        provenance: Provenance,
    ) -> None:
        self.graph, self._wishes, self._patience_s = graph, launch_inputs, options.debug_watchdog
        plain = replace(
            options,
            stream_fusion=False,
            early_start=EarlyStart.FULL,  # alone it means nothing, and one binary serves all settings
            debug_replay=False,
            debug_sync_all=False,
            feed_sync_all=True,
        )
        self._prepared = prepared
        self._place = {name: place for place, name in enumerate(graph.buffers)}
        straight = not graph.events and not any(node.dynamic for node in graph.nodes)
        self.solos: list[Solo] = []
        nodes = [graph.nodes[index] for index in graph.order]
        named = [(node, _canonical(node)) for node in nodes]
        alone: dict[object, Graph] = {}
        for node, names in named:
            if (key := _key(node, names)) not in alone:
                alone[key] = _alone(node, names, len(alone))
        plans = [make_plan(one, plain, cores) for one in alone.values()]
        binaries = dict(zip(alone, prepared.build_together(plans), strict=True))
        for node, names in named:
            leg = SequencedLaunch(
                binaries[_key(node, names)], OpLabel(graph.name, node.name), self._origins(node, names)
            )
            single = None if straight or node.dynamic else prepared.launch_sequence([leg])
            self.solos.append(Solo(node, leg, names, single))
        self._series: LaunchSequence | None = (
            prepared.launch_sequence([solo.leg for solo in self.solos]) if straight else None
        )
        self._binaries = list(binaries.values())
        self._plain = self.solos, self._series
        own_plans = dict(zip(alone, plans, strict=True))
        self._kernels = [LaunchedKernel(graph, provenance, own_plans[_key(node, names)], node) for node, names in named]

    def start_reporting(self) -> None:
        """Sequences and executables that publish their launches take the place of the plain ones."""
        solos, series = self._plain
        self.solos = [self._reporting(solo, kernel) for solo, kernel in zip(solos, self._kernels, strict=True)]
        if series is not None:
            self._series = ReportingSequence(series, [solo.leg for solo in solos], self._kernels, self._prepared)

    def _reporting(self, solo: Solo, kernel: LaunchedKernel) -> Solo:
        if solo.series is not None:
            return replace(solo, series=ReportingSequence(solo.series, [solo.leg], [kernel], self._prepared))
        executable = ReportingExecutable(solo.executable, partial(ReportedLaunch, solo.executable, kernel))
        return replace(solo, leg=replace(solo.leg, executable=executable))

    def stop_reporting(self) -> None:
        self.solos, self._series = self._plain

    def _origins(self, node: Node, names: Mapping[str, Place | Number]) -> tuple[Origin, ...]:
        dtypes = {param.name: param.dtype for param in node.kernel.params}
        return tuple(
            Origin(self._place[arg.name], arg.offset)
            if isinstance(arg, Place)
            else Origin(None, scalar_bits(arg, dtypes[own], node.name, GraphError))
            for own, arg in names.items()
        )

    def __call__(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs | None = None) -> dict[str, Any]:
        """Launch every op alone, in order; returns what a fused launch would."""
        bound = bind(self.graph, buffers)
        values, sizes = _arrays(bound)
        if self._series is not None:
            self._series.launch_values(values, sizes)
            return bound.made
        launch_inputs = launch_inputs or self._wishes
        events = launch_inputs.events
        for solo in self.solos:
            for event in solo.node.awaits:
                if not events[event].wait(self._patience_s):
                    raise LaunchError(
                        f"super_kernel_scope {self.graph.name!r}: no event {event} for op {solo.node.name!r} "
                        f"within {self._patience_s:g} s (debug-watchdog)"
                    )
            self._launch(solo, bound, values, sizes, launch_inputs.tilings)
            for event in solo.node.notifies:
                events[event].set()
        for event in {e for node in self.graph.nodes for e in node.awaits}:
            events[event].clear()
        return bound.made

    def launch_values(self, values: Any, sizes: Any) -> None:
        """Every op alone, with the arrays of SuperKernel.argument_arrays(), filled in; nothing is checked."""
        assert self._series is not None, "a graph with events or dynamic ops"
        self._series.launch_values(values, sizes)

    def replay(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> None:
        """After a fused launch: the events have been dealt with, only the work is repeated."""
        bound = bind(self.graph, buffers)
        values, sizes = _arrays(bound)
        if self._series is not None:
            self._series.launch_values(values, sizes)
            return
        for solo in self.solos:
            self._launch(solo, bound, values, sizes, launch_inputs.tilings)

    def _launch(self, solo: Solo, bound: Bound, values: Any, sizes: Any, tilings: Mapping[str, Any]) -> None:
        """With the arrays of all names."""
        if solo.series is not None:
            solo.series.launch_values(values, sizes)
            return
        taken = [_taken(origin, bound) for origin in solo.leg.origins]
        places = {own: arg for own, arg in solo.names.items() if isinstance(arg, Place)}
        named = {own: bound.keep[self._place[place.name]] for own, place in places.items()}
        given = tilings[solo.node.name]

        def tiling(inputs: dict[str, Any]) -> Tiling | tuple[int, int]:
            answer: Tiling | tuple[int, int] = given({places[own].name: value for own, value in inputs.items()})
            return answer

        alone = LaunchInputs({}, {_ALONE: tiling})
        values, sizes = [value for value, _ in taken], [size for _, size in taken]
        solo.executable.launch_addresses(values, sizes, alone, named, solo.leg.op_label)

    def close(self) -> None:
        for executable in self._binaries:
            executable.close()


def _arrays(bound: Bound) -> tuple[Any, Any]:
    count = len(bound.values)
    return (ctypes.c_uint64 * count)(*bound.values), (ctypes.c_int64 * count)(*bound.sizes)


def _taken(origin: Origin, bound: Bound) -> tuple[int, int]:
    if origin.place is None:
        return origin.addend, 0
    return bound.values[origin.place] + origin.addend, max(0, bound.sizes[origin.place] - origin.addend)


def _canonical(node: Node) -> dict[str, Place | Number]:
    """Parameter names instead of argument names, so that ops with one kernel share a binary; aliases stay aliases."""
    names: dict[str, Place | Number] = {}
    seen: set[str] = set()
    for param, arg in zip(node.kernel.params, node.op.args, strict=True):
        if not isinstance(arg, str | Place):
            names[param.name] = arg
            continue
        place = place_of(arg)
        if place.offset or place.name not in seen:  # a part of a buffer may be typed otherwise than another part
            names[param.name] = place
        if not place.offset:
            seen.add(place.name)
    return names


def _key(node: Node, names: Mapping[str, Place | Number]) -> object:
    """Ops that are alike in this share a binary."""
    return node.kernel, node.dynamic, _arguments(node, names)


def _arguments(node: Node, names: Mapping[str, Place | Number]) -> tuple[str, ...]:
    owner = {arg.name: own for own, arg in names.items() if isinstance(arg, Place) and not arg.offset}
    aliases = {param.name: owner[place.name] for param, place in node.places() if param.name not in names}
    return tuple(aliases.get(param.name, param.name) for param in node.kernel.params)


def _alone(node: Node, names: Mapping[str, Place | Number], number: int) -> Graph:
    """The op as a graph; kernels may have the same name, so a number makes each an entry of its own."""
    op = Op(node.kernel, list(_arguments(node, names)), name=_ALONE, task=node.op.task)
    return build_graph([op], f"{node.kernel.name}_alone{number}")
