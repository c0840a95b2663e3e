"""targets.refusals: what a graph asks for that a target cannot do -> an UnsupportedError that names op and target."""

from __future__ import annotations

from ..errors import UnsupportedError, shown
from ..model.graph import Graph


def refuse_collectives(graph: Graph, target: str) -> None:
    """For targets whose cores cannot wait for other ranks."""
    for collective in graph.collectives:
        op = graph.nodes[collective.receivers[0] if collective.sender is None else collective.sender]
        raise UnsupportedError(
            f"super_kernel_scope {shown(graph.name)}: op {shown(op.name)} synchronises with the ranks of "
            f"{collective.group}; the {target} target has no collectives yet: run it with target='cpu', or run the "
            "collective between two super kernels"
        )
