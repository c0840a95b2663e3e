"""targets.native.architectures: the name of an instruction set -> its architecture, and tools that compile for it."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from .toolchain import Toolchain, find_cross_toolchain, find_toolchain

AARCH64 = "aarch64"  # all processors of that architecture
# architecture -> what every processor of it has, as the compiler's -march= names it
_BASELINES: Mapping[str, str] = {"x86_64": "x86-64", AARCH64: "armv8-a"}
_TRIPLES: Mapping[str, str] = {AARCH64: "aarch64-linux-gnu"}  # how the names of cross tools begin


def this_architecture() -> str:
    return platform.machine()


def architecture_of(march: str) -> str:
    """Every name is one of this machine's architecture, except the names of others."""
    return march if march in _TRIPLES else this_architecture()


def toolchain_for(march: str) -> Toolchain:
    """The tools of this machine, or those that compile for another architecture; a BuildError if these are missing."""
    architecture = architecture_of(march)
    if architecture == this_architecture():
        return find_toolchain()
    return find_cross_toolchain(_TRIPLES[architecture], architecture.upper())


def baseline_flags(architecture: str) -> tuple[str, ...]:
    """Flags for code that runs on every processor of the architecture; they follow those for this machine."""
    return (f"-march={_BASELINES[architecture]}",) if architecture in _BASELINES else ()


def compiler_march(march: str) -> str:
    """What the compiler calls it."""
    return _BASELINES.get(march, march)
