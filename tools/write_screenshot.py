"""tools.write_screenshot: examples/03_moe_compare.py, profiled with all details -> docs/report.png.

The model is called often, fused and unfused, and of each the fastest call is shown: a picture of one call, on a machine
that others use as well. Needs Chromium (apt-get install chromium) and playwright.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch

import superkernel as sk
from superkernel.frontend.explain import import_file
from superkernel.observe.calls import call_kinds
from superkernel.observe.profile import Profile
from superkernel.observe.report import ReportData, ReportedRun, write_report
from superkernel.tools.bench.bandwidth import read_rate
from superkernel.tools.bench.sample import SAMPLE

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "report.png"
WIDTH, HEIGHT = 1200, 900
EDGE = 10
ROUNDS, CALLS = 8, 25
CORES = 2


def record(sample: ModuleType, options: dict[str, object], title: str, bytes_per_s: float) -> ReportedRun:
    """The fastest of many calls."""
    torch._dynamo.reset()
    model = sample.Model().eval()
    compiled = torch.compile(model, backend="superkernel", fullgraph=True, dynamic=False, options=options)
    given = sample.inputs()
    fastest = []
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        compiled(*given)
        for _ in range(ROUNDS):
            with sk.profile(folder, detail=True) as recorded:
                for _ in range(CALLS):
                    compiled(*given)
            assert recorded.result is not None
            fastest.append(fastest_call(recorded.result))
    best = min(fastest, key=_length)
    return ReportedRun(title, replace(best, read_bytes_per_s=bytes_per_s))


def fastest_call(profile: Profile) -> Profile:
    (kind,) = call_kinds(profile)
    return replace(profile, launches=kind.fastest.launches)


def _length(profile: Profile) -> float:
    return profile.launches[-1].end_ns - profile.launches[0].begin_ns


def take_picture(report: Path, picture: Path) -> None:
    """The timelines, and the graph of the first super kernel."""
    from playwright.sync_api import sync_playwright

    browser = os.environ.get("SUPERKERNEL_BROWSER") or shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no Chromium on this machine: apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = started.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(report.absolute().as_uri())
        page.select_option("#graph-kernel", label="fused: sk1")
        first, last = (page.locator(name).bounding_box() for name in ("#timeline", "#graph-0"))
        assert first is not None and last is not None
        top, bottom = first["y"] - EDGE, last["y"] + last["height"] + EDGE
        page.screenshot(path=picture, full_page=True, clip={"x": 0, "y": top, "width": WIDTH, "height": bottom - top})
        started.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, help="keep the report here")
    given = parser.parse_args()
    sample = import_file(SAMPLE)
    rate = read_rate(CORES)
    runs = record(sample, sample.UNFUSED, "unfused", rate), record(sample, sample.FUSED, "fused", rate)
    data = ReportData(
        "A mixture-of-experts model of six scopes", runs, notes=(f"the fastest of {ROUNDS * CALLS} calls each",)
    )
    with tempfile.TemporaryDirectory() as folder:
        report = write_report(given.report or Path(folder, "report.html"), data)
        take_picture(report, PICTURE)
    print(PICTURE)


if __name__ == "__main__":
    main()
