"""targets.ascend.runtime.device: the run time library -> one NPU of this process: context, memory, streams."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_int32, c_uint32, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ....errors import LaunchError
from .acl_functions import MALLOC_HUGE_FIRST, AclCode, CopyKind
from .acl_library import AclLibrary, load_acl

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"  # CANN's own variable: which devices a process sees


@dataclass(frozen=True)
class DeviceMemory:
    address: int
    bytes: int


class DeviceUser(Protocol):
    """Something that holds memory, streams or binaries of the device."""

    def close(self) -> None: ...


class AclDevice:
    """The device that this process has chosen already, else the first that it sees. Closed when the process ends."""

    def __init__(self, acl: AclLibrary) -> None:
        self.acl, self._process = acl, os.getpid()
        self._users: weakref.WeakSet[DeviceUser] = weakref.WeakSet()
        self._closed, self._finishing = False, threading.Lock()
        self._initialised = acl.initialise()
        try:
            self.number, self._chosen_here = self._choose()
            self.context = acl.handle("asking for the context", "aclrtGetCurrentContext")
        except LaunchError:
            if self._initialised:
                acl.finalise()
            raise
        atexit.register(self.close)

    def _choose(self) -> tuple[int, bool]:
        number, count = c_int32(), c_uint32()
        if self.acl.code("aclrtGetDevice", byref(number)) == AclCode.SUCCESS:
            return number.value, False
        self.acl.recent_text()  # no device has been chosen: that is no mistake
        self.acl.check(
            f"looking for an NPU (does `npu-smi info` list one? {_visible()})", "aclrtGetDeviceCount", byref(count)
        )
        if not count.value:
            raise LaunchError(
                f"no NPU is visible to this process ({_visible()}); `npu-smi info` lists those of the machine"
            )
        self.acl.check(f"taking NPU 0 of {count.value} ({_visible()})", "aclrtSetDevice", c_int32(0))
        return 0, True

    def add(self, user: DeviceUser) -> None:
        """It is closed before the device is."""
        self._users.add(user)

    def check_process(self, where: str) -> None:
        if self._closed:
            raise LaunchError(f"{where}the NPU was given back already")
        if os.getpid() != self._process:
            raise LaunchError(
                f"{where}launch in a forked process: the NPU was opened by its parent. Start the process with the "
                "'spawn' method, or fork before the first launch"
            )

    @contextmanager
    def current(self) -> Iterator[None]:
        """Inside, the calling thread uses this device; afterwards again the context that it had before."""
        before = c_void_p()
        if self.acl.code("aclrtGetCurrentContext", byref(before)) != AclCode.SUCCESS:
            self.acl.recent_text()
            before.value = None
        if before.value != self.context:
            self.acl.check("entering the context of the NPU", "aclrtSetCurrentContext", self.context)
        try:
            yield
        finally:
            if before.value not in (None, self.context):
                self.acl.code("aclrtSetCurrentContext", before)

    def finish_all(self, doing: str) -> None:
        """Wait for what others have started on this device, one thread at a time as the reference wants it."""
        with self._finishing:
            self.acl.check(doing, "aclrtSynchronizeDevice")

    # memory

    def allocate(self, size: int, doing: str) -> DeviceMemory:
        found = c_void_p()
        self.acl.check(doing, "aclrtMalloc", byref(found), size, MALLOC_HUGE_FIRST)
        return DeviceMemory(found.value or 0, size)

    def free(self, memory: DeviceMemory, stopped: bool = False) -> None:
        self._give_back(stopped, "freeing memory of the NPU", "aclrtFree", memory.address)

    def _give_back(self, stopped: bool, doing: str, function: str, handle: int) -> None:
        """After a launch that was stopped, a failure says nothing new."""
        if (code := self.acl.code(function, handle)) and not stopped:
            raise self.acl.error(doing, function, code)
        if code:
            self.acl.recent_text()

    def upload(self, memory: DeviceMemory, host: int, size: int, doing: str) -> None:
        self.acl.check(doing, "aclrtMemcpy", memory.address, memory.bytes, host, size, CopyKind.HOST_TO_DEVICE)

    def download(self, host: int, memory: DeviceMemory, size: int, doing: str) -> None:
        self.acl.check(doing, "aclrtMemcpy", host, size, memory.address, size, CopyKind.DEVICE_TO_HOST)

    def write_word(self, address: int, value: int, doing: str) -> None:
        word = ctypes.c_uint64(value)
        self.upload(DeviceMemory(address, 8), ctypes.addressof(word), 8, doing)

    # streams

    def create_stream(self, doing: str) -> int:
        return self.acl.handle(doing, "aclrtCreateStream")

    def destroy_stream(self, stream: int, stopped: bool) -> None:
        function = "aclrtDestroyStreamForce" if stopped else "aclrtDestroyStream"
        self._give_back(stopped, "closing a stream", function, stream)

    def close(self) -> None:
        """Give back everything: kernels first, then the device, then the library."""
        if self._closed or os.getpid() != self._process:
            return
        atexit.unregister(self.close)
        with self.current():
            for user in list(self._users):
                user.close()
        self._closed = True
        _devices.pop(self.acl.path, None)
        if self._chosen_here:
            self.acl.check("giving the NPU back", "aclrtResetDevice", c_int32(self.number))
        if self._initialised:
            self.acl.finalise()


def _visible() -> str:
    given = os.environ.get(VISIBLE)
    return f"{VISIBLE}={given}" if given is not None else f"{VISIBLE} is not set"


_lock = threading.Lock()
_devices: dict[Path, AclDevice] = {}  # one for each library; a process has one, tests have several


def open_device(library: Path) -> AclDevice:
    """Initialises the library at the first call."""
    with _lock:
        if library not in _devices:
            _devices[library] = AclDevice(load_acl(library))
        return _devices[library]
