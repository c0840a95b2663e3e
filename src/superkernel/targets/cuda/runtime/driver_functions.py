"""targets.cuda.runtime.driver_functions: the functions, structures and codes of the CUDA driver API in use, as data."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_char, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class CuCode(IntEnum):
    """Results (CUresult) that the run time tells apart."""

    SUCCESS = 0
    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    NOT_INITIALIZED = 3
    DEINITIALIZED = 4
    STUB_LIBRARY = 34
    NO_DEVICE = 100
    INVALID_IMAGE = 200
    INVALID_CONTEXT = 201
    NO_BINARY_FOR_GPU = 209
    ECC_UNCORRECTABLE = 214
    UNSUPPORTED_PTX_VERSION = 222
    INVALID_HANDLE = 400
    NOT_FOUND = 500
    NOT_READY = 600
    ILLEGAL_ADDRESS = 700
    LAUNCH_TIMEOUT = 702
    ASSERT = 710
    HOST_MEMORY_ALREADY_REGISTERED = 712
    HARDWARE_STACK_ERROR = 714
    ILLEGAL_INSTRUCTION = 715
    MISALIGNED_ADDRESS = 716
    INVALID_ADDRESS_SPACE = 717
    INVALID_PC = 718
    LAUNCH_FAILED = 719
    COOPERATIVE_LAUNCH_TOO_LARGE = 720
    SYSTEM_DRIVER_MISMATCH = 803
    STREAM_CAPTURE_UNSUPPORTED = 900
    STREAM_CAPTURE_INVALIDATED = 901
    STREAM_CAPTURE_IMPLICIT = 906


# After these the context answers every call with the same code: all that the process has on the device is lost.
STICKY = frozenset(
    (
        CuCode.ECC_UNCORRECTABLE,
        CuCode.ILLEGAL_ADDRESS,
        CuCode.LAUNCH_TIMEOUT,
        CuCode.ASSERT,
        CuCode.HARDWARE_STACK_ERROR,
        CuCode.ILLEGAL_INSTRUCTION,
        CuCode.MISALIGNED_ADDRESS,
        CuCode.INVALID_ADDRESS_SPACE,
        CuCode.INVALID_PC,
        CuCode.LAUNCH_FAILED,
    )
)


class DeviceAttribute(IntEnum):
    """CUdevice_attribute."""

    MAX_THREADS_PER_BLOCK = 1
    CLOCK_RATE = 13  # kHz
    MULTIPROCESSOR_COUNT = 16
    L2_CACHE_SIZE = 38
    MAX_THREADS_PER_MULTIPROCESSOR = 39
    COMPUTE_CAPABILITY_MAJOR = 75
    COMPUTE_CAPABILITY_MINOR = 76
    MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81
    MAX_REGISTERS_PER_MULTIPROCESSOR = 82
    COOPERATIVE_LAUNCH = 95
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97
    CLUSTER_LAUNCH = 120
    MPS_ENABLED = 133


class FunctionAttribute(IntEnum):
    """CUfunction_attribute."""

    MAX_THREADS_PER_BLOCK = 0
    SHARED_SIZE_BYTES = 1
    LOCAL_SIZE_BYTES = 3
    NUM_REGS = 4
    MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
    NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14


class CaptureStatus(IntEnum):
    """CUstreamCaptureStatus."""

    NONE = 0
    ACTIVE = 1
    INVALIDATED = 2


CAPTURE_MODE_RELAXED = 2  # CUstreamCaptureMode
STREAM_NON_BLOCKING = 1
STREAM_LEGACY = 0  # the default stream of torch and of the driver; CU_STREAM_LEGACY is 1, a synonym
EVENT_DISABLE_TIMING = 2
HOST_PORTABLE_MAPPED = 1 | 2  # of cuMemHostAlloc and cuMemHostRegister
POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9
EXEC_AFFINITY_SM_COUNT = 0
DEV_RESOURCE_TYPE_SM = 1
LAUNCH_ATTRIBUTE_COOPERATIVE = 2
LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4
MOST_PORTABLE_CLUSTER = 8  # blocks; every GPU with clusters has them
IPC_LAZY_PEER_ACCESS = 1  # of cuIpcOpenMemHandle, which takes no other flag


class CuLaunchAttributeValue(ctypes.Union):
    """CUlaunchAttributeValue."""

    _fields_ = (("padding", c_char * 64), ("cooperative", c_int), ("cluster", c_uint * 3))


class CuLaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", c_int), ("padding", c_char * 4), ("value", CuLaunchAttributeValue))


class CuLaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(CuLaunchAttribute)),
        ("attribute_count", c_uint),
    )


class CuIpcMemHandle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = (("reserved", c_ubyte * 64),)


class ExecAffinity(ctypes.Structure):
    """CUexecAffinityParam."""

    _fields_ = (("type", c_int), ("sm_count", c_uint))


class DeviceResource(ctypes.Structure):
    """CUdevResource; later versions may be larger."""

    _fields_ = (("type", c_int), ("padding", c_ubyte * 92), ("sm_count", c_uint), ("room", c_ubyte * 412))


@dataclass(frozen=True)
class DriverFunction:
    """A function of the library. `optional`: older drivers lack it, and a launch does without."""

    name: str
    arguments: tuple[Any, ...]
    optional: bool = False


_OUT_INT, _OUT_UINT, _OUT_SIZE, _OUT_HANDLE = POINTER(c_int), POINTER(c_uint), POINTER(c_size_t), POINTER(c_void_p)
_ADDRESS = c_uint64  # CUdeviceptr
_OUT_ADDRESS = POINTER(c_uint64)

FUNCTIONS = (
    # the process
    DriverFunction("cuInit", (c_uint,)),
    DriverFunction("cuDriverGetVersion", (_OUT_INT,)),
    DriverFunction("cuGetErrorName", (c_int, POINTER(c_char_p))),
    DriverFunction("cuGetErrorString", (c_int, POINTER(c_char_p))),
    # devices
    DriverFunction("cuDeviceGetCount", (_OUT_INT,)),
    DriverFunction("cuDeviceGet", (_OUT_INT, c_int)),
    DriverFunction("cuDeviceGetName", (c_char_p, c_int, c_int)),
    DriverFunction("cuDeviceGetUuid_v2", (c_void_p, c_int)),
    DriverFunction("cuDeviceGetAttribute", (_OUT_INT, c_int, c_int)),
    DriverFunction("cuDeviceGetExecAffinitySupport", (_OUT_INT, c_int, c_int), optional=True),
    # contexts
    DriverFunction("cuDevicePrimaryCtxRetain", (_OUT_HANDLE, c_int)),
    DriverFunction("cuCtxGetCurrent", (_OUT_HANDLE,)),
    DriverFunction("cuCtxSetCurrent", (c_void_p,)),
    DriverFunction("cuCtxSynchronize", ()),
    DriverFunction("cuCtxGetExecAffinity", (POINTER(ExecAffinity), c_int), optional=True),
    DriverFunction("cuStreamGetGreenCtx", (c_void_p, _OUT_HANDLE), optional=True),
    DriverFunction("cuGreenCtxGetDevResource", (c_void_p, POINTER(DeviceResource), c_int), optional=True),
    # modules and functions
    DriverFunction("cuModuleLoadData", (_OUT_HANDLE, c_void_p)),
    DriverFunction("cuModuleUnload", (c_void_p,)),
    DriverFunction("cuModuleGetFunction", (_OUT_HANDLE, c_void_p, c_char_p)),
    DriverFunction("cuModuleGetGlobal_v2", (_OUT_ADDRESS, _OUT_SIZE, c_void_p, c_char_p)),
    DriverFunction("cuFuncGetAttribute", (_OUT_INT, c_int, c_void_p)),
    DriverFunction("cuFuncSetAttribute", (c_void_p, c_int, c_int)),
    DriverFunction("cuOccupancyMaxActiveBlocksPerMultiprocessor", (_OUT_INT, c_void_p, c_int, c_size_t)),
    DriverFunction("cuOccupancyMaxActiveClusters", (_OUT_INT, c_void_p, POINTER(CuLaunchConfig)), optional=True),
    DriverFunction("cuLaunchKernelEx", (POINTER(CuLaunchConfig), c_void_p, c_void_p, c_void_p)),
    # memory
    DriverFunction("cuMemAlloc_v2", (_OUT_ADDRESS, c_size_t)),
    DriverFunction("cuMemFree_v2", (_ADDRESS,)),
    DriverFunction("cuMemHostAlloc", (_OUT_HANDLE, c_size_t, c_uint)),
    DriverFunction("cuMemFreeHost", (c_void_p,)),
    DriverFunction("cuMemHostRegister_v2", (c_void_p, c_size_t, c_uint)),
    DriverFunction("cuMemHostGetDevicePointer_v2", (_OUT_ADDRESS, c_void_p, c_uint)),
    DriverFunction("cuMemcpyHtoDAsync_v2", (_ADDRESS, c_void_p, c_size_t, c_void_p)),
    DriverFunction("cuMemcpyDtoHAsync_v2", (c_void_p, _ADDRESS, c_size_t, c_void_p)),
    DriverFunction("cuPointerGetAttribute", (c_void_p, c_int, _ADDRESS)),
    # memory of another process
    DriverFunction("cuIpcGetMemHandle", (POINTER(CuIpcMemHandle), _ADDRESS), optional=True),
    DriverFunction("cuIpcOpenMemHandle_v2", (_OUT_ADDRESS, CuIpcMemHandle, c_uint), optional=True),
    DriverFunction("cuIpcCloseMemHandle", (_ADDRESS,), optional=True),
    # streams and events
    DriverFunction("cuStreamCreate", (_OUT_HANDLE, c_uint)),
    DriverFunction("cuStreamDestroy_v2", (c_void_p,)),
    DriverFunction("cuStreamQuery", (c_void_p,)),
    DriverFunction("cuStreamSynchronize", (c_void_p,)),
    DriverFunction("cuStreamWaitEvent", (c_void_p, c_void_p, c_uint)),
    DriverFunction("cuStreamIsCapturing", (c_void_p, _OUT_INT)),
    DriverFunction("cuThreadExchangeStreamCaptureMode", (_OUT_INT,)),
    DriverFunction("cuEventCreate", (_OUT_HANDLE, c_uint)),
    DriverFunction("cuEventRecord", (c_void_p, c_void_p)),
    DriverFunction("cuEventElapsedTime", (POINTER(c_float), c_void_p, c_void_p)),
    DriverFunction("cuEventDestroy_v2", (c_void_p,)),
)


def cooperative_attribute() -> CuLaunchAttribute:
    """Blocks wait for each other inside the kernel: none may start before all of them can."""
    return CuLaunchAttribute(LAUNCH_ATTRIBUTE_COOPERATIVE, b"", CuLaunchAttributeValue(cooperative=1))


def cluster_attribute(size: int) -> CuLaunchAttribute:
    """Blocks that follow each other form clusters of this size."""
    value = CuLaunchAttributeValue(cluster=(size, 1, 1))
    return CuLaunchAttribute(LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, b"", value)


def launch_config(
    blocks: int, threads: int, shared_bytes: int, stream: int, attributes: Sequence[CuLaunchAttribute]
) -> CuLaunchConfig:
    """A launch with attributes, which it keeps alive."""
    array = (CuLaunchAttribute * len(attributes))(*attributes)
    given = ctypes.cast(array, POINTER(CuLaunchAttribute))
    return CuLaunchConfig((blocks, 1, 1), (threads, 1, 1), shared_bytes, stream, given, len(attributes))
