"""bench.collectives: collectives between ranks of one machine in a super kernel, beside gloo; a sharded decode step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...targets.collectives import CollectiveKind
from .measure import Comparison, Figure, Result, describe_machine, ratio_by_round, summary
from .peers import CORES, fresh_caches
from .rank_cases import COPY_ADD, EAGER, INDUCTOR, OURS, CollectiveTask, size_name, workload_name
from .rank_launch import RankShape, rank_shape, run_ranks

KB, MB = 1 << 10, 1 << 20
SIZES = (64, 512, 4 * KB, 32 * KB, 256 * KB, 2 * MB, 16 * MB, 64 * MB)
QUICK_SIZES = (64, 4 * KB, 2 * MB)
SMALL, LARGE = 4 * KB, 16 * MB  # the sizes of the figures
WIDTH = 512
LIMITS = {"small": 20.0, "share": 60.0, "boundary": 4.0, "decode": 2.0}
_FLOORS = ("copy_add", "copy_add_past_caches")

Times = Mapping[str, list[float]]  # by runner: us per round


def run(quick: bool = False, cores: int = CORES, seconds: float | None = None) -> Result:
    """`seconds`: what does not fit into them is left out."""
    shape = rank_shape(cores)
    sizes, rounds, width = (QUICK_SIZES, 7, 0) if quick else (SIZES, 21, WIDTH)
    task = CollectiveTask(list(sizes), rounds, SMALL, LARGE, width)
    result = Result("collectives", describe_machine(shape.cores))
    result.notes += notes(shape, quick)
    with fresh_caches():
        measured = run_ranks("superkernel.tools.bench.rank_cases", shape, task, seconds)
    report(result, measured, shape)
    return result


def notes(shape: RankShape, quick: bool) -> list[str]:
    found = [
        f"{shape}; all ranks may use all of the {shape.cores} cores, gloo's threads as well",
        "sizes are those of the larger tensor of a rank, float32; the slowest rank counts",
        f"{OURS}: up to 64 KB what 32 more collectives in one launch cost, each dependent on the one before; above it "
        "one launch of one collective, from Python",
        f"{EAGER}: torch.distributed, eager, in place where the operator is",
        f"{INDUCTOR}: four functional collectives in one function, compiled with dynamic=True; a quarter of a call",
        symmetric_memory(),
    ]
    if quick:
        found.append("quick: fewer sizes and rounds, without the decode step")
    return found


def symmetric_memory() -> str:
    """Whether torch has a path of its own through shared memory on a CPU."""
    try:
        from torch._C._distributed_c10d import _SymmetricMemory

        _SymmetricMemory.empty_strided_p2p((1,), (1,), torch.float32, torch.device("cpu"), "0")
    except (ImportError, AttributeError, RuntimeError, TypeError) as reason:
        why = str(reason).splitlines()[0]
        return f"torch {torch.__version__} has no collectives through shared memory on a CPU to compare with: {why!r}"
    return f"torch {torch.__version__} has symmetric memory on a CPU, which this suite does not measure"


def report(result: Result, measured: Mapping[str, Any], shape: RankShape) -> None:
    """What the ranks have measured, as comparisons and figures."""
    result.checks |= measured["checks"]
    result.notes += measured["notes"]
    times: dict[str, Times] = dict(measured["times"])
    copying = times.pop(f"all_reduce of {size_name(LARGE)}, beside {COPY_ADD}", None)
    boundary = times.pop("boundary", None)
    for name, taken in sorted(times.items(), key=lambda item: _place(item[0])):
        compared = {runner: summary(runner, list(values)) for runner, values in taken.items()}
        result.comparisons.append(Comparison(name, compared.pop(OURS), tuple(compared.values())))
    small = times.get(workload_name(CollectiveKind.ALL_REDUCE, SMALL))
    if small is not None:
        ratio = ratio_by_round(small[EAGER], small[OURS])
        name = f"all_reduce of {size_name(SMALL)}: gloo's time to ours"
        result.figures.append(Figure(name, ratio, LIMITS["small"], True))
    if copying is not None:
        report_share(result, copying, shape)
    if boundary is not None:
        report_boundary(result, boundary)
    for name, taken in times.items():
        if name.startswith("tensor-parallel"):
            ratio = ratio_by_round(taken[INDUCTOR], taken[OURS])
            result.figures.append(Figure(f"{name}: time of {INDUCTOR} to ours", ratio, LIMITS["decode"], True))


def _place(name: str) -> int:
    """Of a row: by kind, then by size; what is no collective comes last."""
    names = [workload_name(kind, nbytes) for kind in CollectiveKind for nbytes in SIZES]
    return names.index(name) if name in names else len(names)


def report_share(result: Result, copying: Times, shape: RankShape) -> None:
    """The loop with the better stores is what the memory allows."""
    timings = {
        runner: summary(f"all_reduce of {size_name(LARGE)}: {runner}", list(copying[runner])) for runner in copying
    }
    result.timings += timings.values()
    best = min(_FLOORS, key=lambda floor: timings[floor].median)
    share = 100 * ratio_by_round(copying[best], copying[OURS])
    moved = bytes_moved(LARGE, shape.ranks)
    result.notes.append(
        f"{COPY_ADD}: a rank loads and stores {moved / MB:.0f} MB for an all_reduce of {size_name(LARGE)}; {best} does "
        f"this at {shape.ranks * moved / timings[best].median / 1e3:.1f} GB/s for all ranks together"
    )
    name = f"all_reduce of {size_name(LARGE)}: share of the bandwidth of {COPY_ADD}"
    result.figures.append(Figure(name, share, LIMITS["share"], True, "%"))


def bytes_moved(nbytes: int, ranks: int) -> int:
    """What a rank loads and stores at least, where the tensors of a rank are memory of its own.

    It copies all but its part into shared memory; it adds its part of all ranks, for itself and for the others; it
    copies the other parts from there.
    """
    part = nbytes // ranks
    others = nbytes - part
    return 2 * others + (ranks * part + 2 * part) + 2 * others


def report_boundary(result: Result, boundary: Times) -> None:
    ranks = summary("a boundary between ranks: an all_reduce of one element per rank", list(boundary["ranks"]))
    cores = summary("a boundary between two cores of one launch", list(boundary["cores"]))
    result.timings += [ranks, cores]
    ratio = ratio_by_round(boundary["ranks"], boundary["cores"])
    result.figures.append(Figure("a boundary between ranks to one between cores", ratio, LIMITS["boundary"], False))
