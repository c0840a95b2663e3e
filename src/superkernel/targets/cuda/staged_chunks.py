"""targets.cuda.staged_chunks: the steps of a plan that stage inputs -> entries of the table, the same for all SMs.

An SM finds its chunks of an input by the number of its block, which follows from its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ...plan import Plan
from ...plan.staging import staged_argument
from ...plan.steps import StageWeights
from .task_layout import STAGE_ENTRY_BYTES, StageWord


@dataclass(frozen=True)
class StageEntry:
    """A staged input: block b reads the chunks b, b + blocks, ..."""

    name: str  # of the buffer
    offset: int  # in it, of the input
    first: int  # the number of the SM that has block 0
    blocks: int
    chunks: int  # of all blocks
    nbytes: int  # of a chunk
    last: int  # of the last one

    def packed(self, argument: int) -> bytes:
        words = {
            StageWord.ARGUMENT: argument,
            StageWord.FIRST: self.first,
            StageWord.BLOCKS: self.blocks,
            StageWord.CHUNKS: self.chunks,
            StageWord.BYTES: self.nbytes,
            StageWord.LAST: self.last,
        }
        packed = struct.pack(f"<{len(StageWord)}I", *(words[word] for word in StageWord))
        return packed.ljust(STAGE_ENTRY_BYTES, b"\0")


LAST_ENTRY = bytes(STAGE_ENTRY_BYTES)


def staged_entries(plan: Plan) -> Iterator[StageEntry]:
    """What is copied into the rings, in order. With one slot on an SM, its core has the number of the SM."""
    for step in plan.steps:
        if isinstance(step, StageWeights):
            node = plan.graph.nodes[step.op]
            staged = node.kernel.staged_input
            param, place = staged_argument(node)
            assert staged is not None and param.nbytes is not None
            chunks = -(-param.nbytes // staged.chunk_bytes)
            last = param.nbytes - (chunks - 1) * staged.chunk_bytes
            shape = staged.blocks, chunks, staged.chunk_bytes, last
            yield StageEntry(place.name, place.offset, step.cores[0], *shape)
