"""targets.ascend.executable: an emitted super kernel: looked into, saved, emulated; launched where there is an NPU."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from ...errors import LaunchError
from ...model.graph import Graph
from ...model.subkernel import SubKernel
from ...plan.spans import Span
from ..protocol import LaunchInputs, OpLabel
from .build import BUILD_SCRIPT, BuildPlan, Built, plan_build
from .describe_kernel import emit
from .facts import facts_of
from .kernel_description import EmittedKernel
from .plan import AscendPlan
from .replay import replayed


def _beside(kernel: SubKernel, directory: Path) -> SubKernel:
    """The sub-kernel with its binary where it was saved."""
    path = directory.resolve() / facts_of(kernel).saved_as
    return replace(kernel, binary=replace(kernel.binary, path=path))


class AscendExecutable:
    """The emitted source, its descriptor and the commands that build it; and the object, where it could be built."""

    def __init__(
        self, plan: AscendPlan, emitted: EmittedKernel, descriptor: Mapping[str, Any], build: BuildPlan, built: Built
    ) -> None:
        self.plan, self.emitted, self.descriptor, self.build, self.built = plan, emitted, descriptor, build, built
        self.source = emitted.source
        self.binary = built.binary or Path(f"{emitted.name}.o")
        self.commands: Sequence[str] = build.lines()
        self.remarks: Sequence[str] = (built.status,)
        self.emulation: Any = None

    @classmethod
    def restore(cls, plan: AscendPlan, directory: Path) -> AscendExecutable:
        """A saved super kernel, planned and printed again, which must give the saved source."""
        name = plan.graph.name
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

    # an NPU is needed

    def launch(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> NoReturn:
        raise self._cannot_run()

    def argument_arrays(self) -> NoReturn:
        raise self._cannot_run()

    def launch_values(self, values: Any, sizes: Any) -> NoReturn:
        raise self._cannot_run()

    def launch_addresses(
        self,
        values: Sequence[int],
        sizes: Sequence[int],
        launch_inputs: LaunchInputs,
        named: Mapping[str, Any],
        op_label: OpLabel | None = None,
    ) -> NoReturn:
        raise self._cannot_run()

    def _cannot_run(self) -> LaunchError:
        return LaunchError(
            f"super_kernel_scope {self.emitted.name!r}: an Ascend super kernel needs an NPU and CANN's run time; "
            "it cannot be launched here. Try it with k.emulate(buffers, seed=...), or load the saved object there"
        )

    def running(self) -> int:
        return 0

    # what can be done here

    def emulate(
        self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs, *, seed: int, **more: Any
    ) -> dict[str, Any]:
        """One launch on the host emulator; `emulation` is all that it saw."""
        from .emulator import emulate

        def run(emitted: EmittedKernel, graph: Graph, given: Mapping[str, Any], wanted: LaunchInputs) -> Any:
            return emulate(emitted, graph, given, wanted, seed=seed, **more)

        if self.plan.options.debug_replay:
            self.emulation = replayed(self.plan, self.emitted, buffers, launch_inputs, run)
        else:
            self.emulation = run(self.emitted, self.plan.graph, buffers, launch_inputs)
        outputs: dict[str, Any] = self.emulation.made
        return outputs

    def recording(self) -> None:
        """Nothing is launched here, so there is nothing to record."""

    def time_launches(self, wanted: bool) -> None:
        del wanted

    def last_launch(self) -> tuple[int, int]:
        return 0, 0

    def spans(self) -> tuple[Span, ...]:
        """What each core did in the last emulated launch."""
        return tuple(self.emulation.spans) if self.emulation is not None else ()

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

    def close(self) -> None:
        self.emulation = None
