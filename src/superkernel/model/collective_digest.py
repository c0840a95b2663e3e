"""collective_digest: a graph -> what all ranks must say alike of its collectives: a listing and its digest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from .collectives import Collective
from .graph import Graph
from .node import Node
from .ranks import RankGroup


@dataclass(frozen=True)
class CollectiveDigest:
    """What all ranks of a group must say alike before the first launch."""

    digest: str  # sha256 of the listing, in hexadecimal
    listing: tuple[str, ...]  # one line per collective, in order

    def difference(self, other: CollectiveDigest) -> str:
        """The first difference of two ranks, in words; "" where there is none."""
        for number, (here, there) in enumerate(zip(self.listing, other.listing, strict=False)):
            if here != there:
                return f"collective {number} is {here!r} here and {there!r} there"
        if len(self.listing) != len(other.listing):
            return f"{len(self.listing)} collectives here and {len(other.listing)} there"
        return ""


def collective_digest(graph: Graph, group: str | None = None) -> CollectiveDigest:
    """The collectives of a group (None: of all groups) in order: kernels, dtypes, size of the window, ranks, terms.

    With those of other groups that all ranks of the group belong to: two groups in different orders would wait for each
    other.
    """
    members = {rank for each in graph.collectives if each.group.name == group for rank in each.group.ranks}
    listing = tuple(
        _line(graph, each) for each in graph.collectives if group is None or members <= set(each.group.ranks)
    )
    return CollectiveDigest(hashlib.sha256("\n".join(listing).encode()).hexdigest(), listing)


def collectives_stated(graph: Graph, group: RankGroup) -> str:
    """The collectives of one group alone, without its name and ranks: alike for groups of the same form."""
    own = [_line(graph, each) for each in graph.collectives if each.group.name == group.name]
    return "; ".join(line.removesuffix(f", ranks {group}") for line in own)


def _line(graph: Graph, collective: Collective) -> str:
    """Names of ops and the numbers of blocks may differ between ranks, and are left out."""
    ops = [graph.nodes[op] for op in (collective.sender, *collective.receivers) if op is not None]
    kernels = " -> ".join(f"{node.kernel.op_type or node.kernel.name}{_dtypes(node, collective)}" for node in ops)
    size = graph.buffers[collective.window].nbytes
    window = "" if size is None else f", a window of {size} bytes"
    terms = f"{collective.terms}: " if collective.terms else ""
    return f"{terms}{kernels}{window}, ranks {collective.group}"


def _dtypes(node: Node, collective: Collective) -> str:
    """The dtypes of its tensors in parentheses, where one is known; their shapes may differ between ranks."""
    params = [param for param, name in node.arguments() if name != collective.window]
    if all(param.dtype is None for param in params):
        return ""
    dtypes = ", ".join(f"{param.kind.value} {param.dtype or 'untyped'}" for param in params)
    return f"({dtypes})"
