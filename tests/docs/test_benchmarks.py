"""docs/benchmarks.md says what the kept results say, and nothing else."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_results_give() -> None:
    spec = importlib.util.spec_from_file_location("write_benchmarks", ROOT / "tools" / "write_benchmarks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page()


def test_every_kept_result_was_right() -> None:
    kept = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    assert kept
    for path in kept:
        assert json.loads(path.read_text(encoding="utf-8"))["ok"], path.name
