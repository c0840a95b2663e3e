"""bench.bandwidth: cores in, the bytes per second that they can read together out."""

from __future__ import annotations

from pathlib import Path

from ...model.op import Op
from ...model.subkernel import SubKernel
from ...runtime.compile import compile
from ...targets.buffers import aligned_empty
from .measure import burst

_KERNELS = Path(__file__).parent / "kernels.cpp"
_BYTES = 128 << 20  # more than the caches of most processors
_ROUNDS = 5


def read_rate(cores: int) -> float:
    """The best of a few rounds: what the memory allows, not what it gives beside others."""
    params = ["in:x:float32", "scalar:n:int64", "out:sums:float32"]
    read = SubKernel.from_source(_KERNELS, "read_all", block_dim=cores, params=params)
    x, sums = aligned_empty((_BYTES // 4,), "float32"), aligned_empty((128 * cores,), "float32")
    x[:] = 1
    with compile([Op(read, ["x", "n", "sums"])], "read_all", cores=cores) as kernel:
        buffers = {"x": x, "n": _BYTES // 4, "sums": sums}
        kernel(buffers)
        return _BYTES / min(burst(lambda: kernel(buffers), 1) for _ in range(_ROUNDS)) * 1e6
