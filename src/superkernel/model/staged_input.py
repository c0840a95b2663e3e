"""staged_input: an input that a sub-kernel can take from a ring of chunks, which a target fills ahead of the op.

Every block reads chunks of the input in a known order. A target whose cores have memory of their own can therefore copy
the chunks of one op after the other into a ring there, long before the ops begin. Without such a ring the sub-kernel
fetches the input itself.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StagedInput:
    """Block b reads the chunks b, b + blocks, ... of `param`; blocks from `blocks` on read none."""

    param: str  # a constant input of known size
    flag: str  # a scalar: 1 where the chunks lie in the ring, 0 where the sub-kernel fetches them
    chunk_bytes: int  # of a chunk; the last one may be shorter
    blocks: int
    slots: int  # chunks in the ring, which lies at the beginning of the block's shared memory
    slot_bytes: int  # room for a chunk
    flying: int  # chunks that may be on their way at a time
    arrivals: int  # of the block, that make the slot of a chunk empty again

    def chunks_of(self, block: int, nbytes: int) -> range:
        """The chunks of a block, of an input of so many bytes."""
        return range(block, -(-nbytes // self.chunk_bytes), self.blocks) if block < self.blocks else range(0)
