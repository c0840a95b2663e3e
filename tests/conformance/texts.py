"""Warming up: the kernels of many compiled functions, found by a first pass that compiles nothing, compiled together.

What a generated kernel includes takes seconds to read, whatever the kernel; a sweep of hundreds of small functions is
affordable only if many kernels share one compiler call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from superkernel.errors import BuildError, UnsupportedError
from superkernel.frontend.lowering import inductor
from superkernel.frontend.run_parts import op_by_op
from superkernel.targets.cpu.target import TARGET, CpuModelSupport
from superkernel.targets.protocol import GeneratedText

TOGETHER = 64  # texts in one call of compile_generated, which makes as many objects as there are processors

Texts = dict[GeneratedText, Sequence[str]]  # with the compiler's flags


@contextmanager
def collecting_texts() -> Iterator[Texts]:
    """Inside, the back end compiles nothing: it runs every graph op by op, and its kernels' texts are kept."""
    found: Texts = {}

    def collect(support: CpuModelSupport, texts: Sequence[GeneratedText], flags: Sequence[str]) -> list[Path]:
        found.update(dict.fromkeys(texts, tuple(flags)))
        raise UnsupportedError("only the texts are wanted")

    with patch.object(CpuModelSupport, "compile_generated", collect), without_stock():
        yield found


@contextmanager
def without_stock() -> Iterator[None]:
    """Inside, what lies outside of scopes runs op by op instead of through Inductor's compiler."""

    def stock(module: Any, inputs: Sequence[Any], mode: str | None, **facts: Any) -> Any:
        return op_by_op(module)

    with patch.object(inductor, "compile_stock", stock):
        yield


def compile_together(texts: Texts) -> None:
    """All texts into the cache. What does not compile is told when its case is checked."""
    for flags in dict.fromkeys(texts.values()):
        mine = [text for text, own in texts.items() if own == flags]
        for first in range(0, len(mine), TOGETHER):
            with suppress(BuildError):
                TARGET.model_support.compile_generated(mine[first : first + TOGETHER], flags)
