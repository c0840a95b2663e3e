"""runtime.compile: ops in, a super kernel out: options, graph, sub-kernels, plan, executable, loaded kernel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..errors import BuildError, GraphError, shown
from ..model.graph import Graph, build_graph
from ..model.op import Op
from ..model.options import Options
from ..model.params import check_name
from ..model.plain_values import checked_path, truth_value
from ..plan import CoreChoice
from ..targets import find_target
from ..targets.protocol import Executable, LaunchPlan, Prepared, Target
from .artefact import SavedKernel, read_artefact, smaller_plans
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
    cores_by_work: bool = True,
    chip: str | Path | None = None,
    march: str | None = None,
    title: str | None = None,
    outputs: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> SuperKernel:
    """Link the sub-kernels of `ops` into one super kernel that is launched by calling it.

    Without `cores` the estimated work decides how many of the available cores launches use; with
    `cores_by_work=False` they use all. Super kernels that differ in nothing but their names share a binary if they
    have the same `title`. `chip` names a chip, or a file that describes a chip, for a target that has several. `march`
    names the processor to compile for, such as x86-64-v3, in place of this machine's, for a kernel that is saved and
    runs on others. `outputs` are the names that a launch returns if it allocates them, by default those whose last
    value no op reads; all other memory that it allocates is reused.
    """
    _check_arguments(name, title, progress, cores_by_work)
    chosen = find_target(target).for_chip(chip).for_march(march)
    parsed = Options.parse(options)
    for sentence in parsed.without_effect(chosen.name):
        _warn_once(f"super_kernel_scope {shown(name)}: {sentence}")
    given = replace(build_graph(ops, name, parsed.stream_fusion, outputs), title=title)
    fixed_cores = chosen.planner.forced_cores(parsed, cores, name)
    kernels = list(dict.fromkeys(node.kernel for node in given.nodes))
    tilings = list(dict.fromkeys(node.compiled_tiling for node in given.nodes if node.compiled_tiling is not None))
    prepared = chosen.builder.prepare(kernels, tilings, progress)
    graph = given.with_kernels(dict(prepared.kernels))
    choice = core_choice(graph, parsed, chosen, fixed_cores, cores_by_work)
    build = partial(build_for_cores, graph, chosen, prepared, choice)
    built = build(parsed)
    keeps_cores = fixed_cores is not None
    save = partial(_saved_kernel, chosen, prepared, choice, keeps_cores, built)
    kernel = SuperKernel(graph, parsed, chosen, built, keeps_cores, prepared, build, save)
    if parsed.debug_replay and chosen.launcher is not None:
        kernel.unfused()  # built now, so that no launch compiles
    return kernel


def _check_arguments(name: object, title: object, progress: object, cores_by_work: object) -> None:
    where = f"super_kernel_scope {shown(name)}: "
    if title is not None and not (isinstance(title, str) and not title):
        check_name(title, f"{where}title")
    if progress is not None and not callable(progress):
        raise GraphError(f"{where}progress is {shown(progress)}; it must be a function that takes a text")
    if truth_value(cores_by_work) is None:
        raise GraphError(f"{where}cores_by_work is {shown(cores_by_work)}; it must be True or False")


def core_choice(graph: Graph, options: Options, target: Target, fixed_cores: int | None, by_work: bool) -> CoreChoice:
    """The number that the caller gave; otherwise all available cores, or as many as the work deserves."""
    if fixed_cores is not None:
        return CoreChoice(fixed_cores)
    available = target.planner.core_count()
    return target.planner.choose_cores(graph, options, available) if by_work else CoreChoice(available)


def build_for_cores(
    graph: Graph, target: Target, prepared: Prepared, choice: CoreChoice, options: Options
) -> BuiltKernel:
    """The stages that depend on the number of cores."""
    plan = target.planner.plan(graph, options, choice.cores, choice.note)
    (executable,) = prepared.build([plan])
    return loaded_kernel(target, plan, executable, choice)


def loaded_kernel(target: Target, plan: LaunchPlan, executable: Executable, choice: CoreChoice) -> BuiltKernel:
    """Loaded as a team launches it, and as the calling thread runs it alone."""
    if target.launcher is None:
        return BuiltKernel(choice.cores, plan, executable, None)
    loaded = target.launcher.load(executable)
    alone = target.launcher.load_alone(executable) if plan.cores > 1 else None
    return BuiltKernel(choice.cores, plan, executable, loaded, alone, choice.measures_alone)


def load(directory: str | Path) -> SuperKernel:
    """A saved super kernel: planned anew from its manifest, its binary taken as it is.

    Where fewer cores are available than it was saved for, it uses the plan that was saved for fewer cores.
    """
    folder = checked_path(directory, "the folder of a saved super kernel", BuildError)
    artefact = read_artefact(folder)
    target, options, planner = artefact.target, artefact.options, artefact.target.planner
    executable = target.builder.restore(artefact.plan, folder)
    saved = SavedKernel(artefact.plan, executable, artefact.choice, artefact.keeps_cores, artefact.smaller)
    available = planner.core_count()
    if artefact.plan.cores <= available:
        built = loaded_kernel(target, artefact.plan, executable, artefact.choice)
        return SuperKernel(artefact.graph, options, target, built, artefact.keeps_cores, saved=lambda: saved)
    choice = planner.choose_cores(artefact.graph, options, available)
    plan = next((plan for plan in artefact.smaller if plan.cores <= choice.cores), artefact.plan)
    if plan is not artefact.plan:
        executable = target.builder.restore(plan, folder)
    built = loaded_kernel(target, plan, executable, replace(choice, cores=plan.cores))
    if built.alone is not None and plan.cores > choice.cores:
        built = replace(built, loaded=built.alone, alone=None)
    return SuperKernel(artefact.graph, options, target, built, keeps_cores=False, saved=lambda: saved)


def _saved_kernel(
    target: Target, prepared: Prepared, choice: CoreChoice, keeps_cores: bool, built: BuiltKernel
) -> SavedKernel:
    """What is saved of a compiled kernel: one binary for the plan and for the plans of smaller machines."""
    smaller = smaller_plans(target, built.plan)
    executable = prepared.build([built.plan, *smaller])[0] if smaller else built.executable
    return SavedKernel(built.plan, executable, choice, keeps_cores, smaller)


def _warn_once(text: str) -> None:
    if text not in _logged:
        _logged.add(text)
        _log.warning(text)
