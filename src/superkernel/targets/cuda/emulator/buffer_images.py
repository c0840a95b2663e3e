"""targets.cuda.emulator.buffer_images: the buffers of a launch -> copies that the emulated GPU works on, and back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from superkernel.model.graph import Graph
from superkernel.targets.buffers import Bound, bytes_at

from .program import Array


@dataclass(frozen=True, eq=False)
class BufferImages:
    """What the device holds of each buffer, by name; scalars are bits."""

    contents: Mapping[str, Array]
    scalars: Mapping[str, int]

    @classmethod
    def of(
        cls, graph: Graph, bound: Bound, passed: Mapping[str, Any], seed: int, without: Collection[str] = ()
    ) -> BufferImages:
        """Copies of what was passed; other buffers hold bytes that depend on the seed. `without`: no image of these."""
        random = np.random.default_rng(seed)
        contents: dict[str, Array] = {}
        scalars: dict[str, int] = {}
        for buffer, value, size in zip(graph.buffers.values(), bound.values, bound.sizes, strict=True):
            if buffer.name in without:
                continue
            if buffer.scalar:
                scalars[buffer.name] = value
            elif buffer.name in passed:
                contents[buffer.name] = bytes_at(value, size).copy()
            else:
                contents[buffer.name] = random.integers(0, 256, size, np.uint8)
        return cls(contents, scalars)

    def copies(self) -> BufferImages:
        return BufferImages({name: content.copy() for name, content in self.contents.items()}, self.scalars)

    def take(self, other: BufferImages) -> None:
        """The bytes of another set of images."""
        for name, content in self.contents.items():
            content[:] = other.contents[name]

    def give_back(self, graph: Graph, bound: Bound) -> None:
        """What ops wrote goes to the caller; what was passed to be read is left alone."""
        for buffer, address, size in zip(graph.buffers.values(), bound.values, bound.sizes, strict=True):
            if buffer.written and buffer.name in self.contents and size:
                bytes_at(address, size)[:] = self.contents[buffer.name]

    def difference(self, graph: Graph, other: BufferImages) -> str:
        """The name of a written buffer in which two sets of images differ; empty: none."""
        for buffer in graph.buffers.values():
            name = buffer.name
            compared = buffer.written and name in self.contents
            if compared and not np.array_equal(self.contents[name], other.contents[name]):
                return name
        return ""
