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
from ...graph import Graph
from ...opsfile import OpsFile, read_ops
from ...options import Options
from ...plan import Plan, Report, checked_plan, forced_cores, validate
from ...subkernel import SubKernel
from .. import Filler, Leg, Progress, Text
from .build import Compiled, Workshop, compile_kernels, entry_name, host_library, link, name_symbols
from .emit import Emitter
from .hostlib import filler
from .numbering import number
from .openmp import thread_count
from .pages import settle
from .run import DELAYS, CpuExecutable
from .series import CpuSeries
from .texts import compile_texts

__all__ = ["TARGET"]


@dataclass(frozen=True)
class CpuPrepared:
    compiled: Mapping[SubKernel, Compiled]
    shop: Workshop

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
            binary = link(entries, list(parts.values()), flags, self.shop, list(libraries))
        except BuildError as failure:
            said = f"super_kernel_scope {plans[0].graph.name!r}: {failure.message}"
            raise BuildError(said, failure.command, failure.stderr) from failure
        host, commands = host_library(self.shop), tuple(self.shop.commands)
        return [
            CpuExecutable(plan, numbered, source, binary, host, commands)
            for plan, numbered, source in zip(plans, numbers, entries.values(), strict=True)
        ]

    def line_up(self, legs: Sequence[Leg]) -> CpuSeries:
        return CpuSeries(legs)


def _kernels_of(plan: Plan) -> set[SubKernel]:
    return {node.kernel for node in plan.graph.nodes}


@dataclass(frozen=True)
class CpuTarget:
    name: str = "cpu"
    device: str = "cpu"
    takes_models: bool = True
    launches: bool = True

    def on(self, chip: object) -> CpuTarget:
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
        shop = Workshop(Cache(), progress)
        return CpuPrepared(compile_kernels(kernels, shop), shop)

    def warm_up(self) -> None:
        """Compile the run time, if it is not there, while the caller is busy with something else."""
        shop = Workshop(Cache())
        threading.Thread(target=_build_quietly, args=(shop,), name="superkernel-warm-up", daemon=True).start()

    def register_kernels(self) -> None:
        from . import kernels

        kernels.register()

    def settle(self, spans: Sequence[tuple[int, int]]) -> int:
        return settle(spans)

    def filler(self, inputs: Sequence[tuple[int, int]], address: int) -> Filler:
        return filler(inputs, address)

    def compile_texts(self, texts: Sequence[Text], flags: Sequence[str]) -> list[Path]:
        return compile_texts(texts, flags, Workshop(Cache()))

    def restore(self, plan: Plan, directory: Path) -> CpuExecutable:
        return CpuExecutable.restore(plan, number(plan), directory)


def _build_quietly(shop: Workshop) -> None:
    with suppress(SuperKernelError):  # whoever needs it will be told
        host_library(shop)


TARGET = CpuTarget()
