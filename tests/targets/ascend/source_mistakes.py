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
# lines where the source means the same without it: the reason -> kind and line
SAME = {
    "the cast adds volatile, or names the type that there is": ("a cast", r"volatile|\(__gm__ void\*\)"),
    "an earlier declaration has it": ("a qualifier of a function", r"^extern .C. __global__ __aicore__ .*\{$"),
}


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
            same = any(kind == other and re.search(pattern, line) for other, pattern in SAME.values())
            mistakes.append(Mistake(replace(emitted, source=wrong), line, same))
    return mistakes


def check(mistake: Mistake) -> None:
    assert mistake.same or emitted_findings(mistake.emitted), mistake.line
