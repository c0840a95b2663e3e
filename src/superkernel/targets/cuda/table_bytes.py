"""targets.cuda.table_bytes: the bytes of a task table, read word by word; what is outside or misplaced is an error."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import NoReturn

from ...errors import BuildError
from .task_layout import ARGUMENT_BYTES, SUM_BYTES, WORD

Words = tuple[int, ...]


@dataclass
class PooledRegion:
    """What has been read of the further needs, or of the arguments, of a table."""

    end: int
    placed: dict[bytes, int] = field(default_factory=dict)  # content -> its place
    halved: bool = False  # arguments of which a copy holds sums: offsets are those in the copy

    def __post_init__(self) -> None:
        self.begin = self.end

    def place_of(self, offset: int) -> int:
        """Where in the table the content of an offset is."""
        return self.begin + (offset - self.begin) * ARGUMENT_BYTES // SUM_BYTES if self.halved else offset


@dataclass
class TableBytes:
    """The bytes of a table."""

    data: bytes
    where: str

    def wrong(self, text: str) -> NoReturn:
        raise BuildError(f"{self.where}the task table is not the validated plan: {text}")

    def words(self, offset: int, count: int) -> Words:
        if offset % WORD or not 0 <= offset <= len(self.data) - WORD * count:
            self.wrong(f"offset {offset} is outside of its {len(self.data)} bytes")
        return struct.unpack_from(f"<{count}I", self.data, offset)

    def pooled(self, region: PooledRegion, offset: int, size: int) -> bytes:
        """Bytes of a region, which holds every content once, in the order of its first use."""
        offset = region.place_of(offset)
        content = self.data[offset : offset + size]
        if len(content) < size:
            self.wrong(f"offset {offset} is outside of its {len(self.data)} bytes")
        if content not in region.placed:
            region.placed[content] = region.end
            region.end += size
        if region.placed[content] != offset:
            self.wrong(f"{size} bytes at {offset} belong at {region.placed[content]}")
        return content
