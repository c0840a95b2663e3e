"""bench: suites of measurements, each against named peers, each result checked before it is timed."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module

from ...errors import OptionError, UnsupportedError, nearest
from ...frontend.torch_versions import REQUIREMENT
from .measure import Result

# suite -> module with a `run(quick, cores) -> Result`
SUITES = {
    "boundary": "superkernel.tools.bench.boundary",
    "torch": "superkernel.tools.bench.torch_models",
    "moe": "superkernel.tools.bench.moe",
    "decode": "superkernel.tools.bench.decode",
    "quantized": "superkernel.tools.bench.quantized",
    "attention": "superkernel.tools.bench.attention",
    "convolution": "superkernel.tools.bench.convolution",
    "loaded": "superkernel.tools.bench.loaded",
    "package": "superkernel.tools.bench.package",
    "collectives": "superkernel.tools.bench.collectives",
}

TIMED = ("collectives",)  # suites whose `run` has `seconds`

CUDA_SUITES = ("boundary", "chain", "gemv", "chain-decode")
DEVICES = {"cuda": CUDA_SUITES}  # kind of device -> its suites; module bench.<kind> has a `run(suite, quick) -> Result`


def run(suite: str, quick: bool = False, cores: int | None = None, seconds: float | None = None) -> Result:
    """`cores`: for us and for every peer; the figures are promised for two. `seconds`: for the whole suite."""
    if suite not in SUITES:
        raise OptionError(f"unknown suite {suite!r}{nearest(suite, SUITES)}; suites are {', '.join(SUITES)}")
    if seconds is not None and suite not in TIMED:
        raise OptionError(f"--seconds belongs to {', '.join(TIMED)}: suite {suite!r} always runs to its end")
    if seconds is not None and not seconds > 0:
        raise OptionError(f"--seconds must be above 0, not {seconds:g}")
    present = len(os.sched_getaffinity(0))
    cores = min(2, present) if cores is None else cores
    if not 1 <= cores <= present:
        raise OptionError(f"cores={cores} is not possible here: this process has {present} cores, so 1 to {present}")
    try:
        runner: Callable[..., Result] = import_module(SUITES[suite]).run
    except ModuleNotFoundError as reason:
        if reason.name != "torch":
            raise
        raise UnsupportedError(f"suite {suite!r} needs torch: pip install '{REQUIREMENT}'") from reason
    return runner(quick, cores) if seconds is None else runner(quick, cores, seconds)


def run_on_device(device: str, suite: str, quick: bool = False) -> Result:
    """A suite that needs a device beside the processor."""
    if suite not in DEVICES[device]:
        known = ", ".join(DEVICES[device])
        raise OptionError(f"unknown suite {suite!r} of {device}{nearest(suite, DEVICES[device])}; suites are {known}")
    runner: Callable[[str, bool], Result] = import_module(f"superkernel.tools.bench.{device}").run
    return runner(suite, quick)
