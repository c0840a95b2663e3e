"""targets.cpu.executable: a built super kernel as files: saved in a folder, restored where the processor can run it."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...cache import Cache
from ...errors import LaunchError, UnsupportedError
from ...plan import Plan
from ..native.instruction_sets import used_features
from ..native.march import NATIVE
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
    march: str = NATIVE
    features: frozenset[str] | None = None  # that the processor needs, of a restored executable

    def save(self, directory: Path) -> None:
        shutil.copyfile(self.binary, directory / _KERNEL)
        shutil.copyfile(self.host, directory / _HOST)
        (directory / _SOURCE).write_text(self.source)
        features = self._used_features() if self.features is None else self.features
        needs = " ".join([platform.machine(), *sorted(features)])
        (directory / _FEATURES).write_text(f"compiled for: {self.march}\nneeds: {needs}\n")

    def _used_features(self) -> frozenset[str]:
        """What its code uses; where that is unknown, everything that this machine has."""
        cache, here = Cache(), frozenset(cpu_features().split()[1:])
        used = [used_features(library, cache) for library in (self.binary, self.host)]
        return frozenset().union(*(here if found is None else found for found in used))


def restore(plan: Plan, directory: Path) -> CpuExecutable:
    """What CpuExecutable.save wrote; refused where the processor lacks instructions that its code uses."""
    for name in (_KERNEL, _HOST, _SOURCE, _FEATURES):
        if not (directory / name).is_file():
            raise LaunchError(f"{directory} is no saved super kernel: {name} is missing")
    march, needs = (line.partition(": ")[2] for line in (directory / _FEATURES).read_text().splitlines())
    _, *features = needs.split()
    lacking = sorted({*needs.split()} - {*cpu_features().split()})
    if lacking:
        some = ", ".join(lacking[:8])
        raise UnsupportedError(
            f"{directory}, compiled for {march}, needs a processor with {some}, which this one lacks; compile it "
            "again here, or for an older one, as in sk.compile(..., march='x86-64-v2')"
        )
    source = (directory / _SOURCE).read_text()
    return CpuExecutable(
        plan, number(plan), source, directory / _KERNEL, directory / _HOST, (), (), march, frozenset(features)
    )
