"""bench.rank_timing: functions that all ranks call together -> their times by round, the slowest rank's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .measure import burst

_FEWEST_S = 1e-9
_LONGEST_S = 4.0  # of all rounds of a workload; fewer rounds where calls are long, but at least _FEWEST_ROUNDS
_FEWEST_ROUNDS = 5


@dataclass(frozen=True)
class Alone:
    """A case that only the first rank runs, while the others wait in a barrier."""

    call: Any


RankCases = Mapping[str, Any]  # by name: a function, or Alone


def times_of_ranks(cases: RankCases, rounds: int, budget_s: float) -> dict[str, list[float]]:
    """Every case in every round, each round in another order; all ranks call a case equally often."""
    once = {name: _once_s(case) for name, case in cases.items()}
    repeats = {name: _agreed(_repeats(once[name], budget_s)) for name in cases}
    round_s = sum(repeats[name] * once[name] for name in cases)
    rounds = _agreed(min(rounds, max(_FEWEST_ROUNDS, int(_LONGEST_S / round_s))))
    taken: dict[str, list[float]] = {name: [] for name in cases}
    order = list(cases)
    for number in range(rounds):
        start = number % len(order)
        for name in order[start:] + order[:start]:
            taken[name].append(_timed(cases[name], repeats[name]))
    return {name: _slowest(times) for name, times in taken.items()}


def _timed(case: Any, repeats: int) -> float:
    dist.barrier()
    if not isinstance(case, Alone):
        return burst(case, repeats)
    return burst(case.call, repeats) if dist.get_rank() == 0 else 0.0


def _once_s(case: Any) -> float:
    _timed(case, 1)
    return max(_timed(case, 3) * 1e-6, _FEWEST_S)


def _repeats(once_s: float, budget_s: float) -> int:
    return max(1, min(5000, int(budget_s / once_s)))


def _agreed(value: int) -> int:
    """What the first rank says: repeats differ by noise, and all must call equally often."""
    said = torch.tensor([value])
    dist.broadcast(said, 0)
    return int(said)


def _slowest(times: list[float]) -> list[float]:
    largest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return [float(time) for time in largest]
