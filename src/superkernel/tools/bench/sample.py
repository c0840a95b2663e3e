"""bench.sample: the model of the comparison sample, end to end beside its peers, and its launches fused and not."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ...frontend.explain import import_file
from ...observe.compare import ProfileComparison
from ...observe.compare import compare as compare_profiles
from ...observe.recorder import profile
from .measure import Figure, Result
from .peers import Runner, compare, compile_anew
from .workloads import Workload

SAMPLE = Path(__file__).resolve().parents[4] / "examples" / "03_moe_compare.py"
TURNS = 7
WAYS: dict[str, dict[str, Any]] = {"unfused": {"fuse": "off"}, "fused": {"profit_gate": 0}}


def run_sample(result: Result, peers: Sequence[Runner], rounds: int) -> None:
    """The model of the sample end to end, and what its launches take fused and unfused."""
    sample = import_file(SAMPLE)
    model, inputs = sample.Model().eval(), sample.inputs()
    name = "sample of six scopes"
    # An int8 that rounds to its neighbour, after another order of additions, changes more than the last bits.
    workload = Workload(name, lambda *given: torch.cat(model(*given)), inputs, tolerance=1e-2)
    supported = [peer for peer in peers if not peer.inductor]
    compared = compare(result, workload, supported, rounds)
    result.figures.append(Figure(f"{name}: the best peer's time to ours", compared.ratio, 2.0, True))
    result.notes.append(
        f"{name}: peers run superkernel.ops by their references in Python; those with cpp_wrapper are left out, "
        "because torch 2.13 crashes on this model with it"
    )
    changed = _profiled(model, inputs, 5 * rounds)
    result.checks[f"{name}: fused and unfused ran the same"] = changed.same_model and not changed.notes
    improvements = (
        (f"{name}: less time in launches", changed.benefit_percent),
        (f"{name}: fewer launches", changed.kernel_drop_percent),
    )
    result.figures += [Figure(what, percent or 0.0, 25, True, "%") for what, percent in improvements]


def _profiled(model: torch.nn.Module, inputs: tuple[Any, ...], calls: int) -> ProfileComparison:
    """Turns of both ways; the fastest of each are compared, because other load on the machine can only add time."""
    compiled = {way: compile_anew(model, "superkernel", options) for way, options in WAYS.items()}
    with tempfile.TemporaryDirectory(prefix="superkernel-bench-") as folder:
        turns: dict[str, dict[Path, float]] = {way: {} for way in WAYS}
        for turn in range(TURNS):
            for way, call in compiled.items():
                with profile(Path(folder, f"{way}{turn}")) as recorded:
                    for _ in range(calls):
                        call(*inputs)
                assert recorded.result is not None
                turns[way][recorded.directory] = recorded.result.total_us
        return compare_profiles(*(min(taken, key=taken.__getitem__) for taken in turns.values()))
