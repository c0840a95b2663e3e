"""runtime.artefact: a super kernel -> a folder that runs without a compiler; such a folder -> a super kernel."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..cache import digest
from ..errors import BuildError, GraphError, OptionError, PlanError
from ..model.binary import Binary, Core, Form
from ..model.graph import Graph, build_graph
from ..model.node import Node
from ..model.op import Argument, Op, Place
from ..model.options import Options
from ..model.params import Param
from ..model.ranks import RankGroup, RankSync, ranks_to_json
from ..model.staged_input import StagedInput
from ..model.subkernel import SubKernel
from ..model.tiling import CompiledTiling
from ..plan import MOST_CORES, CoreChoice
from ..targets import find_target
from ..targets.protocol import Executable, LaunchPlan, Target
from ..version import __version__
from .checksums import check_files, listed_files, write_checksums

VERSION = 9
MANIFEST = "superkernel.json"
_UNFINISHED = "unfinished-"


@dataclass(frozen=True)
class SavedKernel:
    """A super kernel in the form that is saved: its binary also has entries for machines with fewer cores."""

    plan: LaunchPlan
    executable: Executable  # of the plan; one binary holds the entries of all plans
    choice: CoreChoice  # why the plan has its number of cores
    keeps_cores: bool  # the caller gave that number
    smaller: tuple[LaunchPlan, ...] = ()  # the same graph for fewer cores, the most cores first


def smaller_plans(target: Target, plan: LaunchPlan) -> tuple[LaunchPlan, ...]:
    """The plans that are saved beside a plan; each has an entry of its own name."""
    return tuple(
        target.planner.plan(
            replace(plan.graph, title=f"{plan.graph.label} on {cores} cores"),
            plan.options,
            cores,
            f"cores: {cores} of the {plan.cores} that it was saved for",
        )
        for cores in target.planner.smaller_teams(plan)
    )


def write_artefact(folder: Path, target: Target, saved: SavedKernel) -> Path:
    """The manifest is written last: a folder without a manifest is not an artefact."""
    try:
        return _write(folder, target, saved)
    except OSError as reason:
        name = saved.plan.graph.name
        raise BuildError(f"super_kernel_scope {name!r}: cannot be saved in {folder}: {reason}") from reason


def _write(folder: Path, target: Target, saved: SavedKernel) -> Path:
    plan = saved.plan
    folder.mkdir(parents=True, exist_ok=True)
    earlier = _earlier_files(folder)
    (folder / MANIFEST).unlink(missing_ok=True)
    kernels = list(dict.fromkeys(node.kernel for node in plan.graph.nodes))
    manifest = {
        "version": VERSION,
        "package": __version__,
        "name": plan.graph.name,
        "title": plan.graph.title,
        "target": target.name,
        "options": str(plan.options),
        "cores": saved.choice.cores,
        "cores_reason": saved.choice.reason,
        "measures_alone": saved.choice.measures_alone,
        "keeps_cores": saved.keeps_cores,
        "plan": digest(str(plan)),
        "smaller": [digest(str(other)) for other in saved.smaller],
        "outputs": plan.graph.outputs,
        "memory": [_memory_fields(planned) for planned in (plan, *saved.smaller)],
        "chip": target.chip_fields(plan),
        "kernels": [_kernel_fields(kernel, target) for kernel in kernels],
        "ops": [_op_fields(node, kernels) for node in plan.graph.nodes],
    }
    text = (json.dumps(manifest, indent=1) + "\n").encode()
    contents = _save_files(folder, saved.executable, str(plan))
    for name in earlier - contents.keys() - {MANIFEST}:
        (folder / name).unlink(missing_ok=True)
    write_checksums(folder, {**contents, MANIFEST: text})
    (folder / MANIFEST).write_bytes(text)
    return folder


def _earlier_files(folder: Path) -> set[str]:
    """The files of a kernel that was saved there before. Other files are refused: they would be no part of this one."""
    earlier = listed_files(folder) | _files_of_version_4(folder)
    present = {path.name for path in folder.iterdir()}
    for left in sorted(name for name in present if name.startswith(_UNFINISHED)):
        shutil.rmtree(folder / left, ignore_errors=True)
    if strangers := sorted(name for name in present - earlier if not name.startswith(_UNFINISHED)):
        raise BuildError(
            f"{folder} holds {', '.join(strangers[:5])}, no part of a saved super kernel: empty it or choose another"
        )
    return earlier


def _files_of_version_4(folder: Path) -> set[str]:
    """It had no list of checksums; its manifest named the files."""
    try:
        return {MANIFEST, "plan.txt", *json.loads((folder / MANIFEST).read_bytes())["files"]}
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return {MANIFEST}


def _save_files(folder: Path, executable: Executable, plan: str) -> dict[str, bytes]:
    """The contents of each file. Each replaces the old file atomically: some process may have that loaded."""
    with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=folder) as fresh:
        executable.save(Path(fresh))
        Path(fresh, "plan.txt").write_text(plan + "\n")
        contents = {path.name: path.read_bytes() for path in sorted(Path(fresh).iterdir())}
        for name in contents:
            Path(fresh, name).replace(folder / name)
    return contents


@dataclass(frozen=True)
class Artefact:
    """What a manifest says; the plans are made anew, and equal the saved plans."""

    target: Target
    graph: Graph
    options: Options
    choice: CoreChoice
    keeps_cores: bool
    plan: LaunchPlan
    smaller: tuple[LaunchPlan, ...]


def read_artefact(folder: Path) -> Artefact:
    manifest = _read(folder / MANIFEST)
    try:
        target = find_target(manifest["target"]).for_chip(manifest["chip"])
        choice, keeps_cores = _core_choice(manifest), bool(manifest["keeps_cores"])
        kernels = [_kernel(fields, target) for fields in manifest["kernels"]]
        ops = [_op(fields, kernels) for fields in manifest["ops"]]
        options = Options.parse(manifest["options"])
        graph = build_graph(ops, manifest["name"], options.stream_fusion, manifest["outputs"])
        graph = replace(graph, title=manifest["title"])
        plan = target.planner.plan(graph, options, choice.cores, choice.note)
        smaller = smaller_plans(target, plan)
        expected = [manifest["plan"], *manifest["smaller"]], manifest["memory"]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as reason:
        raise BuildError(f"{folder / MANIFEST}: not a manifest of this version: {reason!r}") from reason
    except (GraphError, OptionError, PlanError) as reason:
        raise BuildError(f"{folder / MANIFEST}: {reason}") from reason
    plans = (plan, *smaller)
    if ([digest(str(planned)) for planned in plans], [_memory_fields(planned) for planned in plans]) != expected:
        raise BuildError(f"{folder}: was saved by a version that plans differently; compile it again")
    return Artefact(target, graph, options, choice, keeps_cores, plan, smaller)


def _core_choice(manifest: dict[str, Any]) -> CoreChoice:
    cores = int(manifest["cores"])
    if not 1 <= cores <= MOST_CORES:
        raise ValueError(f"cores: {cores}; it must be a number from 1 to {MOST_CORES}")
    return CoreChoice(cores, bool(manifest["measures_alone"]), str(manifest["cores_reason"]))


def _memory_fields(plan: LaunchPlan) -> list[list[str | int]]:
    """Every buffer in the arena: name, offset, bytes."""
    return [[buffer.name, buffer.offset, buffer.nbytes] for buffer in plan.memory.buffers]


def _read(path: Path) -> dict[str, Any]:
    """The manifest of a folder whose files are those that were saved."""
    try:
        manifest = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as reason:
        raise BuildError(
            f"{path.parent} is no saved super kernel: there is no {path}; k.save and superkernel compile write it. "
            "A package of sk.export is opened by sk.load_model, in the shell by superkernel package"
        ) from reason
    except OSError as reason:
        raise BuildError(f"{path.parent} is no saved super kernel: {reason}") from reason
    except (ValueError, RecursionError) as reason:
        raise BuildError(f"{path}: not JSON: {reason}") from reason
    version, package = (manifest.get(key) if isinstance(manifest, dict) else None for key in ("version", "package"))
    if version != VERSION or package != __version__:
        raise BuildError(
            f"{path}: version {version!r}, saved by superkernel {package}; this is superkernel {__version__}, which "
            f"reads version {VERSION}: compile it again with this package and save it (sk.compile and k.save, or "
            f"superkernel compile), or load it with superkernel {package}"
        )
    check_files(path.parent)
    assert isinstance(manifest, dict)
    return manifest


# the fields of a SubKernel that JSON keeps as they are
_PLAIN_FIELDS = (
    "name", "block_dim", "threads", "grid", "shared", "op_type", "sync_all", "early_start", "variants", "libraries",
    "waits_inside", "signals_inside", "may_fail", "code_bytes", "pure", "scratch",
)  # fmt: skip


def _kernel_fields(kernel: SubKernel, target: Target) -> dict[str, Any]:
    return {field: getattr(kernel, field) for field in _PLAIN_FIELDS} | {
        "file": kernel.binary.path.name,
        "form": kernel.binary.form.value,
        "flags": list(kernel.binary.flags),
        "params": [str(param) for param in kernel.params],
        "core": kernel.core.value,
        "facts": target.builder.facts_to_json(kernel),
        "staged_input": None if kernel.staged_input is None else asdict(kernel.staged_input),
    }


def _kernel(fields: dict[str, Any], target: Target) -> SubKernel:
    return SubKernel(
        binary=Binary(Form(fields["form"]), Path(fields["file"]), tuple(fields.get("flags", ()))),
        params=tuple(Param.parse(text) for text in fields["params"]),
        core=Core(fields["core"]),
        target_facts=target.builder.facts_from_json(fields["facts"]),
        staged_input=None if fields["staged_input"] is None else StagedInput(**fields["staged_input"]),
        **{field: _as_tuples(fields[field]) for field in _PLAIN_FIELDS},
    )


def _as_tuples(value: Any) -> Any:
    """JSON has lists only."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _op_fields(node: Node, kernels: list[SubKernel]) -> dict[str, Any]:
    return {
        "kernel": kernels.index(node.kernel),
        "args": [_saved_argument(arg) for arg in node.op.args],
        "name": node.name,
        "stream": node.stream,
        "send": list(node.sends[: len(node.op.send)]),  # a target may add events of its own behind these
        "recv": list(node.receives[: len(node.op.recv)]),
        "task": node.op.task.value if not isinstance(node.op.task, str) else node.op.task,
        "tiling": _tiling_fields(node.compiled_tiling),
        "ranks": ranks_to_json(node.ranks),
    }


def _saved_argument(argument: Argument) -> object:
    """As in ops.json."""
    if not isinstance(argument, Place):
        return argument
    return {"name": argument.name, "offset": argument.offset} if argument.offset else argument.name


def _op(fields: dict[str, Any], kernels: list[SubKernel]) -> Op:
    args = [Place(**arg) if isinstance(arg, dict) else arg for arg in fields["args"]]
    name, stream, send, recv, task = (fields[key] for key in ("name", "stream", "send", "recv", "task"))
    tiling, ranks = _tiling(fields.get("tiling")), tuple(map(_rank_sync, fields["ranks"]))
    return Op(kernels[fields["kernel"]], args, name, stream, send, recv, task, tiling, ranks=ranks)


def _rank_sync(fields: dict[str, Any]) -> RankSync:
    return RankSync(**{**fields, "group": RankGroup(**fields["group"])})


def _tiling_fields(tiling: CompiledTiling | None) -> dict[str, Any] | None:
    """Its code is in the binary; a Python function is not saved."""
    if tiling is None:
        return None
    return {
        "symbol": tiling.symbol,
        "file": tiling.function.binary.path.name,
        "form": tiling.function.binary.form.value,
    }


def _tiling(fields: dict[str, Any] | None) -> CompiledTiling | None:
    if fields is None:
        return None
    binary = Binary(Form(fields["form"]), Path(fields["file"]))
    return CompiledTiling(SubKernel(fields["symbol"], binary, block_dim=1, params=()))


def write_pages(folder: Path, pages: Mapping[str, str], where: str) -> Path:
    """Files with these texts, for people to read."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in pages.items():
            (folder / name).write_text(text + "\n")
    except OSError as reason:
        raise BuildError(f"{where}cannot be dumped in {folder}: {reason}") from reason
    return folder
