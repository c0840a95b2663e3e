"""targets.cuda.runtime.rank_memory: memory of a GPU for the ranks on it: one process makes it, the others open it."""

from __future__ import annotations

from ctypes import byref, c_uint64
from dataclasses import dataclass

from ....errors import LaunchError
from ....plan.memory import spell_bytes
from .device import CudaDevice
from .driver_functions import IPC_LAZY_PEER_ACCESS, CuIpcMemHandle

# The driver hands whole pages of this size to another process, with what else of this process lies in them.
_PAGE = 2 << 20
_NOT_HERE = (
    "This system does not let two processes share memory of a GPU: they must see the same /dev and process ids (one "
    "container, or docker run --ipc=host --pid=host), and some sandboxes refuse it. sk.emulate_ranks works everywhere"
)


@dataclass
class RankMemory:
    """Memory of a device, of this process or of another one. The device is current where it is made and closed."""

    device: CudaDevice
    address: int
    opened: bool  # it belongs to another process

    @classmethod
    def make(cls, device: CudaDevice, nbytes: int, where: str) -> RankMemory:
        """Zeros: no rank has arrived anywhere."""
        size = -(-max(1, nbytes) // _PAGE) * _PAGE
        doing = f"{where}allocating {spell_bytes(size)} for windows"
        memory = cls(device, device.allocate(size, doing), False)
        try:
            device.zero(memory.address, nbytes, doing)
        except LaunchError:
            memory.close()
            raise
        return memory

    def handle(self, where: str) -> str:
        """What another process opens it by."""
        handle = CuIpcMemHandle()
        self._call(self.device, f"{where}sharing windows", "cuIpcGetMemHandle", byref(handle), self.address)
        return bytes(handle).hex()

    @classmethod
    def open(cls, device: CudaDevice, handle: str, where: str) -> RankMemory:
        address = c_uint64()
        given = CuIpcMemHandle.from_buffer_copy(bytes.fromhex(handle))
        doing = f"{where}opening the windows of another process"
        cls._call(device, doing, "cuIpcOpenMemHandle_v2", byref(address), given, IPC_LAZY_PEER_ACCESS)
        return cls(device, address.value, True)

    def close(self) -> None:
        """Nothing of this process uses it any more, and no other process has opened it."""
        if self.opened:
            self.device.driver.code("cuIpcCloseMemHandle", self.address)
        else:
            self.device.free(self.address)

    @staticmethod
    def _call(device: CudaDevice, doing: str, function: str, *arguments: object) -> None:
        if not device.driver.has(function):
            raise LaunchError(f"{doing}: the CUDA driver has no {function}. {_NOT_HERE}")
        if code := device.driver.code(function, *arguments):
            raise LaunchError(f"{device.driver.error(doing, function, code)}. {_NOT_HERE}")
