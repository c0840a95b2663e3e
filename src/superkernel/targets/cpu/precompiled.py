"""targets.cpu.precompiled: includes that generated kernels share -> a header that the compiler has read before.

Reading them takes three quarters of the time that a kernel takes to compile, and reading them ahead takes as long as
three kernels, and 150 MB of the cache: so that is done once they have been needed a few times.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...cache import digest
from ...errors import BuildError
from .build import Workshop
from .objects import INCLUDE, text_key
from .toolchain import run

PLAIN_USES = 3
_ready: dict[Path, bool] = {}  # headers -> whether the compiler has read it, as this process found
_lock = threading.Lock()


def precompiled(includes: str, command: Sequence[str], shop: Workshop) -> Path | None:
    """What to name with -include instead of the includes; None: it does not pay yet, or cannot be made."""
    key = digest("includes", includes, *command, shop.toolchain.identity, text_key((), (INCLUDE,)))
    with _lock, suppress(OSError, BuildError):
        header = shop.cache.path(key, ".h")
        if not header.with_name(header.name + ".gch").is_file():
            _ready.pop(header, None)
            if not _needed_often(header, includes):
                return None
        if header not in _ready:
            _ready[header] = False
            ahead = [*command, "-x", "c++-header", str(header), "-o"]
            shop.cache.make(key, ".h.gch", lambda output: _read(ahead, output, shop))
            _ready[header] = True
        return header if _ready[header] else None
    return None


def _needed_often(header: Path, includes: str) -> bool:
    """Whether it was needed a few times before; counts this one."""
    header.parent.mkdir(mode=0o700, exist_ok=True)
    uses = header.with_suffix(".uses")
    before = len(uses.read_text()) if uses.is_file() else 0
    if before >= PLAIN_USES:
        header.write_text(includes + "\n")
        return True
    uses.write_text("." * (before + 1))  # two processes that count at once lose one, which does no harm
    return False


def _read(command: Sequence[str], output: Path, shop: Workshop) -> None:
    run([*command, str(output)], what="reading the includes of generated kernels", log=shop.commands)
