"""targets.native.precompiled: includes that generated kernels share -> a header that the compiler has read before.

Reading them takes three quarters of the time that a kernel takes to compile, and reading them ahead takes as long as
three kernels, and 150 MB of the cache: so that is done once they have been needed a few times.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...cache import Cache, digest
from ...errors import BuildError
from .build_context import BuildContext
from .objects import text_key, versions
from .toolchain import cpu_features, run

PLAIN_USES = 3
_found: dict[Path, bool] = {}  # header -> whether it could be compiled
_lock = threading.Lock()


def precompiled(includes: str, command: Sequence[str], context: BuildContext) -> Path | None:
    """The header to pass with -include; None: it does not pay yet, or does not compile."""
    # The compiler does not look whether a header has changed since it read it: torch's versions stand for torch's.
    identity = (context.toolchain.identity, cpu_features(), versions(), text_key((), context.include_dirs))
    key = digest("includes", includes, *command, *identity)
    with _lock, suppress(OSError, BuildError):
        header = context.cache.path(key, ".h")
        there = context.cache.path(key, ".h.gch").is_file()
        if _found.get(header) is False or not (there or _needed_often(key, context.cache)):
            return None
        if not (there and _found.get(header)):
            _found[header] = False
            # the compiler reads the text where it cannot use what it has read ahead
            if context.cache.make(key, ".h", lambda path: path.write_text(includes + "\n")) != header:
                return None  # the cache is read-only
            ahead = [*command, "-x", "c++-header", str(header), "-o"]
            what = "reading the includes of generated kernels"
            context.cache.make(
                key, ".h.gch", lambda output: run([*ahead, str(output)], what=what, log=context.commands)
            )
            _found[header] = True
        return header
    return None


def _needed_often(key: str, cache: Cache) -> bool:
    """Whether it was needed PLAIN_USES times before; counts this use."""
    before = len(cache.read_text(key, ".uses") or "")
    if before < PLAIN_USES:
        cache.write_text(key, ".uses", "." * (before + 1))  # concurrent processes may lose a count: no harm
    return before >= PLAIN_USES
