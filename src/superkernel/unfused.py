"""unfused: the same sub-kernels, each a launch of its own through the same run time; what fusion is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .buffers import bind
from .graph import Graph, Node, build_graph
from .options import Options
from .plan import make_plan
from .subkernel import Number, Op, Tiling
from .targets import Executable, LaunchWishes, Prepared

_ALONE = "alone"


@dataclass(frozen=True)
class Solo:
    """One op as a launch: the binary, shared by all ops that use the kernel alike, and the op's own names."""

    node: Node
    executable: Executable
    names: Mapping[str, str | Number]  # canonical name -> the op's argument


class Unfused:
    def __init__(self, graph: Graph, options: Options, prepared: Prepared, cores: int) -> None:
        self.graph = graph
        plain = replace(options, stream_fusion=False, debug_replay=False, debug_sync_all=False, feed_sync_all=True)
        binaries: dict[object, Executable] = {}
        self.solos: list[Solo] = []
        for index in graph.order:
            node = graph.nodes[index]
            names = _canonical(node)
            key = (node.kernel, node.dynamic, tuple(names))
            if key not in binaries:
                binaries[key] = prepared.build(make_plan(_alone(node, names), plain, cores))
            self.solos.append(Solo(node, binaries[key], names))
        self._binaries = list(binaries.values())

    def __call__(self, buffers: Mapping[str, Any], wishes: LaunchWishes | None = None) -> dict[str, Any]:
        """Launch every op alone, in order; returns what a fused launch would."""
        bound = bind(self.graph, buffers)
        named = dict(zip(self.graph.buffers, bound.keep, strict=True))
        events = wishes.events if wishes else {}
        for solo in self.solos:
            for event in solo.node.awaits:
                events[event].wait()
            self._launch(solo, named, wishes.tilings if wishes else {})
            for event in solo.node.notifies:
                events[event].set()
        for event in {e for node in self.graph.nodes for e in node.awaits}:
            events[event].clear()
        return bound.made

    def replay(self, buffers: Mapping[str, Any], wishes: LaunchWishes) -> None:
        """After a fused launch: the events have been dealt with, only the work is repeated."""
        for solo in self.solos:
            self._launch(solo, buffers, wishes.tilings)

    def _launch(self, solo: Solo, named: Mapping[str, Any], tilings: Mapping[str, Any]) -> None:
        passed = {own: named[arg] if isinstance(arg, str) else arg for own, arg in solo.names.items()}
        alone: dict[str, Any] = {}
        if solo.node.dynamic:
            given = tilings[solo.node.name]

            def tiling(inputs: dict[str, Any]) -> Tiling | tuple[int, int]:
                answer: Tiling | tuple[int, int] = given({str(solo.names[own]): value for own, value in inputs.items()})
                return answer

            alone[_ALONE] = tiling
        solo.executable.launch(passed, LaunchWishes({}, alone))

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
