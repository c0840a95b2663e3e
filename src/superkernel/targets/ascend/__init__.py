"""targets.ascend: AI cores, cube and vector: emits Ascend C, builds it where CANN is installed, emulates it."""

from .facts import as_type
from .target import TARGET

__all__ = ["TARGET", "as_type"]
