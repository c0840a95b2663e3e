"""bench.cuda_workloads: the chains that the cuda suites time: ops, tensors, and what float64 says of the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...model.op import Op
from ...targets.cuda.capture import CapturedOps, capture
from ...targets.cuda.kernels.streaming_gemv import StreamingGemv
from .cuda_device import sm_count

EPSILON = 1e-5
DEVICE = "cuda"


@dataclass(frozen=True)
class GemvConfig:
    """How Triton's GEMV is compiled: rows of a block, columns at a time, warps."""

    rows: int
    step: int
    warps: int

    def __str__(self) -> str:
        return f"{self.rows} rows x {self.step} columns, {self.warps} warps"


@dataclass(frozen=True)
class CudaChain:
    """Dependent kernels. `waiting` are the same kernels with the wait of programmatic dependent launch inside."""

    name: str
    ops: Sequence[Op]
    waiting: Sequence[Op]
    buffers: dict[str, Any]
    outputs: tuple[str, ...]  # names of buffers that are compared
    expected: Any  # the last output in float64
    tolerance: float  # relative to the largest value
    weight_bytes: int = 0
    state: tuple[str, ...] = ()  # names of buffers that a launch writes in part, such as caches


def random_floats(torch: Any, *shape: int, scale: float = 1.0) -> Any:
    return torch.randn(*shape, device=DEVICE) * scale


def random_weights(torch: Any, rows: int, columns: int) -> Any:
    return (torch.randn(rows, columns, device=DEVICE) / math.sqrt(columns)).to(torch.bfloat16)


def normed(x: Any, weight: Any) -> Any:
    return x * (x.square().mean() + EPSILON).rsqrt() * weight.double()


def _captured(body: Callable[[bool], None], waits: bool, pure: bool | Sequence[str]) -> CapturedOps:
    with capture(pure=pure) as ops:
        body(waits)
    return ops


def make_chain(
    name: str,
    body: Callable[[bool], None],
    last: Any,
    expected: Any,
    tolerance: float,
    weight_bytes: int = 0,
    state: Sequence[Any] = (),
    pure: bool | Sequence[str] = True,
) -> CudaChain:
    """`body` launches the kernels, with or without waits; `last` is the tensor that is compared with `expected`."""
    plain, waiting = _captured(body, False, pure), _captured(body, True, pure)
    assert plain.buffers.keys() == waiting.buffers.keys()
    result = next(name for name, tensor in plain.buffers.items() if tensor is last)
    written = {
        str(getattr(argument, "name", argument))
        for op in plain
        for argument, param in zip(op.args, op.kernel.params, strict=True)
        if param.kind.writes
    }
    outputs = (*sorted(written - {result}), result)
    kept = tuple(name for name, tensor in plain.buffers.items() if any(tensor is held for held in state))
    return CudaChain(name, plain, waiting, plain.buffers, outputs, expected, tolerance, weight_bytes, kept)


def small_chain(torch: Any, size: int, count: int = 64, warps: int = 4) -> CudaChain:
    """count dependent kernels of one block: h = norm(x), x' = x + h."""
    from .cuda_kernels import add, rms_norm

    torch.manual_seed(0)
    x = random_floats(torch, size)
    weights = [1 + random_floats(torch, size, scale=0.1) for _ in range(count // 2)]
    h = torch.empty_like(x)
    totals = [torch.empty_like(x) for _ in range(2)]

    def body(waits: bool) -> None:
        before = x
        for index, weight in enumerate(weights):
            rms_norm[(1,)](before, weight, h, EPSILON, SIZE=size, WAITS=waits, num_warps=warps)
            add[(1,)](before, h, totals[index % 2], SIZE=size, WAITS=waits, num_warps=warps)
            before = totals[index % 2]

    value = x.double()
    for weight in weights:
        value = value + normed(value, weight)
    last = totals[(len(weights) - 1) % 2]
    return make_chain(f"{count} kernels, RMSNorm and add of {size} floats, {warps} warps", body, last, value, 1e-5)


def few_blocks_chain(torch: Any, blocks: int, count: int = 64, threads: int = 1024) -> CudaChain:
    """count dependent kernels of a few blocks, of which an SM runs one: each block reads what its neighbour wrote."""
    from .cuda_kernels import bump

    size = blocks * threads
    x = torch.arange(size, device=DEVICE, dtype=torch.float32)
    targets = [torch.empty_like(x) for _ in range(2)]

    def body(waits: bool) -> None:
        before = x
        for index in range(count):
            after = targets[index % 2]
            grid, warps = (blocks,), threads // 32
            bump[grid](before, after, SIZE=size, BLOCK=threads, SHIFT=threads, WAITS=waits, num_warps=warps)
            before = after

    expected = torch.roll(x, -threads * count).double() + count
    name = f"{count} kernels of {blocks} blocks of {threads} threads"
    return make_chain(name, body, targets[(count - 1) % 2], expected, 0.0)


def wide_chain(torch: Any, config: GemvConfig, layers: int = 64, size: int = 2048) -> CudaChain:
    """layers of RMSNorm on one block and a GEMV on all."""
    from .cuda_kernels import gemv, rms_norm

    torch.manual_seed(1)
    x = random_floats(torch, size)
    norms = [1 + random_floats(torch, size, scale=0.1) for _ in range(layers)]
    matrices = [random_weights(torch, size, size) for _ in range(layers)]
    normed_inputs = [torch.empty_like(x) for _ in range(layers)]  # an op is replicated if no other writes its output
    products = [torch.empty_like(x) for _ in range(2)]

    def body(waits: bool) -> None:
        before = x
        for index, (norm, matrix, h) in enumerate(zip(norms, matrices, normed_inputs, strict=True)):
            rms_norm[(1,)](before, norm, h, EPSILON, SIZE=size, WAITS=waits, num_warps=4)
            after = products[index % 2]
            triton_gemv(gemv, matrix, h, after, config, waits)
            before = after

    value = x.double()
    for norm, matrix in zip(norms, matrices, strict=True):
        value = matrix.double() @ normed(value, norm)
    last = products[(layers - 1) % 2]
    return make_chain(
        f"{layers} layers of RMSNorm and GEMV {size} x {size}, {config}",
        body,
        last,
        value,
        1e-4,
        layers * size * size * 2,
    )


def triton_gemv(kernel: Any, matrix: Any, x: Any, y: Any, config: GemvConfig, waits: bool) -> None:
    rows, columns = matrix.shape
    step = min(config.step, columns)
    grid = (rows // config.rows,)
    kernel[grid](matrix, x, y, COLUMNS=columns, ROWS=config.rows, STEP=step, WAITS=waits, num_warps=config.warps)


def gemv_chain(torch: Any, config: GemvConfig, layers: int = 64, size: int = 4096) -> CudaChain:
    """layers of x' = w x."""
    from .cuda_kernels import gemv

    torch.manual_seed(2)
    x = random_floats(torch, size)
    matrices = [random_weights(torch, size, size) for _ in range(layers)]
    products = [torch.empty_like(x) for _ in range(2)]

    def body(waits: bool) -> None:
        before = x
        for index, matrix in enumerate(matrices):
            triton_gemv(gemv, matrix, before, products[index % 2], config, waits)
            before = products[index % 2]

    value = x.double()
    for matrix in matrices:
        value = matrix.double() @ value
    last = products[(layers - 1) % 2]
    return make_chain(f"{layers} GEMVs {size} x {size}", body, last, value, 1e-4, layers * size * size * 2)


@dataclass(frozen=True)
class RingConfig:
    """The ring of our GEMV, in KB: how much it holds, asks for before the wait, has on its way before and behind it."""

    ring: int
    early: int
    flying: int
    flying_behind: int
    # in a super kernel, SMs that run a small op just before a GEMV have no rows of it
    leaves_out: bool = False

    def __str__(self) -> str:
        return f"ring of {self.ring} KB, {self.early} early, {self.flying} and {self.flying_behind} on their way"


def with_streaming_gemv(chain: CudaChain, config: RingConfig) -> CudaChain:
    """The chain with every GEMV of Triton replaced by ours."""
    ops, waiting = (_replaced(chain, given, config, False) for given in (chain.ops, chain.waiting))
    return replace(chain, name=f"{chain.name}, streaming GEMV, {config}", ops=ops, waiting=waiting)


def for_super_kernel(chain: CudaChain, config: RingConfig) -> CudaChain:
    """The same, as it is fastest in a super kernel."""
    ops, waiting = (_replaced(chain, given, config, config.leaves_out) for given in (chain.ops, chain.waiting))
    return replace(chain, ops=ops, waiting=waiting)


def _replaced(chain: CudaChain, ops: Sequence[Op], config: RingConfig, idle: bool) -> list[Op]:
    sizes = {f"{name}_bytes": size << 10 for name, size in asdict(config).items() if name != "leaves_out"}
    found = []
    blocks_before = 0  # of the op before, if it is a small one
    for op in ops:
        if op.kernel.name != "gemv":
            found.append(op)
            blocks_before = op.kernel.block_dim if op.kernel.block_dim < sm_count() // 2 else 0
            continue
        w, x, y = (str(argument) for argument in op.args[:3])
        rows, columns = chain.buffers[w].shape
        late = blocks_before if idle else 0
        found.append(StreamingGemv(rows, columns, blocks=sm_count(), idle_blocks=late, **sizes).op(w, x, y))
        blocks_before = 0
    return found
