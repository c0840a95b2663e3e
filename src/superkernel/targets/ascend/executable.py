"""targets.ascend.executable: an emitted super kernel with its descriptor and build commands; saved and restored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import LaunchError
from ...model.subkernel import SubKernel
from .build import BUILD_SCRIPT, BuildPlan, Built, plan_build
from .describe_kernel import emit
from .facts import facts_of
from .kernel_description import EmittedKernel
from .names import linked_name
from .plan import AscendPlan


def _beside(kernel: SubKernel, directory: Path) -> SubKernel:
    """The sub-kernel with its binary where it was saved."""
    path = directory.resolve() / facts_of(kernel).saved_as
    return replace(kernel, binary=replace(kernel.binary, path=path))


class AscendExecutable:
    """The emitted source, its descriptor and the commands that build it; and the object, where it could be built."""

    def __init__(
        self,
        plan: AscendPlan,
        emitted: EmittedKernel,
        descriptor: Mapping[str, Any],
        build: BuildPlan,
        built: Built,
        parsed: str = "",
    ) -> None:
        self.plan, self.emitted, self.descriptor, self.build, self.built = plan, emitted, descriptor, build, built
        self.source = emitted.source
        self.binary = built.binary or Path(f"{emitted.name}.o")
        self.commands: Sequence[str] = build.lines()
        self.remarks: Sequence[str] = (built.status, parsed) if parsed else (built.status,)

    @classmethod
    def restore(cls, plan: AscendPlan, directory: Path) -> AscendExecutable:
        """A saved super kernel, planned and printed again, which must give the saved source."""
        name = linked_name(plan.chip, plan.graph.name)
        try:
            descriptor = json.loads((directory / f"{name}.json").read_text())
            source = (directory / f"{name}_kernel.cpp").read_text()
        except (OSError, ValueError) as reason:
            raise LaunchError(f"{directory} is no saved super kernel: {reason}") from reason
        there = {node.kernel: _beside(node.kernel, directory) for node in plan.graph.nodes}
        plan = replace(plan, graph=plan.graph.with_kernels(there))
        emitted = emit(plan)
        if emitted.source != source:
            raise LaunchError(f"{directory}: {name}_kernel.cpp is not what this version emits; compile it again")
        binary = directory / f"{name}.o"
        built = Built(binary, f"{binary} as saved") if binary.is_file() else Built(None, f"{name}.o was not built")
        return cls(plan, emitted, descriptor, plan_build(emitted, plan.options.compile_options), built)

    def files(self) -> dict[str, bytes]:
        """What is saved: source, descriptor, sub-kernels, how to build it; and the object, if there is one."""
        name = self.emitted.name
        files = {
            f"{name}_kernel.cpp": self.source.encode(),
            f"{name}.json": (json.dumps(self.descriptor, indent=2) + "\n").encode(),
            BUILD_SCRIPT: self.build.script().encode(),
        }
        files |= {file.name: file.path.read_bytes() for file in (*self.build.inputs, *self.build.headers)}
        if self.built.binary is not None:
            files[f"{name}.o"] = self.built.binary.read_bytes()
        return files

    def save(self, directory: Path) -> None:
        for name, content in self.files().items():
            (directory / name).write_bytes(content)
            if name == BUILD_SCRIPT:
                (directory / name).chmod(0o755)
