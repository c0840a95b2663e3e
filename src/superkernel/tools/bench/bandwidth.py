"""bench.bandwidth: cores in, the bytes per second that they can read together out; a kernel that only reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...model.op import Op
from ...model.subkernel import SubKernel
from ...runtime.compile import compile
from ...runtime.super_kernel import SuperKernel
from ...targets.buffers import aligned_empty
from .measure import burst

_KERNELS = Path(__file__).parent / "kernels.cpp"
_BYTES = 128 << 20  # more than the caches of most processors
_ROUNDS = 5


def read_rate(cores: int) -> float:
    """The best of a few rounds, which other load on the machine disturbs least."""
    kernel, buffers = reader(_BYTES, cores)
    with kernel:
        kernel(buffers)
        return _BYTES / min(burst(lambda: kernel(buffers), 1) for _ in range(_ROUNDS)) * 1e6


def reader(nbytes: int, cores: int) -> tuple[SuperKernel, dict[str, Any]]:
    """A super kernel that reads as many bytes with all cores, and its buffers."""
    params = ["in:x:float32", "scalar:n:int64", "out:sums:float32"]
    read = SubKernel.from_source(_KERNELS, "read_all", block_dim=cores, params=params)
    x, sums = aligned_empty((nbytes // 4,), "float32"), aligned_empty((128 * cores,), "float32")
    x[:] = 1
    kernel = compile([Op(read, ["x", "n", "sums"])], "read_all", cores=cores)
    return kernel, {"x": x, "n": nbytes // 4, "sums": sums}
