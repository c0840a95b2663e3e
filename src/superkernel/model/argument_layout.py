"""argument_layout: a graph -> the argument slots of its super kernel, one 64-bit slot per op parameter, in op order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from ..errors import GraphError, nearest
from .graph import Graph
from .node import Node
from .op import Place, place_of
from .params import Kind, scalar_bits


class Role(Enum):
    PARAM = "param"
    TILING_KEY = "tiling_key"
    BLOCK_COUNT = "block_count"
    LOCK = "lock"
    SEND = "send"
    RECV = "recv"
    # of targets with more than the slots of ops
    SYNC_BASE = "sync_base"
    INNER_SEND = "inner_send"  # an event between two ops of the list: it has a slot, which no core reads
    INNER_RECV = "inner_recv"
    PREFETCH = "prefetch"  # a word that asks a copy engine for weights
    WORKSPACE = "workspace"
    PROFILING = "profiling"
    TASK_ID = "task_id"


# named by a caller or an op; the run time fills all others
_NAMED = (Role.PARAM, Role.SEND, Role.RECV)


SlotFields = tuple[str, Role, Kind | None, str | None, int, int]  # of a Slot; first the suffix of its name


@dataclass(frozen=True)
class Slot:
    """One 64-bit word of the argument block. Slots with one `source` hold one address."""

    index: int
    name: str  # op_parameter
    op: str
    role: Role
    kind: Kind | None
    source: str | None  # buffer, scalar or event name; None: a literal, or a word of the run time
    literal: int = 0  # the bits of a literal scalar
    addend: int = 0  # bytes from the beginning of its source

    @property
    def offset(self) -> int:
        return 8 * self.index

    def __str__(self) -> str:
        origin = f"literal {self.literal:#x}" if self.source is None else str(Place(self.source, self.addend))
        if self.role not in _NAMED:
            origin = "run time"
        kind = self.kind.value if self.kind else self.role.value
        return f"{self.index:>4} +{self.offset:<6} {self.name:<28} {kind:<11} {origin}"


@dataclass(frozen=True)
class Layout:
    slots: tuple[Slot, ...]

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.slots)

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, key: int | str) -> Slot:
        if isinstance(key, int):
            return self.slots[key]
        if key not in self._by_name:
            raise GraphError(f"the layout has no slot {key!r}{nearest(key, self._by_name)}")
        return self._by_name[key]

    @cached_property
    def _by_name(self) -> dict[str, Slot]:
        return {slot.name: slot for slot in self.slots}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(slot.name for slot in self.slots)

    @cached_property
    def of_op(self) -> dict[str, tuple[Slot, ...]]:
        groups: dict[str, list[Slot]] = {}
        for slot in self.slots:
            groups.setdefault(slot.op, []).append(slot)
        return {op: tuple(slots) for op, slots in groups.items()}

    def __str__(self) -> str:
        head = f"layout: {len(self.slots)} slots of 8 bytes"
        return "\n".join([head, "  slot offset  name                         kind        holds", *map(str, self.slots)])


def make_layout(graph: Graph) -> Layout:
    """Per op its parameters; if dynamic tiling key, block count and lock; then one slot per event."""
    return number_slots((node.name, fields) for node in graph.nodes for fields in slots_of(node))


def number_slots(requested: Iterable[tuple[str, SlotFields]]) -> Layout:
    """The slots in order, each with a unique name; the op is "" for slots of no op."""
    slots: list[Slot] = []
    taken: set[str] = set()
    for op, (suffix, role, kind, source, literal, addend) in requested:
        name = f"{op}_{suffix}" if op else suffix
        while name in taken:
            name += "_"
        taken.add(name)
        slots.append(Slot(len(slots), name, op, role, kind, source, literal, addend))
    return Layout(tuple(slots))


def slots_of(node: Node) -> Iterator[SlotFields]:
    """The slots of one op, in order."""
    for param, arg in zip(node.kernel.params, node.op.args, strict=True):
        if isinstance(arg, str | Place):
            place = place_of(arg)
            yield param.name, Role.PARAM, param.kind, place.name, 0, place.offset
        else:
            bits = scalar_bits(arg, param.dtype, f"op {node.name!r}: scalar {param.name!r}", GraphError)
            yield param.name, Role.PARAM, param.kind, None, bits, 0
    if node.dynamic:
        for role in (Role.TILING_KEY, Role.BLOCK_COUNT, Role.LOCK):
            yield role.value, role, None, None, 0, 0
    for event in node.notifies:
        yield f"send_{event}", Role.SEND, None, event, 0, 0
    for event in node.awaits:
        yield f"recv_{event}", Role.RECV, None, event, 0, 0
