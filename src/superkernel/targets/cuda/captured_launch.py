"""targets.cuda.captured_launch: one launch of a Triton kernel -> its PTX, grid and arguments; launches -> ops."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from ...cache import Cache, digest
from ...errors import UnsupportedError, shown
from ...model.op import Argument, Op
from ...model.params import Number
from ...model.subkernel import Extent, SubKernel
from .basic_blocks import control_flow
from .captured_buffers import CapturedBuffers, TensorUse
from .provenance import find_accesses
from .ptx import Entry
from .reader import read_ptx

_WARP = 32
# Triton's name of a scalar type -> ours; half precision is passed as bits
_SCALAR_TYPES = {
    "i1": "bool", "u1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8",
    "u16": "uint16", "u32": "uint32", "u64": "uint64", "fp32": "float32", "fp64": "float64", "fp16": "uint16",
    "bf16": "uint16",
}  # fmt: skip


@dataclass(frozen=True)
class TensorArgument:
    """A tensor, for a pointer parameter of a kernel."""

    param: str
    use: TensorUse


@dataclass(frozen=True)
class ScalarArgument:
    """A number, for a scalar parameter of a kernel."""

    param: str
    dtype: str
    value: Number


@dataclass(frozen=True)
class CapturedLaunch:
    """A launch of a compiled Triton kernel that was not run."""

    kernel_name: str  # of the Python function
    symbol: str
    ptx: str
    grid: Extent
    warps: int
    shared: int
    scratch: int  # bytes of global memory per block
    cooperative: bool  # its blocks wait for each other
    arguments: tuple[TensorArgument | ScalarArgument, ...]  # of the parameters that are left in the PTX
    stream: int


def record_launch(
    function: Any,
    kernel: Any,
    grid: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    buffers: CapturedBuffers,
    frames: Sequence[FrameType],
    stream: int,
) -> CapturedLaunch:
    """The launch of a compiled kernel. `frames`: of the callers whose variables name tensors."""
    name = function.fn.__name__
    where = f"sk.capture: kernel {shown(name)}: "
    bound = function.signature.bind(*args, **{key: value for key, value in kwargs.items() if key in function.arg_names})
    bound.apply_defaults()
    extent = _extent(grid(dict(bound.arguments)) if callable(grid) else grid, where)
    flat = [
        argument
        for param, kind in kernel.src.signature.items()
        for argument in _arguments(param, kind, bound.arguments[param], buffers, frames, where)
    ]
    meta = kernel.metadata
    return CapturedLaunch(
        name,
        kernel.name,
        kernel.asm["ptx"],
        extent,
        meta.num_warps,
        meta.shared,
        meta.global_scratch_size,
        bool(meta.launch_cooperative_grid),
        tuple(flat),
        stream,
    )


def _extent(grid: Any, where: str) -> Extent:
    sizes = tuple(int(size) for size in (grid if isinstance(grid, Sequence) else (grid,)))
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise UnsupportedError(f"{where}the grid is {shown(grid)}; it must be one to three numbers from 1")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _arguments(
    param: str, kind: Any, value: Any, buffers: CapturedBuffers, frames: Sequence[FrameType], where: str
) -> Iterator[TensorArgument | ScalarArgument]:
    """The arguments that are left of a parameter: none of a constant, several of a tuple."""
    if kind == "constexpr":
        return
    if isinstance(kind, tuple):
        for index, (member_kind, member) in enumerate(zip(kind, value, strict=True)):
            yield from _arguments(f"{param}_{index}", member_kind, member, buffers, frames, where)
        return
    if kind.startswith("*"):
        yield TensorArgument(param, _tensor_use(value, buffers, frames, f"{where}parameter {shown(param)}"))
        return
    if kind not in _SCALAR_TYPES:
        raise UnsupportedError(
            f"{where}parameter {shown(param)} is {kind}, which the host fills in at every launch; pass a tensor, and "
            "let the kernel make its descriptor (tl.make_tensor_descriptor)"
        )
    number = _half_bits(float(value), kind) if kind in ("fp16", "bf16") else value
    if kind in ("fp32", "fp64"):
        number = float(value)
    yield ScalarArgument(param, _SCALAR_TYPES[kind], number)


def _tensor_use(value: Any, buffers: CapturedBuffers, frames: Sequence[FrameType], where: str) -> TensorUse:
    import torch

    tensor = value if isinstance(value, torch.Tensor) else getattr(value, "base", None)  # triton.reinterpret(...)
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedError(f"{where} is {shown(value)}; a capture takes tensors, which keep their memory alive")
    use = buffers.use(tensor, frames)
    if tensor is value:
        return use
    return TensorUse(use.place, None, use.shape, False)


def _half_bits(value: float, kind: str) -> int:
    """The bits of the nearest float16 or bfloat16."""
    if kind == "fp16":
        return int.from_bytes(struct.pack("<e", value), "little")
    bits = int.from_bytes(struct.pack("<f", value), "little")
    if math.isnan(value):
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


@lru_cache(maxsize=1024)
def _entry_and_kinds(ptx: str, symbol: str, scalars: frozenset[int]) -> tuple[Entry, tuple[str, ...]]:
    """The entry of a PTX text, and whether it reads (in) or writes (out, inout) what each parameter points to."""
    origin = f"the PTX of {symbol}"
    module = read_ptx(ptx, origin)
    entry = next(entry for entry in module.entries if entry.name == symbol)
    accesses = find_accesses(module, entry, control_flow(entry, origin), scalars)
    return entry, tuple(accesses.kind_of(index) for index in range(len(entry.params)))


def to_ops(launches: Sequence[CapturedLaunch], pure: frozenset[str] | None) -> list[Op]:
    """Ops with sub-kernels; `pure` names kernels that are pure, None: all are."""
    types = _BufferTypes(launches)
    streams = {stream: number for number, stream in enumerate(dict.fromkeys(launch.stream for launch in launches))}
    ops = []
    for launch in launches:
        kernel = _sub_kernel(launch, types, pure is None or launch.kernel_name in pure)
        ops.append(Op(kernel, [_op_argument(argument) for argument in launch.arguments], stream=streams[launch.stream]))
    return ops


def _op_argument(argument: TensorArgument | ScalarArgument) -> Argument:
    if isinstance(argument, ScalarArgument):
        return argument.value
    place = argument.use.place
    return place if place.offset else place.name


class _BufferTypes:
    """What all launches agree on about a buffer: its dtype, and its number of elements."""

    def __init__(self, launches: Sequence[CapturedLaunch]) -> None:
        uses = [
            argument.use for launch in launches for argument in launch.arguments if isinstance(argument, TensorArgument)
        ]
        self._dtypes: dict[str, set[str | None]] = {}
        self._counts: dict[str, set[int | None]] = {}
        for use in uses:
            if not use.place.offset:
                self._dtypes.setdefault(use.place.name, set()).add(use.dtype)
                self._counts.setdefault(use.place.name, set()).add(math.prod(use.shape) if use.whole else None)

    def of(self, use: TensorUse) -> str:
        """What a parameter says after its name, such as :float32[8,256]."""
        name = use.place.name
        if use.dtype is None:
            return ""
        if use.place.offset:
            return f":{use.dtype}"
        if self._dtypes[name] != {use.dtype}:
            return ""
        agreed = use.whole and self._counts[name] == {math.prod(use.shape)}
        return f":{use.dtype}[{','.join(map(str, use.shape))}]" if agreed else f":{use.dtype}"


def _sub_kernel(launch: CapturedLaunch, types: _BufferTypes, pure: bool) -> SubKernel:
    arguments = launch.arguments
    scalars = frozenset(index for index, argument in enumerate(arguments) if isinstance(argument, ScalarArgument))
    entry, kinds = _entry_and_kinds(launch.ptx, launch.symbol, scalars)
    params = [
        f"scalar:{argument.param}:{argument.dtype}"
        if isinstance(argument, ScalarArgument)
        else f"{kind}:{argument.param}{types.of(argument.use)}"
        for argument, kind in zip(arguments, kinds, strict=False)
    ]
    return SubKernel.from_ptx(
        _ptx_file(launch.ptx),
        launch.symbol,
        params=params,
        grid=launch.grid,
        threads=entry.required_threads or (launch.warps * _WARP, 1, 1),
        shared=launch.shared,
        scratch=launch.scratch,
        sync_all=True if launch.cooperative else None,
        pure=pure,
    )


def _ptx_file(text: str) -> Path:
    return Cache().make(digest("captured ptx", text), ".ptx", lambda path: path.write_text(text))
