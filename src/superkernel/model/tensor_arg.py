"""tensor_arg: what a function that supplies the ops of an operator takes: tensors by address, and scratch buffers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..errors import GraphError, shown
from .op import Op, Place
from .params import DTYPES

KernelFunction = Callable[..., Op | Sequence[Op]]  # the arguments of an operator -> the ops that compute it


@dataclass(frozen=True)
class TensorArg(Place):
    """A tensor as a kernel sees it: an address (it may stand in an Op's arguments) and a layout of elements."""

    dtype: str = "float32"
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()  # in elements

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype][0]

    @property
    def contiguous(self) -> bool:
        """As torch has it: a tensor without elements is, whatever its strides."""
        if self.numel == 0:
            return True
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def dense(self) -> bool:
        """Whether the elements fill their memory without gaps, in any order of the dimensions."""
        by_stride = sorted(zip(self.strides, self.shape, strict=True), reverse=True)
        strides, shape = zip(*by_stride, strict=True) if by_stride else ((), ())
        return replace(self, shape=shape, strides=strides).contiguous


@dataclass
class ScratchBuffers:
    """Names the scratch buffers that kernels ask for, and keeps their sizes in bytes."""

    prefix: str
    sizes: dict[str, int] = field(default_factory=dict)

    def __call__(self, nbytes: int) -> Place:
        if not isinstance(nbytes, int) or nbytes < 0:
            raise GraphError(f"scratch({shown(nbytes)}): a number of bytes is needed")
        name = f"{self.prefix}_{len(self.sizes)}"
        self.sizes[name] = nbytes
        return Place(name)
