"""bench.boundary: the cost of an op boundary in a super kernel; beside it a bare barrier, OpenMP, launches, torch."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np

from ...cache import Cache, digest
from ...model.graph import build_graph
from ...model.op import Op
from ...model.options import Options
from ...model.subkernel import SubKernel
from ...model.tiling import CompiledTiling, Tiling, TilingFunction
from ...plan import make_plan, validate
from ...runtime.compile import compile
from ...targets.buffers import aligned_empty
from ...targets.cpu.runtime.host_library import team_policy
from ...targets.cpu.runtime.launch import CpuLoadedKernel
from ...targets.cpu.runtime.openmp import openmp
from ...targets.native.toolchain import find_toolchain
from ...targets.native.toolchain import run as run_command
from .measure import Figure, Result, burst, describe_machine, measure, summary

KERNELS = Path(__file__).parent / "kernels.cpp"
CLOCK = Path(__file__).parent / "clock.cpp"
CORES = 2
CHAIN = 64
LONG = 513
BLOCK_CHAIN = 1024
STREAM = 64
MEETINGS = 2000


def run(quick: bool = False, cores: int = CORES) -> Result:
    rounds = 9 if quick else 41
    result = Result("boundary", describe_machine(CORES))
    if result.machine["cores_there"] < CORES:
        result.notes.append("only one core: no figure below means anything")
    if cores != CORES:
        result.notes.append(f"a boundary between two cores, not {cores}: so are the peers")
    with team_policy("always"):  # a launch that runs on the calling thread alone has no boundary between cores
        _boundary(result, rounds)
        _chain(result, rounds)
        _python_call(result, rounds)
        _dynamic_op(result, rounds)
        _local_edges(result, rounds)
        _stream_fusion(result, rounds)
    _planning(result, 5 if quick else 11)
    return result


def _kernel(name: str, block_dim: int, params: Sequence[str], sync_all: bool | None = None) -> SubKernel:
    return SubKernel.from_source(KERNELS, name, block_dim=block_dim, params=params, sync_all=sync_all)


_linked = partial(compile, cores=CORES)


def _alternating(kernel: SubKernel, length: int, prefix: str = "t", **op: Any) -> list[Op]:
    """t0 -> t1 -> t0 -> ...: every op depends on the previous op."""
    return [Op(kernel, [f"{prefix}{i % 2}", f"{prefix}{(i + 1) % 2}"], **op) for i in range(length)]


def _added(kernel: SubKernel, length: int) -> list[Op]:
    """t1 = t0 + y, t0 = t1 + y, ..."""
    return [Op(kernel, [f"t{i % 2}", "y", f"t{(i + 1) % 2}"]) for i in range(length)]


def _boundary(result: Result, rounds: int) -> None:
    """The time of 512 more ops in a chain, and beside it the bare barrier and the empty parallel region."""
    step = _kernel("count_up", 2, ["in:x:int64[16]", "out:y:int64[16]"])
    chain, short = _linked(_alternating(step, LONG), "chain"), _linked(_alternating(step, 1), "one_op")
    # its blocks wait for each other, so that one core alone cannot run them: the same promise as sync_all
    blocks_meet = _kernel("meet", 2, ["inout:m:int64[16]", "scalar:n:int64"], sync_all=True)
    meet = _linked([Op(blocks_meet, ["m", "n"])], "bare_barrier")
    buffers = {"t0": np.zeros(16, np.int64), "t1": np.zeros(16, np.int64)}
    chain(buffers)
    result.checks["a chain of 513 ops counts to 513"] = bool((buffers["t1"][::8] == LONG).all())
    meeting = np.zeros(16, np.int64)
    meet({"m": meeting, "n": MEETINGS})
    result.checks["the bare barrier was met 2000 times"] = bool(meeting[8] == MEETINGS)
    clock = load_clock()
    parallel = ctypes.c_void_p(openmp().address("GOMP_parallel"))
    times: dict[str, list[float]] = {"long": [], "short": [], "meet": [], "no meet": [], "region": []}
    for _ in range(rounds):
        times["long"].append(burst(lambda: chain(buffers), 20))
        times["meet"].append(burst(lambda: meet({"m": meeting, "n": MEETINGS}), 10))
        times["short"].append(burst(lambda: short(buffers), 50))
        times["no meet"].append(burst(lambda: meet({"m": meeting, "n": 0}), 50))
        times["region"].append(clock.time_regions(parallel, CORES, 500))
    boundary = [(a - b) / (LONG - 1) for a, b in zip(times["long"], times["short"], strict=True)]
    bare = [(a - b) / MEETINGS for a, b in zip(times["meet"], times["no meet"], strict=True)]
    rows = [
        summary("a dependent op boundary in a super kernel", boundary),
        summary("a bare spin barrier, two threads", bare),
        summary("an OpenMP parallel region, two threads", times["region"]),
    ]
    result.timings += rows
    result.figures.append(Figure("boundary against an OpenMP region", rows[0].median / rows[2].median, 1 / 3, False))
    result.figures.append(Figure("boundary against a bare spin barrier", rows[0].median / rows[1].median, 1.5, False))
    for kernel in (chain, short, meet):
        kernel.close()


def _chain(result: Result, rounds: int) -> None:
    """64 dependent adds of 4 KB: fused, one launch each, eager."""
    add = _kernel("add_1024", 1, ["in:x:float32[1024]", "in:y:float32[1024]", "out:z:float32[1024]"])
    fused = _linked(_added(add, CHAIN), "chain_4k")
    unfused = fused.unfused()
    buffers = {name: _filled(1024, value) for name, value in (("t0", 1.0), ("y", 0.5), ("t1", 0.0))}
    cases: dict[str, Callable[[], object]] = {
        "64 dependent ops of 4 KB, one super kernel": lambda: fused(buffers),
        "the same 64 sub-kernels, one launch each": lambda: unfused(buffers),
    }
    first = buffers["t0"].copy()
    fused(buffers)
    expected = first + np.float32(CHAIN * 0.5)
    result.checks["64 adds"] = bool((buffers["t0"] == expected).all())
    buffers["t0"][:] = first
    unfused(buffers)
    result.checks["64 adds, one launch each"] = bool((buffers["t0"] == expected).all())
    eager = _eager_chain(result)
    if eager is not None:
        cases["64 eager torch.add of 4 KB"] = eager
    buffers["y"][:] = 0  # so that thousands of rounds stay finite
    timings = list(measure(cases, rounds).values())
    result.timings += timings
    result.figures.append(Figure("the chain against one launch each", timings[1].median / timings[0].median, 3, True))
    if eager is not None:
        result.figures.append(Figure("the chain against eager torch", timings[2].median / timings[0].median, 10, True))
    fused.close()


def _eager_chain(result: Result) -> Callable[[], object] | None:
    if util.find_spec("torch") is None:
        result.notes.append("torch is not installed: no eager peer")
        return None
    import torch

    start, step = torch.full((1024,), 1.0), torch.full((1024,), 0.5)

    def eager() -> Any:
        value = start
        for _ in range(CHAIN):
            value = torch.add(value, step)
        return value

    result.checks["64 eager adds"] = bool((eager() == 1.0 + CHAIN * 0.5).all())
    result.notes.append(f"eager: torch {torch.__version__}, {torch.get_num_threads()} threads, default settings")
    return eager


def _python_call(result: Result, rounds: int) -> None:
    """Calling with eight buffers from Python, and launching the same from C."""
    params = [f"in:{c}:float32[64]" for c in "abcd"] + [f"inout:{c}:float32[64]" for c in "efgh"]
    kernel = _linked([Op(_kernel("eight", 2, params), list("abcdefgh"))], "eight")
    buffers = {name: np.zeros(64, np.float32) for name in "abcdefgh"}
    kernel(buffers)
    result.checks["eight buffers"] = bool(buffers["h"][0] == 1)
    clock, loaded = load_clock(), kernel.loaded
    assert isinstance(loaded, CpuLoadedKernel)
    called, prepared, direct = list[float](), list[float](), list[float]()
    go = kernel.bind(buffers)
    for _ in range(rounds):
        called.append(burst(lambda: kernel(buffers), 300))
        prepared.append(burst(go, 300))
        direct.append(loaded.repeat(buffers, clock.time_launches, 300))
    rows = [summary("a call with 8 buffers from Python", called), summary("the same, prepared by bind", prepared)]
    rows.append(summary("the same launch from C", direct))
    extra = [a - b for a, b in zip(called, direct, strict=True)]
    result.timings += rows
    result.figures.append(Figure("Python on top of the C launch", summary("", extra).median, 10, False, "us"))
    kernel.close()


def _dynamic_op(result: Result, rounds: int) -> None:
    """A static op behind another, and the same op with a block count that is chosen while the kernel runs."""
    add = _kernel("add_128", 2, [f"{kind}:float32[128]" for kind in ("in:x", "in:y", "out:z")])
    chosen: dict[str, TilingFunction | CompiledTiling | None] = {
        "a launch of two static ops": None,
        "the second is dynamic, a C function chooses": Tiling.from_source(KERNELS, "most_blocks"),
        "the second is dynamic, a Python function chooses": lambda inputs: (0, 2),
    }
    kernels = {}
    for number, (name, tiling) in enumerate(chosen.items()):
        task = "normal" if tiling is None else "dynamic"
        ops = [Op(add, ["x", "y", "t"]), Op(add, ["t", "y", "z"], task=task, tiling=tiling)]
        kernels[name] = _linked(ops, f"tiled_{number}")
    buffers = {name: _filled(128, value) for name, value in (("x", 1.0), ("y", 0.5), ("t", 0.0), ("z", 0.0))}
    for name, kernel in kernels.items():
        buffers["z"][:] = 0
        kernel(buffers)
        result.checks[name] = bool((buffers["z"] == 2).all())
    timings = list(measure({name: partial(kernel, buffers) for name, kernel in kernels.items()}, rounds).values())
    result.timings += timings
    ratio = timings[1].median / timings[0].median
    result.figures.append(Figure("a dynamic op with a C tiling against a static op", ratio, 2, False))
    for kernel in kernels.values():
        kernel.close()


def _local_edges(result: Result, rounds: int) -> None:
    """A chain of @block ops needs no barrier; debug-sync-all=1 puts one after every op."""
    params = [f"{kind}:float32[128]@block" for kind in ("in:x", "in:y", "out:z")]
    add = _kernel("add_128", 2, params)
    plain = _linked(_added(add, BLOCK_CHAIN), "block_chain")
    barred = _linked(_added(add, BLOCK_CHAIN), "block_chain_barriers", "debug-sync-all=1")
    buffers = {name: _filled(128, value) for name, value in (("t0", 1.0), ("y", 0.5), ("t1", 0.0))}
    for name, kernel in ((f"{BLOCK_CHAIN} @block adds", plain), (f"{BLOCK_CHAIN} @block adds with barriers", barred)):
        buffers["t0"][:] = 1
        kernel(buffers)
        result.checks[name] = bool((buffers["t0"] == 1 + BLOCK_CHAIN * 0.5).all())
    result.checks["@block adds wait for nothing"] = plain.plan.blocking_steps == 0
    buffers["y"][:] = 0
    cases = {
        f"{BLOCK_CHAIN} @block adds of 512 B": lambda: plain(buffers),
        f"{BLOCK_CHAIN} @block adds of 512 B, debug-sync-all=1": lambda: barred(buffers),
    }
    timings = list(measure(cases, rounds).values())
    result.timings += timings
    result.figures.append(Figure("no barrier against a barrier per op", timings[1].median / timings[0].median, 2, True))
    plain.close()
    barred.close()


def _stream_fusion(result: Result, rounds: int) -> None:
    """Two independent chains of single-block ops, side by side and in one stream."""
    smooth = _kernel("smooth_1024", 1, ["in:x:float32[1024]", "out:z:float32[1024]"])
    first, second = _alternating(smooth, STREAM, "a", stream=0), _alternating(smooth, STREAM, "b", stream=1)
    side = _linked(first + second, "side", "stream-fusion=1")
    serial = _linked(_alternating(smooth, STREAM, "a") + _alternating(smooth, STREAM, "b"), "line")
    start = np.random.default_rng(0).random(1024, np.float32)
    buffers = {name: _filled(1024, 0) for name in ("a0", "a1", "b0", "b1")}
    found = []
    for run_once in (serial.unfused(), side, serial):
        buffers["a0"][:], buffers["b0"][:] = start, start[::-1]
        run_once(buffers)
        found.append((buffers["a0"].tobytes(), buffers["b0"].tobytes()))
    result.checks["two chains side by side, as single launches"] = found[1] == found[0]
    result.checks["two chains in one stream, as single launches"] = found[2] == found[0]
    cases = {
        f"two chains of {STREAM}, side by side": lambda: side(buffers),
        "the same in one stream": lambda: serial(buffers),
    }
    timings = list(measure(cases, rounds).values())
    result.timings += timings
    result.figures.append(Figure("side by side against one stream", timings[1].median / timings[0].median, 1.6, True))
    side.close()
    serial.close()


def _planning(result: Result, rounds: int) -> None:
    """Planning and validating 500 and 2000 ops."""
    add = _kernel("add_1024", 2, ["in:x:float32[1024]", "in:y:float32[1024]", "out:z:float32[1024]"])
    taken: dict[int, list[float]] = {500: [], 2000: []}
    for _ in range(rounds):
        for count, times in taken.items():
            ops = [Op(add, [f"a{i}", f"a{max(0, i - 7)}", f"a{i + 1}"]) for i in range(count)]
            repeats = 2000 // count  # samples of equal length, so that noise affects them equally
            start = time.process_time()  # CPU time of one thread: other processes do not count
            for _ in range(repeats):
                report = validate(make_plan(build_graph(ops), Options(), CORES))
            times.append((time.process_time() - start) / repeats * 1e6)
            result.checks[f"the plan of {count} ops is proven"] = report.ok
    rows = [summary(f"planning and validating {count} ops", times) for count, times in taken.items()]
    result.timings += rows
    n_log_n = 4 * math.log(2000) / math.log(500)
    result.figures.append(Figure("planning and validating 2000 ops", rows[1].median / 1e6, 5, False, "s"))
    growth = min(taken[2000]) / min(taken[500])
    result.figures.append(Figure("growth from 500 to 2000 ops", growth, n_log_n, False))


def _filled(elements: int, value: float) -> np.ndarray[Any, Any]:
    array = aligned_empty((elements,), "float32")
    array[:] = value
    return array


def load_clock() -> ctypes.CDLL:
    """The loops of clock.cpp."""
    toolchain = find_toolchain()

    def build(output: Path) -> None:
        flags = ["-O2", "-std=c++17", "-shared", "-fPIC"]
        run_command([*toolchain.cxx, *flags, str(CLOCK), "-o", str(output)], what="compiling the clock")

    clock = ctypes.CDLL(str(Cache().make(digest("clock", CLOCK.read_text(), toolchain.identity), ".so", build)))
    for function in (clock.time_regions, clock.time_launches):
        function.restype = ctypes.c_double
    clock.time_regions.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]
    return clock
