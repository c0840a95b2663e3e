"""tools/write_picture.py: the call of median length is drawn, both calls on one scale."""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType
from xml.etree import ElementTree

import pytest
from docs.pages import ROOT

pytest.importorskip("torch")

from superkernel.observe.profile import SUPER_KERNEL, ProfiledLaunch


@pytest.fixture(scope="module")
def write_picture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_picture", ROOT / "tools" / "write_picture.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def launches(*durations_us: float) -> list[ProfiledLaunch]:
    """One call of two launches for each duration."""
    found, begin = [], 0.0
    for duration in durations_us:
        end = begin + 1000 * duration
        found += [ProfiledLaunch("norm", "Norm", begin, begin + 10, kernel=0)]
        found += [ProfiledLaunch("sk", SUPER_KERNEL, end - 10, end, kernel=1)]
        begin = end
    return found


def test_the_median_call_is_kept(write_picture: ModuleType) -> None:
    call = write_picture.median_call(launches(50, 10, 30), 3, "fused")
    assert (call.label, len(call.launches)) == ("fused: 2 launches, 30 µs", 2)
    with pytest.raises(ValueError, match="calls differ"):
        write_picture.median_call(launches(50, 10), 3, "fused")


def test_both_calls_have_one_scale(write_picture: ModuleType) -> None:
    calls = [write_picture.median_call(launches(length), 1, f"<{length}>") for length in (100, 50)]
    root = ElementTree.fromstring(write_picture.drawn(calls, "caption"))
    bars = [bar for bar in root.iter() if bar.tag.endswith("rect") and len(bar)]
    ends = [float(bar.get("x", "")) + float(bar.get("width", "")) for bar in bars]
    left, right = write_picture.LEFT, write_picture.WIDTH - write_picture.RIGHT
    assert len(bars) == 4 and max(ends[:2]) == pytest.approx(right, abs=1)
    assert max(ends[2:]) == pytest.approx((left + right) / 2, abs=1)


def test_the_picture_of_the_readme_shows_fewer_launches_when_fused() -> None:
    text = (ROOT / "docs" / "fusion.svg").read_text()
    found = re.search(r"<title>unfused: (\d+) launches, \d+ µs; fused: (\d+) launches, \d+ µs</title>", text)
    assert found is not None and int(found[2]) < int(found[1]) and "docs/fusion.svg" in (ROOT / "README.md").read_text()
