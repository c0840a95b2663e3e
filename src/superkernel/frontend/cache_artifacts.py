"""frontend.cache_artifacts: cache entries that this process used <-> torch.compiler.save_cache_artifacts and load.

torch keeps an artifact as a type, a key and bytes. Here the key is the file name of a cache entry, and the bytes are
the SHA-256 of the entry and its contents.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.compiler._cache import CacheArtifact, CacheArtifactFactory, CacheArtifactManager

from ..cache import Cache, listen_to_uses, split_name
from ..errors import BuildError

TYPE = "superkernel"
MOST_BYTES = 64 << 20  # a precompiled header takes 150 MB, and every machine can read its headers again
_DIGEST_BYTES = hashlib.sha256().digest_size
_log = logging.getLogger("superkernel")


@dataclass(frozen=True)
class CacheEntryArtifact(CacheArtifact):
    """One entry of the cache as torch carries it between processes."""

    @staticmethod
    def type() -> str:
        return TYPE

    def populate_cache(self) -> None:
        """Write the entry into the cache of this process; an entry that the cache already has stays."""
        checksum, contents = self.content[:_DIGEST_BYTES], self.content[_DIGEST_BYTES:]
        name = split_name(self.key)
        if name is None or hashlib.sha256(contents).digest() != checksum:
            _log.warning(f"cache artifact {self.key!r} of superkernel is damaged and was left out: it is built again")
            return
        try:
            Cache().add(*name, contents)
        except BuildError as reason:
            _log.warning(f"cache artifact {self.key!r} of superkernel was left out: {reason}")


def register() -> None:
    """Let torch save and load the entries of our cache; a second call does nothing."""
    if TYPE not in CacheArtifactFactory._artifact_types:
        CacheArtifactFactory.register(CacheEntryArtifact)
        listen_to_uses(_record)


def _record(entry: Path) -> None:
    contents: Any = None
    with suppress(OSError):  # removed meanwhile: then there is nothing to carry
        if entry.stat().st_size <= MOST_BYTES:
            contents = entry.read_bytes()
    if contents:
        CacheArtifactManager.record_artifact(TYPE, entry.name, hashlib.sha256(contents).digest() + contents)
