"""targets.cpu: worker threads as cores, ELF objects as binaries; runs everywhere."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...cache import Cache
from ...errors import BuildError, OptionError, SuperKernelError
from ...model.graph import Graph
from ...model.opsfile import OpsFile, read_ops
from ...model.options import Options
from ...model.subkernel import SubKernel
from ...plan import Plan, Report, checked_plan, forced_cores, validate
from ..native.compile_generated import compile_texts
from ..protocol import AddressWriter, Progress, SequencedLaunch, Text
from .build import BuildContext, Compiled, compile_kernels, entry_name, host_library, link, name_symbols
from .emit import Emitter
from .kernels import SHIPPED_KERNELS
from .numbering import number
from .runtime.host_library import address_writer
from .runtime.huge_pages import settle
from .runtime.launch import DELAYS, CpuExecutable
from .runtime.launch_sequence import CpuLaunchSequence
from .runtime.openmp import thread_count

__all__ = ["TARGET"]


@dataclass(frozen=True)
class CpuPrepared:
    compiled: Mapping[SubKernel, Compiled]
    context: BuildContext

    @property
    def kernels(self) -> Mapping[SubKernel, SubKernel]:
        return {given: compiled.kernel for given, compiled in self.compiled.items()}

    def build(self, plan: Plan) -> CpuExecutable:
        return self.build_together([plan])[0]

    def build_together(self, plans: Sequence[Plan]) -> list[CpuExecutable]:
        """One shared object with an entry for each plan. Their options are the same."""
        used = {kernel for plan in plans for kernel in _kernels_of(plan)}
        options = plans[0].options.for_target(TARGET.name)
        copies = options.split_mode or 1
        parts = {c.kernel: (c, name_symbols(c, copies)) for c in self.compiled.values() if c.kernel in used}
        numbers = [number(plan) for plan in plans]
        entries = {}
        for plan, numbered in zip(plans, numbers, strict=True):
            linked = {kernel: parts[kernel][1] for kernel in parts if kernel in _kernels_of(plan)}
            entry = entry_name(plan.graph.label)
            entries[entry] = Emitter(plan, numbered, linked, entry, options).source()
        flags = (*plans[0].options.compile_options, *(["-DSK_TEST_DELAYS"] if os.environ.get(DELAYS) else []))
        try:
            libraries = dict.fromkeys(library for kernel in parts for library in kernel.libraries)
            binary = link(entries, list(parts.values()), flags, self.context, list(libraries))
        except BuildError as failure:
            said = f"super_kernel_scope {plans[0].graph.name!r}: {failure.message}"
            raise BuildError(said, failure.command, failure.stderr) from failure
        host, commands = host_library(self.context), tuple(self.context.commands)
        return [
            CpuExecutable(plan, numbered, source, binary, host, commands)
            for plan, numbered, source in zip(plans, numbers, entries.values(), strict=True)
        ]

    def launch_sequence(self, legs: Sequence[SequencedLaunch]) -> CpuLaunchSequence:
        return CpuLaunchSequence(legs)


def _kernels_of(plan: Plan) -> set[SubKernel]:
    return {node.kernel for node in plan.graph.nodes}


@dataclass(frozen=True)
class CpuTarget:
    name: str = "cpu"
    device: str = "cpu"
    takes_models: bool = True
    launches: bool = True

    def for_chip(self, chip: object) -> CpuTarget:
        if chip is not None:
            raise OptionError(f"chip {chip!r}: the cpu target has no chips to choose from; it runs on this machine")
        return self

    def chip_fields(self) -> None:
        return None

    def read_ops(self, path: Path) -> OpsFile:
        return read_ops(path)

    def core_count(self) -> int:
        return thread_count()

    def forced_cores(self, options: Options, cores: int | None, name: str) -> int | None:
        return forced_cores(options, cores, self.core_count(), name)

    def plan(self, graph: Graph, options: Options, cores: int) -> Plan:
        return checked_plan(graph, options, cores)

    def validate(self, plan: Plan) -> Report:
        return validate(plan, plan.layout)

    def facts_to_json(self, kernel: SubKernel) -> None:
        return None

    def facts_from_json(self, fields: object) -> None:
        return None

    def prepare(self, kernels: Sequence[SubKernel], progress: Progress | None) -> CpuPrepared:
        context = BuildContext(Cache(), progress)
        return CpuPrepared(compile_kernels(kernels, context), context)

    def warm_up(self) -> None:
        """Compile the run time, if it is not there, while the caller is busy with something else."""
        context = BuildContext(Cache())
        threading.Thread(target=_build_quietly, args=(context,), name="superkernel-warm-up", daemon=True).start()

    def shipped_kernels(self) -> Mapping[str, str]:
        return SHIPPED_KERNELS

    def settle(self, spans: Sequence[tuple[int, int]]) -> int:
        return settle(spans)

    def address_writer(self, inputs: Sequence[tuple[int, int]], address: int) -> AddressWriter:
        return address_writer(inputs, address)

    def compile_texts(self, texts: Sequence[Text], flags: Sequence[str]) -> list[Path]:
        return compile_texts(texts, flags, BuildContext(Cache()))

    def restore(self, plan: Plan, directory: Path) -> CpuExecutable:
        return CpuExecutable.restore(plan, number(plan), directory)


def _build_quietly(context: BuildContext) -> None:
    with suppress(SuperKernelError):  # whoever needs it will be told
        host_library(context)


TARGET = CpuTarget()
