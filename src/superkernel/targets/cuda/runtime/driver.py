"""targets.cuda.runtime.driver: libcuda.so.1 -> the driver API with typed functions; its results as sentences."""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_char_p, c_int, c_uint64, c_void_p
from functools import cache
from typing import Any

from ....errors import LaunchError
from .driver_functions import FUNCTIONS, STICKY, CuCode

LIBRARY = "libcuda.so.1"
LEAST_VERSION = 12000  # CUDA 12.0: cuLaunchKernelEx, cooperative launches as an attribute


def version_text(version: int) -> str:
    """12080 -> '12.8'."""
    return f"{version // 1000}.{version % 1000 // 10}"


class CudaDriver:
    """The driver API. A result other than 0 becomes a LaunchError with its name and the driver's text."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._calls = ctypes.CDLL(path)
        except OSError as reason:
            raise LaunchError(
                f"the CUDA driver cannot be loaded: {reason}. Install the NVIDIA driver; plans, builds and "
                "k.emulate(...) work without it"
            ) from reason
        missing = []
        for function in FUNCTIONS:
            try:
                loaded = getattr(self._calls, function.name)
            except AttributeError:
                if not function.optional:
                    missing.append(function.name)
                continue
            loaded.restype, loaded.argtypes = c_int, function.arguments
        self.version = self._version()
        if self.version < LEAST_VERSION or missing:
            lacks = f" and has no {', '.join(missing)}" if missing else ""
            raise LaunchError(
                f"the CUDA driver is too old: {path} is made for CUDA {version_text(self.version)}{lacks}; target cuda "
                f"needs CUDA {version_text(LEAST_VERSION)} or later (nvidia-smi shows the version)"
            )

    def _version(self) -> int:
        version = c_int()
        try:
            self._calls.cuDriverGetVersion(byref(version))
        except AttributeError:
            return 0
        return version.value

    def has(self, function: str) -> bool:
        return hasattr(self._calls, function)

    def code(self, function: str, *arguments: Any) -> int:
        """The result of a function, without a check."""
        returned: int = getattr(self._calls, function)(*arguments)
        return returned

    def unconverted(self, function: str, *, blocks: bool) -> Any:
        """The function without a check of its arguments. `blocks`: it may wait, so that other threads must run."""
        library = ctypes.CDLL(self.path) if blocks else ctypes.PyDLL(self.path)
        return getattr(library, function)

    def check(self, doing: str, function: str, *arguments: Any) -> None:
        """`doing` says in an error what failed."""
        if code := self.code(function, *arguments):
            raise self.error(doing, function, code)

    def handle(self, doing: str, function: str, *arguments: Any) -> int:
        """What a function gives back through a pointer, its first parameter."""
        found = c_void_p()
        self.check(doing, function, byref(found), *arguments)
        return found.value or 0

    def number(self, doing: str, function: str, *arguments: Any) -> int:
        """As `handle`, for an int."""
        found = c_int()
        self.check(doing, function, byref(found), *arguments)
        return found.value

    def address(self, doing: str, function: str, *arguments: Any) -> int:
        """As `handle`, for an address of the device."""
        found = c_uint64()
        self.check(doing, function, byref(found), *arguments)
        return found.value

    def error(self, doing: str, function: str, code: int) -> LaunchError:
        """The one place where a result becomes an error."""
        lost = ""
        if code in STICKY:
            lost = (
                ". The CUDA context is lost: every call of this process to the device fails from now on; start a new "
                "process. compute-sanitizer names the access"
            )
        return LaunchError(f"{doing}: {function} returned {self.code_text(code)}{lost}")

    def code_text(self, code: int) -> str:
        """'700 CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)'."""
        name, text = (self._text(function, code) for function in ("cuGetErrorName", "cuGetErrorString"))
        return f"{code} {name or 'unknown to this driver'}{f' ({text})' if text else ''}"

    def _text(self, function: str, code: int) -> str:
        found = c_char_p()
        if self.code(function, code, byref(found)) != CuCode.SUCCESS or not found.value:
            return ""
        return found.value.decode("utf-8", "replace")

    def device_count(self) -> int:
        """The devices that this process sees; a LaunchError says why there are none."""
        visible = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')}"
        code = self.code("cuInit", 0)
        if code == CuCode.NO_DEVICE:
            raise LaunchError(f"the CUDA driver sees no GPU ({visible}); `nvidia-smi` lists those of the machine")
        if code in (CuCode.STUB_LIBRARY, CuCode.SYSTEM_DRIVER_MISMATCH):
            raise LaunchError(
                f"{self.path} is not the library of the running driver: cuInit returned {self.code_text(code)}"
            )
        if code:
            raise self.error(f"starting the CUDA driver ({visible}; see nvidia-smi)", "cuInit", code)
        count = self.number("counting devices", "cuDeviceGetCount")
        if not count:
            raise LaunchError(f"the CUDA driver sees no GPU ({visible}); `nvidia-smi` lists those of the machine")
        return count


@cache
def load_driver(path: str) -> CudaDriver:
    return CudaDriver(path)


def find_driver() -> CudaDriver:
    """The driver of this machine with at least one device; a LaunchError says what is missing."""
    driver = load_driver(LIBRARY)
    driver.device_count()
    return driver


def why_no_driver() -> str:
    """Empty where kernels can be launched."""
    try:
        find_driver()
    except LaunchError as error:
        return str(error)
    return ""
