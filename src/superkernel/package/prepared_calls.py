"""package.prepared_calls: an entry -> functions that check arguments of certain sizes in little time.

Numpy arrays in their order, and in `out=`, are checked by a builtin function of `native_calls`. For tensors, and where
there is no builtin function, functions are written for the number of inputs and outputs, without loops, as dataclasses
write `__init__`: a call costs about two microseconds beside the model. Arguments that do not fit at first sight, such
as a read-only array, an object with `__dlpack__` or an argument by name, are checked by `checked_calls`, which also
says what is wrong.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..targets.buffers import is_tensor, torch_or_none
from .array_values import (
    ALIGNED_FROM,
    DATA_OFFSET,
    HAS_KNOWN_LAYOUT,
    empty_array,
    numpy_dtype,
    read_address,
)
from .checked_calls import EntryCalls
from .library_functions import ArrayType, EntryShape
from .native_calls import native_call
from .return_structure import expression
from .shape_choice import choose_shape

Call = Callable[..., Any]
_NOT_PASSED: Any = object()
_MOST_SIZES = 64  # of an entry with buckets, for which functions are kept
_MOST_ARRAYS = 32  # inputs and outputs; with more of them the model takes longer than their checks


@dataclass(frozen=True)
class _ArrayLibrary:
    """How generated functions take arrays of numpy or of torch; {0} is an argument, {1} its number."""

    array_type: type[Any]
    dtype: Callable[[str], Any]
    size: Callable[[tuple[int, ...]], Any]
    fits: str  # what must hold beside type, dtype and size
    fits_as_output: str
    address: str
    result: str  # what is returned for the numpy array of a result
    before_writing: str  # a statement; {0} are the outputs
    names: Mapping[str, Any]


@dataclass(frozen=True)
class _SizedShape:
    """The sizes of a call, and which code runs for them."""

    index: int  # among the shapes of the entry
    shape: EntryShape
    size: int | None = None  # of the bucket's dimension; None: there is no bucket, or it is full


def prepare_call(calls: EntryCalls) -> Call:
    """The function behind `model.entry(...)`."""
    first = calls.entry.shapes[0]
    array_count = len(first.inputs) + len(first.outputs)
    if not first.inputs or not first.outputs or array_count > _MOST_ARRAYS or not HAS_KNOWN_LAYOUT:
        return lambda *arguments, out=None, **named: calls.call(arguments, named, out)
    if len(calls.entry.shapes) == 1 and first.bucket is None:
        return _call_for_sizes(calls, _SizedShape(0, first))
    return _call_by_sizes(calls)


def _call_by_sizes(calls: EntryCalls) -> Call:
    """For an entry with several shapes or a bucket: the function for some sizes is generated after their first call."""
    by_sizes: dict[tuple[Any, ...], Call] = {}

    def call(*arguments: Any, out: Any = None, **named: Any) -> Any:
        try:
            sizes = tuple([value.shape for value in arguments])
            call_for_sizes = by_sizes.get(sizes)
        except (AttributeError, TypeError, RuntimeError):  # no array, a shape that is no tuple, a nested tensor
            return calls.call(arguments, named, out)
        if call_for_sizes is not None:
            if out is None and not named:
                return call_for_sizes(*arguments)
            return call_for_sizes(*arguments, out=out, **named)
        returned = calls.call(arguments, named, out)
        if not named and len(by_sizes) < _MOST_SIZES and all(map(_is_array, arguments)):
            by_sizes[sizes] = _call_for_sizes(calls, _sized_shape(calls, sizes))
        return returned

    return call


def _is_array(value: Any) -> bool:
    """Other objects may have a `shape` that is not that of their memory, and functions for sizes take none of them."""
    return type(value) is np.ndarray or is_tensor(value)


def _sized_shape(calls: EntryCalls, sizes: Sequence[tuple[int, ...]]) -> _SizedShape:
    """For the sizes of a call that was accepted."""
    plain = [tuple(size) for size in sizes]
    chosen = choose_shape(calls.entry, plain, calls.where)
    inputs = calls.entry.shapes[chosen.index].inputs
    sized = tuple(replace(kind, shape=size) for kind, size in zip(inputs, plain, strict=True))
    return _SizedShape(chosen.index, EntryShape(sized, chosen.outputs), chosen.size)


def _call_for_sizes(calls: EntryCalls, sized: _SizedShape) -> Call:
    """The function for numpy arrays; the one for tensors is generated when the first tensor is passed."""
    written: list[Call] = []

    def call(*values: Any, **named: Any) -> Any:
        if written:
            return written[0](*values, **named)
        torch = torch_or_none()
        if torch is not None and isinstance(values[0], torch.Tensor):
            written.append(_written_call(calls, sized, _torch(torch, sized.shape), checked_call)["call"])
        return checked_call(*values, **named)

    def checked_call(*values: Any, out: Any = None, **named: Any) -> Any:
        return calls.call([value for value in values if value is not _NOT_PASSED], named, out)

    functions = _written_call(calls, sized, _NUMPY, call)
    allocations = [_allocation(kind) if _size_of(kind) >= ALIGNED_FROM else None for kind in sized.shape.outputs]
    native = native_call(
        calls.context, calls.index, sized.index, sized.shape, sized.size, calls.entry.returns, allocations,
        functions["put"], functions["call"],
    )  # fmt: skip
    return functions["call"] if native is None else native


_NUMPY = _ArrayLibrary(
    np.ndarray,
    numpy_dtype,
    tuple,
    fits="{0}.flags.carray",  # contiguous, aligned and writable
    fits_as_output="{0}.flags.carray",
    address="read_address(id({0}) + data_offset).value",
    result="{0}",
    before_writing="pass",
    names={},
)


def _torch(torch: Any, shape: EntryShape) -> _ArrayLibrary:
    fits = "{0}.is_cpu and {0}.is_contiguous() and not {0}.is_neg() and {0}.data_ptr()"
    return _ArrayLibrary(
        torch.Tensor,
        lambda dtype: getattr(torch, dtype),
        torch.Size,
        fits=fits,
        fits_as_output=f"{fits} and not {{0}}.requires_grad",
        address="{0}.data_ptr()",
        result="tensor{1}({0})",
        before_writing="count_writes({0})",
        names={
            "count_writes": torch.autograd.graph.increment_version,
            **{f"tensor{index}": _to_tensor(torch, kind.dtype) for index, kind in enumerate(shape.outputs)},
        },
    )


def _to_tensor(torch: Any, dtype: str) -> Callable[[Any], Any]:
    from_numpy: Callable[[Any], Any] = torch.from_numpy  # takes half of the time of torch.empty
    if dtype != "bfloat16":
        return from_numpy
    return lambda bits: from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def _written_call(calls: EntryCalls, sized: _SizedShape, arrays: _ArrayLibrary, other_call: Call) -> Mapping[str, Call]:
    """`call`, and `put`, which puts results into what is returned; `other_call` takes arguments that do not fit."""
    context, shape = calls.context, sized.shape
    names: dict[str, Any] = {
        "not_passed": _NOT_PASSED,
        "array_type": arrays.array_type,
        "other_call": other_call,
        "attempt": context.attempt,
        "refuse": context.refuse,
        "release": context.lock.release,
        "run": context.library.run_index if sized.size is None else context.library.run_bucket,
        "failure": context.failure,
        "context": calls.handle,
        "entry": calls.index,
        "shape": sized.index,
        "size": ctypes.c_int64(sized.size or 0),
        "input_pointers": calls.inputs,
        "output_pointers": calls.outputs,
        "inputs": calls.input_addresses,
        "outputs": calls.output_addresses,
        "read_address": read_address,
        "data_offset": DATA_OFFSET,
        **{
            f"result{index}_{part}": value
            for index, kind in enumerate(shape.outputs)
            for part, value in zip(("allocate", "first", "second"), _allocation(kind), strict=True)
        },
        **{f"source{index}_bytes": _size_of(kind) for index, kind in enumerate(shape.inputs)},
        **{f"target{index}_bytes": _size_of(kind) for index, kind in enumerate(shape.outputs)},
        **arrays.names,
    }
    for prefix, kinds in (("value", shape.inputs), ("result", shape.outputs)):
        for index, kind in enumerate(kinds):
            names[f"{prefix}{index}_dtype"] = arrays.dtype(kind.dtype)
            names[f"{prefix}{index}_size"] = arrays.size(kind.shape)
    results = [arrays.result.format(f"result{index}", index) for index in range(len(shape.outputs))]
    returned = expression(calls.entry.returns, results, names)
    exec(compile(_call_source(sized, arrays, returned), f"<call of entry {calls.entry.name!r}>", "exec"), names)
    return {name: names[name] for name in ("call", "put")}


def _call_source(sized: _SizedShape, arrays: _ArrayLibrary, returned: str) -> str:
    """`call` allocates the results and returns them, `call_into` writes into the arrays of `out`."""
    shape = sized.shape
    values = [f"value{index}" for index in range(len(shape.inputs))]
    results = [f"result{index}" for index in range(len(shape.outputs))]
    sources = [f"source{index}" for index in range(len(values))]  # addresses
    targets = [f"target{index}" for index in range(len(results))]
    listed = ", ".join(values)
    value_addresses = [arrays.address.format(value) for value in values]
    lines = [
        f"def call({', '.join(f'{value}=not_passed' for value in values)}, /, *more, out=None, **named):",
        "    try:",
        f"        fits = not more and not named and {_fits(values, arrays.fits)}",
        "    except RuntimeError:  # a tensor without memory of its own",
        "        fits = False",
        "    if not fits:",
        f"        return other_call({listed}, *more, out=out, **named)",
        "    if out is not None:",
        f"        return call_into(out, {listed})",
        *(f"    {result} = {result}_allocate({result}_first, {result}_second)" for result in results),
        *_run_lines(sized, value_addresses, [_NUMPY.address.format(result) for result in results]),
        f"    return {returned}",
        "",
        f"def call_into(out, {listed}):",
        "    given = out if isinstance(out, (list, tuple)) else (out,)",
        f"    if len(given) != {len(results)}:",
        f"        return other_call({listed}, out=out)",
        f"    {''.join(f'{result}, ' for result in results)} = given",
        "    try:",
        f"        fits = {_fits(results, arrays.fits_as_output)}",
        "    except RuntimeError:",
        "        fits = False",
        "    if not fits:",
        f"        return other_call({listed}, out=out)",
        *(f"    {source} = {address}" for source, address in zip(sources, value_addresses, strict=True)),
        *(f"    {target} = {arrays.address.format(result)}" for target, result in zip(targets, results, strict=True)),
        f"    if {_overlaps(sources, targets)}:",
        f"        return other_call({listed}, out=out)",
        f"    {arrays.before_writing.format('given')}",
        *_run_lines(sized, sources, targets),
        "    return out",
        "",
        f"def put({', '.join(results)}):",
        f"    return {returned}",
    ]
    return "\n".join(lines)


def _run_lines(sized: _SizedShape, input_addresses: Sequence[str], output_addresses: Sequence[str]) -> list[str]:
    """The call of libsuperkernel; the arrays of addresses belong to the thread that holds the lock."""
    which = "context, entry, shape" if sized.size is None else "context, entry, shape, size"
    return [
        "    taken = False",
        "    try:",
        "        for taken in attempt():",
        *(f"            inputs[{index}] = {address}" for index, address in enumerate(input_addresses)),
        *(f"            outputs[{index}] = {address}" for index, address in enumerate(output_addresses)),
        f"            status = run({which}, input_pointers, output_pointers)",
        "            break",
        "        else:",
        "            refuse()",
        "    finally:",
        "        if taken:",
        "            release()",
        "    if status:",
        "        raise failure(status)",
    ]


def _fits(names: Sequence[str], condition: str) -> str:
    conditions = [f"type({name}) is array_type" for name in names]
    conditions += [
        f"{name}.dtype is {name}_dtype and {name}.shape == {name}_size and {condition.format(name)}" for name in names
    ]
    return "(" + "\n        and ".join(conditions) + ")"


def _overlaps(input_names: Sequence[str], output_names: Sequence[str]) -> str:
    """Whether an output lies in the memory of an input or of another output, by their addresses."""
    pairs = [
        (first, second) for index, first in enumerate(output_names) for second in (*input_names, *output_names[:index])
    ]
    return " or ".join(f"({a} < {b} + {b}_bytes and {b} < {a} + {a}_bytes)" for a, b in pairs)


def _size_of(kind: ArrayType) -> int:
    return math.prod(kind.shape) * numpy_dtype(kind.dtype).itemsize


def _allocation(kind: ArrayType) -> tuple[Call, Any, Any]:
    """A function and its two arguments, which return a numpy array for a result."""
    if _size_of(kind) < ALIGNED_FROM:
        return np.empty, kind.shape, numpy_dtype(kind.dtype)
    return empty_array, kind.dtype, kind.shape
