"""package.checked_calls: arguments of an entry -> checked one by one, one call of libsuperkernel, results."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import LaunchError, counted, nearest
from .array_values import PlacedArray, check_overlaps, count_writes, place_input, place_output, result_kind
from .library_functions import EntryDescription
from .opened_package import ContextHandle
from .return_structure import put_results
from .shape_choice import ChosenShape, choose_shape


class EntryCalls:
    """One entry in one context. The arrays of pointers belong to the thread that holds the lock of the context."""

    def __init__(self, context: ContextHandle, index: int, entry: EntryDescription) -> None:
        self.context = context
        self.entry = entry
        self.index = index
        # arguments of libsuperkernel that ctypes need not convert in every call
        self.handle = ctypes.byref(ctypes.c_char.from_address(context.address))
        self.where = f"{context.where}: entry {entry.name!r}"
        self.names = tuple(kind.name for kind in entry.shapes[0].inputs)
        self.input_addresses = (ctypes.c_void_p * len(self.names))()
        self.output_addresses = (ctypes.c_void_p * len(entry.shapes[0].outputs))()
        self.inputs, self.outputs = ctypes.byref(self.input_addresses), ctypes.byref(self.output_addresses)

    def call(self, arguments: Sequence[Any], named: Mapping[str, Any], out: Any, wait: bool = False) -> Any:
        """`wait`: until the context is free; otherwise a call at the same time is refused."""
        attempt, taken = self.context.wait if wait else self.context.attempt, False
        try:
            for taken in attempt():  # noqa: B007 (used in `finally`)
                return self.run(arguments, named, out)
        finally:
            if taken:
                self.context.lock.release()
        return self.context.refuse()

    def run(self, arguments: Sequence[Any], named: Mapping[str, Any], out: Any) -> Any:
        """For a thread that holds the lock."""
        values = in_order(self.names, arguments, named, self.where)
        inputs = [
            place_input(kind, value, self.where)
            for kind, value in zip(self.entry.shapes[0].inputs, values, strict=True)
        ]
        chosen = choose_shape(self.entry, [array.shape for array in inputs], self.where)
        if out is not None:
            given = self._given_outputs(out)
            outputs = [place_output(kind, value, self.where) for kind, value in zip(chosen.outputs, given, strict=True)]
            check_overlaps(outputs, inputs, self.where)
            count_writes(given)
            self._run_placed(chosen, inputs, outputs)
            return out
        results = result_kind(values)
        memory = [results.allocate(kind.dtype, kind.shape) for kind in chosen.outputs]
        outputs = [place_output(kind, value, self.where) for kind, value in zip(chosen.outputs, memory, strict=True)]
        self._run_placed(chosen, inputs, outputs)
        returned = memory if results.convert is None else [results.convert(array) for array in memory]
        return put_results(self.entry.returns, returned)

    def _run_placed(self, chosen: ChosenShape, inputs: Sequence[PlacedArray], outputs: Sequence[PlacedArray]) -> None:
        for index, array in enumerate(inputs):
            self.input_addresses[index] = array.address
        for index, array in enumerate(outputs):
            self.output_addresses[index] = array.address
        library, shape = self.context.library, chosen.index
        addresses = (self.inputs, self.outputs)
        if chosen.size is None:
            status = library.run_index(self.handle, self.index, shape, *addresses)
        else:
            status = library.run_bucket(self.handle, self.index, shape, ctypes.c_int64(chosen.size), *addresses)
        if status:
            raise self.context.failure(status)

    def _given_outputs(self, out: Any) -> Sequence[Any]:
        count = len(self.output_addresses)
        is_several = isinstance(out, list | tuple)
        if count == 1 and not is_several:
            return (out,)
        if not is_several or len(out) != count:
            found = f"{len(out)}" if is_several else f"a {type(out).__name__}"
            raise LaunchError(f"{self.where}: out= takes one array for each of the {count} outputs, not {found}")
        given: Sequence[Any] = out
        return given


def in_order(names: Sequence[str], arguments: Sequence[Any], named: Mapping[str, Any], where: str) -> Sequence[Any]:
    """One value for each input; a LaunchError unless every input was passed once, by its place or its name."""
    takes = f"it takes {counted(len(names), 'input')} ({', '.join(names)})" if names else "it takes no inputs"
    if len(arguments) > len(names):
        passed = counted(len(arguments), "input was", "inputs were")
        raise LaunchError(f"{where}: {passed} passed; {takes}")
    values = dict(zip(names, arguments, strict=False))
    for name, value in named.items():
        if name not in names:
            raise LaunchError(f"{where} has no input {name!r}{nearest(name, names)}; {takes}")
        if name in values:
            raise LaunchError(f"{where}: input {name!r} was passed twice")
        values[name] = value
    missing = [name for name in names if name not in values]
    if missing:
        raise LaunchError(f"{where}: input {missing[0]!r} was not passed; {takes}")
    return [values[name] for name in names]
