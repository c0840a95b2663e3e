"""The functions of the CUDA driver that benchmarks/gpu_processes.py calls, with ctypes alone; every call is checked."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, byref, c_char, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any


class Handle64(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = (("reserved", c_char * 64),)


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", c_int), ("id", c_int))


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("security", c_void_p),
        ("flags", c_char * 8),
    )


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", c_int))


PINNED, POSIX_DESCRIPTOR, ON_DEVICE, READ_WRITE = 1, 1, 1, 3
PORTABLE_MAPPED = 1 | 2
LAZY_PEER_ACCESS = 1
NON_BLOCKING = 1
SM_COUNT = 16

SIGNATURES: Mapping[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuGetErrorName": (c_int, POINTER(ctypes.c_char_p)),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuModuleLoadData": (POINTER(c_void_p), c_void_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, ctypes.c_char_p),
    "cuLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p),
    "cuLaunchCooperativeKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamQuery": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuMemsetD8Async": (c_uint64, ctypes.c_ubyte, c_size_t, c_void_p),
    "cuMemHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cuMemHostGetDevicePointer_v2": (POINTER(c_uint64), c_void_p, c_uint),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
    "cuIpcGetMemHandle": (POINTER(Handle64), c_uint64),
    "cuIpcOpenMemHandle_v2": (POINTER(c_uint64), Handle64, c_uint),
    "cuMemCreate": (POINTER(c_uint64), c_size_t, POINTER(AllocationProperties), c_uint64),
    "cuMemExportToShareableHandle": (POINTER(c_int), c_uint64, c_int, c_uint64),
    "cuMemImportFromShareableHandle": (POINTER(c_uint64), c_void_p, c_int),
    "cuMemAddressReserve": (POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemSetAccess": (c_uint64, c_size_t, POINTER(Access), c_size_t),
}


class DriverError(Exception):
    """A function of the driver did not return 0."""


class Driver:
    """libcuda.so.1; every call is checked."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        for name, arguments in SIGNATURES.items():
            getattr(self._library, name).argtypes = arguments

    def code(self, name: str, *arguments: Any) -> int:
        return int(getattr(self._library, name)(*arguments))

    def __call__(self, name: str, *arguments: Any) -> None:
        if code := self.code(name, *arguments):
            text = ctypes.c_char_p()
            self.code("cuGetErrorName", code, byref(text))
            raise DriverError(f"{name} returned {code} {(text.value or b'?').decode()}")

    def made(self, kind: Any, name: str, *arguments: Any) -> Any:
        """What a function gives back through its first parameter."""
        found = kind()
        self(name, byref(found), *arguments)
        return found.value
