"""bench: suites of measurements, each against named peers, each result checked before it is timed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from ..errors import OptionError, nearest
from .measure import Result

# suite -> module with a `run(quick) -> Result`
SUITES = {"boundary": "superkernel.bench.boundary"}


def run(suite: str, quick: bool = False) -> Result:
    if suite not in SUITES:
        raise OptionError(f"unknown suite {suite!r}{nearest(suite, SUITES)}; suites are {', '.join(SUITES)}")
    runner: Callable[[bool], Result] = import_module(SUITES[suite]).run
    return runner(quick)
