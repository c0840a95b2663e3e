"""bench.peers: a workload in, checked times out: our back end, eager torch, Inductor with three settings."""

from __future__ import annotations

import copy
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch._inductor import config, list_mode_options

from ...frontend.report import CompileReport, collecting
from . import first_call
from .bandwidth import reader
from .measure import Comparison, Result, describe_machine, measure
from .workloads import Workload

Call = Callable[[], Any]
CORES = 2  # the default, for which the figures are promised
BURST_S = 0.05  # of calls in a row, as in text generation: each call finds the caches as the last one left them
FLOOR = "reading weights and caches alone"
CACHES = ("SUPERKERNEL_CACHE", "TORCHINDUCTOR_CACHE_DIR")


@dataclass(frozen=True)
class Runner:
    """A way to run a model. `inductor` is the configuration of Inductor while it compiles."""

    name: str
    what: str
    backend: Any = None  # None: eager
    options: Mapping[str, object] = field(default_factory=dict)
    inductor: Mapping[str, object] = field(default_factory=dict)


_FROZEN = {"freezing": True, "cpp_wrapper": True}
OURS = Runner("superkernel", "torch.compile(backend='superkernel'), default options", "superkernel")
UNFUSED = Runner("fuse=off", "the same without fusion: one launch per sub-kernel", "superkernel", {"fuse": "off"})
EAGER = Runner("eager", "the model as it is")
INDUCTOR = Runner("inductor", "torch.compile, default settings", "inductor")
FROZEN = Runner("frozen", "Inductor with freezing and cpp_wrapper", "inductor", inductor=_FROZEN)
TUNED = Runner(
    "max-autotune",
    "Inductor with mode max-autotune (less CUDA graphs), freezing and cpp_wrapper",
    "inductor",
    inductor={**list_mode_options("max-autotune-no-cudagraphs"), **_FROZEN},
)
PEERS = (EAGER, INDUCTOR, FROZEN, TUNED)


def prepare(runner: Runner, model: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Call, CompileReport]:
    """The model compiled and warmed up."""
    if isinstance(model, torch.nn.Module):
        model = copy.deepcopy(model)  # freezing packs weights
    if runner.backend is None:
        return lambda: model(*inputs), CompileReport()
    compiled = compile_anew(model, runner.backend, runner.options)
    # As options of torch.compile they would reach Inductor too late: Dynamo reads `freezing` too.
    with config.patch(dict(runner.inductor)), _quiet(), collecting() as report:
        for _ in range(first_call.CALLS + 1):
            compiled(*inputs)
    return lambda: compiled(*inputs), report


def compile_anew(
    model: Callable[..., Any], backend: Any, options: Mapping[str, object], dynamic: bool = False
) -> Callable[..., Any]:
    model = with_new_code(model)
    compiled: Callable[..., Any] = torch.compile(
        model, backend=backend, options=dict(options) or None, fullgraph=True, dynamic=dynamic
    )
    return compiled


def with_new_code(model: Callable[..., Any]) -> Callable[..., Any]:
    """A function with a new code object: Dynamo caches compilations per code object."""

    def call(*inputs: Any) -> Any:
        return model(*inputs)

    function = model if isinstance(model, FunctionType) else call
    assert isinstance(function, FunctionType)
    code, closure = function.__code__.replace(), function.__closure__
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the tables that autotuning prints."""
    from torch._inductor import select_algorithm

    printed = select_algorithm.PRINT_AUTOTUNE
    select_algorithm.PRINT_AUTOTUNE = False
    try:
        with config.patch(max_autotune_report_choices_stats=False), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        select_algorithm.PRINT_AUTOTUNE = printed


@contextmanager
def fresh_caches() -> Iterator[None]:
    """Empty caches for this run, removed afterwards, with the decisions of the profit gate."""
    before = {name: os.environ.get(name) for name in CACHES}
    with tempfile.TemporaryDirectory(prefix="superkernel-bench-", ignore_cleanup_errors=True) as folder:
        try:
            os.environ.update(caches_in(folder))
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def caches_in(folder: str) -> dict[str, str]:
    return {name: os.path.join(folder, name.lower()) for name in CACHES}


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Every runner has this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def suite(name: str, quick: bool, cores: int = CORES) -> Iterator[tuple[Result, tuple[Runner, ...]]]:
    """A result to fill in, and the peers; `cores` threads for each, no gradients, empty caches."""
    peers = tuple(peer for peer in PEERS if not (quick and peer is TUNED))
    result = Result(name, describe_machine(cores))
    result.notes += [f"{runner.name}: {runner.what}" for runner in (OURS, UNFUSED, *peers)]
    if quick:
        result.notes.append("quick: without max-autotune, and fewer cases and rounds")
    if (load := os.getloadavg()[0]) > 0.5:
        result.notes.append(
            f"the load was {load:.1f} when it began: if other processes made it, times of several threads mean little"
        )
    torch.manual_seed(0)
    with threads(cores), torch.no_grad(), fresh_caches():
        yield result, peers


def compare(result: Result, workload: Workload, peers: Sequence[Runner], rounds: int) -> Comparison:
    """All runners of one workload, checked, then timed in alternating order."""
    expected = workload.model(*workload.inputs)
    cases: dict[str, Callable[[], object]] = {}
    for runner in (OURS, UNFUSED, *peers):
        call, report = prepare(runner, workload.model, workload.inputs)
        if runner is not EAGER:
            result.checks[f"{workload.name}: {runner.name}"] = first_call.close(call(), expected, workload.tolerance)
        if runner is OURS:
            result.notes.append(f"{workload.name}: {describe_segments(report)}")
        cases[runner.name] = call
    if workload.read_bytes:
        kernel, buffers = reader(workload.read_bytes, result.cores)
        cases[FLOOR] = lambda: kernel(buffers)
    timings = measure(cases, rounds, budget_s=BURST_S, lead=1)
    floor = timings.pop(FLOOR, None)
    ours, unfused, *theirs = timings.values()
    compared = Comparison(workload.name, ours, tuple(theirs), floor, unfused=unfused)
    result.comparisons.append(compared)
    result.figures.append(compared.fusion)
    return compared


def describe_segments(report: CompileReport) -> str:
    segments = [segment for scope in report.scopes for segment in scope.segments]
    fused = "; ".join(f"segment {i}: ops {len(s.ops)}, {s.launches}" for i, s in enumerate(segments, 1))
    unfusible = [item.op for scope in report.scopes for item in scope.unfusible]
    return (fused or "nothing fused") + (f"; left to torch: {', '.join(unfusible)}" if unfusible else "")
