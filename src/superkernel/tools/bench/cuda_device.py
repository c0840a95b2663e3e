"""bench.cuda_device: functions that launch on a GPU -> their times by CUDA events; the GPU's facts and bandwidth."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import UnsupportedError
from .measure import Timing, summary

Launch = Callable[[], object]
_SETTLE_S = 0.5  # until the clocks have risen
_READ_BYTES = 4 << 30  # much more than the L2 cache


def require_gpu() -> Any:
    """torch, on a machine with a GPU; elsewhere a sentence that says what is missing."""
    try:
        import torch
    except ImportError as reason:
        raise UnsupportedError("bench cuda needs torch with CUDA, and an NVIDIA GPU") from reason
    if not torch.cuda.is_available() or torch.version.hip is not None:
        raise UnsupportedError(
            "bench cuda needs an NVIDIA GPU, its driver, and torch built for CUDA; here torch finds no GPU. "
            "superkernel doctor says what is missing"
        )
    try:
        import triton  # noqa: F401
    except ImportError as reason:
        raise UnsupportedError("bench cuda times Triton kernels: pip install triton") from reason
    return torch


def architecture() -> str:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def sm_count() -> int:
    import torch

    return int(torch.cuda.get_device_properties(0).multi_processor_count)


def describe_gpu() -> dict[str, Any]:
    """As describe_machine for processors; an SM is a core here."""
    import torch
    import triton

    count = sm_count()
    facts = {"processor": torch.cuda.get_device_name(), "cores_used": count, "cores_there": count}
    facts |= {"python": platform.python_version(), "torch": torch.__version__, "triton": triton.__version__}
    return facts | {"core_name": "SMs", "architecture": architecture()}


def settle() -> None:
    """Keep the GPU busy until its clocks have risen."""
    import torch

    matrix = torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)
    end = time.perf_counter() + _SETTLE_S
    while time.perf_counter() < end:
        for _ in range(20):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize()


def measure_device(cases: Mapping[str, Launch], rounds: int, budget_s: float = 0.01) -> dict[str, Timing]:
    """Microseconds per call on the GPU: median and quartiles over rounds, each round in another order.

    A round queues calls for about `budget_s` between two events, so that the time of the host is hidden unless it is
    longer than that of the GPU.
    """
    repeats = {name: max(2, min(2000, int(budget_s * 1e6 / max(_time(case, 3), 1e-3)))) for name, case in cases.items()}
    taken: dict[str, list[float]] = {name: [] for name in cases}
    order = list(cases)
    for i in range(rounds):
        for name in order[i % len(order) :] + order[: i % len(order)]:
            cases[name]()
            taken[name].append(_time(cases[name], repeats[name]))
    return {name: summary(name, times) for name, times in taken.items()}


def _time(case: Launch, repeats: int) -> float:
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        case()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3 / repeats


def host_time(case: Launch, repeats: int) -> float:
    """Microseconds of the host per call, while the GPU is not waited for."""
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        case()
    taken = (time.perf_counter() - start) / repeats * 1e6
    torch.cuda.synchronize()
    return taken


def read_rate_of_gpu(rounds: int = 5) -> float:
    """Bytes per second that a kernel reads which only reads: the best of several shapes."""
    import torch

    from .cuda_kernels import read_all

    memory = torch.randint(-(1 << 31), (1 << 31) - 1, (_READ_BYTES // 4,), dtype=torch.int32, device="cuda")
    cases: dict[str, Launch] = {}
    for block, warps in ((4096, 4), (8192, 8), (16384, 8), (16384, 16)):
        count = memory.numel() // block
        sums = torch.empty(count, dtype=torch.int32, device="cuda")
        launch = read_all[(count,)]
        cases[f"{block} {warps}"] = _reader(launch, memory, sums, block, warps)
        cases[f"{block} {warps}"]()
        if not torch.equal(sums, memory.view(count, block).sum(dim=1, dtype=torch.int32)):
            raise AssertionError("the kernel that only reads computes a wrong sum")
    best = min(timing.median for timing in measure_device(cases, rounds).values())
    return _READ_BYTES / best * 1e6


def _reader(launch: Any, memory: Any, sums: Any, block: int, warps: int) -> Launch:
    return lambda: launch(memory, sums, BLOCK=block, num_warps=warps)
