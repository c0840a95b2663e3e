"""frontend.export.library_entries: entries with operators that have no sub-kernel -> AOTInductor's code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from ...errors import BuildError, UnsupportedError
from ...package.file_names import TORCH_FOLDER, torch_file
from ...package.manifest import Manifest, PackagedEntry, PackagedShape
from ...package.writer import PackageContents
from ...version import __version__
from .compile_entry import UnfusibleOperators
from .entry_requests import EntryRequest
from .exported_program import export_program
from .trace_entry import TracedEntry, packaged_tensor

_UNKNOWN_CLASS = re.compile(r"No registered serialization name for <class '([^']+)'>")


class ShapeOfEntry(Protocol):
    """A traced program of an entry."""

    @property
    def entry(self) -> str: ...
    @property
    def traced(self) -> TracedEntry: ...


def write_library_entries(
    requests: Sequence[EntryRequest],
    shapes: Sequence[ShapeOfEntry],
    name: str,
    options: str,
    refused: UnfusibleOperators,
) -> PackageContents:
    """Contents whose entries are all AOTInductor's, so that every entry runs the same way."""
    for request in requests:
        if len(request.calls) > 1 or request.buckets:
            raise UnsupportedError(
                f'entry {request.name!r}: with allow="library" an entry has one shape: give one tuple, without buckets'
            )
    if len(requests) > 1 and (states := [state.name for shape in shapes for state in shape.traced.states]):
        raise UnsupportedError(
            f'entries {", ".join(request.name for request in requests)}: with allow="library" entries share no state, '
            f"and the model writes {', '.join(dict.fromkeys(states))}: export each entry to a package"
        )
    traced = {shape.entry: shape.traced for shape in shapes}
    entries = tuple(
        PackagedEntry(r.name, (_shape(traced[r.name], r.name),), r.doc, traced[r.name].returns) for r in requests
    )
    operators = "; ".join(dict.fromkeys(str(found) for listed in refused.found.values() for found in listed))
    reason = f"AOTInductor's code for it calls torch: {operators}".replace("\n", " ")
    manifest = Manifest(name, __version__, entries, needs_torch=reason, options=options, torch=str(torch.__version__))

    def write(folder: Path) -> None:
        (folder / TORCH_FOLDER).mkdir()
        for request in requests:
            _compile(request, folder / torch_file(request.name))

    return PackageContents(manifest, {}, explanation=f"needs torch: {reason}\n", add_files=write)


def _shape(traced: TracedEntry, entry: str) -> PackagedShape:
    (results,) = traced.module.graph.output_node().args
    outputs = [
        packaged_tensor(name, node.meta["val"], f"entry {entry!r}: output")
        for name, node in zip(traced.output_names, results, strict=True)
    ]
    return PackagedShape(traced.inputs, tuple(outputs), None, 0, (), ())


def _compile(request: EntryRequest, file: Path) -> None:
    from torch._inductor import aoti_compile_and_package

    program = export_program(request.module, request.calls[0], request.name)
    try:
        aoti_compile_and_package(program, package_path=str(file))
    except RuntimeError as reason:
        if unknown := _UNKNOWN_CLASS.search(str(reason)):
            raise UnsupportedError(
                f"entry {request.name!r}: AOTInductor cannot return a {unknown[1]}: return a plain tuple, list or dict"
            ) from reason
        raise BuildError(f"entry {request.name!r}: AOTInductor cannot compile the model: {reason}") from reason
