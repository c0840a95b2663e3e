"""write_benchmarks: results of `superkernel bench SUITE --json` come in, docs/benchmarks.md goes out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"

INTRODUCTION = """\
# Benchmarks

<!-- Written by tools/write_benchmarks.py from benchmarks/results/. Measure again, do not edit. -->

`superkernel bench boundary` measures what stands below; `--json` gives the numbers as data, `--quick` a first look.

How it is measured: all cases in one run and one process, in an order that changes every round; the median of the
rounds, and half the distance between the quartiles as the spread. Every result is checked before it is timed, and a
wrong one fails the run. Figures are ratios from one run, because times on shared machines wander. The eager peer is
torch with its default settings. *One launch each* means the same sub-kernels, launched one by one through the same run
time.

Where the gain is smaller, as other workloads showed while this suite was made:

- What a missing barrier saves depends on how little the ops do. 64 `@block` adds of 4 KB gained 1.7x to 2.05x in quiet
  runs, 256 of 2 KB 1.9x; the suite uses 1024 of 512 B, where the boundary is most of the time.
- Two chains that stream memory gain less than two that wait for their own results: adds of 64 KB side by side gained
  1.6x to 2.0x, and 1.2x in a run where the two virtual cores seem to have shared one physical core. The suite's
  chains are latency-bound.
- Arrays that begin at the same offset of a page slow each other down: one run of the 4 KB chain took twice its time so,
  and was 7.9x faster than eager instead of 12x. Arrays that the engine or this suite allocates are staggered now;
  arrays that a caller passes are where they are.
- With another process on the same cores, no two-thread figure here means anything.

What this does not establish: anything about kernels that are long. A super kernel removes boundaries; where the work
between them takes milliseconds there is little to remove.
"""


def page() -> str:
    """The text of docs/benchmarks.md."""
    parts = [INTRODUCTION]
    for path in sorted(RESULTS.glob("*.json")):
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        parts += [_section(result, path) for result in kept["suites"].values()]
    return "\n".join(parts)


def _section(result: dict[str, Any], path: Path) -> str:
    machine = result["machine"]
    title = f"## {result['suite']}: {machine['processor']}, {machine['cores_used']} of {machine['cores_there']} cores"
    facts = ", ".join(f"{key} {machine[key]}" for key in ("python", "torch") if key in machine)
    figures = [
        (f["name"], f"{f['value']:.2f} {f['unit']}", _limit(f), "met" if f["met"] else "**not met**")
        for f in result["figures"]
    ]
    times = [(t["name"], f"{t['median']:.2f}", f"{50 * t['spread']:.0f} %") for t in result["timings"]]
    checks = f"{len(result['checks'])} results checked, " + ("all right" if result["ok"] else "**some wrong**")
    parts = [title, "", f"{facts}; {checks}. Data: `{path.relative_to(ROOT)}`.", ""]
    parts += [_table(("figure", "measured", "promised", ""), figures)]
    parts += [_table(("time per call", "median, us", "spread"), times)]
    return "\n".join(parts + [f"Note: {note}.\n" for note in result["notes"]])


def _limit(figure: dict[str, Any]) -> str:
    return f"{'at least' if figure['at_least'] else 'at most'} {figure['limit']:.3g} {figure['unit']}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [head, ("---",) * len(head), *rows])


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
