"""bench.cuda: the suites that need an NVIDIA GPU: boundary, chain, gemv, chain-decode."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...cache import cache_in, totals
from ...model.op import Op
from ...runtime.compile import compile
from ...targets.cuda.capture import capture
from .cuda_chains import (
    GRAPH,
    PDL_GRAPH,
    add_figures,
    ours_of,
    super_kernels_of,
    time_chain,
)
from .cuda_clusters import time_few_blocks
from .cuda_decode import decode_chain
from .cuda_device import describe_gpu, host_time, measure_device, read_rate_of_gpu, require_gpu, settle, sm_count
from .cuda_workloads import (
    CudaChain,
    GemvConfig,
    RingConfig,
    for_super_kernel,
    gemv_chain,
    make_chain,
    small_chain,
    triton_gemv,
    wide_chain,
    with_streaming_gemv,
)
from .measure import Figure, Result, Timing, summary

CONFIGS = tuple(GemvConfig(*config) for config in ((4, 1024, 4), (8, 512, 4), (8, 1024, 8), (16, 256, 4), (2, 2048, 4)))
WIDE_CONFIGS = GemvConfig(8, 2048, 8), GemvConfig(4, 2048, 8)  # beside the fastest in a graph: best for others
DECODE_CONFIG = GemvConfig(4, 1024, 4)  # of 8192 columns, beside the fastest in a graph: it needs fewer registers
BODIES = 28
# rings that are tried: the first is best for the super kernel, another one for graphs
GEMV_RINGS = RingConfig(192, 192, 48, 48), RingConfig(160, 128, 48, 48), RingConfig(128, 128, 64, 64)
DECODE_RINGS = RingConfig(192, 192, 32, 32), RingConfig(128, 112, 32, 48)
WIDE_RINGS = (RingConfig(128, 128, 16, 16, leaves_out=True),)


def run(suite: str, quick: bool = False) -> Result:
    """One suite, or an UnsupportedError that says what this machine lacks."""
    torch = require_gpu()
    settle()
    result = Result(f"cuda {suite}", describe_gpu())
    rate = read_rate_of_gpu()
    result.machine["memory_read_TB_per_s"] = round(rate / 1e12, 2)
    with torch.no_grad():
        RUNNERS[suite](torch, result, 7 if quick else 15, rate)
    return result


def _boundary(torch: Any, result: Result, rounds: int, rate: float) -> None:
    """What an op boundary costs: tiny dependent kernels of one block, and of one block per SM."""
    from .cuda_kernels import bump

    for blocks, shift, what in ((1, 0, "one block"), (sm_count(), 128, "a block per SM, each reads its neighbour's")):
        chain = _bump_chain(torch, bump, blocks, shift, f"256 tiny kernels, {what}")
        timings = time_chain(result, chain, rounds, rate, shows_time=blocks > 1)
        per_op = [
            Timing(f"a boundary, {what}: {timing.name}", *(t / 256 for t in (timing.median, timing.low, timing.high)))
            for timing in timings.values()
        ]
        result.timings += per_op
    _host_cost(torch, result, rounds)
    _assembling(torch, result)


def _bump_chain(torch: Any, bump: Any, blocks: int, shift: int, name: str, count: int = 256) -> Any:
    size = 128 * blocks
    x = torch.arange(size, device="cuda", dtype=torch.float32)
    targets = [torch.empty_like(x) for _ in range(2)]

    def body(waits: bool) -> None:
        before = x
        for index in range(count):
            after = targets[index % 2]
            bump[(blocks,)](before, after, SIZE=size, BLOCK=128, SHIFT=shift, WAITS=waits, num_warps=4)
            before = after

    expected = torch.roll(x, -shift * count).double() + count
    return make_chain(name, body, targets[(count - 1) % 2], expected, 0.0)


def _host_cost(torch: Any, result: Result, rounds: int) -> None:
    """The time of the host for one launch from Python, with 8 buffers."""
    from .cuda_kernels import add

    tensors = [torch.ones(128, device="cuda") for _ in range(8)]
    with capture() as ops:
        for index in range(6):
            add[(1,)](tensors[index], tensors[index + 1], tensors[index + 2], SIZE=128, WAITS=False, num_warps=1)
    with compile(ops, name="launched", target="cuda") as kernel:
        go = kernel.bind(ops.buffers)
        kernel(ops.buffers)
        go()
        called = [host_time(lambda: kernel(ops.buffers), 100) for _ in range(rounds)]
        bound = [host_time(go, 100) for _ in range(rounds)]
    rows = [summary("host: a call with 8 buffers", called), summary("host: a launch prepared by bind", bound)]
    result.timings += rows
    result.figures.append(Figure("one launch from Python, prepared by bind (goal 6)", rows[1].median, 10, False, "us"))


def _assembling(torch: Any, result: Result) -> None:
    """The time to build a super kernel of 28 different bodies, and to build it again from the cache."""
    from .cuda_kernels import scaled_copy

    x, y = torch.ones(1024, device="cuda"), torch.empty(1024, device="cuda")
    with capture() as ops:
        for index in range(BODIES):
            source, target = (x, y) if index % 2 == 0 else (y, x)
            scaled_copy[(1,)](source, target, SIZE=1024, FACTOR=1.0 + index / 64, num_warps=4)
    with tempfile.TemporaryDirectory() as folder, cache_in(folder):
        ops_here: Sequence[Op] = list(ops)
        start = time.perf_counter()
        compile(ops_here, name="bodies", target="cuda").close()
        cold = time.perf_counter() - start
        misses, start = totals["misses"], time.perf_counter()
        compile(ops_here, name="bodies", target="cuda").close()
        warm = time.perf_counter() - start
        result.checks["a warm start compiles nothing"] = totals["misses"] == misses
    result.figures.append(Figure(f"compiling {BODIES} bodies, each", cold / BODIES, 0.15, False, "s"))
    result.notes.append(f"compiling {BODIES} bodies took {cold:.2f} s, from a warm cache {warm:.2f} s")


# floats -> warps of a block that are tried, and figures: peer -> the ratio that must hold, and the goal
_SMALL: dict[int, tuple[tuple[int, ...], dict[str, tuple[float, float]]]] = {
    2048: ((4, 8), {GRAPH: (1.6, 2.0), PDL_GRAPH: (1.3, 1.6)}),
    8192: ((8, 16), {GRAPH: (1.5, 1.8), PDL_GRAPH: (1.3, 1.6)}),
}


def _small_kernels(torch: Any, result: Result, rounds: int, rate: float) -> None:
    """Every way to run a chain of small kernels has its own best number of warps."""
    for size, (warps, floors) in _SMALL.items():
        best: dict[str, Timing] = {}
        for count in warps:
            timings = time_chain(
                result, small_chain(torch, size, warps=count), rounds, rate, shows_time=count == warps[0]
            )
            _keep_best(best, timings)
        add_figures(result, f"64 kernels, RMSNorm and add of {size} floats", best, floors)
    time_few_blocks(torch, result, rounds, rate)
    best = {}
    for config in dict.fromkeys((best_config(torch, result, 2048, 2048), *WIDE_CONFIGS)):
        chain = wide_chain(torch, config)
        _keep_best(best, time_chain(result, chain, rounds, rate, shows_time=config == WIDE_CONFIGS[0]))
    _keep_best(best, _with_rings(result, chain, WIDE_RINGS, rounds, rate))
    add_figures(result, "64 layers of RMSNorm and GEMV", best, {GRAPH: (1.3, 1.55), PDL_GRAPH: (1.05, 1.2)})


def _gemv(torch: Any, result: Result, rounds: int, rate: float) -> None:
    """64 GEMVs 4096 x 4096, ours and those of Triton: each in a super kernel and in graphs."""
    triton_chain = gemv_chain(torch, best_config(torch, result, 4096, 4096))
    theirs = time_chain(result, triton_chain, rounds, rate)
    # a matrix is larger than what the L2 cache may hold ahead: asking ahead gains nothing
    best = _with_rings(result, triton_chain, GEMV_RINGS, rounds, rate, prefetches=False)
    share = 100 * triton_chain.weight_bytes / rate * 1e6 / ours_of(best).median
    name, peer = _fastest(theirs, best, (PDL_GRAPH,))
    result.figures.append(Figure("GEMV chain, share of measured HBM (goal 82)", share, 80, True, "%"))
    ratio = peer.median / ours_of(best).median
    result.figures.append(Figure(f"GEMV chain, against {name} (goal 1.05)", ratio, 1.0, True))


def _decode(torch: Any, result: Result, rounds: int, rate: float) -> None:
    configs = {columns: best_config(torch, result, rows, columns) for rows, columns in ((16384, 2048), (2048, 8192))}
    timings: dict[str, Timing] = {}
    for long_rows in dict.fromkeys((DECODE_CONFIG, configs[8192])):
        chain = decode_chain(torch, {**configs, 8192: long_rows})
        _keep_best(timings, time_chain(result, chain, rounds, rate, shows_time=long_rows == DECODE_CONFIG))
    add_figures(result, "144 unmodified Triton kernels", timings, {GRAPH: (1.0, 1.08)})
    best = _with_rings(result, chain, DECODE_RINGS, rounds, rate)
    name, peer = _fastest(timings, best, (GRAPH, PDL_GRAPH))
    ratio = peer.median / ours_of(best).median
    result.figures.append(Figure(f"the same with our GEMV, against {name} (goal 1.15)", ratio, 1.05, True))


def _with_rings(
    result: Result,
    chain: CudaChain,
    rings: Sequence[RingConfig],
    rounds: int,
    rate: float,
    *,
    prefetches: bool = True,
) -> dict[str, Timing]:
    """The chain with our GEMV; every way to run it has its own best ring."""
    best: dict[str, Timing] = {}
    for config in rings:
        ours = super_kernels_of(for_super_kernel(chain, config), prefetches=prefetches)
        shows = config == rings[0]
        found = time_chain(result, with_streaming_gemv(chain, config), rounds, rate, ours=ours, shows_time=shows)
        _keep_best(best, found)
    return best


def _keep_best(best: dict[str, Timing], found: Mapping[str, Timing]) -> None:
    """Every way to run a chain keeps its fastest time."""
    for name, timing in found.items():
        best[name] = min(best.get(name, timing), timing, key=lambda taken: taken.median)


def _fastest(theirs: Mapping[str, Timing], ours: Mapping[str, Timing], ways: Sequence[str]) -> tuple[str, Timing]:
    """The best of these ways to run a chain one by one, with Triton's GEMV or with ours."""
    found = {
        f"{way} of {whose}": timings[way]
        for whose, timings in (("Triton's GEMV", theirs), ("our GEMV", ours))
        for way in ways
    }
    return min(found.items(), key=lambda pair: pair[1].median)


def best_config(torch: Any, result: Result, rows: int, columns: int) -> GemvConfig:
    """The fastest way to compile Triton's GEMV for a shape, in a CUDA graph."""
    from .cuda_kernels import gemv

    count = max(2, (128 << 20) // (2 * rows * columns))  # more than the L2 cache
    matrices = [torch.randn(rows, columns, device="cuda").to(torch.bfloat16) for _ in range(count)]
    x, y = torch.randn(columns, device="cuda"), torch.empty(rows, device="cuda")
    cases: dict[str, Callable[[], object]] = {}
    for config in CONFIGS:

        def launch(config: GemvConfig = config) -> None:
            for matrix in matrices:
                triton_gemv(gemv, matrix, x, y, config, False)

        launch()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
        cases[str(config)] = graph.replay
    timings = measure_device(cases, 5)
    best = min(CONFIGS, key=lambda config: timings[str(config)].median)
    taken = timings[str(best)].median / count
    result.notes.append(f"Triton GEMV {rows} x {columns}: {best}, {taken:.2f} us each in a graph")
    return best


RUNNERS: dict[str, Callable[[Any, Result, int, float], None]] = {
    "boundary": _boundary,
    "chain": _small_kernels,
    "gemv": _gemv,
    "chain-decode": _decode,
}
