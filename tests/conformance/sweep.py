"""A sweep: many cases checked on some numbers of cores; what became of them is told, counted and written down."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from conformance.checks import Case, Outcome, State, check, counts, small_chunks, warm_up

FOLDER = Path(__file__).parent


@dataclass
class Sweep:
    """The outcomes by number of cores."""

    title: str
    outcomes: dict[int, list[Outcome]] = field(default_factory=dict)
    kernels: int = 0
    seconds: float = 0.0

    @property
    def failures(self) -> str:
        """One paragraph per case that failed; empty if none did."""
        told = [
            f"{outcome.name} on {cores} cores:\n{outcome.reasons[0]}"
            for cores, outcomes in self.outcomes.items()
            for outcome in outcomes
            if outcome.state is State.FAILED
        ]
        return "\n\n".join(told)

    def __str__(self) -> str:
        lines = [f"{self.title}, torch {torch.__version__}: {self.kernels} kernels, {self.seconds:.0f} s"]
        for cores, outcomes in self.outcomes.items():
            found = ", ".join(f"{number} {state}" for state, number in counts(outcomes).items())
            lines.append(f"  {cores} cores, {len(outcomes)} cases: {found}")
        for reason, number in self.reasons().most_common():
            lines.append(f"  {number:4} x {reason}")
        return "\n".join(lines)

    def reasons(self) -> Counter[str]:
        """How often each reason for something unfused was given, on the largest number of cores."""
        outcomes = self.outcomes[max(self.outcomes)]
        shown = (State.FELL_BACK, State.PARTLY)
        return Counter(
            reason for outcome in outcomes if outcome.state in shown for reason in dict.fromkeys(outcome.reasons)
        )

    def write(self) -> Path:
        """The summary that is kept beside the sweeps."""
        path = FOLDER / f"summary-{self.title}-torch{torch.__version__.split('+')[0]}.json"
        path.write_text(json.dumps(self._summary(), indent=1) + "\n")
        return path

    def _summary(self) -> dict[str, Any]:
        return {
            "sweep": self.title,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "kernels": self.kernels,
            "seconds": round(self.seconds),
            "cores": {str(cores): counts(outcomes) for cores, outcomes in self.outcomes.items()},
            "reasons": dict(self.reasons().most_common()),
            "not_all_fused": {
                outcome.name: [outcome.state.value, *dict.fromkeys(outcome.reasons)]
                for outcome in self.outcomes[max(self.outcomes)]
                if outcome.state not in (State.FUSED, State.NOTHING)
            },
            "nothing_to_fuse": [o.name for o in self.outcomes[max(self.outcomes)] if o.state is State.NOTHING],
        }


def sweep(title: str, cases: Sequence[Case], cores: Sequence[int]) -> Sweep:
    """Check all cases on each number of cores; progress goes to the terminal as it comes."""
    began = time.monotonic()
    done = Sweep(title)
    with small_chunks():
        done.kernels = warm_up(cases, cores)
        for count in cores:
            done.outcomes[count] = [_told(check(case, count), count) for case in cases]
    done.seconds = time.monotonic() - began
    return done


def _told(outcome: Outcome, cores: int) -> Outcome:
    if outcome.state is State.FAILED:
        print(f"FAILED {outcome.name} on {cores} cores: {outcome.reasons[0]}", file=sys.stderr, flush=True)
    return outcome
