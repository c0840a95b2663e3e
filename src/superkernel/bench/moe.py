"""bench.moe: layers of experts beside their peers and the memory, and the two quantised ops of the scope example."""

from __future__ import annotations

from .compared import compare, suite
from .decode_models import expert_layers
from .measure import Figure, Result

LAYERS = {(128, 4): 2.5, (256, 1): 2.5, (512, 1): 2.0}  # hidden size, tokens -> the promised ratio to the best peer


def run(quick: bool = False) -> Result:
    rounds = 11 if quick else 41
    with suite("moe", quick) as (result, peers):
        for (width, tokens), limit in list(LAYERS.items())[: 1 if quick else None]:
            compared = compare(result, expert_layers(width, tokens), peers, rounds)
            result.figures.append(Figure(f"{compared.name}: the best peer's time to ours", compared.ratio, limit, True))
    return result
