"""package.torch_model: a package that needs torch (`allow="library"`) -> its entries, run by torch's AOTInductor."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from ..errors import BuildError, LaunchError, UnsupportedError, nearest
from ..runtime.submitted_launches import SubmittedLaunches
from .checksums import FileSum, check_files
from .manifest import Manifest, PackagedEntry
from .model_context import DEFAULT_ENTRY, UnknownEntryError


def torch_file(entry: str) -> str:
    """The compiled entry inside the package."""
    return f"torch/{entry}.pt2"


def load_torch_model(folder: Path, manifest: Manifest, files: Mapping[str, FileSum]) -> TorchModel:
    """The model; an UnsupportedError with the manifest's sentence where torch is not installed."""
    try:
        torch, inductor = import_module("torch"), import_module("torch._inductor")
    except ModuleNotFoundError as missing:
        raise UnsupportedError(
            f"package {manifest.name!r}: {manifest.needs_torch}; torch is not installed"
        ) from missing
    for entry in manifest.entries:
        if torch_file(entry.name) not in files:
            raise BuildError(f"{folder / torch_file(entry.name)} is missing; export the model again")
    check_files(folder, files, everything=False)
    try:
        compiled = {
            entry.name: inductor.aoti_load_package(str(folder / torch_file(entry.name))) for entry in manifest.entries
        }
    except (RuntimeError, OSError, ValueError) as reason:
        raise BuildError(f"{folder}: torch {torch.__version__} cannot load the package: {reason}") from reason
    return TorchModel(torch, folder, manifest, compiled)


class TorchEntry:
    """A function of a model that torch runs; numpy arrays are taken and returned as well."""

    def __init__(self, torch: Any, entry: PackagedEntry, where: str, compiled: Any) -> None:
        self._torch = torch
        self._compiled = compiled
        self._where = f"{where}: entry {entry.name!r}"
        self._submitted = SubmittedLaunches(entry.name)
        self.name = entry.name
        self.description = entry
        self.is_closed = False

    def __call__(self, *arguments: Any, out: Any = None) -> Any:
        if self.is_closed:
            raise LaunchError(f"{self._where} is closed; load the package again")
        if out is not None:
            raise UnsupportedError(f"{self._where}: out= is not possible, since torch runs the entry and allocates")
        kinds = self.description.shapes[0].inputs
        if len(arguments) != len(kinds):
            raise LaunchError(f"{self._where} takes {len(kinds)} inputs, and {len(arguments)} were passed")
        tensors = [self._tensor(kind.name, kind.dtype, value) for kind, value in zip(kinds, arguments, strict=True)]
        try:
            with self._torch.no_grad():
                returned = self._compiled(*tensors)
        except RuntimeError as reason:
            raise LaunchError(f"{self._where}: {reason}") from reason
        results = list(returned) if isinstance(returned, list | tuple) else [returned]
        if not any(isinstance(value, self._torch.Tensor) for value in arguments):
            results = [tensor.numpy() for tensor in results]
        return results[0] if len(results) == 1 else tuple(results)

    def submit(self, *arguments: Any) -> Future[Any]:
        """Start a call behind those that were submitted before."""
        return self._submitted.submit(lambda: self(*arguments))

    def _tensor(self, name: str, dtype: str, value: Any) -> Any:
        tensor = value if isinstance(value, self._torch.Tensor) else self._torch.from_numpy(np.asarray(value))
        found = str(tensor.dtype).removeprefix("torch.")
        if found != dtype:
            raise LaunchError(f"{self._where}: input {name!r} has dtype {found}, the model takes {dtype}")
        return tensor


class TorchModel:
    """A package whose entries torch runs; see `manifest.needs_torch` for the reason."""

    def __init__(self, torch: Any, path: Path, manifest: Manifest, compiled: Mapping[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self._where = f"package {manifest.name!r}"
        self._entries = {
            entry.name: TorchEntry(torch, entry, self._where, compiled[entry.name]) for entry in manifest.entries
        }

    @property
    def entries(self) -> Mapping[str, TorchEntry]:
        return MappingProxyType(self._entries)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Calls the only entry, or the entry `forward`."""
        name = next(iter(self._entries)) if len(self._entries) == 1 else DEFAULT_ENTRY
        return getattr(self, name)(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        entries = self.__dict__.get("_entries", {})
        if name in entries:
            return entries[name]
        if name.startswith("__") or not entries:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        hint = nearest(name, entries)
        raise UnknownEntryError(f"{self._where} has no entry {name!r}{hint}; there are {', '.join(entries)}")

    def close(self) -> None:
        for entry in self._entries.values():
            entry.is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
