"""package.torch_model: a package that needs torch (`allow="library"`) -> its entries, run by torch's AOTInductor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, Self

import numpy as np

from ..errors import BuildError, GraphError, LaunchError, UnsupportedError, nearest
from ..runtime.submitted_launches import SubmittedLaunches
from .array_values import PlacedArray, place_input
from .call_signature import NO_SIGNATURE, call_signature
from .checked_calls import in_order
from .checksums import FileSum, check_files
from .file_names import MANIFEST, torch_file
from .library_functions import ArrayType, EntryDescription, EntryShape, ModelDescription
from .manifest import Manifest, PackagedTensor, parse_manifest
from .model_context import DEFAULT_ENTRY, UnknownEntryError
from .one_folder import HeldFolder
from .return_structure import plain_structure, put_results
from .shape_choice import choose_shape


def load_torch_model(held: HeldFolder, files: Mapping[str, FileSum], load_again: Callable[[], Any]) -> TorchModel:
    """The model; an UnsupportedError with the manifest's sentence where torch is not installed."""
    check_files(held, files, everything=False)
    folder = held.path.absolute()
    try:
        manifest = parse_manifest(held.read_json(MANIFEST), folder)
    except GraphError as error:
        raise BuildError(str(error)) from error
    try:
        torch, inductor = import_module("torch"), import_module("torch._inductor")
    except ModuleNotFoundError as missing:
        raise UnsupportedError(
            f"package {manifest.name!r} needs torch, which is not installed: {manifest.needs_torch}"
        ) from missing
    for entry in manifest.entries:
        if torch_file(entry.name) not in files:
            raise BuildError(f"{folder / torch_file(entry.name)} is missing; export the model again")
    try:
        compiled = {
            entry.name: inductor.aoti_load_package(str(folder / torch_file(entry.name))) for entry in manifest.entries
        }
    except (RuntimeError, OSError, ValueError) as reason:
        raise BuildError(f"{folder}: torch {torch.__version__} cannot load the package: {reason}") from reason
    return TorchModel(torch, folder, manifest, compiled, load_again)


def describe_manifest(manifest: Manifest) -> ModelDescription:
    entries = tuple(
        EntryDescription(
            entry.name,
            entry.doc,
            tuple(
                EntryShape(tuple(map(_array_type, shape.inputs)), tuple(map(_array_type, shape.outputs)))
                for shape in entry.shapes
            ),
            entry.returns or plain_structure(len(entry.shapes[0].outputs)),
        )
        for entry in manifest.entries
    )
    return ModelDescription(manifest.name, manifest.superkernel, "torch", 0, 0, entries, ())


def _array_type(tensor: PackagedTensor) -> ArrayType:
    return ArrayType(tensor.name, tensor.dtype, tensor.shape)


class TorchEntry:
    """A function of a model that torch runs. It takes and returns what other entries take and return."""

    def __init__(self, model: TorchModel, torch: Any, description: EntryDescription, compiled: Any) -> None:
        self._model = model
        self._torch = torch
        self._compiled = compiled
        self._where = f"package {model.description.name!r}: entry {description.name!r}"
        self.name = description.name
        self.description = description
        self.inputs, self.outputs = description.shapes[0].inputs, description.shapes[0].outputs
        self.__doc__ = description.doc or None
        self.__signature__ = call_signature([kind.name for kind in self.inputs])

    def __call__(self, /, *arguments: Any, out: Any = None, **named: Any) -> Any:
        self._model.check_open()
        if out is not None:
            raise UnsupportedError(
                f"{self._where}: out= is not possible: torch runs the entry and allocates its outputs"
            )
        values = in_order([kind.name for kind in self.inputs], arguments, named, self._where)
        placed = [place_input(kind, value, self._where) for kind, value in zip(self.inputs, values, strict=True)]
        choose_shape(self.description, [array.shape for array in placed], self._where)
        tensors = [self._tensor(kind, array) for kind, array in zip(self.inputs, placed, strict=True)]
        try:
            with self._torch.no_grad():
                returned = self._compiled(*tensors)
        except RuntimeError as reason:
            raise LaunchError(f"{self._where}: {reason}") from reason
        leaves = import_module("torch.utils._pytree").tree_leaves(returned)
        results = [leaf for leaf in leaves if isinstance(leaf, self._torch.Tensor)]
        if not any(isinstance(value, self._torch.Tensor) for value in values):
            results = [self._array(tensor) for tensor in results]
        return put_results(self.description.returns, results)

    def submit(self, /, *arguments: Any, **named: Any) -> Future[Any]:
        """Start a call behind those that were submitted before."""
        return self._model.submit_call(lambda: self(*arguments, **named))

    def _tensor(self, kind: ArrayType, array: PlacedArray) -> Any:
        if isinstance(array.memory, self._torch.Tensor):
            return array.memory
        values = array.memory if array.memory.flags.writeable else array.memory.copy()
        if kind.dtype == "bfloat16":
            return self._torch.from_numpy(values.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.from_numpy(values)

    def _array(self, tensor: Any) -> Any:
        if tensor.dtype is self._torch.bfloat16:
            return tensor.view(self._torch.int16).numpy().view(np.uint16)
        return tensor.numpy()


class TorchModel:
    """A package whose entries torch runs; its manifest says why. States stay inside torch's code."""

    def __init__(
        self,
        torch: Any,
        path: Path,
        manifest: Manifest,
        compiled: Mapping[str, Any],
        load_again: Callable[[], Any],
    ) -> None:
        self.path = path
        self.needs_torch = manifest.needs_torch
        self.description = describe_manifest(manifest)
        self.states: tuple[str, ...] = ()
        self._where = f"package {manifest.name!r}"
        self._load_again = load_again
        self._is_closed = False
        self._submitted = SubmittedLaunches(manifest.name)
        entries = self.description.entries
        self._entries = {entry.name: TorchEntry(self, torch, entry, compiled[entry.name]) for entry in entries}
        has_default = len(self._entries) == 1 or DEFAULT_ENTRY in self._entries
        self.__signature__ = self._default().__signature__ if has_default else NO_SIGNATURE

    @property
    def entries(self) -> Mapping[str, TorchEntry]:
        return MappingProxyType(self._entries)

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        """Calls the only entry, or the entry `forward`."""
        return self._default()(*arguments, **named)

    def submit(self, /, *arguments: Any, **named: Any) -> Future[Any]:
        return self._default().submit(*arguments, **named)

    def _default(self) -> TorchEntry:
        if len(self._entries) > 1 and DEFAULT_ENTRY not in self._entries:
            raise LaunchError(f"{self._where} has several entries: call one of {', '.join(self._entries)}")
        return self._entries[DEFAULT_ENTRY if len(self._entries) > 1 else next(iter(self._entries))]

    def __getattr__(self, name: str) -> Any:
        entries = self.__dict__.get("_entries", {})
        if name in entries:
            return entries[name]
        if name.startswith("__") or not entries:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        hint = nearest(name, entries)
        raise UnknownEntryError(f"{self._where} has no entry {name!r}{hint}; there are {', '.join(entries)}")

    def _no_contexts(self, *arguments: Any) -> NoReturn:
        raise UnsupportedError(f"{self._where}: torch runs this package, which gives no access to states and contexts")

    reset = save_state = load_state = copy_state = new_context = _no_contexts

    def submit_call(self, call: Callable[[], Any]) -> Future[Any]:
        self.check_open()
        return self._submitted.submit(call)

    def check_open(self) -> None:
        if self._is_closed:
            raise LaunchError(f"{self._where} is closed; load it again")

    def close(self) -> None:
        """Later calls are refused; torch frees the code when nothing refers to the model."""
        if pending := self._submitted.pending():
            raise LaunchError(f"{self._where}: close() while {pending} submitted calls are not done")
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._load_again, ()
