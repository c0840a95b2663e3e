"""targets.ascend.emulator.stand_in_reference: what stand-ins must store, computed op after op in numpy.

The same arithmetic as in stand_ins.cpp, without cores, flags or time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .stand_ins import WORD_BYTES, Reads, StandIn, Touch

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.uint64]
Bounds = tuple[NDArray[np.int64], NDArray[np.int64]]  # per worker: the first word, and the first behind the last
Choice = Callable[[int, Mapping[str, Bytes]], tuple[int, int]]  # (op, buffers) -> tiling key and blocks
_FOLD, _PARAMETER, _WORD = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0x8CB92BA72F3D8DD7
_FOOTPRINT, _MEETING = 0xABC98388FB8FAC03, 0x2545F4914F6CDD1D
_MOST_WORDS = 1 << 16  # that are folded together: of a buffer, or of all workers of an op
_POWERS = np.cumprod(np.array([1] + [_FOLD] * (_MOST_WORDS - 1), np.uint64))


@dataclass(frozen=True)
class Memory:
    """The bytes of buffers and of areas, by name, and the bits of scalars by op and slot."""

    buffers: dict[str, Bytes]
    areas: dict[str, Bytes]
    scalars: Mapping[tuple[int, int], int]

    def copy(self) -> Memory:
        buffers, areas = ({name: each.copy() for name, each in kind.items()} for kind in (self.buffers, self.areas))
        return Memory(buffers, areas, self.scalars)


def run_in_order(stand_ins: Sequence[StandIn], order: Sequence[int], memory: Memory, tiling: Choice) -> None:
    """Every op once, in a legal order; `tiling` says with which key and how many blocks."""
    footprints = [work.footprint for work in stand_ins]
    for index in order:
        key, blocks = tiling(index, memory.buffers)
        if blocks:
            _Run(stand_ins[index], memory, key, blocks, footprints).run()


class _Run:
    """One op with all of its workers: numbers of workers are rows."""

    def __init__(self, work: StandIn, memory: Memory, key: int, blocks: int, footprints: Sequence[str]) -> None:
        self.work, self.memory, self.blocks, self.footprints = work, memory, blocks, footprints
        self.worker = np.arange(blocks * work.workers_per_block)
        self.block, self.place = np.divmod(self.worker, work.workers_per_block)
        self.digest = np.zeros(self.worker.size, np.uint64)
        for value in (np.uint64(work.op), np.uint64(key % 2**64), self.block, self.worker):
            self.absorb(value)

    def run(self) -> None:
        for touch in self.work.touches:
            self.read(touch)
        for follow in self.work.follows:
            left = _words(self.memory.areas[self.footprints[follow.op]])
            self.absorb(left[self.worker] if follow.own_worker else _fold(left))
        for barrier in range(self.work.barriers):
            self.meet(barrier)
        for touch in self.work.touches:
            if touch.writes:
                self.write(touch)
        left = _words(self.memory.areas[self.work.footprint])
        left[: self.worker.size] = _stored(self.digest + np.uint64(_FOOTPRINT))

    def absorb(self, value: np.uint64 | NDArray[Any]) -> None:
        self.digest = _mixed(self.digest * np.uint64(_FOLD) + np.asarray(value).astype(np.uint64))

    def touched(self, touch: Touch) -> NDArray[np.uint32]:
        assert touch.buffer is not None
        return _words(self.memory.buffers[touch.buffer][touch.first : touch.first + WORD_BYTES * touch.words])

    def read(self, touch: Touch) -> None:
        if touch.reads is Reads.SCALAR:
            self.absorb(np.uint64(self.memory.scalars[self.work.op, touch.slot]))
        elif touch.reads is Reads.WHOLE:
            self.absorb(_fold(self.touched(touch)))
        elif touch.reads is not Reads.NOTHING:
            self.absorb(self.folded(touch, *(self.parts(touch) if touch.reads is Reads.BLOCK else self.chunks(touch))))

    def write(self, touch: Touch) -> None:
        at, valid = _places(*self.chunks(touch))
        parameter = np.uint64(_PARAMETER * (touch.slot + 1) % 2**64)
        values = _stored(self.digest[:, None] + parameter + np.uint64(_WORD) * at.astype(np.uint64))
        self.touched(touch)[at[valid]] = values[valid]

    def meet(self, barrier: int) -> None:
        most = self.work.most_workers
        area = _words(self.memory.areas[self.work.meeting])[most * barrier : most * (barrier + 1)]
        area[: self.worker.size] = _stored(self.digest + np.uint64(_MEETING))
        self.absorb(_fold(area))

    def parts(self, touch: Touch) -> Bounds:
        """The words of each worker's block."""
        if not touch.per_block:
            return np.zeros_like(self.worker), np.full_like(self.worker, touch.words)
        size = touch.words // self.blocks // touch.grain * touch.grain
        return self.block * size, (self.block + 1) * size

    def chunks(self, touch: Touch) -> Bounds:
        """The words that each worker stores."""
        begin, end = self.parts(touch)
        grains = (end - begin) // touch.grain
        piece, pieces = self.worker, self.worker.size
        if touch.per_block:
            piece, pieces = self.place, self.work.workers_per_block
        return begin + grains * piece // pieces * touch.grain, begin + grains * (piece + 1) // pieces * touch.grain

    def folded(self, touch: Touch, begin: NDArray[np.int64], end: NDArray[np.int64]) -> Numbers:
        at, valid = _places(begin, end)
        words = np.where(valid, self.touched(touch)[np.where(valid, at, 0)], 0) if touch.words else np.zeros_like(at)
        powers = _POWERS[np.where(valid, end[:, None] - 1 - at, 0)]
        folds: Numbers = (words.astype(np.uint64) * powers).sum(axis=1, dtype=np.uint64)
        return folds


def _places(begin: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Per worker the places from begin to end, and which of them are meant."""
    at = begin[:, None] + np.arange(int((end - begin).max(initial=0)))
    return at, at < end[:, None]


def _words(area: Bytes) -> NDArray[np.uint32]:
    return area.view(np.uint32)


def _fold(words: NDArray[np.uint32]) -> np.uint64:
    total: np.uint64 = (words.astype(np.uint64) * _POWERS[: words.size][::-1]).sum(dtype=np.uint64)
    return total


def _mixed(digest: Numbers) -> Numbers:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        digest = (digest ^ (digest >> np.uint64(shift))) * np.uint64(factor)
    return digest ^ (digest >> np.uint64(31))


def _stored(digest: Numbers) -> NDArray[np.uint32]:
    return (_mixed(digest) >> np.uint64(32)).astype(np.uint32)
