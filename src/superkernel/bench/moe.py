"""bench.moe: layers of experts beside their peers and the memory, and the comparison sample, fused beside unfused."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..observe.compare import Comparison, compare
from ..observe.profiling import profile
from . import compared
from .compared import suite
from .decode_models import expert_layers
from .measure import Figure, Result
from .peers import Runner, with_own_code
from .workloads import Workload

LAYERS = {(128, 4): 2.5, (256, 1): 2.5, (512, 1): 2.0}  # hidden size, tokens -> the promised ratio to the best peer
SAMPLE = Path(__file__).resolve().parents[3] / "examples" / "03_moe_compare.py"
WAYS: dict[str, dict[str, Any]] = {"unfused": {"fuse": "off"}, "fused": {"profit_gate": 0}}


def run(quick: bool = False) -> Result:
    rounds = 11 if quick else 41
    with suite("moe", quick) as (result, peers):
        for (width, tokens), limit in list(LAYERS.items())[: 1 if quick else None]:
            done = compared.compare(result, expert_layers(width, tokens), peers, rounds)
            result.figures.append(Figure(f"{done.name}: the best peer's time to ours", done.ratio, limit, True))
        if SAMPLE.is_file():
            _run_sample(result, peers, rounds)
        else:
            result.notes.append(f"without the comparison sample: {SAMPLE} is part of the repository only")
    return result


def _run_sample(result: Result, peers: Sequence[Runner], rounds: int) -> None:
    """The model of the sample end to end, and what its launches take fused and unfused."""
    sample = _loaded(SAMPLE)
    model, inputs = sample.Model().eval(), sample.inputs()
    name = "sample of six scopes"
    # An int8 that rounds to its neighbour, after another order of additions, changes more than the last bits.
    workload = Workload(name, lambda *given: torch.cat(model(*given)), inputs, tolerance=1e-2)
    able = [peer for peer in peers if not peer.inductor]
    done = compared.compare(result, workload, able, rounds)
    result.figures.append(Figure(f"{name}: the best peer's time to ours", done.ratio, 2.0, True))
    result.notes.append(
        f"{name}: peers run superkernel.ops by their references in Python; those with cpp_wrapper are left out: "
        "torch 2.13 crashes in operators that take optional lists of tensors"
    )
    changed = _profiled(model, inputs, 10 * rounds)
    result.checks[f"{name}: fused and unfused ran the same"] = changed.same_model and not changed.notes
    told = (
        (f"{name}: less time in launches", changed.benefit_percent),
        (f"{name}: fewer launches", changed.kernel_drop_percent),
    )
    result.figures += [Figure(what, percent or 0.0, 25, True, "%") for what, percent in told]


def _profiled(model: torch.nn.Module, inputs: tuple[Any, ...], calls: int) -> Comparison:
    """Turns of both ways, so that what else the machine does hits both; the last turn of each is compared."""
    compiled = {
        way: torch.compile(with_own_code(model), backend="superkernel", options=options, fullgraph=True, dynamic=False)
        for way, options in WAYS.items()
    }
    with tempfile.TemporaryDirectory(prefix="superkernel-bench-") as folder:
        for _ in range(3):
            for way, call in compiled.items():
                with profile(Path(folder, way)):
                    for _ in range(calls):
                        call(*inputs)
        return compare(*(Path(folder, way) for way in WAYS))


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("superkernel_sample", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look for themselves there
    spec.loader.exec_module(module)
    return module
