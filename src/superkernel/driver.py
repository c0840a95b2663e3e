"""driver: ops in, a super kernel out: options, graph, sub-kernels, plan, link; each stage's product feeds the next."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from .errors import PlanError
from .graph import build_graph
from .kernel import SuperKernel
from .options import Options
from .subkernel import Op
from .targets import find_target

_log = logging.getLogger("superkernel")
_said: set[str] = set()


def compile(
    ops: Sequence[Op],
    name: str = "super_kernel",
    options: str | Options = "",
    target: str = "cpu",
    *,
    cores: int | None = None,
    title: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> SuperKernel:
    """Link the sub-kernels of `ops` into one super kernel that is launched by calling it.

    Super kernels that differ in nothing but their names share a binary if they have the same `title`.
    """
    chosen = find_target(target)
    parsed = Options.parse(options)
    for sentence in parsed.without_effect(chosen.name):
        _say_once(f"super_kernel_scope {name!r}: {sentence}")
    graph = replace(build_graph(ops, name, parsed.stream_fusion), title=title)
    forced = forced_cores(parsed, cores, chosen.core_count(), name)
    prepared = chosen.prepare(list(dict.fromkeys(node.kernel for node in graph.nodes)), progress)
    return SuperKernel(graph.with_kernels(dict(prepared.kernels)), parsed, chosen, prepared, forced)


def forced_cores(options: Options, cores: int | None, available: int, name: str) -> int | None:
    """How many cores were asked for, if any; debug-aic-num and debug-aiv-num win."""
    if cores is not None and (not isinstance(cores, int) or isinstance(cores, bool) or not 1 <= cores <= 4096):
        raise PlanError(f"super_kernel_scope {name!r}: cores={cores!r}; it must be a whole number from 1 to 4096")
    asked = max(options.debug_aic_num, options.debug_aiv_num)
    if not asked:
        return cores
    if asked > (cores or available):
        raise PlanError(
            f"super_kernel_scope {name!r}: debug-aic-num={options.debug_aic_num} and "
            f"debug-aiv-num={options.debug_aiv_num} ask for {asked} cores, there are {cores or available}"
        )
    return asked


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        _log.warning(text)
