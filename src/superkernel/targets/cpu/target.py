"""targets.cpu.target: worker threads as cores, ELF objects as binaries; runs everywhere."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter_ns

from ...errors import BuildError, OptionError, UnsupportedError, shown
from ...model.graph import Graph
from ...model.opsfile import read_ops
from ...model.options import Options
from ...model.subkernel import SubKernel
from ...model.tiling import CompiledTiling
from ...plan import CoreChoice, Machine, Plan, Report, checked_plan, choose_cores, forced_cores, validate
from ..buffers import HOST_MEMORY
from ..collectives import CollectiveSupport
from ..native.build_context import BuildContext
from ..native.compile_generated import compile_generated
from ..native.march import NATIVE, checked_march, lacking_here, march_flags
from ..native.toolchain import cpu_features, find_toolchain
from ..packaging import InstructionSet, LaunchFacts
from ..protocol import Allocator, ChipChoice, GeneratedText, Outputs, Progress, Target
from .build import (
    CompiledKernel,
    build_context,
    build_host_quietly,
    check_signatures,
    check_tiling_function,
    compile_kernels,
    cross_includes,
    entry_name,
    host_library,
    host_library_beside,
    link,
    name_symbols,
)
from .check_emitted import check_emitted
from .checks import checks
from .collectives import CpuCollectives
from .embedded_facts import embedded_facts
from .emit import Emitter
from .executable import CpuExecutable, restore
from .instruction_sets import instruction_sets, needed_features
from .instrument import CHECKING_ENTRY, instrument, unchecked_objects
from .kernels import SHIPPED_KERNELS
from .kernels.weight_panels import with_weight_panels
from .launch_facts import launch_facts
from .machine import machine_of
from .numbering import Numbering, number
from .runtime import host_library as host
from .runtime.huge_pages import settle
from .runtime.launch import DELAYS, CpuLoadedKernel, load_alone
from .runtime.launch_sequence import CpuLaunchSequence
from .runtime.openmp import thread_count
from .runtime.processors import processor_count

__all__ = ["TARGET"]


class CpuPlanner:
    """A core is a thread of the OpenMP run time that torch uses."""

    launch_limit = staticmethod(thread_count)

    def core_count(self) -> int:
        return min(thread_count(), processor_count())

    def machine(self, cores: int) -> Machine:
        return machine_of(cores)

    def forced_cores(self, options: Options, cores: int | None, name: str) -> int | None:
        return forced_cores(options, cores, thread_count(), name)

    def choose_cores(self, graph: Graph, options: Options, available: int) -> CoreChoice:
        return choose_cores(graph, options, self.machine, available)

    def plan(self, graph: Graph, options: Options, cores: int, note: str = "") -> Plan:
        plan = checked_plan(graph, options, self.machine(cores))
        unchecked = unchecked_objects([node.kernel for node in graph.nodes]) if options.debug_check else ()
        notes = (*plan.notes, *([note] if note else []), *unchecked)
        return replace(plan, notes=notes)

    def smaller_teams(self, plan: Plan) -> list[int]:
        """Powers of two; one core needs no plan of its own, and a team that meets in sync_all keeps its size."""
        if any(node.kernel.sync_all for node in plan.graph.nodes):
            return []
        return [size for size in (2**exponent for exponent in range(12, 0, -1)) if size < plan.cores]

    def validate(self, plan: Plan) -> Report:
        return validate(plan, plan.layout)


@dataclass(frozen=True)
class CpuPrepared:
    compiled: Mapping[SubKernel, CompiledKernel]
    tilings: Mapping[CompiledTiling, CompiledKernel]
    context: BuildContext
    for_package: bool = False  # linked with the library of packages, and not with torch

    @property
    def kernels(self) -> Mapping[SubKernel, SubKernel]:
        return {given: compiled.kernel for given, compiled in self.compiled.items()}

    def build(self, plans: Sequence[Plan]) -> list[CpuExecutable]:
        """One shared object with an entry for each plan."""
        numbers = [number(plan) for plan in plans]
        here = self.context.for_this_machine()
        with host_library_beside(here):
            binary, sources, remarks = self._link(plans, numbers)
        runtime, commands = host_library(here), tuple(self.context.commands)
        return [
            CpuExecutable(plan, numbered, source, binary, runtime, commands, remarks, march=self.context.march)
            for plan, numbered, source in zip(plans, numbers, sources, strict=True)
        ]

    def _link(self, plans: Sequence[Plan], numbers: Sequence[Numbering]) -> tuple[Path, Sequence[str], tuple[str, ...]]:
        """The shared object, the source of every entry, remarks on what debug-check cannot check."""
        used = {kernel for plan in plans for kernel in _kernels_of(plan)}
        options = plans[0].options.for_target(TARGET.name)
        copies = options.split_mode or 1
        parts = name_symbols([part for part in self.compiled.values() if part.kernel in used], copies)
        remarks: tuple[str, ...] = ()
        if options.debug_check:
            instrumented = instrument([part for part, _ in parts.values()], self.context)
            parts = {kernel: (instrumented.parts[kernel], linked) for kernel, (_, linked) in parts.items()}
            remarks = instrumented.remarks
        tilings = {tiling: self.tilings[tiling] for plan in plans for tiling in _tilings_of(plan)}
        symbols = {tiling: function.unique[0] for tiling, function in tilings.items()}
        entries, facts = {}, {}
        comparisons = []
        for plan, numbered in zip(plans, numbers, strict=True):
            linked = {kernel: parts[kernel][1] for kernel in parts if kernel in _kernels_of(plan)}
            entry = entry_name(plan.graph.label)
            entries[entry] = source = Emitter(plan, numbered, linked, entry, options, symbols).source()
            if self.for_package:
                facts[entry] = embedded_facts(plan, numbered)
            comparisons.append(partial(check_emitted, plan, source, linked, symbols, numbered.copies_bytes))
        flags = (*plans[0].options.compile_options, *(["-DSK_TEST_DELAYS"] if os.environ.get(DELAYS) else []))
        flags += CHECKING_ENTRY if options.debug_check else ()
        try:
            functions = name_symbols(list(tilings.values()), 1)
            linked_parts = [*parts.values(), *functions.values()]
            libraries = dict.fromkeys(library for part, _ in linked_parts for library in part.kernel.libraries)
            compare = partial(_call_all, comparisons)
            binary = link(entries, linked_parts, flags, self.context, list(libraries), compare, self.for_package, facts)
        except BuildError as failure:
            message = f"super_kernel_scope {plans[0].graph.name!r}: {failure.message}"
            raise BuildError(message, failure.command, failure.stderr) from failure
        return binary, list(entries.values()), remarks


def _call_all(functions: Sequence[Callable[[], None]]) -> None:
    for function in functions:
        function()


def _kernels_of(plan: Plan) -> set[SubKernel]:
    return {node.kernel for node in plan.graph.nodes}


def _tilings_of(plan: Plan) -> list[CompiledTiling]:
    return [node.compiled_tiling for node in plan.graph.nodes if node.compiled_tiling is not None]


@dataclass(frozen=True)
class CpuBuilder:
    march: str = NATIVE  # the processor that kernels are compiled for
    for_package: bool = False

    def prepare(
        self, kernels: Sequence[SubKernel], tilings: Sequence[CompiledTiling], progress: Progress | None
    ) -> CpuPrepared:
        context = build_context(progress, self.march)
        compiled = compile_kernels(dict.fromkeys([*kernels, *(tiling.function for tiling in tilings)]), context)
        check_signatures(compiled[kernel] for kernel in kernels)
        functions = {tiling: compiled[tiling.function] for tiling in tilings}
        for function in functions.values():
            check_tiling_function(function)
        return CpuPrepared({kernel: compiled[kernel] for kernel in kernels}, functions, context, self.for_package)

    restore = staticmethod(restore)

    def facts_to_json(self, kernel: SubKernel) -> None:
        return None

    def facts_from_json(self, fields: object) -> None:
        return None


class CpuLauncher:
    load = CpuLoadedKernel
    load_alone = staticmethod(load_alone)
    memory = HOST_MEMORY
    sequence = CpuLaunchSequence
    time_launches = staticmethod(host.time_launches)
    crowded = staticmethod(host.crowded)

    def load_original(self, plan: object) -> None:
        return None

    def deferred(self, call: Callable[[], Outputs]) -> Callable[[], Outputs]:
        return call

    def connect_ranks(self, kernel: CpuLoadedKernel, store: object, timeout_s: float) -> None:
        raise UnsupportedError(
            f"super_kernel_scope {kernel.plan.graph.name!r}: ranks of target cpu are connected by torch.compile "
            "(docs/collectives.md); a list of ops takes windows as buffers that all ranks map"
        )


@dataclass(frozen=True)
class CpuModelSupport:
    device: str = "cpu"
    kernel_language: str = "cpp"
    operators: None = None
    collectives: CollectiveSupport | None = field(default_factory=CpuCollectives)
    march: str = NATIVE

    machine_key = staticmethod(cpu_features)
    address_writer = staticmethod(host.address_writer)
    overlap_check = staticmethod(host.overlap_check)
    settle = staticmethod(settle)
    clock = staticmethod(perf_counter_ns)  # a launch returns when it has completed

    def shipped_kernels(self) -> Mapping[str, str]:
        return SHIPPED_KERNELS

    def why_no_kernel(self, operator: str) -> str:
        return "no cpu sub-kernel is registered for it"

    def warm_up(self) -> None:
        """Compile the run time in a thread, unless the cache has it."""
        context = build_context()
        threading.Thread(target=build_host_quietly, args=(context,), name="superkernel-warm-up", daemon=True).start()

    def compile_kernels(self, kernels: Sequence[SubKernel]) -> list[tuple[Path, str]]:
        compiled = compile_kernels(dict.fromkeys(kernels), build_context(march=self.march))
        return [(compiled[kernel].object, compiled[kernel].symbols[0][1]) for kernel in kernels]

    def compile_generated(self, texts: Sequence[GeneratedText], flags: Sequence[str]) -> list[Path]:
        first = [f"-I{folder}" for folder in cross_includes(self.march)]  # before torch's
        context = build_context(march=self.march)
        return compile_generated(texts, (*first, *flags, *march_flags(self.march)), context)

    def allocator(self) -> Allocator:
        import torch

        allocate: Allocator = torch._C._dynamo.guards._empty_strided_cpu
        return allocate


class CpuPackageSupport:
    instruction_sets = staticmethod(instruction_sets)
    needed_features = staticmethod(needed_features)
    with_weight_panels = staticmethod(with_weight_panels)

    def for_instruction_set(self, instruction_set: InstructionSet) -> CpuTarget:
        march = instruction_set.march
        why = "what is compiled for a package runs in the library of packages: load the package"
        builder, support = CpuBuilder(march, for_package=True), CpuModelSupport(march=march)
        return CpuTarget(builder=builder, launcher=None, why_no_launcher=why, model_support=support)

    def launch_facts(self, executable: CpuExecutable) -> LaunchFacts:
        return launch_facts(executable.plan, executable.numbers)


@dataclass(frozen=True)
class CpuTarget:
    name: str = "cpu"
    planner: CpuPlanner = field(default_factory=CpuPlanner)
    builder: CpuBuilder = field(default_factory=CpuBuilder)
    launcher: CpuLauncher | None = field(default_factory=CpuLauncher)
    why_no_launcher: str = ""
    model_support: CpuModelSupport = field(default_factory=CpuModelSupport)
    emulator: None = None
    package_support: CpuPackageSupport = field(default_factory=CpuPackageSupport)

    def for_chip(self, chip: ChipChoice | None) -> CpuTarget:
        if chip is not None:
            raise OptionError(
                f"chip {shown(chip)}: the cpu target has no chips to choose from; it runs on this machine"
            )
        return self

    def for_march(self, march: str | None) -> CpuTarget:
        """Without a launcher where this machine cannot run the code of that processor."""
        if march is None:
            return self
        chosen = replace(self, builder=CpuBuilder(checked_march(march)))
        lacking = lacking_here(chosen.builder.march, find_toolchain())
        if not lacking:
            return chosen
        why = f"it was compiled for {march}, and this processor lacks {', '.join(lacking)}: save it, and load it there"
        return replace(chosen, launcher=None, why_no_launcher=why)

    def chip_fields(self, plan: object = None) -> None:
        return None

    read_ops = staticmethod(read_ops)
    checks = staticmethod(checks)


TARGET: Target = CpuTarget()
