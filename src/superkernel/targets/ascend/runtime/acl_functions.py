"""targets.ascend.runtime.acl_functions: the functions, types and codes of AscendCL that a launch uses, as data.

Names, parameters and values are those of the public AscendCL reference; each entry names its page there.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int32, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

# of a page, where its edition and name stand for {}; the English edition has the same pages
DOCUMENT = "https://www.hiascend.com/document/detail/zh/{}/{}.html"
_V700 = "canncommercial/700/inferapplicationdev/aclcppdevg"
_V800, _V850 = "canncommercial/800/apiref/appdevgapi", "canncommercial/850/API/appdevgapi"
_DK = "Atlas200IDKA2DeveloperKit/23.0.RC2/Application%20Development%20Guide/aadgc"


class AclCode(IntEnum):
    """Return codes that a launch tells apart: page aclcppdevg_03_6666, aclError."""

    SUCCESS = 0
    REPEAT_INITIALIZE = 100002  # another part of the process has called aclInit
    STREAM_SYNC_TIMEOUT = 507046


class CopyKind(IntEnum):
    """aclrtMemcpyKind."""

    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2


MALLOC_HUGE_FIRST = 0  # aclrtMemMallocPolicy: page aclcppdevg_03_1349
CMO_PREFETCH = 0  # aclrtCmoType: page aclcppdevg_03_1410
LAUNCH_ATTRIBUTE_SCHEDULE = 1  # aclrtLaunchKernelAttrId: page aclcppdevg_03_1813
SCHEDULE_BATCH = 1  # a launch starts when all cores that it needs are free: page aclcppdevg_03_1814


class TimeoutUs(ctypes.Structure):
    """aclrtTimeoutUs: page aclcppdevg_03_2127."""

    _fields_ = (("low", c_uint32), ("high", c_uint32))


class LaunchAttributeValue(ctypes.Union):
    """aclrtLaunchKernelAttrValue: page aclcppdevg_03_1814."""

    _fields_ = (
        ("schedule_mode", ctypes.c_uint8),
        ("timeout", c_uint16),
        ("timeout_us", TimeoutUs),
        ("reserved", c_uint32 * 4),
    )


class LaunchAttribute(ctypes.Structure):
    """aclrtLaunchKernelAttr: page aclcppdevg_03_1815."""

    _fields_ = (("id", c_int), ("value", LaunchAttributeValue))


class LaunchConfiguration(ctypes.Structure):
    """aclrtLaunchKernelCfg: page aclcppdevg_03_1816."""

    _fields_ = (("attributes", POINTER(LaunchAttribute)), ("count", c_size_t))


@dataclass(frozen=True)
class AclFunction:
    """A function of the library. `optional`: older versions lack it, and a launch does without."""

    name: str
    arguments: tuple[Any, ...]
    edition: str
    page: str
    result: Any = c_int  # aclError
    optional: bool = False

    @property
    def document(self) -> str:
        return DOCUMENT.format(self.edition, self.page)


_HANDLE = POINTER(c_void_p)  # aclrtStream, aclrtContext, aclrtBinHandle, aclrtFuncHandle are pointers

FUNCTIONS = (
    # the process
    AclFunction("aclInit", (c_char_p,), _V850, "aclcppdevg_03_0021"),
    AclFunction("aclFinalize", (), _V800, "aclcppdevg_03_0023"),
    AclFunction("aclFinalizeReference", (POINTER(c_uint64),), _V850, "aclcppdevg_03_1974", optional=True),
    AclFunction("aclGetRecentErrMsg", (), _V850, "aclcppdevg_03_0133", result=c_char_p),
    # device and context
    AclFunction("aclrtGetDeviceCount", (POINTER(c_uint32),), _V800, "aclcppdevg_03_0045"),
    AclFunction("aclrtGetDevice", (POINTER(c_int32),), _V800, "aclcppdevg_03_0042"),
    AclFunction("aclrtSetDevice", (c_int32,), _V800, "aclcppdevg_03_0039"),
    AclFunction("aclrtResetDevice", (c_int32,), _V850, "aclcppdevg_03_0040"),
    AclFunction("aclrtSynchronizeDevice", (), _V700, "aclcppdevg_03_0038"),
    AclFunction("aclrtGetSocName", (), _V850, "aclcppdevg_03_0048", result=c_char_p),
    AclFunction("aclrtGetCurrentContext", (_HANDLE,), _V800, "aclcppdevg_03_0062"),
    AclFunction("aclrtSetCurrentContext", (c_void_p,), _DK, "aclcppdevg_03_0040"),
    # streams
    AclFunction("aclrtCreateStream", (_HANDLE,), _DK, "aclcppdevg_03_0053"),
    AclFunction("aclrtDestroyStream", (c_void_p,), _DK, "aclcppdevg_03_0058"),
    AclFunction("aclrtDestroyStreamForce", (c_void_p,), _V800, "aclcppdevg_03_0071"),
    AclFunction("aclrtStreamAbort", (c_void_p,), _V850, "aclcppdevg_03_1777"),
    AclFunction("aclrtSynchronizeStreamWithTimeout", (c_void_p, c_int32), _V800, "aclcppdevg_03_0077"),
    # memory
    AclFunction("aclrtMalloc", (_HANDLE, c_size_t, c_int), _V800, "aclcppdevg_03_0095"),
    AclFunction("aclrtFree", (c_void_p,), _V800, "aclcppdevg_03_0100"),
    AclFunction("aclrtMemcpy", (c_void_p, c_size_t, c_void_p, c_size_t, c_int), _V800, "aclcppdevg_03_0105"),
    AclFunction("aclrtCmoAsync", (c_void_p, c_size_t, c_int, c_void_p), _V800, "aclcppdevg_03_0123", optional=True),
    # kernels
    AclFunction("aclrtBinaryLoadFromFile", (c_char_p, c_void_p, _HANDLE), _V850, "aclcppdevg_03_1792"),
    AclFunction("aclrtBinaryUnLoad", (c_void_p,), _V800, "aclcppdevg_03_0149"),
    AclFunction("aclrtBinaryGetFunction", (c_void_p, c_char_p, _HANDLE), _V850, "aclcppdevg_03_0150"),
    AclFunction("aclrtGetHardwareSyncAddr", (_HANDLE,), _V850, "aclcppdevg_03_1999"),
    AclFunction(
        "aclrtLaunchKernelV2",
        (c_void_p, c_uint32, c_void_p, c_size_t, POINTER(LaunchConfiguration), c_void_p),
        _V850,
        "aclcppdevg_03_1960",
    ),
)


def batch_schedule() -> LaunchConfiguration:
    """Cores wait for each other inside the kernel: none may start before all of them can."""
    attribute = LaunchAttribute(LAUNCH_ATTRIBUTE_SCHEDULE, LaunchAttributeValue(schedule_mode=SCHEDULE_BATCH))
    return LaunchConfiguration(ctypes.pointer(attribute), 1)
