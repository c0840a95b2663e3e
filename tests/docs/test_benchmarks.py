"""docs/benchmarks.md says what the kept results say, and nothing else."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

from superkernel.tools import bench
from superkernel.tools.bench.measure import Comparison, Result, Timing

ROOT = Path(__file__).resolve().parents[2]


def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_benchmarks", ROOT / "tools" / "write_benchmarks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_results_give() -> None:
    module = writer()
    assert module.PAGE.read_text(encoding="utf-8") == module.page()


def test_every_suite_has_a_word_on_the_page() -> None:
    assert writer().SUITES.keys() == bench.SUITES.keys()
    assert list(writer().CUDA_SUITES) == [f"cuda {suite}" for suite in bench.CUDA_SUITES]


def test_comparisons_become_one_table_per_set_of_peers() -> None:
    def compared(name: str, unit: str, ours: float, peer: float, floor: float | None = None) -> Comparison:
        bottom = Timing("floor", floor, floor, floor) if floor else None
        return Comparison(name, Timing("ours", ours, ours, ours), (Timing("eager", peer, peer, peer),), bottom, unit)

    machine = {"processor": "some", "cores_used": 2, "cores_there": 2, "python": "3"}
    result = Result("torch", machine, notes=["first", "second"])
    result.comparisons += [compared("small", "us", 10, 30, 4), compared("large", "us", 50, 25)]
    result.comparisons += [compared("compile", "s", 2e6, 3e6)]
    text = writer().section(result.to_dict(), ROOT / "benchmarks" / "results" / "kept.json")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    assert rows[1:6] == [
        "| median, us | ours | eager | best/ours | reading alone |",
        "| small | 10.00 | 30.00 | 3.00 x | 40 % |",
        "| large | 50.00 | 25.00 | 0.50 x |  |",
        "| median, s | ours | eager | best/ours |",
        "| compile | 2.00 | 3.00 | 1.50 x |",
    ]
    assert text.endswith("- first.\n- second.\n")


def test_every_kept_result_was_right() -> None:
    kept = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    assert kept
    for path in kept:
        assert json.loads(path.read_text(encoding="utf-8"))["ok"], path.name
