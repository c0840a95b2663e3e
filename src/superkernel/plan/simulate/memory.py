"""plan.memory: a plan in; the cells that every block reads and writes in the simulation, and what a serial run leaves.

A buffer is a row of cells. An @block parameter touches the block's own part of the row. Any other parameter reads the
whole row and writes a part that is turned against the blocks, so that a block meets the work of other blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ...model.node import Node
from ...model.op import Tiling
from ...model.params import Kind, Param
from ..plan import Plan

Cell = tuple[str, int]  # buffer, place
Cells = tuple[Cell, ...]
Rows = dict[str, list[int]]


@dataclass(frozen=True)
class Accesses:
    """What one block does to memory, in this order."""

    early: Cells  # read before the wait point
    reads: Cells
    scratch: Cells  # written, and later read again
    writes: Cells


class Memory:
    """The memory model of one plan; it holds no values."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._accesses: dict[tuple[int, int, int], Accesses] = {}

    @cached_property
    def lengths(self) -> dict[str, int]:
        """Twice the largest block count that touches the buffer: a part is at least two cells."""
        lengths: dict[str, int] = {}
        for node in self.plan.graph.nodes:
            for _, name in node.arguments():
                lengths[name] = max(lengths.get(name, 0), 2 * node.blocks)
        return lengths

    def fresh(self) -> Rows:
        return {
            name: [hash((name_rank, i)) for i in range(n)] for name_rank, (name, n) in enumerate(self.lengths.items())
        }

    def accesses(self, op: int, block: int, blocks: int) -> Accesses:
        """What `block` of `blocks` blocks of the op touches."""
        key = op, block, blocks
        if key not in self._accesses:
            self._accesses[key] = self._find(self.plan.graph.nodes[op], block, blocks)
        return self._accesses[key]

    def inputs(self, op: int) -> Cells:
        """All cells that the op may read: what the control agent looks at."""
        names = dict.fromkeys(name for param, name in self.plan.graph.nodes[op].arguments() if param.kind.reads)
        return tuple((name, i) for name in names for i in range(self.lengths[name]))

    def _find(self, node: Node, block: int, blocks: int) -> Accesses:
        found: dict[str, list[Cell]] = {"early": [], "reads": [], "scratch": [], "writes": []}
        by_name: dict[str, list[Param]] = {}
        for param, name in node.arguments():
            by_name.setdefault(name, []).append(param)
        for name, params in by_name.items():
            aligned = all(p.block and p.shape == params[0].shape for p in params)
            turned = block if aligned else (block + 1 + node.index) % blocks
            own = [(name, i) for i in range(self.lengths[name]) if i * blocks // self.lengths[name] == turned]
            whole = [(name, i) for i in range(self.lengths[name])]
            writes = any(p.kind.writes for p in params)
            if any(p.kind.reads for p in params):
                early = any(p.name in node.kernel.read_before_wait for p in params)
                found["early" if early else "reads"] += own if aligned or writes else whole
            if writes:
                found["scratch" if all(p.kind is Kind.WORKSPACE for p in params) else "writes"] += own
        return Accesses(*(tuple(found[what]) for what in ("early", "reads", "scratch", "writes")))

    def serial(self, rows: Rows, tilings: Mapping[int, Tiling], seen: Mapping[str, int]) -> dict[tuple[int, int], int]:
        """Run the ops one by one on `rows`; the digest of everything each block and each agent (block -1) read."""
        digests = {}
        for op in self.plan.graph.order:
            node = self.plan.graph.nodes[op]
            tiling = tilings.get(op, Tiling(0, node.blocks))
            events = [seen[event] for event in node.awaits]
            if node.dynamic:
                digests[op, -1] = digest(op, -1, tiling, [*events, *(rows[name][i] for name, i in self.inputs(op))])
            for block in range(tiling.blocks):
                touched = self.accesses(op, block, tiling.blocks)
                read = [rows[name][i] for name, i in (*touched.early, *touched.reads)]
                for name, i in touched.scratch:
                    rows[name][i] = scratch_value(op, block, i)
                read += [rows[name][i] for name, i in touched.scratch]
                value = digests[op, block] = digest(op, block, tiling, [*events, *read])
                for name, i in touched.writes:
                    rows[name][i] = hash((value, i))
        return digests


def digest(op: int, block: int, tiling: Tiling, read: list[int]) -> int:
    """One number for all that a block has read."""
    return hash((op, block, tiling.key, tiling.blocks, *read))


def scratch_value(op: int, block: int, place: int) -> int:
    return hash((op, block, place))
