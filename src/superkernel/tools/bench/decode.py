"""bench.decode: decode steps beside their peers and the memory, and the matmuls that they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...model.tensor_arg import TensorArg
from ...runtime.compile import compile
from ...targets import model_support_of
from ...targets.cpu.kernels.matmul import matmul_op
from .bandwidth import reader
from .measure import Comparison, Figure, Result, measure
from .peers import CORES, FLOOR, compare, suite
from .workloads import decode_step

STEPS = {288: 2.5, 512: 1.4, 1024: 1.0}  # hidden size -> the ratio to the best peer that is promised
BOUND_BY_MEMORY = (512, 1024)
DEPTH, COLUMNS = 4096, 8192  # 128 MB of weights: more than any last-level cache that two cores have
ROWS = (1, 2, 4, 8)
LARGE = (512, 1024, 2048)


def run(quick: bool = False, cores: int = CORES) -> Result:
    rounds = 11 if quick else 41
    with suite("decode", quick, cores) as (result, peers):
        for rows in ROWS[::3] if quick else ROWS:
            skinny_matmul(result, rows, rounds)
        for rows in LARGE[:1] if quick else LARGE:
            square_matmul(result, rows, rounds)
        for width, limit in list(STEPS.items())[: 1 if quick else None]:
            compared = compare(result, decode_step(width), peers, rounds)
            result.figures.append(Figure(f"{compared.name}: the best peer's time to ours", compared.ratio, limit, True))
            if width in BOUND_BY_MEMORY:
                assert compared.share is not None
                name = f"{compared.name}: share of the read bandwidth"
                result.figures.append(Figure(name, 100 * compared.share, 90, True, "%"))
    return result


def skinny_matmul(result: Result, rows: int, rounds: int) -> None:
    """A linear layer whose weights come from memory, beside reading as many bytes."""
    x, weights = torch.randn(rows, DEPTH), torch.randn(COLUMNS, DEPTH)
    ours, out = launcher(x, weights.t(), result.cores)
    ours()
    name = f"matmul, {rows} x {DEPTH} x {COLUMNS}"
    result.checks[name] = _close(out, x @ weights.t())
    kernel, buffers = reader(weights.nbytes, result.cores)
    cases: dict[str, Callable[[], object]] = {"superkernel": ours, FLOOR: lambda: kernel(buffers)}
    cases["torch.mm"] = lambda: torch.mm(x, weights.t(), out=out)
    timings = measure(cases, rounds, budget_s=0.03, lead=1)
    compared = Comparison(name, timings["superkernel"], (timings["torch.mm"],), timings[FLOOR])
    result.comparisons.append(compared)
    share = timings[FLOOR].median / timings["superkernel"].median
    result.figures.append(Figure(f"{name}: share of the read bandwidth", 100 * share, 90, True, "%"))


def square_matmul(result: Result, rows: int, rounds: int) -> None:
    """Matmuls where the processor is the limit, beside MKL through torch."""
    x, weights = torch.randn(rows, 1024), torch.randn(1024, 1024)
    ours, out = launcher(x, weights.t(), result.cores)
    ours()
    name = f"matmul, {rows} x 1024 x 1024"
    result.checks[name] = _close(out, x @ weights.t())
    other = torch.empty_like(out)
    timings = measure({"superkernel": ours, "torch.mm": lambda: torch.mm(x, weights.t(), out=other)}, rounds, 0.05)
    compared = Comparison(name, timings["superkernel"], (timings["torch.mm"],))
    result.comparisons.append(compared)
    result.figures.append(Figure(f"{name}: MKL's time to ours", compared.ratio, 0.95, True))


def launcher(a: torch.Tensor, b: torch.Tensor, cores: int) -> tuple[Callable[[], None], torch.Tensor]:
    """a @ b as a super kernel of one op: a function that launches it, and its result."""
    out = torch.empty(a.shape[0], b.shape[1])
    tensors = {"a": a, "b": b, "out": out}
    arguments = [TensorArg(name, 0, "float32", tuple(x.shape), tuple(x.stride())) for name, x in tensors.items()]
    kernel = compile([matmul_op(*arguments, cores=cores)], "matmul", cores=cores)
    values, sizes = kernel.argument_arrays()
    for index, name in enumerate(kernel.graph.buffers):
        values[index], sizes[index] = tensors[name].data_ptr(), tensors[name].untyped_storage().nbytes()
    # as the front end does at the first call
    model_support_of(kernel.target).settle(list(zip(values, sizes, strict=True)))
    return lambda: kernel.launch_values(values, sizes), out


def _close(found: Any, expected: Any) -> bool:
    return bool(torch.allclose(found, expected, rtol=1e-3, atol=1e-2))
