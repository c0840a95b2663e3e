"""targets.cuda.runtime.device_arrays: arrays of other libraries (CuPy, Numba, JAX) -> where their memory is; our own.

An array tells by `__cuda_array_interface__` or by DLPack.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, py_object
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....errors import LaunchError
from ....model.params import DTYPES
from .device import CudaDevice
from .driver_functions import STREAM_LEGACY

_DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged
_DLPACK_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_INTERFACE_LEGACY = 1  # the default stream, in both protocols


@dataclass(frozen=True)
class DeviceArrayFacts:
    """What an array of another library says of itself."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    contiguous: bool
    read_only: bool = False
    device: int | None = None  # None: the address tells
    stream: int | None = None  # on which its content may still be computed; None: it is there

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("dtype", _DLDataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


def is_device_array(value: object) -> bool:
    """Whether a value is an array of another library that may lie on a GPU."""
    return hasattr(type(value), "__cuda_array_interface__") or hasattr(type(value), "__dlpack_device__")


def device_array_facts(value: Any, shown_name: str, where: str) -> DeviceArrayFacts:
    """A LaunchError where the array is not on a GPU."""
    if hasattr(type(value), "__cuda_array_interface__"):
        return _from_interface(value.__cuda_array_interface__, shown_name, where)
    kind, index = value.__dlpack_device__()
    if int(kind) not in _DLPACK_CUDA:
        raise LaunchError(
            f"{where}{shown_name} is a {type(value).__name__} that is not on a GPU; this kernel takes buffers there"
        )
    return _from_dlpack(value.__dlpack__(stream=_INTERFACE_LEGACY), int(index), shown_name, where)


def _from_interface(fields: Any, shown_name: str, where: str) -> DeviceArrayFacts:
    address, read_only = fields["data"]
    shape = tuple(int(extent) for extent in fields["shape"])
    try:
        dtype = np.dtype(fields["typestr"])
    except TypeError as reason:
        raise LaunchError(f"{where}{shown_name} has the type {fields['typestr']!r}: {reason}") from reason
    strides = fields.get("strides")
    contiguous = strides is None or _is_contiguous(shape, [stride // dtype.itemsize for stride in strides])
    stream = fields.get("stream")
    return DeviceArrayFacts(
        int(address or 0),
        shape,
        dtype.name,
        dtype.itemsize,
        contiguous,
        bool(read_only),
        stream=STREAM_LEGACY if stream == _INTERFACE_LEGACY else stream,
    )


def _from_dlpack(capsule: Any, index: int, shown_name: str, where: str) -> DeviceArrayFacts:
    """The producer has ordered its work before the default stream."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c_void_p, (py_object, c_char_p)
    tensor = _DLTensor.from_address(pointer(capsule, b"dltensor") or 0)
    kind, lanes = _DLPACK_KINDS.get(tensor.dtype.code), tensor.dtype.lanes
    name = "bool" if kind == "bool" else f"{kind}{tensor.dtype.bits}"
    if lanes != 1 or name not in DTYPES:
        raise LaunchError(f"{where}{shown_name} has a DLPack type ({kind}, {tensor.dtype.bits} bits) that no op takes")
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = [tensor.strides[axis] for axis in range(tensor.ndim)] if tensor.strides else None
    address = (tensor.data or 0) + tensor.byte_offset
    contiguous = strides is None or _is_contiguous(shape, strides)
    return DeviceArrayFacts(address, shape, name, DTYPES[name][0], contiguous, device=index, stream=STREAM_LEGACY)


def _is_contiguous(shape: tuple[int, ...], strides: list[int]) -> bool:
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


class CudaArray:
    """Memory of a GPU that a launch allocated where torch is not in use; other libraries take it as it is."""

    def __init__(self, device: CudaDevice, shape: tuple[int, ...], dtype: str, doing: str) -> None:
        self.device, self.shape, self.dtype = device, shape, dtype
        self.nbytes = math.prod(shape) * DTYPES[dtype][0]
        with device.current():
            self.address = device.take(self.nbytes, doing)
        self._finalizer = weakref.finalize(self, device.give, self.address, self.nbytes)
        self._finalizer.atexit = False  # the context goes with the process

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        kind = np.dtype(self.dtype if self.dtype in np.sctypeDict else f"V{DTYPES[self.dtype][0]}")
        return {"shape": self.shape, "typestr": kind.str, "data": (self.address, False), "version": 3, "stream": None}

    def write(self, array: np.ndarray[Any, Any]) -> None:
        """The bytes of an array of the same size."""
        assert array.nbytes == self.nbytes
        contiguous = np.ascontiguousarray(array)
        with self.device.current():
            self.device.upload(self.address, contiguous.ctypes.data, self.nbytes, "copying an array to the GPU")

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """A copy in host memory, when all launches so far have completed."""
        dtype = self.dtype if self.dtype in np.sctypeDict else f"u{DTYPES[self.dtype][0]}"
        copy = np.empty(self.shape, dtype)
        doing = f"copying an array of {self.device.name}"
        with self.device.current():
            self.device.finish(STREAM_LEGACY, doing)
            self.device.download(copy.ctypes.data, self.address, self.nbytes, doing)
        return copy
