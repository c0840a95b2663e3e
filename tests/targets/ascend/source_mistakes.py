"""Mistakes planted in emitted sources: one word or one argument left out, once per distinct line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from superkernel.targets.ascend.kernel_description import EmittedKernel
from superkernel.targets.ascend.source_check import emitted_findings

# what is left out -> where it stands
KINDS = {
    "an address space": r"__gm__ ",
    "a qualifier of a function": r"__aicore__ ",
    "a cast": r"\((?:volatile )?__gm__ \w+\s?\*\)",
    "a declaration": r'extern "C" __aicore__ void \w+\([^)]*\);',
    "the last argument": r", [^,()]+(?=\);)",
    "the parentheses of a call": r"(?<=[a-z_])\(\)(?!;)",
    "a letter of a builtin": r"(?<=\bge)t(?=_\w+\()|(?<=\bwait_fla)g(?=_dev\()|(?<=\bpipe_ba)r(?=rier\()",
    "a letter of a value": r"(?<=\bPIP)E(?=_)|(?<=_CACH)E(?=_LINE)|(?<=CACHELINE_OU)T|(?<=\bKERNEL_TYP)E",
}


def means_the_same(kind: str, line: str, source: str) -> bool:
    """Whether the source without the word is right as well."""
    if kind == "a cast":  # one that adds volatile, or names the type that a parameter has anyway
        return "volatile" in line or "(__gm__ void*)" in line
    if kind != "a qualifier of a function":
        return False
    entry = re.fullmatch(r'extern "C" __global__ __aicore__ .*void (\w+)\(\) \{', line)
    return entry is not None and f"__aicore__ void {entry[1]}();" in source  # an earlier declaration has it


@dataclass(frozen=True)
class Mistake:
    emitted: EmittedKernel  # with the mistake
    line: str  # without it
    same: bool  # in a line where it makes no difference


def planted(kind: str, kernels: Iterable[EmittedKernel]) -> list[Mistake]:
    seen: set[tuple[str, int]] = set()
    mistakes = []
    for emitted in kernels:
        for found in re.finditer(KINDS[kind], emitted.source):
            begin = emitted.source.rfind("\n", 0, found.start()) + 1
            line = emitted.source[begin : emitted.source.find("\n", found.start())]
            place = (re.sub(r"\d+", "0", line), found.start() - begin)
            if place in seen or line.lstrip().startswith("//"):
                continue
            seen.add(place)
            wrong = emitted.source[: found.start()] + emitted.source[found.end() :]
            same = means_the_same(kind, line, emitted.source)
            mistakes.append(Mistake(replace(emitted, source=wrong), line, same))
    return mistakes


def check(mistake: Mistake) -> None:
    assert mistake.same or emitted_findings(mistake.emitted), mistake.line
