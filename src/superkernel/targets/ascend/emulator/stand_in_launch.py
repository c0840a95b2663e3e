"""targets.ascend.emulator.stand_in_launch: one emulated launch with stand-ins, compared with their reference."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from superkernel.errors import LaunchError
from superkernel.model.node import Node
from superkernel.model.options import Options
from superkernel.model.params import Kind, scalar_bits
from superkernel.model.tiling import TilingFunction, chosen_tiling
from superkernel.targets.buffers import Bound, aligned_empty, bytes_at, check_argument, check_names, check_overlaps
from superkernel.targets.launch_outputs import no_outputs
from superkernel.targets.protocol import LaunchInputs

from .arena import Arena, buffer_region
from .launch import ChipEmulator, Emulation, Outside
from .stand_in_reference import Memory, run_in_order
from .stand_ins import PATTERN_BYTES, WORD_BYTES, StandIn, make_stand_ins

NOTE = (
    "stand-ins took the place of the sub-kernels: they check order, flags, events and slots, and compute nothing; "
    "each launch was compared with its ops run one after the other"
)
_LATEST = 1 << 20  # steps of the emulator after which an event from outside is set


@dataclass
class StandInEmulator(ChipEmulator):
    """Buffers that are not passed are made; so are tilings, and the agents that set events."""

    options: Options = field(kw_only=True)

    def run(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> Emulation:
        self._choices: dict[int, tuple[int, int]] = {}  # op -> what a function of the user chose
        self._automatic = {
            node.name: _tiling_by_contents(node, self.seed)
            for node in self.graph.nodes
            if node.asks_agent and node.name not in launch_inputs.tilings
        }
        self.outside = (*self.outside, *self._agents_of_events())
        given = {name: self._recorded(name, function) for name, function in launch_inputs.tilings.items()}
        emulation = super().run(buffers, replace(launch_inputs, tilings={**given, **self._automatic}))
        return replace(emulation, notes=(*emulation.notes, NOTE))

    def _agents_of_events(self) -> Iterator[Outside]:
        """Events that an op waits for, unless the caller has an agent or an Event for them, are set at any time."""
        taken = {agent.sets for agent in self.outside} | {e.label for e in self.graph.events if e.bound is not None}
        awaited = dict.fromkeys(event.label for event in self.emitted.events if not event.sent)
        for label in awaited:
            if label not in taken:
                yield Outside(label, delay=self._random.randrange(self._random.choice((1, 100, 10_000, _LATEST))))

    def _recorded(self, name: str, function: TilingFunction) -> TilingFunction:
        node = next(node for node in self.graph.nodes if node.name == name)

        def choose(inputs: dict[str, Any]) -> tuple[int, int]:
            chosen = self._choices[node.index] = chosen_tiling(function(inputs), name)
            return chosen

        return choose

    # buffers

    def _bind(self, buffers: Mapping[str, Any]) -> Bound:
        check_names(self.graph, buffers)
        bound = Bound([], [], no_outputs(self.graph), [])
        for buffer in self.graph.buffers.values():
            if buffer.name in buffers:
                value = buffers[buffer.name]
                address, size = check_argument(self.graph, buffer.name, value)
            elif buffer.scalar:
                value = self._random.randrange(1, 100) if buffer.dtype != "bool" else self._random.randrange(2)
                address, size = scalar_bits(value, buffer.dtype, buffer.name, LaunchError), 0
            else:
                value = aligned_empty((buffer.reach + PATTERN_BYTES,), "uint8")
                address, size = value.ctypes.data, value.nbytes
                if buffer.name in self.graph.outputs:
                    bound.outputs[buffer.name] = value
            bound.keep.append(value)
            bound.values.append(address)
            bound.sizes.append(size)
        check_overlaps(self.graph, bound.values, bound.sizes, self._where)
        return bound

    def _areas(self, bound: Bound) -> Mapping[str, int]:
        self._sizes = dict(zip(self.graph.buffers, bound.sizes, strict=True))
        self._stand_ins = make_stand_ins(self.emitted, self.graph, self.options, self._sizes, self.seed)
        return dict(area for work in self._stand_ins for area in work.areas())

    # the emulated side

    def _describe(self, machine: int, arena: Arena) -> None:
        super()._describe(machine, arena)
        self._before = self._memory(arena)
        for work in self._stand_ins:
            self._describe_work(machine, arena, work)

    def _describe_work(self, machine: int, arena: Arena, work: StandIn) -> None:
        calls, regions = self._calls, arena.regions
        footprint = regions[work.footprint].address
        meeting = regions[work.meeting].address if work.barriers else 0
        calls.sk_emu_stand_in(
            machine, work.op, footprint, meeting, work.workers_per_block, work.most_workers, work.barriers,
            work.waits, work.sets, work.always_sets,
        )  # fmt: skip
        for touch in work.touches:
            calls.sk_emu_stand_in_touch(
                machine, work.op, touch.slot, touch.reads.value, touch.writes, touch.per_block, touch.skip,
                touch.words, touch.grain, touch.cached_in, touch.cached_out,
            )  # fmt: skip
        for follow in work.follows:
            before = self._stand_ins[follow.op]
            address = regions[before.footprint].address
            calls.sk_emu_stand_in_follow(machine, work.op, address, before.most_workers, follow.own_worker)
        for function, key in work.keys:
            calls.sk_emu_stand_in_key(machine, work.op, function.encode(), key % 2**64)

    # the reference

    def _memory(self, arena: Arena) -> Memory:
        names = [buffer.name for buffer in self.graph.buffers.values() if not buffer.scalar]
        areas = [name for work in self._stand_ins for name, _ in work.areas()]
        slots = arena.view("the parameter block").view(np.uint64)
        scalars = {
            (work.op, touch.slot): int(slots[self.emitted.ops[work.op].first_slot + touch.slot])
            for work in self._stand_ins
            for touch in work.touches
            if touch.buffer is None
        }
        buffers = {name: arena.view(buffer_region(name))[: self._sizes[name]] for name in names}
        return Memory(buffers, {name: arena.view(name) for name in areas}, scalars).copy()

    def _outcome(self, machine: int, arena: Arena, bound: Bound) -> Emulation:
        emulation = super()._outcome(machine, arena, bound)
        wanted = self._before
        run_in_order(self._stand_ins, self.graph.order, wanted, self._tiling)
        self._compare(wanted, self._memory(arena))
        return emulation

    def _tiling(self, op: int, buffers: Mapping[str, np.ndarray[Any, Any]]) -> tuple[int, int]:
        node = self.graph.nodes[op]
        if not node.asks_agent:
            return 0, node.blocks
        if op in self._choices:
            return self._choices[op]
        inputs = {name: buffers[name] for param, name in node.arguments() if param.kind in (Kind.IN, Kind.INOUT)}
        return chosen_tiling(self._automatic[node.name](inputs), node.name)

    def _compare(self, wanted: Memory, found: Memory) -> None:
        """The first op, in order, that saw something else; else the first buffer that holds something else."""
        for index in self.graph.order:
            work = self._stand_ins[index]
            different = _different_words(wanted.areas[work.footprint], found.areas[work.footprint])
            if different.size:
                block = int(different[0]) // work.workers_per_block
                raise self._difference(
                    f"op {work.name!r}: block {block} (and {different.size - 1} more cores) read something else than "
                    "it reads when the ops run one after the other"
                )
        for name, array in wanted.buffers.items():
            different = _different_words(array, found.buffers[name])
            if different.size:
                writer = self._last_writer(name)
                raise self._difference(
                    f"buffer {name!r}, which {writer} writes last: {different.size} words differ from those of the ops "
                    f"run one after the other, the first at byte {WORD_BYTES * int(different[0])}"
                )

    def _difference(self, what: str) -> LaunchError:
        return LaunchError(f"{self._where}emulated with seed={self.seed}: {what}")

    def _last_writer(self, name: str) -> str:
        for index in reversed(self.graph.order):
            if any(touch.writes and touch.buffer == name for touch in self._stand_ins[index].touches):
                return f"op {self._stand_ins[index].name!r}"
        return "no op"


def _different_words(wanted: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.unique(np.flatnonzero(wanted != found) // WORD_BYTES)


def _tiling_by_contents(node: Node, seed: int) -> TilingFunction:
    """A known key and a block count that depend on what the op reads: a request that came too early shows."""
    keys = [key for key, _ in node.kernel.tiling_variants]

    def choose(inputs: dict[str, Any]) -> tuple[int, int]:
        total = zlib.crc32(node.name.encode(), seed % 2**32)
        for name in sorted(inputs):
            total = zlib.crc32(_bytes(inputs[name]), total)
        return keys[total % len(keys)], total // 64 % (node.blocks + 1)

    return choose


def _bytes(value: Any) -> bytes:
    """Of an array or a tensor, whatever its type."""
    address = value.data_ptr() if hasattr(value, "data_ptr") else value.ctypes.data
    return bytes_at(address, value.nbytes).tobytes()
