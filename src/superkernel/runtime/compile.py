"""runtime.compile: ops in, a super kernel out: options, graph, sub-kernels, plan, executable, loaded kernel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..model.graph import Graph, build_graph
from ..model.op import Op
from ..model.options import Options
from ..targets import find_target
from ..targets.protocol import Prepared, Target
from .artefact import read_artefact
from .built_kernel import BuiltKernel
from .super_kernel import SuperKernel

_log = logging.getLogger("superkernel")
_logged: set[str] = set()


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
    chip, or a file that describes a chip, for a target that has several.
    """
    chosen = find_target(target).for_chip(chip)
    parsed = Options.parse(options)
    for sentence in parsed.without_effect(chosen.name):
        _warn_once(f"super_kernel_scope {name!r}: {sentence}")
    given = replace(build_graph(ops, name, parsed.stream_fusion), title=title)
    fixed_cores = chosen.planner.forced_cores(parsed, cores, name)
    kernels = list(dict.fromkeys(node.kernel for node in given.nodes))
    tilings = list(dict.fromkeys(node.compiled_tiling for node in given.nodes if node.compiled_tiling is not None))
    prepared = chosen.builder.prepare(kernels, tilings, progress)
    graph = given.with_kernels(dict(prepared.kernels))
    built = build_for_cores(graph, chosen, prepared, parsed, fixed_cores or chosen.planner.core_count())
    rebuild = partial(build_for_cores, graph, chosen, prepared)
    return SuperKernel(graph, parsed, chosen, built, fixed_cores, prepared, rebuild)


def build_for_cores(graph: Graph, target: Target, prepared: Prepared, options: Options, cores: int) -> BuiltKernel:
    """The stages that depend on the number of cores; SuperKernel repeats them when that number changes."""
    plan = target.planner.plan(graph, options, cores)
    (executable,) = prepared.build([plan])
    loaded = None if target.launcher is None else target.launcher.load(executable)
    return BuiltKernel(cores, plan, executable, loaded)


def load(directory: str | Path) -> SuperKernel:
    """A saved super kernel: planned anew from its manifest, its binary taken as it is."""
    artefact = read_artefact(Path(directory))
    graph, target, cores = artefact.graph, artefact.target, artefact.cores
    executable = target.builder.restore(artefact.plan, Path(directory))
    loaded = None if target.launcher is None else target.launcher.load(executable)
    return SuperKernel(graph, artefact.options, target, BuiltKernel(cores, artefact.plan, executable, loaded), cores)


def _warn_once(text: str) -> None:
    if text not in _logged:
        _logged.add(text)
        _log.warning(text)
