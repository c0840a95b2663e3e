"""targets.cpu.kernels.triangular: tensors by name in, the op that solves a triangular system out."""

from __future__ import annotations

from collections.abc import Callable

from ....errors import GraphError
from ....model.op import Op, Place
from .quant_matmul import collapse_batch
from .shipping import Tensor, check_dtypes, parameters, place, shipped, shown, stride_params
from .strided_rows import ELEMENTS

_BYTES = {"float32": 4, "float64": 8}
_PANEL = 16  # columns, as in triangular.cpp
_MULTIPLICATIONS_PER_BLOCK = 16_384  # least work of a block
_PARAMS = (
    *parameters("in:a in:b out:out workspace:room batches n columns upper unit"),
    *stride_params("a b out"),
)


def linalg_solve_triangular(
    self: Tensor,
    B: Tensor,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
    out: Tensor,
    cores: int,
    scratch: Callable[[int], Place],
) -> Op:
    """X of self @ X = B, or of X @ self = B, which is the transposed system."""
    check_dtypes("linalg_solve_triangular", [self, B, out], _BYTES)
    n = self.shape[-1]
    if self.shape[-2] != n or tuple(B.shape[-2:]) != tuple(out.shape[-2:]) or out.shape[-2 if left else -1] != n:
        raise GraphError(f"linalg_solve_triangular: {shown(self)} and {shown(B)} cannot give {shown(out)}")
    batches, steps = collapse_batch(out.shape[:-2], (self, B, out))
    columns = out.shape[-1 if left else -2]
    arguments = [place(self), place(B), place(out)]
    panels = batches * -(-columns // _PANEL)
    blocks = max(1, min(cores, panels, batches * columns * n * n // _MULTIPLICATIONS_PER_BLOCK))
    room = scratch(cores * max(1, n) * _PANEL * _BYTES[out.dtype])
    numbers = [batches, n, columns, int(upper if left else not upper), int(unitriangular)]
    for tensor, step in zip((self, B, out), steps, strict=True):
        numbers += [step, *(tensor.strides[-2:] if left else reversed(tensor.strides[-2:]))]
    kernel = shipped(
        "triangular.cpp",
        "solve_triangular",
        _PARAMS,
        blocks=blocks,
        op_type="SolveTriangular",
        defines=(f"SK_ELEMENT={ELEMENTS[out.dtype]}",),
    )
    return Op(kernel, [*arguments, room, *numbers])
