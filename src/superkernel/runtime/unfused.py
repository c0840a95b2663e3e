"""runtime.unfused: the same sub-kernels, each launched by itself through the same run time."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import GraphError, LaunchError
from ..model.graph import Graph, build_graph
from ..model.node import Node
from ..model.op import Op, Place, place_of
from ..model.options import Options
from ..model.params import Number, scalar_bits
from ..model.ranks import RankSync
from ..model.tiling import Tiling
from ..targets.buffers import Bound, bind
from ..targets.protocol import (
    LaunchInputs,
    LaunchPlan,
    LaunchSequence,
    LoadedKernel,
    OpLabel,
    Prepared,
    SequencedLaunch,
    Target,
    ValueSource,
)
from .launch_events import (
    LaunchedKernel,
    Provenance,
    ReportedLaunch,
    ReportingKernel,
    ReportingSequence,
    launch_call,
)
from .replay import options_alone

_ALONE = "alone"


@dataclass(frozen=True)
class SingleOp:
    """One op as a launch. Ops that use a kernel alike share its binary, which names buffers after parameters."""

    node: Node
    launch: SequencedLaunch
    names: Mapping[str, Place | Number]  # name in the binary -> the op's argument
    sequence: (
        LaunchSequence | None
    )  # of this launch only; None: a Python function chooses its tiling, or it is part of a longer sequence


@dataclass(frozen=True)
class OpLaunches:
    """The launches of all ops of a graph, in order."""

    ops: Sequence[SingleOp]
    sequence: LaunchSequence | None  # of all launches; None: the graph has events or dynamic ops


class Unfused:
    """Every op of a graph as a launch of its own, in order."""

    def __init__(
        self,
        graph: Graph,
        options: Options,
        target: Target,
        prepared: Prepared,
        cores: int | None,
        launch_inputs: LaunchInputs,
        provenance: Provenance,
    ) -> None:
        """`cores` None: as many as the work of each op deserves; fewer threads run each op on one core."""
        assert target.launcher is not None
        self.graph, self._launch_inputs, self._watchdog_s = graph, launch_inputs, options.debug_watchdog
        self._launcher = launcher = target.launcher
        self._place = {name: place for place, name in enumerate(graph.buffers)}
        named = [(node, _parameter_names(node)) for node in (graph.nodes[index] for index in graph.order)]
        graphs: dict[object, Graph] = {}
        for node, names in named:
            if (key := _key(node, names)) not in graphs:
                graphs[key] = _graph_of(node, names, len(graphs))
        plans = {key: _plan_alone(single, options_alone(options), target, cores) for key, single in graphs.items()}
        originals = {key: launcher.load_original(plan) for key, plan in plans.items()}
        linked = [key for key, original in originals.items() if original is None]
        built = prepared.build([plans[key] for key in linked]) if linked else ()
        executables = dict(zip(linked, built, strict=True))
        teams = {key: original or launcher.load(executables[key]) for key, original in originals.items()}
        self._kernels = list(teams.values())
        self._team = 0 if cores is not None or not linked else max(plan.cores for plan in plans.values())
        self._launch_limit = target.planner.launch_limit
        on_one_core = {}
        if self._team > 1:
            on_one_core = {key: launcher.load_alone(executable) for key, executable in executables.items()}
            self._kernels += [kernel for kernel in on_one_core.values() if kernel is not None]
        self._with_teams = self._plain_with_teams = self._launches(named, teams)
        self._on_one_core = self._plain_on_one_core = self._launches(
            named, {key: on_one_core.get(key) or teams[key] for key in teams}
        )
        self._launched = [LaunchedKernel(graph, provenance, op.launch.kernel.plan, op.node) for op in self.ops]

    @property
    def ops(self) -> Sequence[SingleOp]:
        return self._with_teams.ops

    def _launches(
        self, named: Sequence[tuple[Node, dict[str, Place | Number]]], kernels: Mapping[object, LoadedKernel]
    ) -> OpLaunches:
        in_one_call = not self.graph.events and not any(node.asks_agent for node in self.graph.nodes)
        ops = []
        for node, names in named:
            label = OpLabel(self.graph.name, node.name)
            launch = SequencedLaunch(kernels[_key(node, names)], label, self._sources(node, names))
            sequence = None if in_one_call or node.asks_agent else self._launcher.sequence([launch])
            ops.append(SingleOp(node, launch, names, sequence))
        return OpLaunches(ops, self._launcher.sequence([op.launch for op in ops]) if in_one_call else None)

    def _current(self) -> OpLaunches:
        return self._with_teams if self._team <= 1 or self._team <= self._launch_limit() else self._on_one_core

    def start_reporting(self) -> None:
        """Sequences and kernels that publish their launches take the place of the plain ones."""
        self._with_teams = self._reporting_launches(self._plain_with_teams)
        self._on_one_core = self._reporting_launches(self._plain_on_one_core)

    def _reporting_launches(self, plain: OpLaunches) -> OpLaunches:
        ops = [self._reporting(op, launched) for op, launched in zip(plain.ops, self._launched, strict=True)]
        if plain.sequence is None:
            return OpLaunches(ops, None)
        launches = [op.launch for op in plain.ops]
        return OpLaunches(ops, ReportingSequence(plain.sequence, launches, self._launched, self._launcher))

    def _reporting(self, op: SingleOp, launched: LaunchedKernel) -> SingleOp:
        if op.sequence is not None:
            return replace(op, sequence=ReportingSequence(op.sequence, [op.launch], [launched], self._launcher))
        kernel = ReportingKernel(op.launch.kernel, ReportedLaunch(op.launch.kernel, launched))
        return replace(op, launch=replace(op.launch, kernel=kernel))

    def stop_reporting(self) -> None:
        self._with_teams, self._on_one_core = self._plain_with_teams, self._plain_on_one_core

    def _sources(self, node: Node, names: Mapping[str, Place | Number]) -> tuple[ValueSource, ...]:
        dtypes = {param.name: param.dtype for param in node.kernel.params}
        return tuple(
            ValueSource(self._place[arg.name], arg.offset)
            if isinstance(arg, Place)
            else ValueSource(None, scalar_bits(arg, dtypes[parameter], node.name, GraphError))
            for parameter, arg in names.items()
        )

    def __call__(self, buffers: Mapping[str, Any], replayed: LaunchInputs | None = None) -> dict[str, Any]:
        """Launch every op alone, in order; returns what a fused launch would.

        `replayed` are the inputs of a fused launch, which has consumed and sent the events.
        """
        bound = bind(self.graph, buffers, memory=self._launcher.memory)
        values, sizes = _arrays(bound)
        launches = self._current()
        if launches.sequence is not None:
            launches.sequence.launch_values(values, sizes)
            return bound.outputs
        with launch_call():
            self._launch_each(launches, bound, values, sizes, replayed)
        return bound.outputs

    def _launch_each(
        self, launches: OpLaunches, bound: Bound, values: Any, sizes: Any, replayed: LaunchInputs | None
    ) -> None:
        """Op by op, with the events and tilings of a fused launch, or those of `replayed`."""
        tilings, events = (replayed or self._launch_inputs).tilings, self._launch_inputs.events
        for op in launches.ops:
            if replayed is None:
                self._await_events(op.node)
            self._launch(op, bound, values, sizes, tilings)
            if replayed is None:
                for event in op.node.notifies:
                    events[event].set()
        if replayed is None:
            for event in {e for node in self.graph.nodes for e in node.awaits}:
                events[event].clear()

    def _await_events(self, node: Node) -> None:
        for event in node.awaits:
            if not self._launch_inputs.events[event].wait(self._watchdog_s or None):
                raise LaunchError(
                    f"super_kernel_scope {self.graph.name!r}: no event {event} for op {node.name!r} "
                    f"within {self._watchdog_s:g} s (debug-watchdog)"
                )

    def single_launches(self) -> list[tuple[Node, LaunchSequence]]:
        """The launch of each op, in order; none of them is reported. There are no events and no dynamic ops."""
        has_team = self._team <= 1 or self._team <= self._launch_limit()
        plain = self._plain_with_teams if has_team else self._plain_on_one_core
        return [(op.node, self._launcher.sequence([op.launch])) for op in plain.ops]

    def launch_values(self, values: Any, sizes: Any) -> None:
        """Every op alone, with filled SuperKernel.argument_arrays(); nothing is checked."""
        sequence = self._current().sequence
        assert sequence is not None, "a graph with events or dynamic ops"
        sequence.launch_values(values, sizes)

    def _launch(self, op: SingleOp, bound: Bound, values: Any, sizes: Any, tilings: Mapping[str, Any]) -> None:
        """`values` and `sizes` are those of all names of the graph."""
        if op.sequence is not None:
            op.sequence.launch_values(values, sizes)
            return
        taken = [_taken(source, bound) for source in op.launch.sources]
        places = {parameter: arg for parameter, arg in op.names.items() if isinstance(arg, Place)}
        named = {parameter: bound.keep[self._place[place.name]] for parameter, place in places.items()}
        user_tiling = tilings[op.node.name]

        def tiling(inputs: dict[str, Any]) -> Tiling | tuple[int, int]:
            answer: Tiling | tuple[int, int] = user_tiling(
                {places[parameter].name: value for parameter, value in inputs.items()}
            )
            return answer

        launch_inputs = LaunchInputs({}, {_ALONE: tiling})
        op.launch.kernel.launch_addresses(taken, launch_inputs, named, op.launch.op_label)

    def synchronize(self) -> None:
        for kernel in self._kernels:
            kernel.synchronize()

    def close(self) -> None:
        for kernel in self._kernels:
            kernel.close()


def _plan_alone(single: Graph, options: Options, target: Target, cores: int | None) -> LaunchPlan:
    """The plan of a launch of one op."""
    if cores is None:
        cores = target.planner.choose_cores(single, options, target.planner.core_count()).cores
    return target.planner.plan(single, options, cores)


def _arrays(bound: Bound) -> tuple[Any, Any]:
    count = len(bound.values)
    return (ctypes.c_uint64 * count)(*bound.values), (ctypes.c_int64 * count)(*bound.sizes)


def _taken(source: ValueSource, bound: Bound) -> tuple[int, int]:
    if source.place is None:
        return source.addend, 0
    return bound.values[source.place] + source.addend, max(0, bound.sizes[source.place] - source.addend)


def _parameter_names(node: Node) -> dict[str, Place | Number]:
    """Parameter name -> argument, so that ops of the same kernel share a binary; aliases stay aliases."""
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
    return node.kernel, node.dynamic, node.compiled_tiling, _arguments(node, names), _ranks(node, names)


def _ranks(node: Node, names: Mapping[str, Place | Number]) -> tuple[RankSync, ...]:
    """How the op synchronises with other ranks, in the names of its binary: a collective is called like its window."""
    owner = {arg.name: parameter for parameter, arg in names.items() if isinstance(arg, Place)}
    return tuple(RankSync(owner[sync.window], sync.group, owner[sync.window], sync.sends) for sync in node.ranks)


def _arguments(node: Node, names: Mapping[str, Place | Number]) -> tuple[str, ...]:
    owner = {arg.name: parameter for parameter, arg in names.items() if isinstance(arg, Place) and not arg.offset}
    aliases = {param.name: owner[place.name] for param, place in node.places() if param.name not in names}
    return tuple(aliases.get(param.name, param.name) for param in node.kernel.params)


def _graph_of(node: Node, names: Mapping[str, Place | Number], number: int) -> Graph:
    """The op as a graph; kernels may have the same name, so a number makes entries unique."""
    arguments, ranks = list(_arguments(node, names)), _ranks(node, names)
    op = Op(node.kernel, arguments, name=_ALONE, task=node.op.task, tiling=node.compiled_tiling, ranks=ranks)
    return build_graph([op], f"{node.kernel.name}_alone{number}", part=True)
