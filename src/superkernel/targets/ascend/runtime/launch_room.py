"""targets.ascend.runtime.launch_room: a kernel's buffers and words -> their places on the device, for one launch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....model.graph import Graph
from ..kernel_description import EmittedKernel
from ..parameter_block import LaunchAddresses, slot_values, word_names
from .device import AclDevice, DeviceMemory

_PARAMETERS, _WORDS, _WORKSPACE, _PROFILING = "parameter block", "event and tiling words", "workspace", "profiling area"


class LaunchRoom:
    """A stream and device memory. One launch at a time uses it; the next one finds its memory allocated."""

    def __init__(self, device: AclDevice, emitted: EmittedKernel, graph: Graph, where: str) -> None:
        self.device, self._emitted, self._graph, self._where = device, emitted, graph, where
        self.stream = device.create_stream(f"{where}creating a stream")
        # what goes on while the kernel runs cannot go to its own stream
        self.side_stream = device.create_stream(f"{where}creating a stream") if emitted.prefetches else 0
        self._memory: dict[str, DeviceMemory] = {}
        self.buffers: dict[str, DeviceMemory] = {}
        names = word_names(emitted)
        self._stride = max(emitted.chip.cache_line, 64)  # words of different agents never share a cache line
        order = {name: place for place, name in enumerate(dict.fromkeys(names.values()))}
        self._offsets = {slot: order[name] * self._stride for slot, name in names.items()}
        self._word_bytes = len(order) * self._stride

    def place(self, name: str, size: int) -> DeviceMemory:
        """Memory of this name, at least one byte; kept from the launch before if the size is the same."""
        size = max(size, 1)
        found = self._memory.get(name)
        if found is None or found.bytes != size:
            if found is not None:
                del self._memory[name]
                self.device.free(found)
            doing = f"{self._where}allocating {size} bytes for {name} on the NPU"
            found = self._memory[name] = self.device.allocate(size, doing)
        return found

    def place_buffer(self, name: str, size: int) -> DeviceMemory:
        self.buffers[name] = memory = self.place(f"buffer {name!r}", size)
        return memory

    def prepare(self, scalars: Mapping[str, int], sync_base: int) -> DeviceMemory:
        """Clear the words and write the parameter block; the buffers have their places."""
        emitted = self._emitted
        addresses = LaunchAddresses(
            sync_base,
            self.place(_WORKSPACE, emitted.workspace_bytes).address if emitted.workspace_bytes else 0,
            self.place(_PROFILING, self.profiling_bytes).address if self.profiling_bytes else 0,
            {slot: self.word(slot).address for slot in self._offsets},
            {**{name: memory.address for name, memory in self.buffers.items()}, **scalars},
        )
        if self._word_bytes:
            self._write(_WORDS, np.zeros(self._word_bytes // 8, np.uint64))
        return self._write(_PARAMETERS, np.array(slot_values(emitted, self._graph, addresses), np.uint64))

    def _write(self, name: str, content: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> DeviceMemory:
        memory = self.place(name, content.nbytes)
        self.device.upload(memory, content.ctypes.data, content.nbytes, f"{self._where}writing the {name} of the NPU")
        return memory

    def _read(self, name: str, size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        content = np.empty(size, np.uint8)
        doing = f"{self._where}reading the {name} of the NPU"
        self.device.download(content.ctypes.data, self._memory[name], size, doing)
        return content

    # words

    def word(self, slot: int) -> DeviceMemory:
        return DeviceMemory(self.place(_WORDS, self._word_bytes).address + self._offsets[slot], 8)

    def write_word(self, slot: int, value: int) -> None:
        name = word_names(self._emitted)[slot]
        self.device.write_word(self.word(slot).address, value, f"{self._where}writing {name} of the NPU")

    def words(self) -> dict[int, int]:
        """Slot -> the value of its word now, all by one copy."""
        if not self._word_bytes:
            return {}
        values = self._read(_WORDS, self._word_bytes).view(np.uint64)
        return {slot: int(values[offset // 8]) for slot, offset in self._offsets.items()}

    # areas

    @property
    def profiling_bytes(self) -> int:
        area, launch = self._emitted.profiling, self._emitted.launch
        return area.bytes_per_core * (launch.cubes + launch.vectors) if area is not None else 0

    def profiling(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return self._read(_PROFILING, self.profiling_bytes)

    def dump(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """What sub-kernels printed, one part per core."""
        dump, launch = self._emitted.dump, self._emitted.launch
        assert dump is not None
        whole = self._read(_WORKSPACE, self._emitted.workspace_bytes)
        return whole[dump.offset : dump.offset + dump.bytes_per_core * (launch.cubes + launch.vectors)]

    def close(self, stopped: bool = False) -> None:
        """`stopped`: the launch failed, so its stream is closed without waiting for it; what cannot be given back after
        that goes with the process, and is no further error."""
        streams, self.stream, self.side_stream = (self.stream, self.side_stream), 0, 0
        device, memory, self._memory = self.device, self._memory, {}
        self.buffers.clear()
        for stream in filter(None, streams):
            device.destroy_stream(stream, stopped)
        for held in memory.values():
            device.free(held, stopped)
