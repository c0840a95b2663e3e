"""targets.cpu.runtime.huge_pages: memory that every launch reads -> the same memory in huge pages, where available.

A core that streams weights from pages of 4 KB spends half of its time on looking pages up, on a virtual machine above
all. Contents and addresses stay what they are: only the system's own mapping changes.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
from collections.abc import Callable, Iterable
from time import perf_counter

from ....configuration import config

_log = logging.getLogger("superkernel")
HUGE = 2 << 20
_COLLAPSE = 25  # MADV_COLLAPSE
_WORTH = 2 << 20  # bytes; less than this is found in the caches anyway

Span = tuple[int, int]  # address, bytes


def settle(spans: Iterable[Span]) -> int:
    """Ask for huge pages behind the spans, once; how many were granted. Memory that is refused stays as it was."""
    spans = [(address, size) for address, size in spans if size]
    if not wanted() or sum(size for _, size in spans) < _WORTH or (advise := _madvise()) is None:
        return 0
    began = perf_counter()
    pages = well_covered(spans)
    collapsed = sum(advise(page, HUGE, _COLLAPSE) == 0 for page in pages)
    _log.debug("%d of %d huge pages behind weights, %.0f ms", collapsed, len(pages), 1e3 * (perf_counter() - began))
    return collapsed


def wanted() -> bool:
    return config.huge_pages != "0"


def well_covered(spans: Iterable[Span]) -> list[int]:
    """Addresses of huge pages, of which the spans cover at least half: the rest of such a page becomes memory too."""
    covered: dict[int, int] = {}
    for address, size in set(spans):
        for page in range(address // HUGE * HUGE, address + size, HUGE):
            covered[page] = covered.get(page, 0) + min(page + HUGE, address + size) - max(page, address)
    return sorted(page for page, bytes_of_it in covered.items() if bytes_of_it >= HUGE // 2)


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    found = ctypes.CDLL(None).madvise
    found.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    found.restype = ctypes.c_int
    return found
