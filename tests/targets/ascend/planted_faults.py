"""Plants faults in the emitted code of the golden scenarios; the emulator, or the build, must find every one.

python tests/targets/ascend/planted_faults.py [scenario ...] [--seed 16 --sample 60]

prints per kind of fault how many were planted, who found them, and how many change nothing, with the reasons.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from targets.ascend.faults.equivalent import reason
from targets.ascend.faults.plant import Fault, plant
from targets.ascend.faults.run import By, Finding, run_faults
from targets.ascend.test_emit_golden import SCENARIOS

from superkernel.targets.ascend.describe_kernel import emit
from superkernel.targets.ascend.kernel_description import EmittedKernel
from superkernel.targets.ascend.plan import AscendPlan

Scenario = Callable[[], AscendPlan]


@dataclass(frozen=True)
class Verdict:
    """Of one fault; `reason`: why it changes nothing."""

    finding: Finding
    reason: str | None = None

    @property
    def open(self) -> bool:
        """Nobody finds it, and nothing says why it would not matter."""
        return self.finding.by is By.NOBODY and self.reason is None


def planted(scenario: Scenario) -> list[Fault]:
    return list(plant(scenario.__name__, emit(scenario())))


def survey(scenario: Scenario, faults: Sequence[Fault]) -> list[Verdict]:
    """What becomes of some faults of a scenario."""
    plan = scenario()
    emitted = emit(plan)
    return [_verdict(plan, emitted, finding) for finding in run_faults(plan, faults)]


def without_fault(scenario: Scenario) -> str:
    """What is found in the text as it is emitted: nothing."""
    plan = scenario()
    [finding] = run_faults(plan, [Fault(scenario.__name__, "none", "", "", {}, emit(plan))])
    return finding.complaint


def _verdict(plan: AscendPlan, emitted: EmittedKernel, finding: Finding) -> Verdict:
    return Verdict(finding, reason(plan, emitted, finding.fault) if finding.by is By.NOBODY else None)


def sample(scenarios: Iterable[Scenario], count: int, seed: int) -> list[tuple[Scenario, list[Fault]]]:
    """Some faults of each scenario, chosen by the seed."""
    choose = random.Random(seed)
    return [(one, choose.sample(faults, min(count, len(faults)))) for one in scenarios if (faults := planted(one))]


def table(verdicts: Sequence[Verdict]) -> str:
    """Per kind: planted, found by whom, changes nothing."""
    columns = (*(by.value for by in By if by is not By.NOBODY), "no change", "open")
    counts: dict[str, Counter[str]] = {}
    for verdict in verdicts:
        by = verdict.finding.by
        column = by.value if by is not By.NOBODY else "open" if verdict.open else "no change"
        counts.setdefault(verdict.finding.fault.kind, Counter())[column] += 1
    lines = [f"{'kind':50} {'planted':>8} " + " ".join(f"{column:>9}" for column in columns)]
    total = Counter[str]()
    for kind, of_kind in sorted(counts.items()):
        lines.append(_row(kind, of_kind, columns))
        total += of_kind
    lines.append(_row("all", total, columns))
    reasons = Counter(verdict.reason for verdict in verdicts if verdict.reason)
    lines += ["", "changes nothing, because:", *(f"{count:8} {why}" for why, count in reasons.most_common())]
    return "\n".join(lines)


def _row(name: str, counts: Counter[str], columns: Sequence[str]) -> str:
    return f"{name:50} {counts.total():8} " + " ".join(f"{counts[column]:9}" for column in columns)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", help="golden scenarios; none: all")
    parser.add_argument("--sample", type=int, default=1_000_000, help="faults of each scenario, at most")
    parser.add_argument("--seed", type=int, default=16, help="which ones")
    chosen = parser.parse_args()
    scenarios = [one for one in SCENARIOS if not chosen.scenarios or one.__name__ in chosen.scenarios]
    verdicts = []
    for scenario, faults in sample(scenarios, chosen.sample, chosen.seed):
        verdicts += survey(scenario, faults)
        print(f"{scenario.__name__}: {len(faults)}", flush=True)
    print(table(verdicts))
    missed = [verdict for verdict in verdicts if verdict.open]
    for verdict in missed:
        print(f"nobody finds {verdict.finding.fault}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
