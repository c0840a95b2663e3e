"""bench.cuda_chains: a chain of kernels -> its times in a stream, a CUDA graph, a graph with PDL, and a super kernel.

Every way to run the chain is checked first: the same bits as the kernels launched one by one, and the value that
float64 gives, within a tolerance.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ...errors import BuildError
from ...model.op import Op
from ...plan.steps import Call, SpanKind
from ...runtime.compile import compile
from .cuda_device import Launch, architecture, measure_device
from .cuda_launches import SeparateLaunches
from .cuda_workloads import CudaChain
from .measure import Comparison, Figure, Result, Timing

OURS, STREAM, GRAPH, PDL_GRAPH = "super kernel", "stream", "graph", "graph + PDL"
OURS_WAITING = f"{OURS}, kernels with a wait point"
PREFETCH = "prefetch-weights=1"
OURS_PREFETCHING = f"{OURS_WAITING}, {PREFETCH}"
Variants = Mapping[str, tuple[Sequence[Op], str]]  # super kernels by name: their ops, and their options


class Oracle:
    """The outputs of a chain after its kernels were launched one by one."""

    def __init__(self, chain: CudaChain) -> None:
        self._chain = chain
        SeparateLaunches(chain.ops, chain.buffers, architecture())()
        self._outputs = {name: chain.buffers[name].clone() for name in chain.outputs}

    def close_to_float64(self) -> bool:
        found, expected = self._outputs[self._chain.outputs[-1]].double(), self._chain.expected
        return bool((found - expected).abs().max() <= self._chain.tolerance * expected.abs().max())

    def same_bits(self, launch: Launch) -> bool:
        """Whether a launch leaves the same bits; the outputs are overwritten before it."""
        import torch

        for name in self._chain.outputs:
            if name not in self._chain.state:
                self._chain.buffers[name].fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        outputs = ((self._chain.buffers[name], value) for name, value in self._outputs.items())
        return all(torch.equal(_bits(found), _bits(value)) for found, value in outputs)


def _bits(tensor: Any) -> Any:
    import torch

    return tensor.view(torch.int32) if tensor.dtype is torch.float32 else tensor


@contextmanager
def super_kernel(ops: Sequence[Op], options: str = "") -> Iterator[Any]:
    """The ops linked into one kernel."""
    with compile(ops, name="chain", options=options, target="cuda") as kernel:
        yield kernel


def separate_cases(chain: CudaChain) -> dict[str, Launch]:
    """The peers: the same kernels in a stream, in a graph, and in a graph with programmatic dependent launch."""
    chip = architecture()
    plain = SeparateLaunches(chain.ops, chain.buffers, chip)
    dependent = SeparateLaunches(chain.waiting, chain.buffers, chip, dependent=True)
    plain()
    dependent()
    return {STREAM: plain, GRAPH: plain.graph().replay, PDL_GRAPH: dependent.graph().replay}


def time_chain(
    result: Result,
    chain: CudaChain,
    rounds: int,
    rate: float,
    *,
    ours: Variants | None = None,
    shows_time: bool = True,
) -> dict[str, Timing]:
    """Check and time a chain; a comparison, its checks and, if `shows_time`, the timeline of the faster super kernel go
    into the result.

    `ours`: by default the kernels as they are, with wait points, and with inputs that are asked for ahead. A super
    kernel that cannot be built is a note, unless none can.
    """
    oracle = Oracle(chain)
    result.checks[f"{chain.name}: float64"] = oracle.close_to_float64()
    cases, variants = separate_cases(chain), ours or super_kernels_of(chain)
    with ExitStack() as stack:
        failed: list[BuildError] = []
        for name, (ops, options) in variants.items():
            try:
                kernel = stack.enter_context(super_kernel(ops, options))
            except BuildError as reason:
                failed.append(reason)
                result.notes.append(f"{chain.name}, {name}: not built: {str(reason).splitlines()[0]}")
                continue
            cases[name] = kernel.bind({name: chain.buffers[name] for name in kernel.graph.buffers})
            result.notes.append(f"{chain.name}, {name}: {_plan_in_words(kernel)}")
        if failed and not any(map(is_ours, cases)):
            raise failed[0]
        for name, case in cases.items():
            result.checks[f"{chain.name}: {name}"] = oracle.same_bits(case)
        timings = measure_device(cases, rounds)
    add_comparison(result, chain, timings, rate)
    if shows_time:
        faster, options = variants[ours_of(timings).name]
        result.notes += [f"{chain.name}: {line}" for line in timeline(faster, chain.buffers, options)]
    return timings


def _plan_in_words(kernel: Any) -> str:
    """Slots, syncs, registers and replicated ops of a super kernel, on a line."""
    _, launch, edges, *_ = (line.strip() for line in kernel.plan.summary)
    copied = sum(isinstance(step, Call) and step.copies > 1 for step in kernel.plan.steps)
    return f"{launch}; {edges}; {copied} ops replicated; {', '.join(kernel.executable.remarks)}"


def super_kernels_of(chain: CudaChain, *, prefetches: bool = True) -> Variants:
    """The kernels as they are; with wait points, if not all of them have any; with inputs that are asked for ahead."""
    variants: dict[str, tuple[Sequence[Op], str]] = {OURS: (chain.ops, "")}
    if list(chain.ops) != list(chain.waiting):
        variants[OURS_WAITING] = chain.waiting, ""
    if prefetches and chain.weight_bytes:
        variants[OURS_PREFETCHING] = chain.waiting, PREFETCH
    return variants


def is_ours(name: str) -> bool:
    return name.startswith(OURS)


def ours_of(timings: Mapping[str, Timing]) -> Timing:
    """The faster of our super kernels."""
    return min((timing for name, timing in timings.items() if is_ours(name)), key=lambda timing: timing.median)


def add_comparison(result: Result, chain: CudaChain, timings: Mapping[str, Timing], rate: float) -> None:
    """The times of a chain; its floor is the time to read its weights at the measured bandwidth."""
    ours = ours_of(timings)
    peers = tuple(timing for name, timing in timings.items() if not is_ours(name))
    floor = chain.weight_bytes / rate * 1e6
    bottom = Timing("reading the weights", floor, floor, floor) if chain.weight_bytes else None
    shown = Timing(OURS, ours.median, ours.low, ours.high)
    result.comparisons.append(Comparison(chain.name, shown, peers, bottom))
    result.timings += [
        Timing(f"{chain.name}: {timing.name}", timing.median, timing.low, timing.high) for timing in timings.values()
    ]


def add_figures(
    result: Result, name: str, timings: Mapping[str, Timing], floors: Mapping[str, tuple[float, float]]
) -> None:
    """`floors`: peer -> the ratio that must hold, and the one that is aimed at."""
    ours = ours_of(timings).median
    for peer, (floor, goal) in floors.items():
        result.figures.append(
            Figure(f"{name}, against {peer} (goal {goal:g})", timings[peer].median / ours, floor, True)
        )


def timeline(ops: Sequence[Op], buffers: Mapping[str, Any], options: str = "") -> list[str]:
    """Where the time of a launch goes, by what cores did: medians over ops and cores, from time stamps."""
    import torch

    with super_kernel(ops, f"profiling=1:{options}") as kernel:
        launch = kernel.bind({name: buffers[name] for name in kernel.graph.buffers})
        for _ in range(3):
            launch()
        torch.cuda.synchronize()
        spans = kernel.records()
        symbols = {node.name: node.kernel.type_name for node in kernel.graph.nodes}
    if not spans:
        return ["no time stamps"]
    total = max(span.end_ns for span in spans) - min(span.begin_ns for span in spans)
    lines = [f"timeline with profiling=1: {total / 1e3:.1f} us"]
    durations: dict[str, list[float]] = {}
    for span in spans:
        if span.what in (SpanKind.OP, SpanKind.WAIT) and span.op is not None:
            durations.setdefault(f"{span.what.value} {symbols[span.op]}", []).append(span.end_ns - span.begin_ns)
    for what, taken in sorted(durations.items()):
        low, high = min(taken), max(taken)
        lines.append(f"{what}: median {statistics.median(taken) / 1e3:.2f} us, {low / 1e3:.2f} to {high / 1e3:.2f}")
    return lines
