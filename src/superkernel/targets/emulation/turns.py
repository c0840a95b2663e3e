"""targets.emulation.turns: whose turn it is on an emulated machine, and the seed of each launch of a row."""

from __future__ import annotations

import random
from enum import Enum


class Turn(Enum):
    """Which core or warp goes on; as Order in the C++ of each emulator."""

    CLOCK = 0  # all are equally fast, as on the chip without disturbance
    RANDOM = 1
    PRIORITY = 2  # the same one as long as it can, now and then another
    HELD = 3  # some are held back for long: one, a group, all but one


def launch_seed(seed: int, number: int) -> int:
    """Of launch 0, 1, ... of a row: the first has the seed itself, each other one another order of the cores."""
    return seed if number == 0 else random.Random(f"{seed} {number}").randrange(1, 2**63)
