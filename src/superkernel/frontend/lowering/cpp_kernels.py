"""frontend.subkernels: the parts of an outlined kernel -> C++ functions, and SubKernels that say what they take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...cache import digest
from ...model.subkernel import SubKernel
from .outline import Outlined, Parameter, Part

_SCALARS = {
    "int64_t": "int64", "int32_t": "int32", "long": "int64", "int": "int32", "float": "float32", "double": "float64",
}  # fmt: skip


@dataclass(frozen=True)
class KernelSource:
    """The text of some sub-kernels: what is included, and the functions, whose names depend on nothing but the text."""

    includes: str
    functions: str
    symbols: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"{self.includes}\n\n{self.functions}"


def source_of(name: str, outlined: Outlined) -> KernelSource:
    """C++ for all parts; `name` is for people."""
    bodies = [_body(part) for part in outlined.parts]
    mark = digest(outlined.includes, *bodies)[:10]
    readable = re.sub(r"\W", "_", name.removeprefix("cpp_"))[:60]
    symbols = tuple(_symbol(readable, mark, index, len(bodies)) for index in range(len(bodies)))
    functions = "\n\n".join(f'extern "C" void {symbol}{body}' for symbol, body in zip(symbols, bodies, strict=True))
    functions = f'#line 1 "{readable}"\n{functions}'  # what a failed check names: the file is gone by then
    includes = f"{outlined.includes}\n#include <exception>\n#include <superkernel/share.h>"
    return KernelSource(includes, functions, symbols)


def _symbol(readable: str, mark: str, index: int, count: int) -> str:
    return f"{readable}_{mark}" if count == 1 else f"{readable}_part{index + 1}_{mark}"


def _body(part: Part) -> str:
    """Parameters and statements. An exception must not leave a sub-kernel: it stops the launch and names the op."""
    parameters = [_declared(parameter) for parameter in part.parameters]
    if part.workspace:
        parameters.append("char* results")
    text = reindented(part.body, 2)
    return (
        f"({', '.join(parameters)})\n"
        "{\n"
        "    try {\n"
        f"{text}\n"
        "    } catch (const std::exception& error) {\n"
        "        sk::fail(error.what());\n"
        "    }\n"
        "}"
    )


def _declared(parameter: Parameter) -> str:
    const = "const " if parameter.const else ""
    return f"{const}{parameter.ctype}{'*' if parameter.pointer else ''} {parameter.name}"


def reindented(text: str, depth: int) -> str:
    """Every line indented by the braces around it."""
    lines = []
    for line in text.splitlines():
        words = line.strip()
        if not words:
            continue
        closing = len(words) - len(words.lstrip("})"))
        lines.append("    " * max(0, depth - min(closing, 1)) + words)
        depth += words.count("{") - words.count("}")
    return "\n".join(lines)


def describe(part: Part, symbol: str, path: Path, op_type: str, libraries: Sequence[str]) -> SubKernel:
    """The sub-kernel of one part, in an object that has been compiled."""
    params = [_param(parameter) for parameter in part.parameters]
    if part.workspace:
        params.append("inout:results")
    return SubKernel.from_object(
        path, symbol, block_dim=part.blocks, params=params, op_type=op_type, early_start=False, sync_all=False,
        libraries=tuple(libraries),
    )  # fmt: skip


def _param(parameter: Parameter) -> str:
    if parameter.pointer:
        return f"{'in' if parameter.const else 'inout'}:{parameter.name}"
    return f"scalar:{parameter.name}:{_SCALARS[parameter.ctype]}"
