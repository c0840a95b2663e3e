"""runtime.replay: debug-replay: a fused launch and every op alone on copies of its buffers, compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..errors import LaunchError, UnsupportedError
from ..model.graph import Graph, build_graph
from ..model.op import Op
from ..model.options import EarlyStart, Options
from ..model.params import Kind
from ..targets.buffers import HOST_MEMORY, ArgumentMemory, bind, bytes_at, copy_at, copy_of, is_tensor, same_bits
from ..targets.protocol import Executable, LaunchInputs, Prepared, Target

Buffers = Mapping[str, Any]
LaunchByValues = Callable[[Any, Any], None]


def replay(
    graph: Graph,
    buffers: Buffers,
    fused: Callable[[Buffers], object],
    alone: Callable[[Buffers], object],
    memory: ArgumentMemory = HOST_MEMORY,
) -> dict[str, Any]:
    """Call `fused` with the buffers and `alone` with copies; a LaunchError names the first op that differs.

    A window that other ranks store into is not copied. In the same round the ops store and read the same there again.
    """
    bound = bind(graph, buffers, memory=memory)
    live = dict(zip(graph.buffers, bound.keep, strict=True))
    if not memory.on_host:
        _require_tensors(graph, live)
    copies = {name: value if graph.buffers[name].window else copy_of(value) for name, value in live.items()}
    fused(live)
    alone(copies)
    _compare(graph, live, copies)
    return bound.outputs


def _require_tensors(graph: Graph, live: Buffers) -> None:
    for name, value in live.items():
        if not graph.buffers[name].scalar and not is_tensor(value):
            raise UnsupportedError(
                f"super_kernel_scope {graph.name!r}: debug-replay copies and compares torch tensors; {name!r} is a "
                f"{type(value).__name__}"
            )


def replay_values(
    graph: Graph, values: Any, sizes: Any, arrays: tuple[Any, Any], fused: LaunchByValues, alone: LaunchByValues
) -> None:
    """The same by addresses; `arrays` are argument arrays for the copies. A scalar has no memory."""
    spans = dict(zip(graph.buffers, zip(values, sizes, strict=True), strict=True))
    memory = {n: span for n, span in spans.items() if not graph.buffers[n].scalar and not graph.buffers[n].window}
    copies = {name: copy_at(*span) for name, span in memory.items()}
    copied_values, copied_sizes = arrays
    for place, (name, (value, size)) in enumerate(spans.items()):
        copied_values[place], copied_sizes[place] = copies[name].ctypes.data if name in copies else value, size
    fused(values, sizes)
    alone(copied_values, copied_sizes)
    _compare(graph, {name: bytes_at(*span) for name, span in memory.items()}, copies)


def options_alone(options: Options) -> Options:
    """The options of a launch of one op: those that concern several ops have no meaning there."""
    unordered = replace(options, stream_fusion=False, early_start=EarlyStart.FULL)
    return replace(unordered, debug_replay=False, debug_sync_all=False, feed_sync_all=True)


def launch_each(
    graph: Graph,
    options: Options,
    target: Target,
    prepared: Prepared,
    launch: Callable[[Executable, Buffers, LaunchInputs], object],
    launch_inputs: LaunchInputs,
    buffers: Buffers,
) -> None:
    """Launch every op of the graph alone, in order, with its own argument names and without its events."""
    plain = replace(
        options_alone(options), profiling=False, prefetch_weights=0, debug_aic_num=0, debug_aiv_num=0, split_mode=None
    )
    for index in graph.order:
        node = graph.nodes[index]
        op = Op(node.kernel, node.op.args, node.name, task=node.op.task, tiling=node.compiled_tiling)
        alone = build_graph([op], f"{graph.name}_{index}")
        (executable,) = prepared.build([target.planner.plan(alone, plain, target.planner.core_count())])
        tilings = {node.name: launch_inputs.tilings[node.name]} if node.asks_agent else {}
        launch(executable, {name: buffers[name] for name in alone.buffers}, LaunchInputs({}, tilings))


def _compare(graph: Graph, live: Buffers, copies: Buffers) -> None:
    for name, op in _last_writers(graph).items():
        if not same_bits(live[name], copies[name]):
            raise LaunchError(
                f"super_kernel_scope {graph.name!r}: debug-replay: op {graph.nodes[op].name!r} is the first "
                f"whose output {name!r} differs from the same op run alone"
            )


def _last_writers(graph: Graph) -> dict[str, int]:
    """Buffer -> the op that writes it last, in the order of those ops."""
    last: dict[str, int] = {}
    for index in graph.order:
        for param, name in graph.nodes[index].arguments():
            if param.kind in (Kind.OUT, Kind.INOUT) and not graph.buffers[name].window:
                last.pop(name, None)
                last[name] = index
    return last
