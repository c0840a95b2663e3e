"""targets.ascend.objects: the commands of a build -> files: all with the device compiler, else what works here."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ...cache import Cache, digest
from ...errors import BuildError
from ..native.toolchain import run
from .build import HEADERS, BuildPlan, Built, Command
from .tools import Tool, Tools, find_tools


def build(plan: BuildPlan, source: str) -> Built:
    """The object, where the device compiler is; else a sentence that says what is missing and what to do."""
    tools = find_tools()
    if tools.missing_compiler:
        return Built(
            None,
            f"{plan.product} was not built: {tools.missing_compiler}. The source, its descriptor and build.sh are "
            "complete: save them, and run build.sh on a machine with CANN",
        )
    return Built(_cached(plan, source, tools), f"{plan.product} was built with {tools.path(Tool.COMPILER)}")


def _cached(plan: BuildPlan, source: str, tools: Tools) -> Path:
    contents = [file.path.read_bytes() for file in (*plan.inputs, *plan.headers)]
    found = [f"{tool.value}={path}" for tool, path in tools.found]
    key = digest("ascend", source, plan.script(), *contents, *found, *tools.compiler_flags)

    def make(output: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="superkernel-ascend-") as folder:
            execute(plan, plan.commands, source, Path(folder), tools)
            shutil.copyfile(Path(folder, plan.product), output)

    return Cache().make(key, ".o", make)


def execute(plan: BuildPlan, commands: Sequence[Command], source: str, folder: Path, tools: Tools) -> list[str]:
    """Run commands in a folder, beginning with source and inputs; what each printed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{plan.name}_kernel.cpp").write_text(source)
    for file in plan.inputs:
        shutil.copyfile(file.path, folder / file.name)
    for name in plan.folders():
        (folder / name).mkdir(parents=True, exist_ok=True)
    for file in plan.headers:
        shutil.copyfile(file.path, folder / HEADERS / file.name)
    for data in plan.data_files:
        (folder / data.name).write_bytes(data.content)
    printed = []
    for command in commands:
        program = tools.path(command.tool)
        if program is None:
            raise BuildError(
                f"super_kernel_scope {plan.name!r}: {command.stage.value}: no {command.tool.value.lower()} was found; "
                "install binutils, or set ASCEND_HOME_PATH"
            )
        what = f"super_kernel_scope {plan.name!r}: {command.stage.value}"
        flags = tools.compiler_flags if command.tool is Tool.COMPILER else ()
        printed.append(run([program, *flags, *command.arguments], what=what, cwd=folder / command.folder))
    return printed
