"""package.model_context: an opened package -> its entries as functions, and the states that they keep between calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import BuiltinFunctionType, MappingProxyType
from typing import Any, Self

from ..errors import LaunchError, counted, nearest
from .array_values import Array, empty_array, place_state
from .call_signature import NO_SIGNATURE, call_signature
from .checked_calls import EntryCalls
from .library_functions import ArrayType, EntryDescription, ModelDescription
from .opened_package import ContextHandle, OpenedPackage
from .prepared_calls import prepare_call

DEFAULT_ENTRY = "forward"


class UnknownEntryError(LaunchError, AttributeError):
    """A model has no entry of that name. Entries are attributes, so this is an AttributeError as well."""


def _not_pickled(where: str, what: str) -> LaunchError:
    return LaunchError(f"{where}: its {what} can be neither pickled nor copied: pickle the model, and save_state()")


def _set_call(instance: object, function: Callable[..., Any]) -> None:
    """Calls of the object are calls of the function, by a class of its own that has it as `__call__`.

    A method, or a property that finds the function, would be more code of the interpreter, which is cold after a pause.
    """
    kind = type(instance)
    call = function if isinstance(function, BuiltinFunctionType) else staticmethod(function)
    fields = {"__call__": call, "__slots__": (), "__doc__": kind.__doc__, "__module__": kind.__module__}
    instance.__class__ = type(kind.__name__, (kind,), fields)


class ModelEntry:
    """A function of a model in one context: call it, or `submit` a call to a thread of the context."""

    # Inputs in order or by name; `out=` an array, or one for each output, to write into.
    __call__: Any

    def __init__(self, calls: EntryCalls) -> None:
        self._calls = calls
        self.function = prepare_call(calls)
        _set_call(self, self.function)
        self.description: EntryDescription = calls.entry
        self.__doc__ = self.description.doc or None
        self.__signature__ = call_signature([kind.name for kind in self.inputs])

    @property
    def name(self) -> str:
        return self.description.name

    @property
    def inputs(self) -> tuple[ArrayType, ...]:
        """Of the first shape; `description.shapes` has all."""
        return self.description.shapes[0].inputs

    @property
    def outputs(self) -> tuple[ArrayType, ...]:
        return self.description.shapes[0].outputs

    def submit(self, /, *arguments: Any, out: Any = None, **named: Any) -> Future[Any]:
        """Start a call behind those that were submitted before; leave its arrays alone until the future is done."""
        return self._calls.context.submit(lambda: self._calls.call(arguments, named, out, wait=True))

    def __reduce__(self) -> tuple[Any, ...]:
        raise _not_pickled(self._calls.context.where, "entry")

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, kinds)) for kinds in (self.inputs, self.outputs))
        more = len(self.description.shapes) - 1
        others = f", or {counted(more, 'other shape')}" if more else ""
        return f"<entry {self.name!r}: {inputs or 'no inputs'} -> {outputs or 'no outputs'}{others}>"


class ModelContext:
    """States and scratch memory of a model, for one call at a time. Contexts of a model may run at the same time."""

    __call__: Any  # of the only entry, or of the entry `forward`, as that of ModelEntry

    def __init__(self, package: OpenedPackage) -> None:
        self._package = package
        self._handle: ContextHandle = package.create_context()
        entries = (
            ModelEntry(EntryCalls(self._handle, index, entry))
            for index, entry in enumerate(package.description.entries)
        )
        self._entries = {entry.name: entry for entry in entries}
        only = next(iter(self._entries.values())) if len(self._entries) == 1 else None
        self._default = self._entries.get(DEFAULT_ENTRY, only)
        _set_call(self, self._no_default if self._default is None else self._default.function)
        self.__signature__ = NO_SIGNATURE if self._default is None else self._default.__signature__
        for name, entry in self._entries.items():
            if not hasattr(type(self), name):  # found without `__getattr__`, which takes longer
                self.__dict__.setdefault(name, entry)  # an entry never takes the place of an attribute

    @property
    def path(self) -> Path:
        return self._package.path

    @property
    def description(self) -> ModelDescription:
        return self._package.description

    @property
    def entries(self) -> Mapping[str, ModelEntry]:
        return MappingProxyType(self._entries)

    def submit(self, /, *arguments: Any, out: Any = None, **named: Any) -> Future[Any]:
        """Starts a call of that entry; see `ModelEntry.submit`."""
        if self._default is None:
            raise self._several_entries()
        return self._default.submit(*arguments, out=out, **named)

    def _no_default(self, /, *arguments: Any, **named: Any) -> Any:
        raise self._several_entries()

    def _several_entries(self) -> LaunchError:
        known = ", ".join(self._entries)
        return LaunchError(f"{self._handle.where} has several entries: call one of {known}, as model.NAME(...)")

    def __getattr__(self, name: str) -> Any:
        entries: Mapping[str, ModelEntry] = self.__dict__.get("_entries", {})
        if name in entries:
            return entries[name]
        if name.startswith("__") or not entries:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        known = ", ".join(entries)
        raise UnknownEntryError(
            f"{self._handle.where} has no entry {name!r}{nearest(name, entries)}; there are {known}"
        )

    def __dir__(self) -> list[str]:
        return list({*super().__dir__(), *self._entries})

    # -- states ------------------------------------------------------------------------------------------------

    @property
    def states(self) -> tuple[str, ...]:
        """The names of what the model keeps between calls, such as caches and recurrent states."""
        return tuple(state.name for state in self.description.states)

    def reset(self) -> None:
        """Gives all states their initial values."""
        self._handle.alone(lambda: self._handle.library.reset(self._handle.address))

    def save_state(self) -> dict[str, Array]:
        """Copies of all states, as numpy arrays; bfloat16 as its bits in uint16."""
        saved = {state.name: empty_array(state.dtype, state.shape) for state in self.description.states}

        def read() -> dict[str, Array]:
            for name, array in saved.items():
                self._handle.library.read_state(self._handle.address, name, array.ctypes.data, array.nbytes)
            return saved

        return self._handle.alone(read)

    def load_state(self, values: Mapping[str, Any]) -> None:
        """Sets all states from what `save_state` returned. Everything is checked before anything is written."""
        where = f"{self._handle.where}: load_state"
        if not isinstance(values, Mapping):
            raise LaunchError(f"{where}: pass a dict of arrays by name, not a {type(values).__name__}")
        for name in values:
            if name not in self.states:
                known = ", ".join(self.states) or "no states"
                raise LaunchError(f"{where}: there is no state {name!r}{nearest(name, self.states)}; there are {known}")
        for name in self.states:
            if name not in values:
                raise LaunchError(f"{where}: the state {name!r} is missing; save_state() returns all")
        placed = {state.name: place_state(state, values[state.name], where) for state in self.description.states}

        def write() -> None:
            for name, array in placed.items():
                self._handle.library.write_state(self._handle.address, name, array.address, array.size)

        self._handle.alone(write)

    def copy_state(self, source: ModelContext) -> None:
        """Sets all states to those of another context of the same package."""
        if not isinstance(source, ModelContext):
            raise LaunchError(f"{self._handle.where}: copy_state takes a context, not a {type(source).__name__}")
        if source is self:
            return
        to, origin = self._handle, source._handle
        origin.alone(lambda: to.alone(lambda: to.library.copy_states(to.address, origin.address)))

    # -- life --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Frees the context. Refused while a call runs or was submitted."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        raise _not_pickled(self._handle.where, "context")

    def __repr__(self) -> str:
        entries = ", ".join(self._entries)
        state = ", closed" if self._handle.is_closed else ""
        return f"<{type(self).__name__} {self.description.name!r}: {entries}{state}>"
