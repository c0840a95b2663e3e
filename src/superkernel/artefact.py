"""artefact: a super kernel -> a folder that runs without a compiler; such a folder -> a super kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cache import digest
from .errors import BuildError
from .graph import Node, build_graph
from .options import Options
from .params import Param
from .plan import Plan, make_plan
from .subkernel import Binary, Core, Form, Op, SubKernel
from .targets import Executable, find_target

if TYPE_CHECKING:
    from .kernel import SuperKernel

VERSION = 1
MANIFEST = "superkernel.json"


def write_artefact(folder: Path, kernel: SuperKernel, plan: Plan, executable: Executable, cores: int) -> Path:
    """The manifest goes last: a folder without one is not an artefact."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    executable.save(folder)
    (folder / "plan.txt").write_text(str(plan) + "\n")
    kernels = list(dict.fromkeys(node.kernel for node in plan.graph.nodes))
    manifest = {
        "version": VERSION,
        "name": plan.graph.name,
        "target": kernel.target.name,
        "options": str(plan.options),
        "cores": cores,
        "plan": digest(str(plan)),
        "kernels": [_kernel_fields(k) for k in kernels],
        "ops": [_op_fields(node, kernels) for node in plan.graph.nodes],
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return folder


def load(directory: str | Path) -> SuperKernel:
    """A saved super kernel: planned anew from its manifest, its binary taken as it is."""
    from .kernel import SuperKernel

    folder = Path(directory)
    manifest = _read(folder / MANIFEST)
    try:
        kernels = [_kernel(fields) for fields in manifest["kernels"]]
        ops = [_op(fields, kernels) for fields in manifest["ops"]]
        options = Options.parse(manifest["options"])
        target, cores = find_target(manifest["target"]), int(manifest["cores"])
        graph = build_graph(ops, manifest["name"], options.stream_fusion)
        plan = make_plan(graph, options, cores)
        expected = manifest["plan"]
    except (KeyError, TypeError, ValueError, IndexError) as reason:
        raise BuildError(f"{folder / MANIFEST}: not a manifest of this version: {reason!r}") from reason
    if digest(str(plan)) != expected:
        raise BuildError(f"{folder}: was saved by a version that plans differently; compile it again")
    return SuperKernel(graph, options, target, None, cores, (plan, target.restore(plan, folder)))


def _read(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text())
    except OSError as reason:
        raise BuildError(f"{path.parent} is no saved super kernel: {reason}") from reason
    except ValueError as reason:
        raise BuildError(f"{path}: not JSON: {reason}") from reason
    if not isinstance(manifest, dict) or manifest.get("version") != VERSION:
        found = manifest.get("version") if isinstance(manifest, dict) else None
        raise BuildError(f"{path}: version {found!r}; this package reads version {VERSION}")
    return manifest


def _kernel_fields(kernel: SubKernel) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "file": kernel.binary.path.name,
        "form": kernel.binary.form.value,
        "block_dim": kernel.block_dim,
        "params": [str(param) for param in kernel.params],
        "core": kernel.core.value,
        "op_type": kernel.op_type,
        "sync_all": kernel.sync_all,
        "early_start": kernel.early_start,
        "variants": [list(variant) for variant in kernel.variants],
        "waits_inside": kernel.waits_inside,
        "signals_inside": kernel.signals_inside,
        "code_bytes": kernel.code_bytes,
    }


def _kernel(fields: dict[str, Any]) -> SubKernel:
    early = fields["early_start"]
    return SubKernel(
        fields["name"],
        Binary(Form(fields["form"]), Path(fields["file"])),
        fields["block_dim"],
        tuple(Param.parse(text) for text in fields["params"]),
        Core(fields["core"]),
        fields["op_type"],
        fields["sync_all"],
        tuple(early) if isinstance(early, list) else early,
        tuple((int(key), symbol) for key, symbol in fields["variants"]),
        fields["waits_inside"],
        fields["signals_inside"],
        fields["code_bytes"],
    )


def _op_fields(node: Node, kernels: list[SubKernel]) -> dict[str, Any]:
    return {
        "kernel": kernels.index(node.kernel),
        "args": list(node.op.args),
        "name": node.name,
        "stream": node.stream,
        "send": [str(e) for e in node.sends],
        "recv": [str(e) for e in node.receives],
        "task": node.op.task.value if not isinstance(node.op.task, str) else node.op.task,
    }


def _op(fields: dict[str, Any], kernels: list[SubKernel]) -> Op:
    return Op(
        kernels[fields["kernel"]],
        fields["args"],
        fields["name"],
        fields["stream"],
        fields["send"],
        fields["recv"],
        fields["task"],
    )
