"""gc_pause: pauses the garbage collector in stages that allocate many objects which all stay alive."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def without_collection(stage: Callable[P, R]) -> Callable[P, R]:
    """The same stage with the collector paused: repeated traversals of live objects would make it superlinear."""

    @wraps(stage)
    def paused(*args: P.args, **kwargs: P.kwargs) -> R:
        if not gc.isenabled():
            return stage(*args, **kwargs)
        gc.disable()
        try:
            return stage(*args, **kwargs)
        finally:
            gc.enable()

    return paused
