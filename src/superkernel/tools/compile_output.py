"""tools.compile_output: a super kernel -> the folder of `superkernel compile --output`, and what commands say of it."""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BuildError, OptionError
from ..model.json_value import FieldPlace
from ..model.options import Options
from ..runtime.artefact import MANIFEST
from ..runtime.super_kernel import SuperKernel


def check_output(output: Path, dump: Path | None) -> None:
    """Refuse, before anything is compiled, a place that holds something else than an earlier result."""
    if dump is not None and dump.resolve().is_relative_to(output.resolve()):
        raise OptionError(f"--dump {dump} lies in --output {output}, which holds a super kernel only: choose another")
    if output.exists() and not output.is_dir():
        raise BuildError(f"--output {output} is not a folder")
    if output.is_dir() and any(output.iterdir()) and not _is_artefact(output):
        raise BuildError(f"--output {output} holds files, but no saved super kernel: empty it or choose another")


def _is_artefact(folder: Path) -> bool:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and {"version", "plan", "kernels", "ops"} <= manifest.keys()


def save_at(kernel: SuperKernel, output: Path) -> list[str]:
    """Save beside `output`, then move it there: a reader finds the old super kernel, the new one or none."""
    place = output.resolve()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory("", f".{place.name}-", place.parent, ignore_cleanup_errors=True) as beside:
            fresh, old = Path(beside, "new"), Path(beside, "old")
            kernel.save(fresh)
            files = sorted(path.name for path in fresh.iterdir())
            present = sorted(path.name for path in place.iterdir()) if place.exists() else []
            if strangers := [name for name in present if name not in files]:
                raise BuildError(f"--output {output} holds {', '.join(strangers)}, no part of a saved super kernel")
            if present:
                place.rename(old)
            try:
                fresh.rename(place)
            except BaseException:
                if present:
                    old.rename(place)
                raise
    except OSError as reason:
        raise BuildError(f"cannot write --output {output}: {reason}") from reason
    return files


def ignored_fields(places: Sequence[FieldPlace]) -> list[str]:
    """A line per file and field; a field of many entries of a list is named once, with their number."""
    if not places:
        return ["every field was read"]
    counts = Counter((place.file, re.sub(r"\[\d+\]", "[]", place.path)) for place in places)
    return [
        f"not read: {file}: {field}" + (f" ({count} times)" if count > 1 else "")
        for (file, field), count in counts.items()
    ]


def merged_options(base: Options, text: str) -> Options:
    """The file's options, except that an option which `text` names has the value it has there."""
    given = Options.parse(text)
    keys = [re.sub(r'[\s"]', "", piece.partition("=")[0]) for piece in text.split(":")]
    named: dict[str, Any] = {(field := key.replace("-", "_")): getattr(given, field) for key in keys if key}
    return replace(base, **named)


def compiled_fields(kernel: SuperKernel, target: str) -> dict[str, Any]:
    """What the JSON answer of a command says of a super kernel."""
    plan = kernel.plan
    return {
        "ok": True,
        "name": kernel.name,
        "target": target,
        "options": str(plan.options),
        "cores": plan.cores,
        "ops": len(plan.graph.nodes),
        "edges": len(plan.graph.edges),
        "syncs": plan.sync_counts,
        "blocking_steps": plan.blocking_steps,
        "notes": list(plan.notes),
    }


def saved_summary(kernel: SuperKernel, output: Path, files: Sequence[str], dump: Path | None) -> str:
    lines = [*kernel.plan.summary]
    lines.append(f"saved in {output}{os.sep}: {', '.join(files)}")
    if dump is not None:
        lines.append(f"graph, plan, source and commands in {dump}{os.sep}")
    launch = (
        f"superkernel run {shlex.quote(str(output))}, or superkernel.load({str(output)!r})(buffers by name) in Python"
    )
    lines += kernel.executable.remarks or [f"to launch it: {launch}"]
    return "\n".join(lines)
