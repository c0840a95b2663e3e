"""unfused: the same sub-kernels, each a launch of its own through the same run time; what fusion is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .buffers import Bound, bind
from .errors import GraphError, LaunchError
from .graph import Graph, Node, build_graph
from .options import EarlyStart, Options
from .params import Number, scalar_bits
from .plan import make_plan
from .subkernel import Op, Tiling
from .targets import Executable, LaunchWishes, Prepared

_ALONE = "alone"
_NO_WISHES = LaunchWishes({}, {})


@dataclass(frozen=True)
class Literal:
    """A number that stands in the op itself."""

    bits: int


@dataclass(frozen=True)
class Solo:
    """One op as a launch: the binary, shared by all ops that use the kernel alike, and the op's own names."""

    node: Node
    executable: Executable
    names: Mapping[str, str | Number]  # canonical name -> the op's argument
    places: tuple[int | Literal, ...]  # per canonical name: its place among the graph's buffers


class Unfused:
    def __init__(self, graph: Graph, options: Options, prepared: Prepared, cores: int, wishes: LaunchWishes) -> None:
        self.graph, self._wishes, self._patience_s = graph, wishes, options.debug_watchdog
        plain = replace(
            options,
            stream_fusion=False,
            early_start=EarlyStart.FULL,  # alone it means nothing, and one binary serves all settings
            debug_replay=False,
            debug_sync_all=False,
            feed_sync_all=True,
        )
        binaries: dict[object, Executable] = {}
        self._place = {name: place for place, name in enumerate(graph.buffers)}
        self.solos: list[Solo] = []
        for index in graph.order:
            node = graph.nodes[index]
            names = _canonical(node)
            alone = _alone(node, names)
            key = (node.kernel, node.dynamic, alone.nodes[0].op.args)
            if key not in binaries:
                binaries[key] = prepared.build(make_plan(alone, plain, cores))
            self.solos.append(Solo(node, binaries[key], names, self._places(node, names)))
        self._binaries = list(binaries.values())

    def _places(self, node: Node, names: Mapping[str, str | Number]) -> tuple[int | Literal, ...]:
        dtypes = {param.name: param.dtype for param in node.kernel.params}
        return tuple(
            self._place[arg] if isinstance(arg, str) else Literal(scalar_bits(arg, dtypes[own], node.name, GraphError))
            for own, arg in names.items()
        )

    def __call__(self, buffers: Mapping[str, Any], wishes: LaunchWishes | None = None) -> dict[str, Any]:
        """Launch every op alone, in order; returns what a fused launch would."""
        bound = bind(self.graph, buffers)
        wishes = wishes or self._wishes
        events = wishes.events
        for solo in self.solos:
            for event in solo.node.awaits:
                if not events[event].wait(self._patience_s):
                    raise LaunchError(
                        f"super_kernel_scope {self.graph.name!r}: no event {event} for op {solo.node.name!r} "
                        f"within {self._patience_s:g} s (debug-watchdog)"
                    )
            self._launch(solo, bound, wishes.tilings)
            for event in solo.node.notifies:
                events[event].set()
        for event in {e for node in self.graph.nodes for e in node.awaits}:
            events[event].clear()
        return bound.made

    def replay(self, buffers: Mapping[str, Any], wishes: LaunchWishes) -> None:
        """After a fused launch: the events have been dealt with, only the work is repeated."""
        bound = bind(self.graph, buffers)
        for solo in self.solos:
            self._launch(solo, bound, wishes.tilings)

    def _launch(self, solo: Solo, bound: Bound, tilings: Mapping[str, Any]) -> None:
        values = [bound.values[place] if isinstance(place, int) else place.bits for place in solo.places]
        sizes = [bound.sizes[place] if isinstance(place, int) else 0 for place in solo.places]
        if not solo.node.dynamic:
            solo.executable.launch_addresses(values, sizes, _NO_WISHES, {})
            return
        named = {own: bound.keep[self._place[arg]] for own, arg in solo.names.items() if isinstance(arg, str)}
        given = tilings[solo.node.name]

        def tiling(inputs: dict[str, Any]) -> Tiling | tuple[int, int]:
            answer: Tiling | tuple[int, int] = given({str(solo.names[own]): value for own, value in inputs.items()})
            return answer

        solo.executable.launch_addresses(values, sizes, LaunchWishes({}, {_ALONE: tiling}), named)

    def close(self) -> None:
        for executable in self._binaries:
            executable.close()


def _canonical(node: Node) -> dict[str, str | Number]:
    """Parameter names instead of argument names, so that ops with one kernel share a binary; aliases stay aliases."""
    names: dict[str, str | Number] = {}
    seen: dict[str, str] = {}
    for param, arg in zip(node.kernel.params, node.op.args, strict=True):
        if isinstance(arg, str):
            if arg in seen:
                continue
            seen[arg] = param.name
        names[param.name] = arg
    return names


def _alone(node: Node, names: Mapping[str, str | Number]) -> Graph:
    owner = {arg: own for own, arg in names.items() if isinstance(arg, str)}
    args = [
        owner[arg] if isinstance(arg, str) else param.name
        for param, arg in zip(node.kernel.params, node.op.args, strict=True)
    ]
    op = Op(node.kernel, args, name=_ALONE, task=node.op.task)
    return build_graph([op], f"{node.kernel.name}_alone")
