"""package.array_values: what a caller passes for an array -> its address, after checks; and arrays for results.

Taken are numpy arrays, torch tensors, anything with `__dlpack__` or the buffer protocol, and numbers where an array has
no dimensions.
"""

from __future__ import annotations

import ctypes
import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import LaunchError, shown
from ..targets.buffers import aligned_empty, is_tensor, torch_or_none
from .library_functions import DTYPES, ArrayType

Array = np.ndarray[Any, Any]
_BFLOAT16_BITS = "uint16"  # numpy has no bfloat16
_NUMPY_DTYPES = {dtype: np.dtype(_BFLOAT16_BITS if dtype == "bfloat16" else dtype) for dtype in DTYPES}
_HOST_DEVICES = (1, 3)  # of DLPack: the processor, and memory of the host that a GPU can read
ALIGNED_FROM = 1 << 16  # bytes; to align smaller arrays takes longer than it saves

# Where numpy keeps the address of an array's data: right behind the header of every Python object. Reading it takes an
# eighth of the time of `array.ctypes.data`.
DATA_OFFSET = object.__basicsize__
read_address = ctypes.c_size_t.from_address
_sample = np.empty(3, np.float32)
HAS_KNOWN_LAYOUT = read_address(id(_sample) + DATA_OFFSET).value == _sample.ctypes.data


@dataclass(frozen=True)
class PlacedArray:
    """An argument whose dtype and memory were checked. `memory` keeps it alive."""

    address: int
    shape: tuple[int, ...]
    size: int  # bytes
    memory: Any


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy dtype of arrays that hold elements of a model's dtype: the same, or one for their bits."""
    return _NUMPY_DTYPES[dtype]


def empty_array(dtype: str, shape: tuple[int, ...]) -> Array:
    kind = numpy_dtype(dtype)
    if math.prod(shape) * kind.itemsize < ALIGNED_FROM:
        return np.empty(shape, kind)
    return aligned_empty(shape, kind.name)


def empty_tensor(dtype: str, shape: tuple[int, ...]) -> Any:
    torch = torch_or_none()
    array = empty_array(dtype, shape)  # from_numpy takes half of the time of torch.empty, and no default device
    if dtype == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def place_input(expected: ArrayType, value: Any, where: str) -> PlacedArray:
    """The address of an input; a LaunchError unless dtype, device and layout fit. Its shape is not checked here."""
    where = f"{where}: input {shown(expected.name)}"
    if is_tensor(value):
        return _place_tensor(expected, value, where)
    if not expected.shape and not isinstance(value, np.ndarray) and isinstance(value, numbers.Number | np.generic):
        return place_number(expected, value, where)
    return _place_array(expected, _as_array(value, where), where)


def place_output(expected: ArrayType, value: Any, where: str) -> PlacedArray:
    """The address of an array of `out=`, which must be writable and have the shape of the output."""
    where = f"{where}: output {shown(expected.name)}"
    if is_tensor(value):
        placed = _place_tensor(expected, value, where, is_output=True)
        if value.requires_grad and torch_or_none().is_grad_enabled():
            raise LaunchError(f"{where} requires grad, and autograd would not know that it is written: pass .detach()")
    else:
        array = _as_array(value, where)
        placed = _place_array(expected, array, where, is_output=True)
        if not array.flags.writeable:
            raise LaunchError(f"{where} is read-only; pass an array that can be written")
    if placed.shape != expected.shape:
        raise LaunchError(f"{where} has shape {list(placed.shape)}, the call gives {list(expected.shape)}")
    return placed


def place_state(expected: ArrayType, value: Any, where: str) -> PlacedArray:
    """The address of a value for a state, which must have its dtype and shape."""
    where = f"{where}: state {shown(expected.name)}"
    if is_tensor(value):
        placed = _place_tensor(expected, value, where)
    else:
        placed = _place_array(expected, _as_array(value, where), where)
    if placed.shape != expected.shape:
        raise LaunchError(f"{where} has shape {list(placed.shape)}, the model keeps {list(expected.shape)}")
    return placed


def _remedy(copy: str, is_output: bool) -> str:
    """What to pass; where a copy of an output was passed, the caller's own array would not be written."""
    return "pass another one, and copy from it after the call" if is_output else f"pass {copy}"


def _place_tensor(expected: ArrayType, tensor: Any, where: str, is_output: bool = False) -> PlacedArray:
    if not tensor.is_cpu:
        remedy = _remedy(".cpu()", is_output)
        raise LaunchError(f"{where} is on device {tensor.device}, the model runs on the cpu: {remedy}")
    if tensor.is_nested or str(tensor.layout) != "torch.strided":
        kind = "is nested" if tensor.is_nested else f"has layout {tensor.layout}"
        raise LaunchError(f"{where} {kind}; a dense tensor is needed")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype != expected.dtype:
        remedy = _remedy(f".to({expected.dtype})", is_output)
        verb = "gives" if is_output else "takes"
        raise LaunchError(f"{where} has dtype {dtype}, the model {verb} {expected.dtype}: {remedy}")
    if not tensor.is_contiguous():
        raise LaunchError(f"{where} is not contiguous; {_remedy('.contiguous()', is_output)}")
    if tensor.is_conj() or tensor.is_neg():
        remedy = _remedy(".resolve_conj().resolve_neg()", is_output)
        raise LaunchError(f"{where} is a lazy conjugate or negation; {remedy}")
    try:
        address = int(tensor.data_ptr())
    except RuntimeError as reason:  # a stand-in, as inside torch.func.vmap
        raise LaunchError(f"{where} has no memory of its own: {reason}") from reason
    if tensor.nbytes and not address:
        raise LaunchError(f"{where} has no memory: it is a fake tensor, or its storage was freed")
    if address % tensor.itemsize:
        remedy = _remedy(".clone()", is_output)
        raise LaunchError(f"{where} does not begin at a multiple of its item size; {remedy}")
    return PlacedArray(address, tuple(tensor.shape), tensor.nbytes, tensor)


def place_number(expected: ArrayType, value: Any, where: str) -> PlacedArray:
    """A number as the array of an input without dimensions; a LaunchError if its dtype cannot hold it."""
    if expected.dtype == "bfloat16":
        raise LaunchError(f"{where} is bfloat16, which numpy does not have: pass a tensor, or its bits as uint16")
    try:
        with np.errstate(over="ignore"):
            if isinstance(value, numbers.Integral):  # fits where it keeps its value, whatever its own dtype
                array = np.array(int(value), expected.dtype)
                fits = int(array) == int(value)
            else:
                array = np.asarray(value).astype(expected.dtype, casting="same_kind")
                fits = bool(np.isfinite(array) or not np.isfinite(value))
    except (TypeError, OverflowError) as reason:
        raise LaunchError(f"{where}: {shown(value)} is no {expected.dtype}") from reason
    if not fits:
        raise LaunchError(f"{where}: {shown(value)} is no {expected.dtype}")
    return PlacedArray(array.ctypes.data, (), array.nbytes, array)


def _as_array(value: Any, where: str) -> Array:
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        try:
            device = getattr(value, "__dlpack_device__", lambda: (_HOST_DEVICES[0], 0))()
            if device[0] not in _HOST_DEVICES:
                raise LaunchError(
                    f"{where} is on device type {int(device[0])} of DLPack, the model runs on the cpu: "
                    "copy it to the host"
                )
            return np.from_dlpack(value)
        except (AttributeError, BufferError, LookupError, OSError, RuntimeError, TypeError, ValueError) as reason:
            raise LaunchError(f"{where} cannot be taken by DLPack: {reason}") from reason
    try:
        return np.asarray(memoryview(value))
    except (BufferError, NotImplementedError, TypeError, ValueError) as reason:
        raise LaunchError(
            f"{where} is a {type(value).__name__}; pass a numpy array, a torch tensor, or an object with __dlpack__ or "
            "the buffer protocol"
        ) from reason


def _place_array(expected: ArrayType, array: Array, where: str, is_output: bool = False) -> PlacedArray:
    accepted = (expected.dtype, _BFLOAT16_BITS) if expected.dtype == "bfloat16" else (expected.dtype,)
    if array.dtype is not numpy_dtype(expected.dtype) and array.dtype.name not in accepted:
        bits = " (its bits as uint16)" if expected.dtype == "bfloat16" else ""
        verb = "gives" if is_output else "takes"
        raise LaunchError(f"{where} has dtype {array.dtype}, the model {verb} {expected.dtype}{bits}")
    if not array.dtype.isnative:
        raise LaunchError(f"{where} has dtype {array.dtype}, whose byte order is not this machine's")
    if not array.flags.c_contiguous:
        raise LaunchError(f"{where} is not contiguous; {_remedy('numpy.ascontiguousarray(...)', is_output)}")
    if not array.flags.aligned:
        remedy = _remedy("a copy of it", is_output)
        raise LaunchError(f"{where} does not begin at a multiple of its item size; {remedy}")
    return PlacedArray(array.__array_interface__["data"][0], array.shape, array.nbytes, array)


def check_overlaps(outputs: Sequence[PlacedArray], inputs: Sequence[PlacedArray], where: str) -> None:
    """A LaunchError if an output shares memory with another output or with an input."""
    for index, output in enumerate(outputs):
        for kind, others in (("output", outputs[:index]), ("input", inputs)):
            for number, other in enumerate(others):
                if output.address < other.address + other.size and other.address < output.address + output.size:
                    raise LaunchError(
                        f"{where}: output {index} and {kind} {number} overlap in memory; pass an array of its own"
                    )


def count_writes(outputs: Sequence[Any]) -> None:
    """Autograd counts versions of tensors, and refuses to use one that was written after it had been saved."""
    tensors = [value for value in outputs if is_tensor(value)]
    if tensors:
        torch_or_none().autograd.graph.increment_version(tensors)


@dataclass(frozen=True)
class ResultKind:
    """How results are allocated before a call, and what the caller gets for them after it."""

    allocate: Callable[[str, tuple[int, ...]], Any]  # from dtype and shape: an array or a tensor
    convert: Callable[[Any], Any] | None = None


def result_kind(inputs: Sequence[Any]) -> ResultKind:
    """Tensors if one of the inputs is a tensor; arrays of the library of an input with the array API; numpy arrays."""
    if any(map(is_tensor, inputs)):
        return ResultKind(empty_tensor)
    for value in inputs:
        if not isinstance(value, np.ndarray | np.generic) and hasattr(value, "__array_namespace__"):
            return ResultKind(empty_array, value.__array_namespace__().from_dlpack)
    return ResultKind(empty_array)
