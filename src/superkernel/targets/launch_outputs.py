"""targets.launch_outputs: what a launch returns: the outputs that it allocated, by name."""

from __future__ import annotations

from typing import Any

from ..errors import nearest
from ..model.graph import Graph


class LaunchOutputs(dict[str, Any]):
    """A dict; a name that it does not have raises a KeyError that says how to get it."""

    __slots__ = ("graph",)
    graph: Graph

    def __missing__(self, name: object) -> Any:
        raise KeyError(_why_missing(self.graph, name))


def no_outputs(graph: Graph) -> LaunchOutputs:
    outputs = LaunchOutputs()
    outputs.graph = graph
    return outputs


def _why_missing(graph: Graph, name: object) -> str:
    where = f"super_kernel_scope {graph.name!r}: "
    buffer = graph.buffers.get(name) if isinstance(name, str) else None
    if buffer is None:
        return f"{where}no op uses the name {name!r}{nearest(str(name), graph.buffers)}"
    if not buffer.written:
        return f"{where}no op writes {name!r}; a launch returns what it computes"
    if buffer.name in graph.outputs:
        return f"{where}{name!r} was passed, so that its value is in what was passed"
    wanted = [*graph.outputs, buffer.name]
    return f"{where}{name!r} is an inner name, whose memory is reused: compile with outputs={wanted!r}, or pass it"
