"""write_benchmarks: results of `superkernel bench SUITE --json` and a note on each suite -> docs/benchmarks.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
NOTES = ROOT / "benchmarks" / "notes"
PAGE = ROOT / "docs" / "benchmarks.md"

INTRODUCTION = """\
# Benchmarks

<!-- Written by tools/write_benchmarks.py from benchmarks/results/ and notes/. Measure again, do not edit. -->

`superkernel bench SUITE` runs one of the suites below. `--json` prints the numbers as JSON, `--quick` uses fewer
repetitions, `--cores N` sets the number of cores for us and for every peer. Targets hold for two cores.

Method: all cases run in one process, in a different order in every round. Tables show the median of the rounds; the
spread is half the interquartile range. Every result is checked before it is timed; a wrong result fails the run.
Figures are ratios from one run, because times on shared machines vary between runs.
"""


def _notes(*suites: str) -> dict[str, str]:
    """What a reader must know of each suite, before its results."""
    return {suite: (NOTES / f"{suite.replace(' ', '-')}.md").read_text(encoding="utf-8") for suite in suites}


SUITES = _notes(
    "boundary", "torch", "moe", "decode", "quantized", "attention", "convolution", "loaded", "package", "collectives"
)
CUDA_SUITES = _notes("cuda boundary", "cuda chain", "cuda gemv", "cuda chain-decode")


def page() -> str:
    """The text of docs/benchmarks.md."""
    sections: dict[str, list[str]] = {suite: [text] for suite, text in (SUITES | CUDA_SUITES).items()}
    for path in sorted(RESULTS.glob("*.json")):
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for suite, result in kept["suites"].items():
            sections[suite].append(section(result, path))
    return "\n".join([INTRODUCTION, *(part for parts in sections.values() for part in parts)])


def section(result: dict[str, Any], path: Path) -> str:
    """One result as a machine's section of its suite."""
    machine = result["machine"]
    cores = f"{machine['cores_used']} of {machine['cores_there']} {machine.get('core_name', 'cores')}"
    title = f"### {result['suite']}: {machine['processor']}, {cores}"
    facts = ", ".join(f"{key} {machine[key]}" for key in ("python", "torch", "triton") if key in machine)
    if "memory_read_TB_per_s" in machine:
        facts += f"; memory {machine['memory_read_TB_per_s']} TB/s"
    figures = [
        (f["name"], f"{f['value']:.2f} {f['unit']}", _limit(f), "met" if f["met"] else "**not met**")
        for f in result["figures"]
    ]
    times = [(t["name"], f"{t['median']:.2f}", f"{50 * t['spread']:.0f} %") for t in result["timings"]]
    checks = f"{len(result['checks'])} results checked, " + ("all right" if result["ok"] else "**some wrong**")
    parts = [title, "", f"{facts}; {checks}. Data: `{path.relative_to(ROOT)}`.", ""]
    parts += [_table(("figure", "measured", "target", ""), figures)]
    parts += _compared(result.get("comparisons", []))
    parts += _single_calls(result.get("latencies", []))
    if times:
        parts += [_table(("time per call", "median, us", "spread"), times)]
    return "\n".join(parts + [f"- {note}." for note in result["notes"]]) + "\n"


def _compared(comparisons: list[dict[str, Any]]) -> Iterator[str]:
    """One table for those with the same peers."""
    for (unit, *who), group in groupby(comparisons, _columns):
        rows = list(group)
        shares = any(row["share"] is not None for row in rows)
        head = (f"median, {unit}", *who, "best/ours", *(["reading alone"] if shares else []))
        yield _table(head, [_compared_cells(row, shares) for row in rows])


def _single_calls(latencies: list[dict[str, Any]]) -> Iterator[str]:
    """One table for each way of calling: workloads down, runners across."""
    by_condition: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for row in latencies:
        by_condition.setdefault(row["condition"], {}).setdefault(row["workload"], {})[row["runner"]] = row
    for condition, workloads in by_condition.items():
        runners = list(dict.fromkeys(runner for rows in workloads.values() for runner in rows))
        rows = [
            (name, *(_single_call(found[runner]) if runner in found else "" for runner in runners))
            for name, found in workloads.items()
        ]
        yield _table((condition, *runners), rows)


def _single_call(row: dict[str, Any]) -> str:
    times = " / ".join(f"{row[key]:.0f}" if row[key] >= 100 else f"{row[key]:.1f}" for key in ("p50", "p99", "largest"))
    return f"{times} ({row['threads']})"


def _columns(comparison: dict[str, Any]) -> tuple[str, ...]:
    return comparison["unit"], *(timing["name"] for timing in _timed(comparison))


def _timed(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """Us, also without fusion where that was timed, and every peer."""
    return [comparison["ours"], *filter(None, [comparison.get("unfused")]), *comparison["peers"]]


def _compared_cells(comparison: dict[str, Any], shares: bool) -> tuple[str, ...]:
    in_microseconds = {"us": 1.0, "s": 1e6}[comparison["unit"]]
    cells = [comparison["name"], *(f"{timing['median'] / in_microseconds:.2f}" for timing in _timed(comparison))]
    cells.append(f"{comparison['ratio']:.2f} x")
    if shares:
        cells.append("" if comparison["share"] is None else f"{100 * comparison['share']:.0f} %")
    return tuple(cells)


def _limit(figure: dict[str, Any]) -> str:
    return f"{'at least' if figure['at_least'] else 'at most'} {figure['limit']:.3g} {figure['unit']}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [head, ("---",) * len(head), *rows])


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
