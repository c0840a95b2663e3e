"""targets.ascend.emulator.arena: slots and buffers of a launch -> emulated global memory and the parameter block."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from superkernel.model.graph import Graph
from superkernel.targets.buffers import Bound, bytes_at

from ..kernel_description import EmittedKernel
from ..parameter_block import LaunchAddresses, slot_values, word_names
from .expectations import data_words

_ALIGNMENT = 512  # and room between regions, so that a step over an end is seen
_SYNC_BYTES, _WORD_BYTES = 64, 8
SYNC_AREA = "the sync area"
_WORKSPACE, _FEED = "the workspace", "the control words of feed-sync-all"
DUMP, PROFILING = "the dump area", "the profiling area"


@dataclass(frozen=True)
class Region:
    """A piece of emulated memory. `words`: cores and agents talk through it."""

    name: str
    address: int
    bytes: int
    words: bool = False


@dataclass
class Arena:
    """The memory of one launch."""

    room: np.ndarray[tuple[int], np.dtype[np.uint8]]
    regions: dict[str, Region]
    parameters: int  # address of the parameter block
    words: dict[int, int] = field(default_factory=dict)  # slot -> address of the word it points to

    def view(self, name: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """The bytes of a region."""
        region = self.regions[name]
        first = region.address - self.room.ctypes.data
        return self.room[first : first + region.bytes]

    def word(self, slot: int) -> int:
        """The value of the word that a slot points to."""
        return ctypes.c_uint64.from_address(self.words[slot]).value

    def set_word(self, slot: int, value: int) -> None:
        ctypes.c_uint64.from_address(self.words[slot]).value = value


def lay_out(
    emitted: EmittedKernel,
    graph: Graph,
    bound: Bound,
    passed: Mapping[str, object],
    seed: int,
    areas: Mapping[str, int] | None = None,
    words_apart: int | None = None,
) -> Arena:
    """Copy what was passed, fill the rest with bytes that depend on the seed, and write the parameter block.

    `areas`: more regions, names and bytes, that no slot points to. Words of events and tilings are neighbours,
    `words_apart` bytes from each other: by default one cache line.
    """
    areas = areas or {}
    sizes = dict(_wanted(emitted, graph, bound)) | {name: (size, False) for name, size in areas.items()}
    names, apart = dict.fromkeys(word_names(emitted).values()), words_apart or emitted.chip.cache_line
    total = sum(-(-size // _ALIGNMENT) * _ALIGNMENT + 2 * _ALIGNMENT for size, _ in sizes.values()) + _ALIGNMENT
    room = np.zeros(total + len(names) * apart + _ALIGNMENT, np.uint8)
    place, regions = -(-room.ctypes.data // _ALIGNMENT) * _ALIGNMENT, {}
    for name, (size, words) in sizes.items():
        regions[name] = Region(name, place, size, words)
        place += -(-size // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT
    answers = [word_names(emitted)[slot] for slot in data_words(emitted)]
    for number, name in enumerate(names):
        regions[name] = Region(name, place + number * apart, _WORD_BYTES, name not in answers)
    _split_workspace(regions, emitted.feed_bytes)
    arena = Arena(room, regions, regions["the parameter block"].address)
    _fill(arena, graph, bound, passed, seed, (*areas, *answers))
    _write_slots(arena, emitted, graph, bound)
    return arena


def share(arena: Arena, emitted: EmittedKernel, graph: Graph, bound: Bound, regions: Iterable[Region]) -> None:
    """Put regions that other ranks see as well in place of those that the arena has under the same names."""
    arena.regions.update((region.name, region) for region in regions)
    _write_slots(arena, emitted, graph, bound)


def buffer_region(name: str) -> str:
    return f"buffer {name!r}"


def _wanted(emitted: EmittedKernel, graph: Graph, bound: Bound) -> Iterator[tuple[str, tuple[int, bool]]]:
    """Regions by name: how many bytes, and whether cores talk through them."""
    yield "the parameter block", (8 * len(emitted.layout.slots), False)
    yield SYNC_AREA, (_SYNC_BYTES, True)
    for buffer, size in zip(graph.buffers.values(), bound.sizes, strict=True):
        if not buffer.scalar:
            yield buffer_region(buffer.name), (max(size, 1), False)
    if emitted.workspace_bytes:
        yield _WORKSPACE, (emitted.workspace_bytes, False)
    if emitted.profiling is not None:
        cores = emitted.launch.cubes + emitted.launch.vectors
        yield PROFILING, (emitted.profiling.bytes_per_core * cores, False)


def _split_workspace(regions: dict[str, Region], feed_bytes: int) -> None:
    """Control words come first; the dump area is what is left."""
    whole = regions.pop(_WORKSPACE, None)
    if whole is None:
        return
    if feed_bytes:
        regions[_FEED] = Region(_FEED, whole.address, feed_bytes, True)
    if whole.bytes > feed_bytes:
        regions[DUMP] = Region(DUMP, whole.address + feed_bytes, whole.bytes - feed_bytes)


def _fill(
    arena: Arena, graph: Graph, bound: Bound, passed: Mapping[str, object], seed: int, areas: Iterable[str]
) -> None:
    random = np.random.default_rng(seed)
    for buffer, address, size in zip(graph.buffers.values(), bound.values, bound.sizes, strict=True):
        if buffer.scalar:
            continue
        view = arena.view(buffer_region(buffer.name))
        if buffer.name in passed:
            view[:size] = bytes_at(address, size)
        else:
            view[:] = random.integers(0, 256, view.size, np.uint8)
    for name in (_FEED, DUMP, PROFILING, *areas):
        if name in arena.regions:  # they are not cleared before a launch
            view = arena.view(name)
            view[:] = random.integers(0, 256, view.size, np.uint8)


def _write_slots(arena: Arena, emitted: EmittedKernel, graph: Graph, bound: Bound) -> None:
    regions = arena.regions
    arena.words = {slot: regions[name].address for slot, name in word_names(emitted).items()}
    buffers = {
        buffer.name: value if buffer.scalar else regions[buffer_region(buffer.name)].address
        for buffer, value in zip(graph.buffers.values(), bound.values, strict=True)
    }
    profiling = regions[PROFILING].address if PROFILING in regions else 0
    addresses = LaunchAddresses(regions[SYNC_AREA].address, _workspace(arena), profiling, arena.words, buffers)
    arena.view("the parameter block").view(np.uint64)[:] = slot_values(emitted, graph, addresses)


def _workspace(arena: Arena) -> int:
    for name in (_FEED, DUMP):
        if name in arena.regions:
            return arena.regions[name].address
    return 0
