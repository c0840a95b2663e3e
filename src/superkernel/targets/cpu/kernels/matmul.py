"""targets.cpu.kernels.matmul: tensors by name in, one op that multiplies them out: mm, addmm, bmm, baddbmm."""

from __future__ import annotations

from typing import Any

from ....errors import GraphError, UnsupportedError
from ....model.op import Op, Place
from ....model.params import scalar_bits
from ....model.subkernel import SubKernel
from .shipping import Tensor, broadcast_strides, check_dtypes, parameters, place, shipped, shown, stride_params

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}  # element types with a kernel

PANELS = "panels"  # the form of a kernel of float32 whose b is stored in panels
MATMUL = "MatMul"

# Least work of a block; a boundary between cores costs about 0.1 us.
_MULTIPLICATIONS_PER_BLOCK = 16_384
_BYTES_PER_BLOCK = 16_384


def mm(self: Tensor, mat2: Tensor, *, out: Tensor, cores: int) -> Op:
    return matmul_op(self, mat2, out, cores=cores)


bmm = mm


def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1, out: Tensor, cores: int) -> Op:
    return matmul_op(mat1, mat2, out, self, alpha, beta, cores=cores)


def baddbmm(
    self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1, out: Tensor, cores: int
) -> Op:
    return matmul_op(batch1, batch2, out, self, alpha, beta, cores=cores)


def matmul_op(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    c: Tensor | None = None,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    *,
    cores: int,
    name: str | None = None,
) -> Op:
    """out = alpha * (a @ b) + beta * c, for matrices or batches of them; c is broadcast to the shape of out."""
    check_dtypes("matmul", [a, b, out] if c is None else [a, b, out, c], ELEMENT_BYTES)
    _check_number("alpha", alpha)
    _check_number("beta", beta)
    batches, m, n, k = _sizes(a, b, out)
    arguments: list[Place | int | float] = [place(a), place(b), place(out), batches, m, n, k]
    for tensor in (a, b, out):
        arguments += three_strides(tensor)
    arguments.append(float(alpha))
    if c is not None:
        strides = broadcast_strides(c, out.shape, f"matmul: {shown(c)} cannot be broadcast to {shown(out)}")
        arguments += [place(c), *(0,) * (3 - len(strides)), *strides, float(beta)]
    blocks = block_count(batches, m, n, k, ELEMENT_BYTES[a.dtype], cores)
    kernel = matmul_kernel(a.dtype, c is not None, blocks, MATMUL if len(out.shape) == 2 else "BatchMatMul")
    return Op(kernel, arguments, name)


def block_count(batches: int, m: int, n: int, k: int, element_bytes: int, cores: int) -> int:
    """As many blocks as there are cores, or fewer where the work is too little to be worth dividing."""
    multiplications = batches * m * n * k
    read = batches * (m * k + k * n) * element_bytes
    parts = max(multiplications // _MULTIPLICATIONS_PER_BLOCK, read // _BYTES_PER_BLOCK)
    return max(1, min(cores, parts))


def matmul_kernel(form: str, adds: bool, blocks: int, op_type: str) -> SubKernel:
    """`form`: the type of all elements, or PANELS."""
    params = [*parameters("in:a in:b out:out batches m n k"), *stride_params("a b out"), "scalar:alpha:float32"]
    if adds:
        params += ["in:c", *stride_params("c"), "scalar:beta:float32"]
    symbol = f"matmul_{form}" + ("_add" if adds else "")
    defines = (f"SK_MATMUL_{form.upper()}",)
    return shipped(
        "matmul.cpp", symbol, tuple(params), blocks=blocks, op_type=op_type, defines=defines, early_start=True
    )


def three_strides(tensor: Tensor) -> tuple[int, ...]:
    """By batch, row and column; a matrix is a batch of one."""
    return (0,) * (3 - len(tensor.strides)) + tuple(tensor.strides)


def _sizes(a: Tensor, b: Tensor, out: Tensor) -> tuple[int, int, int, int]:
    """batches, m, n, k."""
    shapes = a.shape, b.shape, out.shape
    ranks = {len(shape) for shape in shapes}
    if ranks in ({2}, {3}):
        *batch_a, m, k = a.shape
        *batch_b, depth, n = b.shape
        if depth == k and batch_a == batch_b and tuple(out.shape) == (*batch_a, m, n):
            return (batch_a[0] if batch_a else 1), m, n, k
    raise GraphError(f"matmul: {shown(a)} times {shown(b)} cannot give {shown(out)}")


def _check_number(what: str, value: Any) -> None:
    if not isinstance(value, int | float):
        raise UnsupportedError(f"matmul: {what} is {value!r}; a real number is needed")
    scalar_bits(value, "float32", f"matmul: {what}", UnsupportedError)
