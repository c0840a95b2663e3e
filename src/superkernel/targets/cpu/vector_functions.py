"""targets.cpu.vector_functions: the undefined symbols of kernels -> objects that define the functions of vectors.

The vector classes of torch's headers call exp, log, sin and others by the names of the Sleef library: the function, `f`
or `d` for float or double, the lanes, the accuracy in tenths of an ulp (`Sleef_expf8_u10`). Ours have these names and
become part of a super kernel, which then needs no library of torch for them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..native import objects
from ..native.architectures import this_architecture
from ..native.build_context import BuildContext
from ..native.objects import CompileJob, text_key

FOLDER = Path(__file__).parent / "vector_math"
# source -> functions of floats
_FLOATS = {
    "exponentials.cpp": "exp_u10 exp2_u10 expm1_u10 cosh_u10 sinh_u10",
    "logarithms.cpp": "log_u10 log2_u10 log10_u10 log1p_u10",
    "hyperbolic_tangent.cpp": "tanh_u10",
    "error_function.cpp": "erf_u10 erfc_u15",
    "sine.cpp": "sin_u10 sin_u35 cos_u10 cos_u35 sincos_u10",
    "power.cpp": "pow_u10 hypot_u05",
    "trigonometric.cpp": "tan_u10 asin_u10 acos_u10 atan_u10 atan2_u10",
    "by_lanes.cpp": "acosh_u10 asinh_u10 atanh_u10 copysign fmod lgamma_u10 nextafter",
}
_DOUBLES = {
    "exponentials.cpp": "exp_u10",
    "by_lanes.cpp": (
        "acos_u10 acosh_u10 asin_u10 asinh_u10 atan_u10 atan2_u10 atanh_u10 copysign cos_u10 cosh_u10 erf_u10 erfc_u15 "
        "exp2_u10 expm1_u10 fmod hypot_u05 lgamma_u10 log_u10 log10_u10 log1p_u10 log2_u10 nextafter pow_u10 "
        "sin_u10 sincos_u10 sinh_u10 tan_u10 tanh_u10"
    ),
}
# architecture -> bytes of a vector -> the instruction set that has such vectors: kernels that call a function have it
_INSTRUCTION_SETS: Mapping[str, Mapping[int, str]] = {
    "x86_64": {32: "x86-64-v3", 64: "x86-64-v4"},
    "aarch64": {16: "armv8-a"},
}


@dataclass(frozen=True)
class VectorSource:
    """A source in FOLDER, for vectors of so many bytes."""

    name: str
    vector_bytes: int

    def job(self, architecture: str) -> CompileJob:
        flags = (
            f"-march={_INSTRUCTION_SETS[architecture][self.vector_bytes]}",
            f"-DSK_VECTOR_BYTES={self.vector_bytes}",
        )
        return CompileJob(FOLDER / self.name, flags, keyed_by_text=True)


@cache
def vector_functions(architecture: str = this_architecture()) -> Mapping[str, VectorSource]:
    """Symbol -> the source that defines it."""
    found = {}
    for vector_bytes in _INSTRUCTION_SETS.get(architecture, {}):
        for letter, table, itemsize in (("f", _FLOATS, 4), ("d", _DOUBLES, 8)):
            for source, functions in table.items():
                for function in functions.split():
                    name, _, accuracy = function.partition("_")
                    symbol = f"Sleef_{name}{letter}{vector_bytes // itemsize}{'_' if accuracy else ''}{accuracy}"
                    found[symbol] = VectorSource(source, vector_bytes)
    return found


def sources_of(undefined: Collection[str], architecture: str) -> tuple[VectorSource, ...]:
    """The sources that define those of the undefined symbols that are functions of vectors."""
    known = vector_functions(architecture)
    return tuple(dict.fromkeys(known[symbol] for symbol in sorted(undefined) if symbol in known))


def sources_key(sources: Collection[VectorSource]) -> tuple[str, ...]:
    """What a shared object depends on that takes these sources into itself."""
    return (text_key((), (FOLDER,)), *map(str, sources)) if sources else ()


def compile_vector_functions(sources: Collection[VectorSource], context: BuildContext, log: list[str]) -> list[Path]:
    jobs = [source.job(context.architecture) for source in sources]
    return objects.compile_sources(jobs, context.toolchain, context.cache, (FOLDER,), None, log)
