"""targets.ascend.emulator.delays: a seed -> in which order the cores get on, and what their caches do meanwhile."""

from __future__ import annotations

import random
from dataclasses import dataclass

from superkernel.targets.emulation.turns import Turn


@dataclass(frozen=True)
class Delays:
    """How a launch is disturbed. Probabilities are per 1024 steps of a core."""

    turn: Turn = Turn.CLOCK
    quantum: int = 4  # about how many steps a core makes in a row
    evict: int = 0  # a cached line is dropped; if dirty, written back
    speculate: int = 0  # a line that no core loads is read into the cache
    shuffle: bool = False  # core ids in a random order


def delays_of(seed: int) -> Delays:
    """Seed 0 disturbs nothing; every other seed in its way."""
    if seed == 0:
        return Delays()
    choice = random.Random(seed)
    return Delays(
        choice.choice((Turn.RANDOM, Turn.PRIORITY, Turn.HELD)),
        choice.choice((1, 4, 32)),
        choice.choice((0, 0, 8, 128)),
        choice.choice((0, 16, 128)),
        choice.random() < 0.5,
    )
