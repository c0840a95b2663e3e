"""targets.cpu.instruction_sets: names of instruction sets <-> what the compiler and the processor call them."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from functools import cache

from ...cache import Cache
from ...errors import BuildError, OptionError, nearest
from ..native.architectures import AARCH64, architecture_of, this_architecture, toolchain_for
from ..native.instruction_sets import used_features
from ..native.march import LEVELS, NATIVE, checked_march, lacking_here, level_features
from ..native.toolchain import Toolchain, cpu_features, find_toolchain, run
from ..packaging import InstructionSet
from .executable import CpuExecutable

# levels that packages may have objects for; vector kernels need at least the first
PORTABLE = ("x86-64-v3", "x86-64-v4")
_MARCH = re.compile(r"-march=\s+(\S+)")


def instruction_sets(names: Sequence[str]) -> list[InstructionSet]:
    """The most demanding first: levels above this machine, its own, levels below; then other architectures.

    For another architecture a cross compiler must be there; a BuildError says what to install.
    """
    here = this_architecture()
    known = (NATIVE, *(PORTABLE if here == "x86_64" else ()), AARCH64)
    for name in names:
        if checked_march(name) not in known:
            raise OptionError(f"march={name!r}: packages have objects for {', '.join(known)}{nearest(name, known)}")
    toolchain = find_toolchain()
    levels = [name for name in reversed(PORTABLE) if name in names]
    above = [name for name in levels if lacking_here(name, toolchain)]
    native = [InstructionSet(f"{NATIVE}-{_this_processor(toolchain)}", NATIVE, here)] if NATIVE in names else []
    below = [name for name in levels if name not in above]
    if AARCH64 in names:
        toolchain_for(AARCH64)
        below.append(AARCH64)
    return [*map(_portable, above), *native, *map(_portable, below)]


def _portable(name: str) -> InstructionSet:
    return InstructionSet(name, name, architecture_of(name))


def needed_features(executable: CpuExecutable, instruction_set: InstructionSet) -> list[str]:
    """What the code uses, also that of kernels given as objects; of a level, everything that it promises as well.

    Where the use is unknown, code for this machine needs all that the machine has. Code for all processors of an
    architecture needs nothing.
    """
    if instruction_set.march == AARCH64:
        return []
    used = used_features(executable.binary, Cache())
    if instruction_set.march in LEVELS:
        return sorted({*level_features(instruction_set.march), *(used or ())})
    return sorted(cpu_features().split()[1:] if used is None else used)


@cache
def _this_processor(toolchain: Toolchain) -> str:
    """What the compiler calls this processor."""
    try:
        text = run([*toolchain.cxx, "-march=native", "-Q", "--help=target"], what="asking for this processor's name")
    except BuildError:  # a compiler without that option
        return platform.machine()
    found = _MARCH.search(text)
    return found[1] if found else platform.machine()
