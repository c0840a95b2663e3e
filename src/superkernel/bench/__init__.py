"""bench: suites of measurements, each against named peers, each result checked before it is timed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from ..errors import OptionError, UnsupportedError, nearest
from .measure import Result

# suite -> module with a `run(quick) -> Result`
SUITES = {
    "boundary": "superkernel.bench.boundary",
    "torch": "superkernel.bench.torch_models",
    "moe": "superkernel.bench.moe",
    "decode": "superkernel.bench.decode",
    "attention": "superkernel.bench.attention",
}


def run(suite: str, quick: bool = False) -> Result:
    if suite not in SUITES:
        raise OptionError(f"unknown suite {suite!r}{nearest(suite, SUITES)}; suites are {', '.join(SUITES)}")
    try:
        runner: Callable[[bool], Result] = import_module(SUITES[suite]).run
    except ModuleNotFoundError as reason:
        if reason.name != "torch":
            raise
        raise UnsupportedError(f"suite {suite!r} needs torch: pip install 'superkernel[torch]'") from reason
    return runner(quick)
