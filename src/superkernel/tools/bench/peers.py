"""bench.peers: a model in, calls of it out: ours, eager, Inductor with three settings; each compiled separately."""

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
from .first_call import CALLS

Call = Callable[[], Any]
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
        for _ in range(CALLS + 1):
            compiled(*inputs)
    return lambda: compiled(*inputs), report


def compile_anew(model: Callable[..., Any], backend: Any, options: Mapping[str, object]) -> Callable[..., Any]:
    model = with_new_code(model)
    compiled: Callable[..., Any] = torch.compile(
        model, backend=backend, options=dict(options) or None, fullgraph=True, dynamic=False
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
