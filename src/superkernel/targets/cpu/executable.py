"""targets.cpu.executable: a built super kernel as files: saved in a folder, restored where the processor can run it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import LaunchError, UnsupportedError
from ...plan import Plan
from ..native.toolchain import cpu_features
from .numbering import Numbering, number

_KERNEL, _HOST, _SOURCE, _FEATURES = "kernel.so", "runtime.so", "source.cpp", "processor.txt"


@dataclass(frozen=True)
class CpuExecutable:
    plan: Plan
    numbers: Numbering
    source: str
    binary: Path
    host: Path  # the shared object of the run time's host side
    commands: Sequence[str]
    remarks: Sequence[str] = ()

    def save(self, directory: Path) -> None:
        shutil.copyfile(self.binary, directory / _KERNEL)
        shutil.copyfile(self.host, directory / _HOST)
        (directory / _SOURCE).write_text(self.source)
        (directory / _FEATURES).write_text(cpu_features() + "\n")


def restore(plan: Plan, directory: Path) -> CpuExecutable:
    """What CpuExecutable.save wrote; refused where the processor lacks instructions that it was compiled for."""
    for name in (_KERNEL, _HOST, _SOURCE, _FEATURES):
        if not (directory / name).is_file():
            raise LaunchError(f"{directory} is no saved super kernel: {name} is missing")
    lacking = sorted({*(directory / _FEATURES).read_text().split()} - {*cpu_features().split()})
    if lacking:
        some = ", ".join(lacking[:8])
        raise UnsupportedError(f"{directory} was compiled for a processor with {some}, which this one lacks")
    source = (directory / _SOURCE).read_text()
    return CpuExecutable(plan, number(plan), source, directory / _KERNEL, directory / _HOST, ())
