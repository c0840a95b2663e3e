"""frontend.export.compile_entry: a traced entry and a target -> its super kernel, and the memory of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...cache import Cache
from ...errors import UnsupportedError
from ...model.options import Options
from ...package.manifest import (
    ELEMENT_BYTES,
    PackagedBucket,
    PackagedCopy,
    PackagedLaunch,
    PackagedPlan,
    PackagedShape,
    PackagedTensor,
    PackagePlace,
    PlaceKind,
)
from ...runtime.package_kernel import PackageKernel, build_for_package
from ...targets import model_support_of
from ...targets.packaging import PackageSupport
from ...targets.protocol import Target
from ..capture.fusibility import Unfusible, why_unfusible
from ..capture.partition import GraphPart, example_inputs, partition
from ..compile_graph import rewrite_graph
from ..compile_part import check_input
from ..lowering import find_lowering
from ..lowering.inductor import compile_context
from ..lowering.program_trace import ProgramCall, ProgramTrace, Storage, StorageOrigin, TracedTensor
from ..lowering.protocol import LoweredProgram
from ..segments import MatchedProgram, Segment, cut_segments, match_calls
from .call_arena import plan_arena
from .refusals import check_described
from .stored_weights import StoredWeights
from .trace_entry import TracedEntry, contiguous_strides
from .weight_sources import WeightSources


@dataclass(frozen=True)
class EntryPart:
    """The graph of an entry as one part, ready to be lowered for each instruction set."""

    name: str
    entry: TracedEntry
    part: GraphPart
    outputs: tuple[int, ...]  # of the entry: indices into the outputs of the part


@dataclass(frozen=True)
class CompiledEntry:
    """The super kernel of an entry for one instruction set; None: there is nothing to launch."""

    kernel: PackageKernel | None
    shape: PackagedShape
    calls: tuple[ProgramCall, ...] = ()  # by op of the kernel


def make_part(entry: TracedEntry, name: str, target: Target) -> EntryPart:
    """Refuses operators that the graph alone shows to be unfusible."""
    module = entry.module
    rewrite_graph(module, find_lowering(model_support_of(target).kernel_language))
    found = [reason for node in module.graph.nodes if (reason := why_unfusible(node)) is not None]
    if found:
        raise UnfusibleOperators({name: found})
    parts = partition(module, lambda node: name)
    if len(parts) != 1:
        raise UnsupportedError(f"entry {name!r}: the model computes nothing: it returns no tensor")
    (results,) = module.graph.output_node().args
    return EntryPart(name, entry, parts[0], tuple(parts[0].outputs.index(node) for node in results))


class UnfusibleOperators(UnsupportedError):
    """Operators that no super kernel can compute, by entry."""

    def __init__(self, found: Mapping[str, Sequence[Unfusible]]) -> None:
        listed = [f"entry {entry!r}: " + "; ".join(map(str, operators)) for entry, operators in found.items()]
        super().__init__("\n".join(listed))
        self.found = {entry: tuple(dict.fromkeys(operators)) for entry, operators in found.items()}


def compile_entry(
    entry_part: EntryPart,
    name: str,
    options: Options,
    target: Target,
    packaging: PackageSupport,
    cores: int | None,
    weights: StoredWeights,
    bucket: PackagedBucket | None,
    packs: bool,
) -> CompiledEntry:
    """Lower, match and link; `name` is that of the launch. `packs`: weights may be stored as kernels like them best."""
    lowered, matched = _lower(entry_part, target, cores)
    support = model_support_of(target)
    steps = cut_segments(matched, lowered.kernels.compile(support, matched.scratch, Cache()))
    segments = [step for step in steps if isinstance(step, Segment)]
    assert len(segments) == len(steps) <= 1
    ops = segments[0].ops if segments else []
    sources = WeightSources(entry_part.part, entry_part.entry, lowered.trace, weights)
    if packs:
        ops, sources.panels = packaging.with_weight_panels(ops, sources.packable())
    sizes = {storage.name: storage.nbytes for storage in lowered.trace.storages} | dict(matched.scratch.sizes)
    sizes |= {name: panels.nbytes for name, panels in sources.panels.items()}
    kernel = build_for_package(ops, name, options, target, cores, sizes) if segments else None
    places = _EntryPlaces(entry_part, lowered.trace, matched.scratch.sizes, kernel, sources)
    launches: tuple[PackagedLaunch, ...] = ()
    if kernel is not None:
        plans = tuple(_packaged_plan(packaging, executable) for executable in kernel.executables)
        launches = (PackagedLaunch(name, tuple(map(places.of_name, kernel.graph.buffers)), plans),)
    shape = PackagedShape(
        entry_part.entry.inputs, places.outputs, bucket, places.arena_bytes, launches, tuple(places.copies)
    )
    return CompiledEntry(kernel, shape, tuple(segments[0].calls) if segments else ())


def _lower(entry_part: EntryPart, target: Target, cores: int | None) -> tuple[LoweredProgram, MatchedProgram]:
    support, part, name = model_support_of(target), entry_part.part, entry_part.name
    fakes = example_inputs(part)
    for node, value in zip(part.inputs, fakes, strict=True):
        check_input(node.name, value, target.name, support.device)
    count = cores or target.planner.core_count()
    with compile_context(fakes):
        lowered = find_lowering(support.kernel_language).lower(part.module, fakes, count, Cache(), support)
    if lowered is None:
        raise UnsupportedError(f"entry {name!r}: Inductor generates nothing for the model")
    matched = match_calls(lowered.trace, target, count)
    if matched.unfusible:
        raise UnfusibleOperators({name: matched.unfusible})
    return lowered, matched


def _packaged_plan(packaging: PackageSupport, executable: object) -> PackagedPlan:
    """Every argument is passed, so that a launch allocates nothing for itself."""
    facts = vars(packaging.launch_facts(executable))
    sources = len(facts["source_offset"])
    return PackagedPlan(**{**facts, "arena_bytes": 0, "source_offset": (-1,) * sources, "source_bytes": (0,) * sources})


class _EntryPlaces:
    """Where each buffer of the launch lies, and what is copied into the outputs afterwards."""

    def __init__(
        self,
        entry_part: EntryPart,
        trace: ProgramTrace,
        scratch: Mapping[str, int],
        kernel: PackageKernel | None,
        sources: WeightSources,
    ) -> None:
        self._sources, self._scratch = sources, scratch
        self._storages = {storage.name: storage for storage in trace.storages}
        views = [trace.outputs[index] for index in entry_part.outputs]
        self.outputs = tuple(
            _output(entry_part.name, *named) for named in zip(entry_part.entry.output_names, views, strict=True)
        )
        self._direct: dict[str, int] = {}  # storage -> the output whose memory it is
        for index, view in enumerate(views):
            if _fills_storage(view):
                self._direct.setdefault(view.storage.name, index)
        inner = {s.name: s.nbytes for s in trace.storages if s.origin is StorageOrigin.ALLOCATED}
        inner = {name: nbytes for name, nbytes in (inner | dict(scratch)).items() if name not in self._direct}
        returned = [view.storage.name for view in views]
        self._offsets, self.arena_bytes = plan_arena(inner, returned, kernel)
        self.copies = [
            self._copy(index, view) for index, view in enumerate(views) if self._direct.get(view.storage.name) != index
        ]

    def of_name(self, name: str) -> PackagePlace:
        """The whole of a buffer of the launch."""
        storage = self._storages.get(name)
        nbytes = self._scratch[name] if storage is None else storage.nbytes
        return self._place(name, storage, 0, nbytes)

    def _place(self, name: str, storage: Storage | None, offset: int, nbytes: int) -> PackagePlace:
        if name in self._direct:
            return PackagePlace(PlaceKind.OUTPUT, offset, nbytes, index=self._direct[name])
        if name in self._offsets:
            return PackagePlace(PlaceKind.ARENA, self._offsets[name] + offset, nbytes)
        assert storage is not None
        return self._sources.place(storage, offset, nbytes)

    def _copy(self, index: int, view: TracedTensor) -> PackagedCopy:
        described = self.outputs[index]
        source = self._place(view.storage.name, view.storage, view.offset, _span_bytes(view))
        target = PackagePlace(PlaceKind.OUTPUT, 0, described.nbytes, index=index)
        strides = contiguous_strides(view.shape)
        return PackagedCopy(target, source, described.dtype, view.shape, strides, view.strides)


def _output(entry: str, name: str, view: object) -> PackagedTensor:
    dtype = str(getattr(view, "dtype", None)).removeprefix("torch.")
    if not isinstance(view, TracedTensor) or view.conjugated or view.negated or dtype not in ELEMENT_BYTES:
        raise UnsupportedError(
            f"entry {entry!r}: output {name!r} is a tensor of {dtype}; packages return "
            f"{', '.join(ELEMENT_BYTES)}: convert it"
        )
    check_described(name, dtype, view.shape, f"entry {entry!r}: output")
    return PackagedTensor(name, dtype, view.shape)


def _fills_storage(view: TracedTensor) -> bool:
    """Whether a storage of the program holds this output alone, in C order."""
    if view.storage.origin is not StorageOrigin.ALLOCATED or view.offset:
        return False
    is_ordered = all(
        size <= 1 or stride == expected
        for size, stride, expected in zip(view.shape, view.strides, contiguous_strides(view.shape), strict=True)
    )
    return is_ordered and _span_bytes(view) == view.storage.nbytes


def _span_bytes(view: TracedTensor) -> int:
    """From the first element to the end of the last."""
    if 0 in view.shape:
        return 0
    elements = 1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
    return elements * int(view.dtype.itemsize)
