"""frontend.export.export: a model, example inputs and a path -> a package there; all stages on one page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ...errors import OptionError, UnsupportedError, nearest, shown
from ...model.dim import Dim
from ...model.json_value import as_line
from ...model.options import Options
from ...model.plain_values import checked_path, truth_value
from ...package.file_names import packaged_library
from ...package.library import library_path
from ...package.manifest import Manifest, PackagedBucket, PackagedEntry, PackagedObject, PackagedShape, PackagedTensor
from ...package.writer import PackageContents, check_free, write_package
from ...plan import MOST_CORES
from ...targets import DEFAULT_TARGET, find_target, model_support_of
from ...targets.packaging import InstructionSet, PackageSupport
from ...targets.protocol import Target
from ...version import __version__
from ..capture.fusibility import Unfusible
from ..lowering import find_lowering
from ..torch_versions import unsupported_version
from .choose_plans import ExampleCall, choose_plans
from .compile_entry import CompiledEntry, UnfusibleOperators, compile_entry, make_part
from .entry_buckets import prove_buckets, with_rows
from .entry_requests import EntryRequest, entry_requests
from .explain_package import explain_package
from .exported_program import check_other_calls, trace_call
from .library_entries import write_library_entries
from .refusals import unfusible_error
from .stored_weights import StoredWeights
from .trace_entry import TracedEntry, share_states, trace_entry

NATIVE = "native"
LIBRARY = "library"
_TRACING = RLock()  # torch traces and compiles for one thread at a time
Args = tuple[Any, ...] | list[tuple[Any, ...]]


@dataclass(frozen=True)
class TracedShape:
    """One program of an entry: `launch` names its super kernel."""

    entry: str
    launch: str
    traced: TracedEntry
    bucket: PackagedBucket | None
    example: ExampleCall


def export(
    model: Callable[..., Any],
    args: Args | Mapping[str, Args],
    path: str | PathLike[str],
    *,
    options: str | Options = "",
    buckets: Mapping[str, Mapping[int, Dim]] | None = None,
    march: str | Sequence[str] | None = None,
    cores: int | None = None,
    allow: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Compile `model` ahead of time into a package, a folder that `load_model` and the C library open without torch.

    `args` are example inputs, whose shapes calls must have: a tuple; a list of tuples, for several shapes; or a dict of
    both by entry: an entry that is the name of a method is that method, any other is the call of the model. `buckets`
    says which dimensions may have any size up to a bucket, such as {"x": {0: sk.Dim("batch", buckets=(1, 4, 16))}}.
    `march` names the instruction sets of the objects, native (this machine, the default), x86-64-v3, x86-64-v4 or,
    where a cross compiler is installed, aarch64, or several. Without `cores`, kernels are divided for the cores of this
    machine, and each shape is timed on one core and with teams of several sizes. With `allow="library"` a model with
    operators that have no sub-kernel goes through AOTInductor; its package needs torch. `overwrite=True` replaces a
    package.
    """
    if (reason := unsupported_version(torch.__version__)) is not None:
        raise UnsupportedError(f"export: {reason}")
    folder = checked_path(path, "the path of the package", OptionError)
    if truth_value(overwrite) is None:
        raise OptionError(f"export: overwrite is {shown(overwrite)}; it must be True or False")
    check_free(folder, bool(overwrite))
    _check_allow(allow)
    parsed = _checked_options(options)
    _check_cores(cores)
    target = find_target(DEFAULT_TARGET)
    packaging = target.package_support
    assert packaging is not None
    sets = packaging.instruction_sets(_names(march))
    requests = entry_requests(model, args, buckets)
    exporter = Exporter(target, packaging, sets, parsed, cores)
    with _TRACING, torch.inference_mode(False):  # in which Inductor fails where the model writes a buffer
        shapes = share_states([shape for request in requests for shape in exporter.trace(request)])
        check_other_calls([shape.traced.call for shape in shapes])
        try:
            contents = exporter.compile(requests, shapes, _package_name(folder))
        except UnfusibleOperators as refused:
            if allow != LIBRARY:
                raise unfusible_error(refused.found) from refused
            contents = write_library_entries(requests, shapes, _package_name(folder), str(parsed), refused)
        return write_package(folder, contents, bool(overwrite))


def _package_name(folder: Path) -> str:
    return as_line(folder.absolute().name.removesuffix(".sk")) or "model"


def _check_allow(allow: object) -> None:
    if allow is not None and allow != LIBRARY:
        raise OptionError(f"export: allow is {shown(allow)}{nearest(allow, [LIBRARY])}; it is None or {LIBRARY!r}")


def _checked_options(options: str | Options) -> Options:
    """Refuses options whose code only this package's run time can run."""
    parsed = Options.parse(options)
    for name, value in (("debug-check", parsed.debug_check), ("debug-replay", parsed.debug_replay)):
        if value:
            raise OptionError(f"export: option {name}=1 has no meaning in a package: use it with torch.compile")
    if parsed.profiling:
        raise OptionError("export: option profiling=1 has no meaning in a package, which records no time stamps")
    return parsed


def _check_cores(cores: object) -> None:
    """More cores than this machine has are allowed: the package may be for a larger one."""
    if cores is not None and not (isinstance(cores, int) and not isinstance(cores, bool) and 1 <= cores <= MOST_CORES):
        raise OptionError(f"export: cores is {shown(cores)}; it is a whole number from 1 to {MOST_CORES}, or None")


def _names(march: object) -> list[str]:
    names = [NATIVE] if march is None else [march] if isinstance(march, str) else march
    if not isinstance(names, list | tuple) or not names:
        raise OptionError(f"export: march is {shown(march)}; it is the name of an instruction set, or a list of names")
    return list(dict.fromkeys(names))


@dataclass(frozen=True)
class Exporter:
    """What all entries of a package are compiled with."""

    target: Target
    packaging: PackageSupport
    sets: Sequence[InstructionSet]
    options: Options
    cores: int | None

    def trace(self, request: EntryRequest) -> list[TracedShape]:
        """The graphs of an entry, for each shape or bucket."""
        support = model_support_of(self.target)
        kept = find_lowering(support.kernel_language).kept_operators(support)
        sizes = request.dim.buckets if request.dim is not None else ()
        rows = prove_buckets(request, kept) if sizes else None
        calls = [with_rows(request, size) for size in sizes] or request.calls
        called = [trace_call(request.module, call, request.name) for call in calls]
        found: Sequence[PackagedBucket | None] = [None] * len(calls)
        if rows is not None:
            found = [rows.of_program(program, size) for (program, _), size in zip(called, sizes, strict=True)]
        traced = [trace_entry(request.module, program, call, kept) for program, call in called]
        _check_shapes(request.name, traced)
        return [
            TracedShape(name := request.name, launch := f"{name}_{number}", entry, bucket, _example(name, launch, call))
            for number, (entry, bucket, call) in enumerate(zip(traced, found, calls, strict=True))
        ]

    def compile(self, requests: Sequence[EntryRequest], shapes: Sequence[TracedShape], name: str) -> PackageContents:
        """The contents of the package; UnfusibleOperators if some operator has no sub-kernel."""
        with ThreadPoolExecutor(1, "superkernel-library") as pool:
            # compiled beside the entries, unless the cache has them
            marches = {chosen.architecture: chosen.march for chosen in self.sets}
            libraries = {packaged_library(each): pool.submit(library_path, march) for each, march in marches.items()}
            contents = self._compile_entries(requests, shapes, name)
        return replace(contents, files={**contents.files, **{file: job.result() for file, job in libraries.items()}})

    def _compile_entries(
        self, requests: Sequence[EntryRequest], shapes: Sequence[TracedShape], name: str
    ) -> PackageContents:
        weights = StoredWeights()
        states: dict[str, PackagedTensor] = {}
        for shape in shapes:
            for state in shape.traced.states:
                states.setdefault(state.name, state)
                weights.add(state.name, shape.traced.tensors[state.name], is_state=True)
        compiled: dict[str, dict[InstructionSet, CompiledEntry]] = {}
        refused: dict[str, list[Unfusible]] = {}
        for shape in shapes:
            try:
                # several shapes share their weights, which therefore stay as they are
                compiled[shape.launch] = self._compile(shape, weights, packs=len(shapes) == 1)
            except UnfusibleOperators as found:
                for entry, operators in found.found.items():
                    refused.setdefault(entry, []).extend(operators)
        if refused:
            raise UnfusibleOperators(refused)
        entries = tuple(
            PackagedEntry(
                request.name,
                tuple(p for shape in shapes if shape.entry == request.name for p in _programs(compiled[shape.launch])),
                request.doc,
                next(shape.traced.returns for shape in shapes if shape.entry == request.name),
            )
            for request in requests
        )
        objects, files = self._objects(compiled)
        torch_version = str(torch.__version__)
        manifest = Manifest(
            name, __version__, entries, objects, tuple(states.values()), options=str(self.options), torch=torch_version
        )
        kernels = {launch: next(iter(by_set.values())) for launch, by_set in compiled.items()}
        explanation, examples = explain_package(kernels, self.options), [shape.example for shape in shapes]
        revise = partial(choose_plans, manifest=manifest, examples=examples) if self.cores is None else None
        return PackageContents(manifest, weights.contents(), files, explanation, revise=revise)

    def _compile(self, shape: TracedShape, weights: StoredWeights, packs: bool) -> dict[InstructionSet, CompiledEntry]:
        part = make_part(shape.traced, shape.entry, self.target)
        return {
            chosen: compile_entry(
                part,
                shape.launch,
                self.options,
                self.packaging.for_instruction_set(chosen),
                self.packaging,
                self.cores,
                weights,
                shape.bucket,
                packs,
            )
            for chosen in self.sets
        }

    def _objects(
        self, compiled: Mapping[str, Mapping[InstructionSet, CompiledEntry]]
    ) -> tuple[dict[str, tuple[PackagedObject, ...]], dict[str, Path]]:
        """The objects of each launch, and the file of each path in the package."""
        objects: dict[str, tuple[PackagedObject, ...]] = {}
        files: dict[str, Path] = {}
        for launch, by_set in compiled.items():
            for chosen, entry in by_set.items():
                if entry.kernel is None:
                    continue
                executable = entry.kernel.executables[0]
                file = f"objects/{launch}.{chosen.name}.so"
                features = tuple(self.packaging.needed_features(executable, chosen))
                objects[launch] = (*objects.get(launch, ()), PackagedObject(chosen.name, file, features))
                files[file] = executable.binary
        return objects, files


def _example(entry: str, launch: str, args: tuple[Any, ...]) -> ExampleCall:
    return ExampleCall(entry, launch, tuple(leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)))


def _programs(compiled: Mapping[InstructionSet, CompiledEntry]) -> list[PackagedShape]:
    """One program where it is the same for all instruction sets; otherwise one for each group of sets."""
    groups: dict[PackagedShape, list[str]] = {}
    for chosen, entry in compiled.items():
        groups.setdefault(entry.shape, []).append(chosen.name)
    if len(groups) == 1:
        return list(groups)
    return [replace(shape, isa=tuple(names)) for shape, names in groups.items()]


def _check_shapes(entry: str, traced: Sequence[TracedEntry]) -> None:
    """The shapes of an entry differ in nothing but sizes, and a call fits one of them."""
    first = traced[0]
    for other in traced[1:]:
        kinds = [[(tensor.name, tensor.dtype) for tensor in each.inputs] for each in (first, other)]
        if kinds[0] != kinds[1] or (first.output_names, first.returns) != (other.output_names, other.returns):
            raise OptionError(
                f"entry {entry!r}: its example inputs differ in more than sizes: {_signature(first)}; "
                f"{_signature(other)}: make them two entries"
            )
    sizes = [tuple(tensor.shape for tensor in each.inputs) for each in traced]
    if len(set(sizes)) < len(sizes):
        raise OptionError(f"entry {entry!r}: two example inputs have the same shapes: leave one out")


def _signature(traced: TracedEntry) -> str:
    inputs = ", ".join(f"{tensor.name} {tensor.dtype}{list(tensor.shape)}" for tensor in traced.inputs)
    return f"({inputs}) -> {', '.join(traced.output_names)}"
