"""frontend.lowering.cpp_kernels: the parts of an outlined kernel -> C++ functions, and their SubKernels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...cache import digest
from ...model.subkernel import SubKernel
from .cpp_outline import KernelParameter, KernelPart, OutlinedKernel

KERNEL_PREFIX = "cpp_"  # of the names that Inductor gives to C++ kernels
_SCALARS = {
    "int64_t": "int64", "int32_t": "int32", "long": "int64", "int": "int32", "float": "float32", "double": "float64",
}  # fmt: skip


@dataclass(frozen=True)
class KernelSource:
    """The text of the parts of a kernel; the names of the functions depend on nothing but the text."""

    includes: str
    functions: str
    symbols: tuple[str, ...]  # by part


def kernel_source(name: str, outlined: OutlinedKernel, restrict: bool = False) -> KernelSource:
    """C++ for all parts; `name` makes the symbols readable. `restrict`: no other pointer reaches what one writes."""
    bodies = [_body(part, "* __restrict__" if restrict else "*") for part in outlined.parts]
    identity = digest(outlined.includes, *bodies)[:10]
    readable = re.sub(r"\W", "_", name.removeprefix(KERNEL_PREFIX))[:60]
    parts = [""] if len(bodies) == 1 else [f"_part{number}" for number in range(1, len(bodies) + 1)]
    symbols = tuple(f"{readable}{part}_{identity}" for part in parts)
    functions = "\n\n".join(f'extern "C" void {symbol}{body}' for symbol, body in zip(symbols, bodies, strict=True))
    functions = f'#line 1 "{readable}"\n{functions}'  # the file name in the message of a failed check
    includes = f"{outlined.includes}\n#include <exception>\n#include <superkernel/share.h>"
    return KernelSource(includes, functions, symbols)


def _body(part: KernelPart, star: str) -> str:
    """Parameters and statements. An exception must not leave a sub-kernel: sk::fail stops the launch, naming the op."""
    parameters = [
        f"{'const ' if parameter.const else ''}{parameter.ctype}{star if parameter.pointer else ''} {parameter.name}"
        for parameter in part.parameters
    ]
    if part.workspace:
        parameters.append("char* results")
    text = reindented(part.body, 2)
    caught = "    } catch (const std::exception& error) {\n        sk::fail(error.what());\n    }"
    return f"({', '.join(parameters)})\n{{\n    try {{\n{text}\n{caught}\n}}"


def reindented(text: str, depth: int) -> str:
    """Every line, indented by the number of braces around it."""
    lines = []
    for line in text.splitlines():
        words = line.strip()
        if not words:
            continue
        closing = len(words) - len(words.lstrip("})"))
        lines.append("    " * max(0, depth - min(closing, 1)) + words)
        depth += words.count("{") - words.count("}")
    return "\n".join(lines)


def describe_part(part: KernelPart, symbol: str, path: Path, op_type: str, libraries: Sequence[str]) -> SubKernel:
    """The sub-kernel of a part whose object has been compiled."""
    params = [_param(parameter) for parameter in part.parameters]
    if part.workspace:
        params.append("inout:results")
    return SubKernel.from_object(
        path, symbol, block_dim=part.blocks, params=params, op_type=op_type, early_start=False, sync_all=False,
        libraries=tuple(libraries), pure=True,
    )  # fmt: skip


def _param(parameter: KernelParameter) -> str:
    if parameter.pointer:
        return f"{'in' if parameter.const else 'inout'}:{parameter.name}"
    return f"scalar:{parameter.name}:{_SCALARS[parameter.ctype]}"
