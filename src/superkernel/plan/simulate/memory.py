"""plan.simulate.memory: a plan in; what every block reads and writes in the simulation, and what a serial run leaves.

A buffer is a row of cells. An @block parameter touches the block's own part of the row. Any other parameter reads the
whole row and writes a part that is turned against the blocks, so that a block meets the work of other blocks. Rows are
read and written in pieces: cell by cell where they are short, in a few stretches where they are long. A write to a
buffer of the arena destroys the cells of all buffers that share its bytes; a serial run has memory for every buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ...model.node import Node
from ...model.params import Kind, Param
from ...model.tiling import Tiling
from ..memory import PlacedBuffer
from ..plan import Plan

SHORT = 16  # cells
PIECES = 4  # of what is longer


@dataclass(frozen=True)
class Piece:
    """A stretch of one buffer that is read or written in one move."""

    buffer: str
    first: int
    last: int


Pieces = tuple[Piece, ...]


class Row:
    """The cells of one buffer; sums of whole stretches are kept, so that reading a long row takes a few moves."""

    def __init__(self, cells: list[int]) -> None:
        self.cells = cells
        self._stretch = max(1, -(-len(cells) // PIECES))
        self._sums = [sum(cells[i : i + self._stretch]) for i in range(0, len(cells), self._stretch)]

    def copy(self) -> Row:
        return Row(list(self.cells))

    def read(self, piece: Piece) -> int:
        length = piece.last - piece.first
        if length == 1:
            return self.cells[piece.first]
        if length == self._stretch and piece.first % length == 0:
            return self._sums[piece.first // length]
        return sum(self.cells[piece.first : piece.last])

    def write(self, piece: Piece, value: int) -> None:
        for i in range(piece.first, piece.last):
            new = hash((value, i))
            self._sums[i // self._stretch] += new - self.cells[i]
            self.cells[i] = new


Rows = dict[str, Row]


@dataclass(frozen=True)
class Accesses:
    """What one block does to memory, in this order."""

    early: Pieces  # read before the wait point
    reads: Pieces
    scratch: Pieces  # written, and later read again
    writes: Pieces


@dataclass(frozen=True)
class Use:
    """How an op uses one buffer."""

    buffer: str
    aligned: bool  # every block touches its own part
    reads: bool
    early: bool  # before the wait point
    writes: bool
    scratch: bool
    whole: list[Piece]  # what every block reads; empty: the part that it writes, or its own


class Memory:
    """The memory model of one plan; it holds no values."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._accesses: dict[tuple[int, int, int], Accesses] = {}
        self._uses_of: dict[int, tuple[Use, ...]] = {}
        self._overwritten: dict[Piece, Pieces] = {}

    @cached_property
    def lengths(self) -> dict[str, int]:
        """Twice the largest block count that touches the buffer: a part is at least two cells."""
        lengths: dict[str, int] = {}
        for node in self.plan.graph.nodes:
            for _, name in node.arguments():
                lengths[name] = max(lengths.get(name, 0), 2 * node.blocks)
        return lengths

    @cached_property
    def copied(self) -> dict[str, dict[int, int]]:
        """Buffer of a replicated op -> core -> the copy that it reads and writes."""
        found: dict[str, dict[int, int]] = {}
        for op, copies in self.plan.copies.items():
            copy_of = {core: number for number, copy in enumerate(copies) for core in copy.readers}
            outputs = [name for param, name in self.plan.graph.nodes[op].arguments() if param.kind.writes]
            found |= dict.fromkeys(outputs, copy_of)
        return found

    def fresh(self) -> Rows:
        """All rows; the copies of a buffer start out different from each other: nothing is written there yet."""
        rows = {name: Row([hash((rank, i)) for i in range(n)]) for rank, (name, n) in enumerate(self.lengths.items())}
        for rank, (name, copy_of) in enumerate(self.copied.items()):
            for number in set(copy_of.values()) - {0}:
                rows[copy_name(name, number)] = Row([hash((rank, number, i)) for i in range(self.lengths[name])])
        return rows

    def stored_at(self, buffer: str, core: int) -> str:
        """The row in which a core finds a buffer."""
        copy_of = self.copied.get(buffer)
        return buffer if copy_of is None else copy_name(buffer, copy_of.get(core, 0))

    @cached_property
    def sharing(self) -> dict[str, tuple[PlacedBuffer, tuple[PlacedBuffer, ...]]]:
        """Buffer of the arena -> its place, and the other buffers that share bytes with it."""
        placed = [buffer for buffer in self.plan.memory.buffers if buffer.nbytes]
        found = {}
        for buffer in placed:
            end = buffer.offset + buffer.nbytes
            others = [o for o in placed if o is not buffer and o.offset < end and buffer.offset < o.offset + o.nbytes]
            if others:
                found[buffer.name] = buffer, tuple(others)
        return found

    @cached_property
    def _undefined(self) -> set[str]:
        """Buffers that a dynamic op writes first: with few blocks it leaves a part as it was, whatever that is."""
        first: dict[str, Node] = {}
        for op in self.plan.graph.order:
            for _, name in self.plan.graph.nodes[op].arguments():
                first.setdefault(name, self.plan.graph.nodes[op])
        return {name for name, node in first.items() if node.dynamic}

    def overwritten(self, piece: Piece) -> Pieces:
        """The pieces of other buffers whose bytes a write to a piece takes."""
        if piece.buffer not in self.sharing:
            return ()
        if piece not in self._overwritten:
            buffer, others = self.sharing[piece.buffer]
            length = self.lengths[piece.buffer]
            begin = buffer.offset + piece.first * buffer.nbytes // length
            end = buffer.offset - (-piece.last * buffer.nbytes // length)
            found = []
            for other in others:
                cells = self.lengths[other.name]
                first = max(0, (begin - other.offset) * cells // other.nbytes)
                last = min(cells, -((other.offset - end) * cells // other.nbytes))
                if first < last and other.name not in self._undefined:
                    found.append(Piece(other.name, first, last))
            self._overwritten[piece] = tuple(found)
        return self._overwritten[piece]

    def accesses(self, op: int, block: int, blocks: int) -> Accesses:
        """What `block` of `blocks` blocks of the op touches."""
        key = op, block, blocks
        if key not in self._accesses:
            self._accesses[key] = self._find(self.plan.graph.nodes[op], block, blocks)
        return self._accesses[key]

    def inputs(self, op: int) -> Pieces:
        """All that the op may read: what the control agent looks at."""
        names = dict.fromkeys(name for param, name in self.plan.graph.nodes[op].arguments() if param.kind.reads)
        return tuple(piece for name in names for piece in self._pieces(name, 0, self.lengths[name]))

    def _pieces(self, name: str, first: int, last: int) -> list[Piece]:
        length = self.lengths[name]
        size = 1 if length <= SHORT else -(-length // PIECES) if last - first == length else last - first
        return [Piece(name, at, min(at + size, last)) for at in range(first, last, max(1, size))]

    def _find(self, node: Node, block: int, blocks: int) -> Accesses:
        found: dict[str, list[Piece]] = {"early": [], "reads": [], "scratch": [], "writes": []}
        for use in self._uses(node):
            length = self.lengths[use.buffer]
            turned = block if use.aligned else (block + 1 + node.index) % blocks
            part = self._pieces(use.buffer, -(-turned * length // blocks), -(-(turned + 1) * length // blocks))
            if use.reads:
                found["early" if use.early else "reads"] += use.whole or part
            if use.writes:
                found["scratch" if use.scratch else "writes"] += part
        return Accesses(*(tuple(found[what]) for what in ("early", "reads", "scratch", "writes")))

    def _uses(self, node: Node) -> tuple[Use, ...]:
        if node.index not in self._uses_of:
            self._uses_of[node.index] = tuple(self._find_uses(node))
        return self._uses_of[node.index]

    def _find_uses(self, node: Node) -> Iterator[Use]:
        by_name: dict[str, list[Param]] = {}
        for param, name in node.arguments():
            by_name.setdefault(name, []).append(param)
        for name, params in by_name.items():
            aligned = all(p.block and p.shape == params[0].shape for p in params)
            writes = any(p.kind.writes for p in params)
            reads, scratch = any(p.kind.reads for p in params), all(p.kind is Kind.WORKSPACE for p in params)
            early = any(p.name in node.kernel.read_before_wait for p in params)
            whole = [] if aligned or writes else self._pieces(name, 0, self.lengths[name])
            yield Use(name, aligned, reads, early, writes, scratch, whole)

    def serial(
        self, rows: Rows, tilings: Mapping[int, Tiling], seen: Mapping[str, int], salt: int
    ) -> dict[tuple[int, int], int]:
        """Run the ops one by one on `rows`; the digest of everything each block and each agent (block -1) read."""
        digests: dict[tuple[int, int], int] = {}
        for op in self.plan.graph.order:
            digests |= self.serial_op(op, rows, tilings, seen, salt)
        return digests

    def serial_op(
        self, op: int, rows: Rows, tilings: Mapping[int, Tiling], seen: Mapping[str, int], salt: int
    ) -> dict[tuple[int, int], int]:
        """One op of a serial run."""
        digests = {}
        node = self.plan.graph.nodes[op]
        tiling = tilings.get(op, Tiling(0, node.blocks))
        known = [salt, *(seen[event] for event in node.awaits)]
        if node.dynamic:
            digests[op, -1] = digest(op, -1, tiling, [*known, *_read(rows, self.inputs(op))])
        for block in range(tiling.blocks):
            touched = self.accesses(op, block, tiling.blocks)
            read = [*_read(rows, touched.early), *_read(rows, touched.reads)]
            for piece in touched.scratch:
                rows[piece.buffer].write(piece, scratch_value(op, block))
            read += _read(rows, touched.scratch)
            value = digests[op, block] = digest(op, block, tiling, [*known, *read])
            for piece in touched.writes:
                rows[piece.buffer].write(piece, value)
        return digests


def _read(rows: Rows, pieces: Pieces) -> list[int]:
    return [rows[piece.buffer].read(piece) for piece in pieces]


def copy_name(buffer: str, number: int) -> str:
    """The row of a private copy; copy 0 is the buffer itself."""
    return f"{buffer} (copy {number})" if number else buffer


def digest(op: int, block: int, tiling: Tiling, read: list[int]) -> int:
    """One number for all that a block has read."""
    return hash((op, block, tiling.key, tiling.blocks, *read))


def scratch_value(op: int, block: int) -> int:
    return hash((op, block))
