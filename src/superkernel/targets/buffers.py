"""targets.buffers: what a caller passes by name -> checked addresses, sizes and scalars, or a LaunchError."""

from __future__ import annotations

import ctypes
import itertools
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..errors import LaunchError, nearest, shown
from ..model.graph import Buffer, Graph
from ..model.params import scalar_bits
from .launch_outputs import LaunchOutputs, no_outputs

IN_ARENA = -1  # the size of a buffer that has its place in the arena of the launch
_LINE, _PAGE = 64, 4096
_COLOURS = itertools.cycle(range(0, _PAGE, 5 * _LINE))
# numpy has neither bfloat16 nor float8: their bits in an unsigned integer are accepted
_NUMPY_STAND_INS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


@dataclass
class Bound:
    """The arguments of one launch. `keep` holds the buffers until the launch has completed."""

    values: list[int]  # per name of the graph, in order: an address, or the bits of a scalar
    sizes: list[int]  # bytes behind it; IN_ARENA: it was neither passed nor allocated
    outputs: LaunchOutputs
    keep: list[Any]


def torch_or_none() -> Any:
    """torch if this process has imported it: a tensor cannot come from anywhere else.

    While another thread imports it, there are no tensors yet, and there may be no class of them.
    """
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "Tensor") else None


def is_tensor(value: object) -> bool:
    torch = torch_or_none()
    return torch is not None and isinstance(value, torch.Tensor)


class ArgumentMemory(Protocol):
    """The memory that the buffers of a launch lie in."""

    @property
    def on_host(self) -> bool: ...  # whether the processor can read and write at the addresses

    def place(self, buffer: Buffer, value: Any, where: str) -> tuple[int, int]:
        """Address and bytes of what was passed, or a LaunchError that begins with `where`."""

    def allocator(self, passed: Mapping[str, Any], where: str) -> Callable[[Buffer], Any]:
        """A function that allocates a buffer beside those that were passed."""

    def copy_in(self, array: np.ndarray[Any, Any], buffer: Buffer) -> Any:
        """A copy of a host array that a launch can take for the buffer."""

    def copy_out(self, value: Any) -> np.ndarray[Any, Any]:
        """What a launch has written, in the host's memory."""


@dataclass(frozen=True)
class HostMemory:
    """numpy arrays and torch tensors of the cpu; `device`: torch's name of a device whose tensors are taken as well."""

    device: str | None = None
    on_host: bool = True

    def place(self, buffer: Buffer, value: Any, where: str) -> tuple[int, int]:
        if isinstance(value, np.ndarray):
            return _array_facts(buffer, value, where)
        if not is_tensor(value):
            raise LaunchError(
                f"{where}{shown(buffer.name)} is a {type(value).__name__}; pass a numpy array or a torch tensor"
            )
        if value.device.type not in ("cpu", self.device):
            takes = "this kernel runs on the cpu"
            if self.device is not None:
                takes = f"this kernel takes tensors of cpu and {self.device}"
            raise LaunchError(f"{where}{shown(buffer.name)} is on device {value.device}; {takes}")
        return tensor_facts(buffer, value, where)

    def allocator(self, passed: Mapping[str, Any], where: str) -> Callable[[Buffer], Any]:
        wants_tensors = any(is_tensor(value) for value in passed.values())
        return lambda buffer: allocate(buffer, wants_tensors)

    def copy_in(self, array: np.ndarray[Any, Any], buffer: Buffer) -> Any:
        return array.copy()

    def copy_out(self, value: Any) -> np.ndarray[Any, Any]:
        return value.numpy() if is_tensor(value) else np.asarray(value)


HOST_MEMORY = HostMemory()


def bind(
    graph: Graph,
    passed: Mapping[str, Any],
    arena: Collection[str] = (),
    memory: ArgumentMemory = HOST_MEMORY,
) -> Bound:
    """Check everything, allocate what is missing, and give addresses. Refuses with a LaunchError.

    `arena`: names that the run time places if they are not passed; every other name gets memory of its own.
    """
    where = f"super_kernel_scope {shown(graph.name)}: "
    check_names(graph, passed)
    allocate_buffer = memory.allocator(passed, where)
    bound = Bound([], [], no_outputs(graph), [])
    for buffer in graph.buffers.values():
        if buffer.name in passed:
            value = passed[buffer.name]
            address, size = _facts(buffer, value, where, memory)
        elif buffer.name in arena:
            value, address, size = None, 0, IN_ARENA
        elif not buffer.can_allocate:
            raise LaunchError(where + _missing(buffer))
        else:
            value = allocate_buffer(buffer)
            address, size = _facts(buffer, value, where, memory)
            if buffer.name in graph.outputs:
                bound.outputs[buffer.name] = value
        bound.keep.append(value)
        bound.values.append(address)
        bound.sizes.append(size)
    check_overlaps(graph, bound.values, bound.sizes, where)
    return bound


def check_names(graph: Graph, passed: Mapping[str, Any]) -> None:
    if not isinstance(passed, Mapping):
        raise LaunchError(
            f"super_kernel_scope {shown(graph.name)}: pass a dict of buffers by name, not {type(passed).__name__}"
        )
    for name in passed:
        if name not in graph.buffers:
            hint = nearest(name, graph.buffers)
            raise LaunchError(f"super_kernel_scope {shown(graph.name)}: no op uses the name {shown(name)}{hint}")


def _missing(buffer: Buffer) -> str:
    if buffer.scalar:
        return f"the scalar {shown(buffer.name)} was not passed"
    if buffer.window:
        shared = f"{shown(buffer.name)} is a window that all ranks of a group share, and was not passed"
        return f"{shared}: pass memory that all of them map (docs/collectives.md)"
    if buffer.needs_value:
        return f"{shown(buffer.name)} is read before any op writes it, and was not passed"
    return f"{shown(buffer.name)} was not passed; it has no dtype[shape], so it cannot be allocated here"


def allocate(buffer: Buffer, as_tensor: bool) -> Any:
    assert buffer.dtype is not None and buffer.shape is not None
    if as_tensor:
        torch = torch_or_none()
        return torch.empty(buffer.shape, dtype=getattr(torch, buffer.dtype))
    return aligned_empty(buffer.shape, _NUMPY_STAND_INS.get(buffer.dtype, buffer.dtype))


def aligned_empty(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """An array that begins at a cache line, as torch's do, at another offset in its page than the previous array.

    Vector loads then never cross lines, and a load is not taken for the store of another array at the same page offset.
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    colour = next(_COLOURS) if size >= _PAGE // 4 else 0
    room = np.empty(size + colour + _LINE, np.uint8)
    first = -room.ctypes.data % _LINE + colour
    return room[first : first + size].view(kind).reshape(shape)


def check_argument(graph: Graph, name: str, value: Any, memory: ArgumentMemory = HOST_MEMORY) -> tuple[int, int]:
    """What `bind` finds for one name: an address or the bits of a scalar, and bytes. Refuses with a LaunchError."""
    return _facts(graph.buffers[name], value, f"super_kernel_scope {shown(graph.name)}: ", memory)


def _facts(buffer: Buffer, value: Any, where: str, memory: ArgumentMemory) -> tuple[int, int]:
    if buffer.scalar:
        return scalar_value(buffer, value, where), 0
    address, size = memory.place(buffer, value, where)
    if size < buffer.reach:
        raise LaunchError(
            f"{where}{shown(buffer.name)} has {size} bytes, and an op takes it from byte {buffer.reach} on"
        )
    if size < buffer.least_bytes:
        raise LaunchError(
            f"{where}{shown(buffer.name)} has {size} bytes, and a part that an op takes of it ends at byte "
            f"{buffer.least_bytes}"
        )
    return address, size


def scalar_value(buffer: Buffer, value: Any, where: str) -> int:
    if isinstance(value, np.generic | np.ndarray) or is_tensor(value):
        if value.size != 1 if not is_tensor(value) else value.numel() != 1:
            raise LaunchError(f"{where}scalar {shown(buffer.name)}: one number is needed, not {shown(value)}")
        try:
            value = value.item()
        except RuntimeError as reason:  # a tensor without data: on device meta, or fake
            raise LaunchError(f"{where}scalar {shown(buffer.name)} has no value: {reason}") from reason
    if not isinstance(value, int | float):
        raise LaunchError(f"{where}scalar {shown(buffer.name)}: {shown(value)} is no number")
    return scalar_bits(value, buffer.dtype, f"{where}scalar {shown(buffer.name)}", LaunchError)


def _array_facts(buffer: Buffer, array: np.ndarray[Any, Any], where: str) -> tuple[int, int]:
    if buffer.dtype is not None:
        accepted = (buffer.dtype, _NUMPY_STAND_INS.get(buffer.dtype, buffer.dtype))
        if array.dtype.name not in accepted or not array.dtype.isnative:
            raise LaunchError(f"{where}{shown(buffer.name)} has dtype {array.dtype}, the ops take {buffer.dtype}")
    elif array.dtype.hasobject:
        raise LaunchError(f"{where}{shown(buffer.name)} holds Python objects (dtype {array.dtype}), not numbers")
    elif not array.dtype.isnative:
        raise LaunchError(
            f"{where}{shown(buffer.name)} has dtype {array.dtype}, whose byte order is not this machine's"
        )
    check_size(buffer, array.shape, array.size, where)
    if not array.flags.c_contiguous:
        raise LaunchError(f"{where}{shown(buffer.name)} is not contiguous; pass numpy.ascontiguousarray(...)")
    if not array.flags.aligned:
        raise LaunchError(
            f"{where}{shown(buffer.name)} does not begin at a multiple of its item size; pass a copy of it"
        )
    if buffer.written and not array.flags.writeable:
        raise LaunchError(f"{where}{shown(buffer.name)} is read-only, but an op writes it")
    return array.__array_interface__["data"][0], array.nbytes


def tensor_facts(buffer: Buffer, tensor: Any, where: str) -> tuple[int, int]:
    """Address and bytes of a tensor that is what the ops take, on whatever device."""
    if str(tensor.layout) != "torch.strided":
        raise LaunchError(f"{where}{shown(buffer.name)} has layout {tensor.layout}; a dense tensor is needed")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if buffer.dtype is not None and dtype != buffer.dtype:
        raise LaunchError(f"{where}{shown(buffer.name)} has dtype {dtype}, the ops take {buffer.dtype}")
    check_size(buffer, tuple(tensor.shape), tensor.numel(), where)
    if not tensor.is_contiguous():
        raise LaunchError(f"{where}{shown(buffer.name)} is not contiguous; pass {buffer.name}.contiguous()")
    if buffer.written and tensor.requires_grad and torch_or_none().is_grad_enabled():
        raise LaunchError(
            f"{where}{shown(buffer.name)} is written, and requires grad: autograd would not know; "
            f"pass {buffer.name}.detach() or launch under torch.no_grad()"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise LaunchError(
            f"{where}{shown(buffer.name)} is a lazy conjugate or negation; pass its resolve_conj().resolve_neg()"
        )
    try:
        address = int(tensor.data_ptr())
    except RuntimeError as reason:  # a stand-in, as inside torch.func.vmap
        raise LaunchError(f"{where}{shown(buffer.name)} has no memory of its own: {reason}") from reason
    if tensor.nbytes and not address:
        raise LaunchError(f"{where}{shown(buffer.name)} has no memory: it is a fake tensor, or its storage was freed")
    return address, tensor.nbytes


def check_size(buffer: Buffer, shape: tuple[int, ...], elements: int, where: str) -> None:
    if buffer.shape is not None:
        wanted = int(np.prod(buffer.shape, dtype=np.int64))
        if elements != wanted:
            raise LaunchError(
                f"{where}{shown(buffer.name)} has shape {list(shape)} ({elements} elements), the ops take "
                f"{list(buffer.shape)} ({wanted} elements)"
            )


def check_overlaps(graph: Graph, values: Iterable[int], sizes: Iterable[int], where: str) -> None:
    """Names are the topology: two names must not be one memory, unless every op only reads both."""
    spans = sorted(
        (address, address + size, buffer.name, buffer.written)
        for buffer, address, size in zip(graph.buffers.values(), values, sizes, strict=True)
        if not buffer.scalar and size > 0
    )
    reach, owner = 0, ("", False)  # the span that reaches furthest so far
    written_reach, written_owner = 0, ""
    for start, end, name, written in spans:
        clash = owner[0] if written and start < reach else written_owner if start < written_reach else None
        if clash is not None:
            raise LaunchError(
                f"{where}{shown(clash)} and {shown(name)} overlap in memory, and an op writes one of them"
            )
        if end > reach:
            reach, owner = end, (name, written)
        if written and end > written_reach:
            written_reach, written_owner = end, name


def copy_of(value: Any) -> Any:
    return value.clone() if is_tensor(value) else value.copy() if isinstance(value, np.ndarray) else value


def bytes_at(address: int, size: int) -> np.ndarray[Any, Any]:
    """The memory behind an address, as it is."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)) if size else np.empty(0, np.uint8)


def copy_at(address: int, size: int) -> np.ndarray[Any, Any]:
    """A copy at the same place in its page: how a kernel deals with an array's ends depends on where they are."""
    room = np.empty(size + _PAGE, np.uint8)
    first = (address - room.ctypes.data) % _PAGE
    room[first : first + size] = bytes_at(address, size)
    return room[first : first + size]


def same_bits(first: Any, second: Any) -> bool:
    """Equal to the last bit: NaNs compare as what they are."""
    if is_tensor(first):
        torch = torch_or_none()
        return bool(torch.equal(first.reshape(-1).view(torch.uint8), second.reshape(-1).view(torch.uint8)))
    return bool(first.tobytes() == second.tobytes())
