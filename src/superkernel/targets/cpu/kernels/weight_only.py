"""targets.cpu.kernels.weight_only: tensors by name in, one op out: matmuls with int8 or int4 weights, and packing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ....errors import GraphError, UnsupportedError
from ....model.op import Op
from ....model.subkernel import SubKernel
from .matmul import ELEMENT_BYTES, block_count
from .shipping import Tensor, check_dtypes, parameters, place, shipped, shown
from .strided_rows import ELEMENTS

_INT8_PARAMS = parameters(
    "in:x in:weight in:scales out:out m n k x_row x_column weight_row scales_step out_row out_column"
)
_INT4_PARAMS = parameters("in:x in:weight in:scales out:out m n k group block halves x_row x_column out_row out_column")
_PACK_PARAMS = parameters("in:weight out:out n k block halves weight_row weight_column")
_WEIGHTS_PER_BLOCK = 16_384  # least work of a block that packs


@dataclass(frozen=True)
class PackedLayout:
    """How int4 weights are packed: columns of a block, and whether a full block is packed in halves or in pairs.

    As in int4_weights.h.
    """

    block: int
    halves: bool

    def pack(self, columns: Sequence[Sequence[int]]) -> bytes:
        """The packed bytes of columns of whole numbers from 0 to 15."""
        packed = bytearray()
        for first in range(0, len(columns), self.block):
            block = columns[first : first + self.block]
            in_halves = self.halves and len(block) == self.block
            low, high = (block[: self.block // 2], block[self.block // 2 :]) if in_halves else (block[::2], block[1::2])
            for row in range(len(columns[0])):
                packed += bytes(right[row] << 4 | left[row] for left, right in zip(low, high, strict=True))
        return bytes(packed)


_LAYOUTS = tuple(PackedLayout(block, halves) for block in (64, 32, 16) for halves in (True, False))


@cache
def packed_layout() -> PackedLayout:
    """The layout of the running torch, which depends on the processor: found by packing numbered weights."""
    torch = sys.modules["torch"]
    numbers = [[column * 2 + row for row in range(2)] for column in range(max(x.block for x in _LAYOUTS) + 16)]
    digits = [[[number >> shift & 15 for number in column] for column in numbers] for shift in (0, 4)]
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        pack = torch.ops.aten._convert_weight_to_int4pack_for_cpu
        packed = [pack(torch.tensor(digit, dtype=torch.int32), 1).numpy().tobytes() for digit in digits]
    for layout in _LAYOUTS:
        if [layout.pack(digit) for digit in digits] == packed:
            return layout
    raise UnsupportedError("int4 weights are packed in a layout that the cpu target does not know")


def _matmul_kernel(name: str, params: tuple[str, ...], rows: Tensor, columns: int, cores: int) -> SubKernel:
    """The kernel that multiplies these rows with weights of so many columns."""
    m, k = rows.shape
    return shipped(
        f"{name}.cpp",
        name,
        params,
        blocks=block_count(1, m, columns, k, 1, cores),
        op_type="WeightOnlyMatMul",
        defines=(f"SK_ELEMENT={ELEMENTS[rows.dtype]}",),
        early_start=True,
    )


def _weight_int8pack_mm(self: Tensor, mat2: Tensor, scales: Tensor, *, out: Tensor, cores: int) -> Op:
    """out = (self @ mat2.T) * scales."""
    operator = "matmul with int8 weights"
    check_dtypes(operator, [self, scales, out], ELEMENT_BYTES)
    if mat2.dtype != "int8":
        raise UnsupportedError(f"{operator}: {shown(mat2)} has elements of {mat2.dtype}")
    (m, k), n = self.shape, mat2.shape[0]
    if mat2.shape != (n, k) or scales.shape != (n,) or tuple(out.shape) != (m, n):
        raise GraphError(f"{operator}: {shown(self)} times {shown(mat2)} by {shown(scales)} cannot give {shown(out)}")
    if k > 1 and mat2.strides[1] != 1:
        raise UnsupportedError(f"{operator}: the rows of {shown(mat2)} are not contiguous")
    kernel = _matmul_kernel("weight_int8", _INT8_PARAMS, self, n, cores)
    strides = [*self.strides, mat2.strides[0], *scales.strides, *out.strides]
    return Op(kernel, [place(self), place(mat2), place(scales), place(out), m, n, k, *strides])


def _weight_int4pack_mm_for_cpu(
    self: Tensor, mat2: Tensor, qGroupSize: int, qScaleAndZeros: Tensor, *, out: Tensor, cores: int
) -> Op:
    """out = self @ w, where w holds (q - 8) * scale + zero for each packed weight q."""
    operator = "matmul with int4 weights"
    check_dtypes(operator, [self, qScaleAndZeros, out], ELEMENT_BYTES)
    if mat2.dtype != "uint8":
        raise UnsupportedError(f"{operator}: {shown(mat2)} has elements of {mat2.dtype}")
    (m, k), n = self.shape, mat2.shape[0]
    groups = qScaleAndZeros.shape[0]
    described = f"{shown(self)} times {shown(mat2)} by {shown(qScaleAndZeros)}"
    if (mat2.shape, qScaleAndZeros.shape, out.shape) != ((n, k // 2), (groups, n, 2), (m, n)):
        raise GraphError(f"{operator}: {described} cannot give {shown(out)}")
    if n % 2 or groups * qGroupSize != k:
        raise GraphError(f"{operator}: {described} is not {groups} groups of {qGroupSize} rows")
    if not (mat2.contiguous and qScaleAndZeros.contiguous):
        raise UnsupportedError(f"{operator}: {described}, which are not contiguous")
    layout = packed_layout()
    kernel = _matmul_kernel("weight_int4", _INT4_PARAMS, self, n, cores)
    sizes = [m, n, k, qGroupSize, layout.block, int(layout.halves)]
    tensors = [place(self), place(mat2), place(qScaleAndZeros), place(out)]
    return Op(kernel, [*tensors, *sizes, *self.strides, *out.strides])


def int4mm_packed_weight_cpu(
    self: Tensor, mat2: Tensor, qGroupSize: Any, qScaleAndZeros: Tensor, *, out: Tensor, cores: int
) -> Op:
    """The same with the size of a group in a tensor; it follows from the number of groups."""
    group = self.shape[1] // max(qScaleAndZeros.shape[0], 1)
    return _weight_int4pack_mm_for_cpu(self, mat2, group, qScaleAndZeros, out=out, cores=cores)


def _convert_weight_to_int4pack_for_cpu(self: Tensor, innerKTiles: int, *, out: Tensor, cores: int) -> Op:
    n, k = self.shape
    if self.dtype != "int32" or out.dtype != "uint8" or not out.contiguous:
        raise UnsupportedError(f"packing int4 weights: {shown(self)} of {self.dtype} to {shown(out)} of {out.dtype}")
    layout = packed_layout()
    kernel = shipped(
        "weight_int4.cpp",
        "pack_int4",
        _PACK_PARAMS,
        blocks=max(1, min(cores, n * k // _WEIGHTS_PER_BLOCK)),
        op_type="PackInt4",
        defines=("SK_ELEMENT=float",),
        early_start=True,
    )
    return Op(kernel, [place(self), place(out), n, k, layout.block, int(layout.halves), *self.strides])
