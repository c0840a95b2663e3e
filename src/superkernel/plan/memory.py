"""plan.memory: buffers and which of them are live at the same time -> their places in one arena.

The arena is filled greedily, in several orders (large buffers first, early ones first, ...): each buffer goes into the
smallest gap that fits. The smallest arena is taken. Two buffers of one op do not begin at the same offset of a page: a
load would be taken for the store to the other buffer (4K aliasing).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import or_

ALIGNMENT = 64  # bytes: a cache line
_PAGE = 4096
_APART = 5 * ALIGNMENT  # least distance of the page offsets of two buffers that one op touches
_STAGGERED_FROM = 1024  # bytes; smaller buffers cover a small part of a page
_GOOD_ENOUGH = 1.05  # of the peak: no further order is tried
_SMALL, _ROUNDS = 400, 24  # up to so many buffers all orders are tried, and the best is improved in so many rounds
_SEEDS = 64  # of heavy sets


@dataclass(frozen=True)
class PlacedBuffer:
    name: str
    offset: int  # in the arena
    nbytes: int


@dataclass(frozen=True)
class MemoryPlan:
    """Where the buffers that a launch allocates for itself lie in its arena. All sizes are bytes.

    Outputs are not among them: each launch allocates its outputs anew.
    """

    buffers: tuple[PlacedBuffer, ...] = ()
    arena: int = 0  # what a launch keeps
    peak: int = 0  # most bytes that are live at the same time
    without_reuse: int = 0  # if every buffer had memory of its own

    @cached_property
    def offsets(self) -> Mapping[str, int]:
        return {buffer.name: buffer.offset for buffer in self.buffers}

    def __str__(self) -> str:
        if not self.buffers:
            return "no buffers are allocated inside"
        count = f"{len(self.buffers)} buffer{'s' if len(self.buffers) > 1 else ''}"
        without = f"{spell_bytes(self.without_reuse)} without reuse"
        return f"{count} in an arena of {spell_bytes(self.arena)}, peak {spell_bytes(self.peak)}, {without}"


def spell_bytes(count: int) -> str:
    """1536 -> '1.5 KB'; units of 1024."""
    size, units = float(count), ("bytes", "KB", "MB", "GB", "TB")
    for unit in units:
        if size < 1024 or unit == units[-1]:
            break
        size /= 1024
    return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


@dataclass(frozen=True)
class Request:
    """One buffer to be placed. Moments count along a serial execution."""

    nbytes: int
    first: int  # moment of its first access
    last: int  # moment of its last access
    # Buffers of an equal partition are accessed part by part, each part by one core in serial order: they may lie at
    # the same offset if their moments do not overlap, even if other accesses are not ordered.
    partition: Hashable = None


@dataclass(frozen=True)
class Arrangement:
    offsets: tuple[int, ...]  # by request
    arena: int
    peak: int


@dataclass
class _Place:
    """Bytes of the arena, and the buffers that lie exactly there."""

    begin: int
    end: int
    members: int  # bit set of requests


def arrange(
    requests: Sequence[Request], conflicts: Sequence[int], touched_together: Iterable[Collection[int]] = ()
) -> Arrangement:
    """Offsets for all requests. `conflicts[i]` is the bit set of the requests that must not share bytes with i.

    `touched_together`: groups of requests that one op touches.
    """
    sizes = [_rounded(request.nbytes) for request in requests]
    filler = _Filler(sizes, conflicts, _in_turn(requests), _neighbours(sizes, touched_together))
    orders = _orders(requests, sizes)
    best = filler.fill(next(orders))
    peak = max(_live_in_series(requests, sizes), filler.live_at_once())
    for order in orders:
        if filler.reach(best) <= peak * _GOOD_ENOUGH:
            break
        filled = filler.fill(order)
        if filler.reach(filled) < filler.reach(best):
            best = filled
        elif len(requests) > _SMALL:
            break
    best = _improved(filler, best, peak)
    return Arrangement(best.offsets, filler.reach(best), peak)


@dataclass(frozen=True)
class _Filled:
    """An order in which buffers were placed, and the offsets that they got."""

    order: tuple[int, ...]
    offsets: tuple[int, ...]  # by request


def _improved(filler: _Filler, best: _Filled, peak: int) -> _Filled:
    """Other orders: the buffers that ended up highest are placed first, again and again."""
    filled, seen = best, {best.order}
    for _ in range(_ROUNDS if len(best.order) <= _SMALL else 0):
        if filler.reach(best) <= peak * _GOOD_ENOUGH:
            break
        reach = filler.reach(filled)
        highest = [i for i in filled.order if filled.offsets[i] + filler.sizes[i] == reach]
        order = (*highest, *(i for i in filled.order if i not in highest))
        if order in seen:
            break
        seen.add(order)
        filled = filler.fill(order)
        if filler.reach(filled) < filler.reach(best):
            best = filled
    return best


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _live_in_series(requests: Sequence[Request], sizes: Sequence[int]) -> int:
    """Most bytes live at one moment of the serial execution."""
    changes: dict[int, int] = {}
    for request, size in zip(requests, sizes, strict=True):
        changes[request.first] = changes.get(request.first, 0) + size
        changes[request.last + 1] = changes.get(request.last + 1, 0) - size
    return max(accumulate(changes[moment] for moment in sorted(changes)), default=0)


def _neighbours(sizes: Sequence[int], touched_together: Iterable[Collection[int]]) -> list[set[int]]:
    """Per request: the others whose page offsets should differ from its own."""
    neighbours: list[set[int]] = [set() for _ in sizes]
    for group in touched_together:
        large = [i for i in group if sizes[i] >= _STAGGERED_FROM]
        for i in large:
            neighbours[i].update(large)
    for i, found in enumerate(neighbours):
        found.discard(i)
    return neighbours


def _in_turn(requests: Sequence[Request]) -> list[int]:
    """Per request: the bit set of the requests of its partition whose moments do not overlap with its own."""
    groups: dict[Hashable, list[int]] = {}
    for i, request in enumerate(requests):
        if request.partition is not None:
            groups.setdefault((request.partition, request.nbytes), []).append(i)
    found = [0] * len(requests)
    for members in groups.values():
        by_last = sorted(members, key=lambda i: requests[i].last)
        by_first = sorted(members, key=lambda i: -requests[i].first)
        lasts, firsts = [requests[i].last for i in by_last], [-requests[i].first for i in by_first]
        over = [0, *accumulate((1 << i for i in by_last), or_)]  # the first n of by_last
        to_come = [0, *accumulate((1 << i for i in by_first), or_)]
        for i in members:
            ended, not_begun = bisect_left(lasts, requests[i].first), bisect_left(firsts, -requests[i].last)
            found[i] = over[ended] | to_come[not_begun]
    return found


def _orders(requests: Sequence[Request], sizes: Sequence[int]) -> Iterator[list[int]]:
    every = range(len(requests))
    lengths = [request.last - request.first + 1 for request in requests]
    yield sorted(every, key=lambda i: (-sizes[i], requests[i].first))
    yield sorted(every, key=lambda i: (-sizes[i] * lengths[i], requests[i].first))
    yield sorted(every, key=lambda i: (requests[i].first, -sizes[i]))
    yield sorted(every, key=lambda i: (-lengths[i], -sizes[i]))
    yield sorted(every, key=lambda i: (-requests[i].last, -sizes[i]))


@dataclass(frozen=True)
class _Filler:
    """Places buffers one after the other, each where it fits best beside those that are placed already."""

    sizes: Sequence[int]
    conflicts: Sequence[int]
    in_turn: Sequence[int]  # bit sets: conflicts that do not matter at an equal offset
    neighbours: Sequence[set[int]]

    def reach(self, filled: _Filled) -> int:
        return max((filled.offsets[i] + self.sizes[i] for i in filled.order), default=0)

    def fill(self, order: Sequence[int]) -> _Filled:
        offsets = [-1] * len(self.sizes)
        places: dict[tuple[int, int], _Place] = {}
        for i in order:
            size, hard = self.sizes[i], self.conflicts[i] & ~self.in_turn[i]
            if size == 0:
                offsets[i] = 0
                continue
            taken = [place for place in places.values() if place.members & self.conflicts[i]]
            offset = _turn(taken, size, hard) if self.in_turn[i] else None
            if offset is None:
                near = [offsets[k] % _PAGE for k in self.neighbours[i] if offsets[k] >= 0]
                offset = _best_gap(taken, size, near)
            offsets[i] = offset
            place = places.setdefault((offset, size), _Place(offset, offset + size, 0))
            place.members |= 1 << i
        return _Filled(tuple(order), tuple(offsets))

    def live_at_once(self) -> int:
        """Bytes of a heavy set of buffers that are all in conflict: cores that run side by side may need them at once.

        Such a set is grown from each of the large buffers, always by the largest that is left; the heaviest counts.
        """
        largest_first = sorted(range(len(self.sizes)), key=lambda i: -self.sizes[i])
        heaviest = 0
        for seed in largest_first[:_SEEDS]:
            left, total = self.conflicts[seed] & ~self.in_turn[seed], self.sizes[seed]
            for i in largest_first:
                if left >> i & 1 and i != seed:
                    total += self.sizes[i]
                    left &= self.conflicts[i] & ~self.in_turn[i]
            heaviest = max(heaviest, total)
        return heaviest


def _turn(taken: Sequence[_Place], size: int, hard: int) -> int | None:
    """The offset of a place of the same partition where this buffer can have its turn."""
    for place in taken:
        if place.end - place.begin == size and not place.members & hard:
            crossing = (other for other in taken if other.begin < place.end and place.begin < other.end)
            if all(other is place for other in crossing):
                return place.begin
    return None


def _best_gap(taken: Sequence[_Place], size: int, near: Sequence[int]) -> int:
    """The smallest gap between the places that fits, or the end of the last."""
    reach, best, best_room = 0, -1, 0
    for begin, end in sorted((place.begin, place.end) for place in taken):
        room = begin - reach
        if room >= size and (best < 0 or room < best_room):
            offset = _staggered(reach, near, begin - size)
            best, best_room = offset, room
        reach = max(reach, end)
    return best if best >= 0 else _staggered(reach, near, reach + _PAGE)


def _staggered(offset: int, near: Sequence[int], most: int) -> int:
    """The first offset from `offset` to `most` that is apart from the page offsets in `near`; else `offset`."""
    for candidate in range(offset, most + 1, ALIGNMENT):
        if candidate - offset >= _PAGE:
            break
        if all(_APART <= (candidate - other) % _PAGE <= _PAGE - _APART for other in near):
            return candidate
    return offset
