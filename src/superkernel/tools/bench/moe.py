"""bench.moe: layers of experts beside their peers and the memory, the quantised ops, and the comparison sample."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...ops import dequant_swiglu_quant, quant_matmul
from . import first_call
from .measure import Figure, Result, ratio_by_round, summary, times_by_round
from .peers import CORES, OURS, Runner, compare, prepare, suite
from .sample import SAMPLE, run_sample
from .workloads import expert_layers

LAYERS = {(128, 4): 2.5, (256, 1): 2.5, (512, 1): 2.0}  # hidden size, tokens -> the promised ratio to the best peer
SIZES = (864, 7168, 4096)  # rows, depth, columns of examples/02_scope.py


def run(quick: bool = False, cores: int = CORES) -> Result:
    rounds = 11 if quick else 41
    with suite("moe", quick, cores) as (result, peers):
        for (width, tokens), limit in list(LAYERS.items())[: 1 if quick else None]:
            compared = compare(result, expert_layers(width, tokens), peers, rounds)
            result.figures.append(Figure(f"{compared.name}: the best peer's time to ours", compared.ratio, limit, True))
        quantised_ops(result, (64, 512, 256) if quick else SIZES, 5 if quick else 9)
        if SAMPLE.is_file():
            run_sample(result, peers, rounds)
        else:
            result.notes.append(f"without the comparison sample: {SAMPLE} is part of the repository only")
    return result


def quantised_ops(result: Result, sizes: tuple[int, int, int], rounds: int) -> None:
    """An int8 matmul and what follows it, fused and not, and beside the float32 matmul of the same shape."""
    inputs = quantised_inputs(sizes)
    left, right = (inputs[index].float() for index in (0, 1))
    title = "quantised matmul and SwiGLU, {} x {} x {}".format(*sizes)
    expected = _matmul_and_swiglu(*inputs)
    fused, _ = prepare(Runner(OURS.name, OURS.what, OURS.backend, {"profit_gate": 0}), _matmul_and_swiglu, inputs)
    unfused, _ = prepare(Runner(OURS.name, OURS.what, OURS.backend, {"fuse": "off"}), _matmul_and_swiglu, inputs)
    alone, _ = prepare(Runner(OURS.name, OURS.what, OURS.backend, {"profit_gate": 0}), _matmul, inputs)
    result.checks[f"{title}: fused"] = _equal_int8(fused(), expected)
    result.checks[f"{title}: unfused"] = _equal_int8(unfused(), expected)
    result.checks[f"{title}: the matmul alone"] = _equal_bfloat16(alone(), _matmul(*inputs))
    names = f"{title}, fused", f"{title}, unfused", "its matmul alone, int8", "a float32 matmul of that shape, torch.mm"
    cases = dict(zip(names, (fused, unfused, alone, lambda: torch.mm(left, right)), strict=True))
    taken = times_by_round(cases, rounds, lead=1)
    result.timings += [summary(name, times) for name, times in taken.items()]
    together, apart, int8, float32 = taken.values()
    result.figures.append(Figure(f"{title}: unfused to fused", ratio_by_round(apart, together), 0.98, True))
    result.figures.append(Figure(f"{title}: float32 matmul to int8", ratio_by_round(float32, int8), 2, True))


def quantised_inputs(sizes: tuple[int, int, int]) -> tuple[Tensor, ...]:
    rows, depth, columns = sizes
    x1 = torch.randint(-10, 10, (rows, depth), dtype=torch.int8)
    x2 = torch.randint(-10, 10, (columns, depth), dtype=torch.int8).t()
    return x1, x2, torch.randn(columns), torch.randn(rows), torch.randn(rows, columns)


def _matmul(x1: Tensor, x2: Tensor, scale: Tensor, of_rows: Tensor, of_weights: Tensor) -> Tensor:
    return quant_matmul(x1, x2, scale, pertoken_scale=of_rows, output_dtype=torch.bfloat16)


def _matmul_and_swiglu(*given: Tensor) -> tuple[Tensor, ...]:
    return dequant_swiglu_quant(_matmul(*given), weight_scale=given[-1])


def _equal_int8(got: Any, expected: tuple[Tensor, ...]) -> bool:
    """Quantised to the same int8 but for single steps, where the reference rounds the other way."""
    steps = (got[0].int() - expected[0].int()).abs()
    return int(steps.max()) <= 1 and float((steps > 0).float().mean()) < 1e-3 and first_call.close(got[1], expected[1])


def _equal_bfloat16(got: Tensor, expected: Tensor) -> bool:
    return got.dtype is expected.dtype and torch.allclose(got.float(), expected.float(), rtol=2**-7, atol=0)
