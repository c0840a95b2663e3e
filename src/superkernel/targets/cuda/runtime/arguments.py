"""targets.cuda.runtime.arguments: buffers that a caller passes -> checked addresses on one GPU, or a LaunchError."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import byref, c_int
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ....errors import LaunchError, shown
from ....model.graph import Buffer
from ...buffers import check_size, is_tensor, tensor_facts, torch_or_none
from .device import open_device
from .device_arrays import CudaArray, DeviceArrayFacts, device_array_facts, is_device_array
from .driver import find_driver
from .driver_functions import POINTER_ATTRIBUTE_DEVICE_ORDINAL, STREAM_LEGACY

TORCH_DEVICE = "cuda"
ALIGNMENT = 16  # bytes: compilers of kernels assume it of every buffer, and load 16 bytes at once


@dataclass(frozen=True)
class CudaMemory:
    """The memory of a GPU: torch tensors there, arrays of other libraries. Nothing is copied from or to the host."""

    device: int | None = None  # None: whichever GPU the buffers of a launch lie on
    on_host: bool = False

    def place(self, buffer: Buffer, value: Any, where: str) -> tuple[int, int]:
        named = f"{where}{shown(buffer.name)}"
        if is_tensor(value):
            if value.device.type != TORCH_DEVICE:
                raise LaunchError(
                    f"{named} is on device {value.device}; this kernel takes tensors of {TORCH_DEVICE}: pass "
                    f"{buffer.name}.cuda()"
                )
            address, size, index = *tensor_facts(buffer, value, where), value.device.index
        elif isinstance(value, np.ndarray):
            raise LaunchError(
                f"{named} is a numpy array in the host's memory; this kernel runs on a GPU, and a launch copies "
                f"nothing: pass torch.from_numpy({buffer.name}).cuda()"
            )
        elif isinstance(value, CudaArray):
            self._check_dtype(buffer, value.dtype, named)
            check_size(buffer, value.shape, int(np.prod(value.shape)), where)
            address, size, index = value.address, value.nbytes, value.device.index
        elif is_device_array(value):
            facts = device_array_facts(value, shown(buffer.name), where)
            self._check_facts(buffer, facts, named, where)
            address, size = facts.address, facts.nbytes
            index = address_device(address) if facts.device is None else facts.device
        else:
            raise LaunchError(
                f"{named} is a {type(value).__name__}; pass a torch tensor on the GPU, or an array that has "
                "__cuda_array_interface__ or __dlpack__"
            )
        if self.device is not None and index != self.device:
            raise LaunchError(f"{named} is on cuda:{index}; the other buffers of this launch are on cuda:{self.device}")
        if address % ALIGNMENT:
            raise LaunchError(
                f"{named} begins at an address that is no multiple of {ALIGNMENT} bytes, which kernels on a GPU "
                f"rely on; pass a copy of it, such as {buffer.name}.clone()"
            )
        return address, size

    def _check_facts(self, buffer: Buffer, facts: DeviceArrayFacts, named: str, where: str) -> None:
        self._check_dtype(buffer, facts.dtype, named)
        check_size(buffer, facts.shape, int(np.prod(facts.shape)), where)
        if not facts.contiguous:
            raise LaunchError(f"{named} is not contiguous; pass a contiguous copy")
        if buffer.written and facts.read_only:
            raise LaunchError(f"{named} is read-only, but an op writes it")

    def _check_dtype(self, buffer: Buffer, dtype: str, named: str) -> None:
        if buffer.dtype is not None and dtype != buffer.dtype:
            raise LaunchError(f"{named} has dtype {dtype}, the ops take {buffer.dtype}")

    def allocator(self, passed: Mapping[str, Any], where: str) -> Callable[[Buffer], Any]:
        index = self.device if self.device is not None else common_device(passed, where)

        def allocate(buffer: Buffer) -> Any:
            assert buffer.dtype is not None and buffer.shape is not None
            return allocated(index, buffer.shape, buffer.dtype, f"{where}allocating {shown(buffer.name)}")

        return allocate

    def copy_in(self, array: np.ndarray[Any, Any], buffer: Buffer) -> CudaArray:
        index = current_device() if self.device is None else self.device
        doing = f"allocating {shown(buffer.name)}"
        placed = CudaArray(open_device(index), array.shape, buffer.dtype or array.dtype.name, doing)
        placed.write(array)
        return placed

    def copy_out(self, value: Any) -> np.ndarray[Any, Any]:
        if isinstance(value, CudaArray):
            return value.to_numpy()
        torch = torch_or_none()
        host = value.cpu()
        found: np.ndarray[Any, Any] = (host.view(torch.int16) if host.dtype is torch.bfloat16 else host).numpy()
        return found


def allocated(index: int, shape: tuple[int, ...], dtype: str, doing: str) -> Any:
    """A tensor where torch can use the GPU, else an array of ours."""
    torch = cuda_torch()
    if torch is None:
        return CudaArray(open_device(index), shape, dtype, doing)
    try:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=f"{TORCH_DEVICE}:{index}")
    except torch.OutOfMemoryError as reason:
        raise LaunchError(f"{doing}: {reason}") from reason


def common_device(passed: Mapping[str, Any], where: str) -> int:
    """The number of the device that all buffers are on; the current one where no buffer was passed."""
    first: tuple[str, int] | None = None
    for name, value in passed.items():
        index = device_of(value)
        if index is None:
            continue
        if first is not None and index != first[1]:
            raise LaunchError(
                f"{where}{shown(first[0])} is on cuda:{first[1]} and {shown(name)} on cuda:{index}; the buffers of a "
                "launch lie on one device"
            )
        first = name, index
    return current_device() if first is None else first[1]


def device_of(value: Any) -> int | None:
    """None: it is not on a GPU, which the check of the argument says."""
    if is_tensor(value):
        return int(value.device.index) if value.device.type == TORCH_DEVICE else None
    if isinstance(value, CudaArray):
        return value.device.index
    if isinstance(value, np.ndarray) or not is_device_array(value):
        return None
    try:
        facts = device_array_facts(value, "it", "")
    except LaunchError:
        return None
    return address_device(facts.address) if facts.device is None else facts.device


def address_device(address: int) -> int:
    """The device that an address belongs to; the first where the driver does not know it, as of an empty array."""
    driver, index = find_driver(), c_int()
    if not address or driver.code("cuPointerGetAttribute", byref(index), POINTER_ATTRIBUTE_DEVICE_ORDINAL, address):
        return current_device()
    return index.value


def pending_streams(passed: Mapping[str, Any]) -> set[int]:
    """Streams on which arrays of other libraries may still be computed; torch's tensors are those of its stream."""
    found = set()
    for value in passed.values():
        if isinstance(value, np.ndarray | CudaArray) or is_tensor(value) or not is_device_array(value):
            continue
        stream = device_array_facts(value, "it", "").stream
        if stream is not None:
            found.add(stream)
    return found


# torch's view of devices and streams, where it is in use


def cuda_torch() -> Any:
    """torch if this process has imported it and it can use a GPU; else None."""
    torch = torch_or_none()
    return torch if torch is not None and _torch_has_gpu(torch) else None


@cache
def _torch_has_gpu(torch: Any) -> bool:
    return bool(torch.cuda.is_available())


def current_device() -> int:
    torch = cuda_torch()
    return 0 if torch is None else int(torch.cuda.current_device())


def current_stream(index: int) -> int:
    """The stream that launches of the calling thread go to: torch's current one, else the default stream."""
    torch = cuda_torch()
    return STREAM_LEGACY if torch is None else int(torch._C._cuda_getCurrentRawStream(index))


def stream_reader() -> Callable[[int], int]:
    """`current_stream` without its checks, for repeated launches."""
    torch = cuda_torch()
    if torch is None:
        return lambda _: STREAM_LEGACY
    reader: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
    return reader
