"""targets.native.march: the name of a processor or a level of the architecture -> flags of the compiler."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from functools import cache

from ...errors import BuildError, OptionError, nearest, shown
from .architectures import compiler_march
from .toolchain import Toolchain, cpu_features, run

NATIVE = "native"
# levels of the architecture -> what each adds, as in /proc/cpuinfo
LEVELS: Mapping[str, str] = {
    "x86-64": "sse2",
    "x86-64-v2": "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3",
    "x86-64-v3": "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave",
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
}
_MACRO = re.compile(r"^#define (__[A-Z0-9_]+__) 1$", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_VALID = re.compile(r"valid arguments to .-march=. switch are: ([^;\n]*)|valid target CPU values are: (.*)")


def checked_march(march: object) -> str:
    """A name that may be one; the compiler knows which exist."""
    if not isinstance(march, str) or not _NAME.fullmatch(march):
        raise OptionError(f"march is {shown(march)}; it names a processor: {_known(())}")
    return march


def march_flags(march: str) -> tuple[str, ...]:
    """Flags that follow those of every compilation, which are for this machine."""
    return () if march == NATIVE else (f"-march={compiler_march(march)}",)


def lacking_here(march: str, toolchain: Toolchain) -> list[str]:
    """What code for `march` may use and this machine has not; an OptionError if the compiler does not know `march`."""
    if march == NATIVE:
        return []
    macros = None if toolchain.missing else _macros(march, toolchain.cxx)
    if march in LEVELS and platform.machine() == "x86_64":
        return sorted({*level_features(march)} - {*cpu_features().split()})
    if macros is None:
        return [f"a compiler to say what {march} has"]
    return sorted(macro.strip("_") for macro in macros - _macros(NATIVE, toolchain.cxx))


def level_features(level: str) -> list[str]:
    """What a processor of a level has, as in /proc/cpuinfo."""
    return sorted(" ".join(LEVELS[name] for name in list(LEVELS)[: list(LEVELS).index(level) + 1]).split())


@cache
def _macros(march: str, cxx: tuple[str, ...]) -> frozenset[str]:
    """The macros that tell programs of instruction sets."""
    command = [*cxx, f"-march={march}", "-dM", "-E", "-x", "c++", "-"]
    try:
        return frozenset(_MACRO.findall(run(command, what=f"asking the compiler for march={march}")))
    except BuildError as failure:
        found = _VALID.search(failure.stderr)
        words = re.split(r"[ ,]+", (found[1] or found[2] or "").strip()) if found else []
        raise OptionError(
            f"march={shown(march)} is not known to {cxx[0]}{nearest(march, [*LEVELS, *words])}; {_known(words)}"
        ) from failure


def _known(words: Sequence[str]) -> str:
    others = [word for word in words if word not in (NATIVE, *LEVELS)]
    listed = ", ".join(others) or "another name that the compiler's -march= takes"
    return f"{NATIVE} (this machine), {', '.join(LEVELS)}, or {listed}"
