"""bench.moe: layers of experts beside their peers and the memory, the quantised ops, and the comparison sample."""

from __future__ import annotations

from .compare_peers import CORES, compare, suite
from .decode_models import expert_layers
from .measure import Figure, Result
from .quantised import SIZES, quantised_ops
from .sample import SAMPLE, run_sample

LAYERS = {(128, 4): 2.5, (256, 1): 2.5, (512, 1): 2.0}  # hidden size, tokens -> the promised ratio to the best peer


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
