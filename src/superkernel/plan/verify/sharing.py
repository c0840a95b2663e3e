"""plan.verify.sharing: clocks and a memory plan in; buffers that share memory while both are live out: P21."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...model.graph import Buffer
from ...model.node import Node
from ..memory import ALIGNMENT, PlacedBuffer
from ..plan import Plan
from .agents import Agents, Clocks, Fault, behind, ends_of


@dataclass(frozen=True)
class _Use:
    """An op that touches a buffer."""

    moment: int  # its place in the serial order
    node: Node
    early: bool  # before its wait point
    parts: object | None  # how it divides the buffer among its blocks, if it promises @block; None: not at all


@dataclass(frozen=True)
class _Owned:
    """Bytes of the arena and the buffer that was placed there last."""

    begin: int
    end: int
    buffer: PlacedBuffer


def check_memory(plan: Plan, clocks: Clocks, agents: Agents, fault: Fault) -> None:
    """P21: under the plan's order no two live buffers share bytes; only memory that no caller sees is placed."""
    uses = _uses(plan)
    placed = []
    for name, count in Counter(buffer.name for buffer in plan.memory.buffers).items():
        if count > 1:
            fault("P21", f"{name!r} has {count} places in the arena")
    for buffer in plan.memory.buffers:
        if (wrong := _misplaced(plan, buffer, uses)) is not None:
            fault("P21", wrong)
        else:
            placed.append(buffer)
    # Orders are transitive, so it is enough to compare each buffer with those whose bytes it takes over.
    owned: list[_Owned] = []
    for buffer in sorted(placed, key=lambda buffer: uses[buffer.name][0].moment):
        end = buffer.offset + buffer.nbytes
        rest: list[_Owned] = []
        for piece in owned:
            if piece.end <= buffer.offset or end <= piece.begin:
                rest.append(piece)
                continue
            earlier = piece.buffer
            if not _over(plan, clocks, agents, earlier, buffer, uses):
                bytes_of = f"bytes {max(piece.begin, buffer.offset)} to {min(piece.end, end) - 1} of the arena"
                names = f"{earlier.name!r} and {buffer.name!r}"
                fault("P21", f"{names} share {bytes_of}, and {earlier.name!r} may be live when {buffer.name!r} is")
            if piece.begin < buffer.offset:
                rest.append(_Owned(piece.begin, buffer.offset, earlier))
            if end < piece.end:
                rest.append(_Owned(end, piece.end, earlier))
        if buffer.nbytes:
            rest.append(_Owned(buffer.offset, end, buffer))
        owned = rest


def _misplaced(plan: Plan, placed: PlacedBuffer, uses: dict[str, list[_Use]]) -> str | None:
    """Why the buffer cannot be where it is, whatever else is there."""
    name, known = placed.name, plan.graph.buffers.get(placed.name)
    if known is None or not uses.get(name):
        return f"{name!r} has a place in the arena, but no op touches it"
    if name in plan.graph.outputs:
        return f"{name!r} is returned by a launch, but has a place in the arena, which the next launch reuses"
    if not known.can_allocate or any(use.node.asks_agent and _reads(use.node, name) for use in uses[name]):
        return f"{name!r} is passed to a launch or shown to a tiling function, but has a place in the arena"
    if placed.nbytes != known.nbytes:
        return f"{name!r} has {known.nbytes} bytes, but {placed.nbytes} in the arena"
    if placed.offset < 0 or placed.offset % ALIGNMENT or placed.offset + placed.nbytes > plan.memory.arena:
        where = f"at {placed.offset} in an arena of {plan.memory.arena} bytes"
        return f"{name!r} lies {where}: outside of it, or not at a multiple of {ALIGNMENT}"
    return None


def _reads(node: Node, name: str) -> bool:
    return any(param.kind.reads for param, argument in node.arguments() if argument == name)


def _uses(plan: Plan) -> dict[str, list[_Use]]:
    found: dict[str, list[_Use]] = {buffer.name: [] for buffer in plan.memory.buffers}
    for moment, op in enumerate(plan.graph.order):
        node = plan.graph.nodes[op]
        for param, name in node.arguments():
            if name in found:
                early = param.name in node.kernel.read_before_wait
                buffer = plan.graph.buffers[name]
                divides = param.block and (param.shape, param.dtype) == (buffer.shape, buffer.dtype)
                parts = _parts(plan, node, buffer) if divides else None
                found[name].append(_Use(moment, node, early, parts))
    return found


def _parts(plan: Plan, node: Node, buffer: Buffer) -> object | None:
    """Uses with equal parts touch the same bytes of equally placed buffers on the same cores."""
    if node.dynamic or node.index in plan.copies:
        return None
    return buffer.dtype, buffer.shape, node.blocks, plan.placements[node.index]


def _over(
    plan: Plan, clocks: Clocks, agents: Agents, earlier: PlacedBuffer, later: PlacedBuffer, uses: dict[str, list[_Use]]
) -> bool:
    """Whether every use of one buffer comes before every use of the other, on all cores or part by part."""
    first, second = uses[earlier.name], uses[later.name]
    if all(_known_over(clocks, agents, a, b) for b in second for a in first):
        return True
    parts = {use.parts for use in (*first, *second)}
    by_parts = len(parts) == 1 and None not in parts and earlier.offset == later.offset
    return by_parts and _last(first) < second[0].moment


def _last(uses: Sequence[_Use]) -> int:
    return max(use.moment for use in uses)


def _known_over(clocks: Clocks, agents: Agents, earlier: _Use, later: _Use) -> bool:
    """Whether every core of the later op is sure that all cores of the earlier op have finished it."""
    done = ends_of(clocks, agents, earlier.node.index)
    known = clocks.begins if later.early else clocks.bodies
    op = later.node.index
    if len(done) < len(agents.of(earlier.node.index)):
        return False
    return all((op, agent) in known and not behind(known[op, agent], done) for agent in agents.of(op))
