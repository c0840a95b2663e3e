"""driver: ops in, a super kernel out: options, graph, sub-kernels, plan, link; each stage's product feeds the next."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..model.graph import build_graph
from ..model.op import Op
from ..model.options import Options
from ..targets import find_target
from .super_kernel import SuperKernel

_log = logging.getLogger("superkernel")
_said: set[str] = set()


def compile(
    ops: Sequence[Op],
    name: str = "super_kernel",
    options: str | Options = "",
    target: str = "cpu",
    *,
    cores: int | None = None,
    chip: str | Path | None = None,
    title: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> SuperKernel:
    """Link the sub-kernels of `ops` into one super kernel that is launched by calling it.

    Super kernels that differ in nothing but their names share a binary if they have the same `title`. `chip` names a
    part, or a file that describes one, for a target that has several.
    """
    chosen = find_target(target).for_chip(chip)
    parsed = Options.parse(options)
    for sentence in parsed.without_effect(chosen.name):
        _say_once(f"super_kernel_scope {name!r}: {sentence}")
    graph = replace(build_graph(ops, name, parsed.stream_fusion), title=title)
    forced = chosen.forced_cores(parsed, cores, name)
    prepared = chosen.prepare(list(dict.fromkeys(node.kernel for node in graph.nodes)), progress)
    return SuperKernel(graph.with_kernels(dict(prepared.kernels)), parsed, chosen, prepared, forced)


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        _log.warning(text)
