"""cache: a key and a way to build in, the path of a finished file out; built once, kept across processes."""

from .cache import GATE_SUFFIX, Cache, CacheInfo, listen_to_uses, split_name, totals
from .location import cache_in, default_directory, digest

__all__ = [
    "GATE_SUFFIX",
    "Cache",
    "CacheInfo",
    "cache_in",
    "default_directory",
    "digest",
    "listen_to_uses",
    "split_name",
    "totals",
]
