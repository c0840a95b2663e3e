"""targets.cuda.emulator.schedule: a seed -> in which order the warps get on, and when their copies arrive."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ...emulation.turns import Turn


@dataclass(frozen=True)
class WarpSchedule:
    turn: Turn = Turn.CLOCK
    quantum: int = 64  # about how many steps a warp makes in a row
    late_copies: int = 1024  # of 1024: cp.async completes only when it must
    lanes_apart: bool = False  # lanes that parted go on by themselves until an instruction needs all of them

    @classmethod
    def of_seed(cls, seed: int) -> WarpSchedule:
        """Seed 0 disturbs nothing; every other seed in its way."""
        if seed == 0:
            return cls()
        choice = random.Random(seed)
        return cls(
            choice.choice((Turn.RANDOM, Turn.PRIORITY, Turn.HELD, Turn.HELD)),
            choice.choice((4, 32, 256)),
            choice.choice((0, 512, 1024)),
            choice.random() < 0.3,
        )
