"""The picture of an emulated launch: every span in the row of its core, lanes apart."""

from __future__ import annotations

from xml.etree import ElementTree

from superkernel.plan.spans import Span
from superkernel.targets.ascend.core_types import LaunchType
from superkernel.targets.ascend.emulator.lanes import picture
from superkernel.targets.ascend.launch_shape import LaunchShape

NAME = "{http://www.w3.org/2000/svg}"


def test_spans_lie_in_the_rows_of_their_cores_in_proportion_to_time() -> None:
    spans = [
        Span(0, "kernel", None, 0, 200),
        Span(0, "op", "a<b", 0, 100),
        Span(1, "wait", None, 0, 100),
        Span(1, "op", "c", 100, 200),
    ]
    page = ElementTree.fromstring(picture(LaunchShape(LaunchType.MIX_AIC_1_2, 2), spans, "p & q"))
    boxes = {
        box.findtext(f"{NAME}title"): box for box in page.iter(f"{NAME}rect") if box.find(f"{NAME}title") is not None
    }
    first, wait, second = (boxes[t] for t in ("cube 0: op a<b 0-100", "cube 1: wait  0-100", "cube 1: op c 100-200"))
    assert first.get("y") != second.get("y") == wait.get("y")
    assert float(first.get("width", 0)) == float(second.get("width", 0)) == float(wait.get("width", 0))
    assert float(second.get("x", 0)) == float(first.get("x", 0)) + float(first.get("width", 0))
    assert first.get("fill") != second.get("fill") != wait.get("fill")
    texts = [text.text for text in page.iter(f"{NAME}text")]
    assert texts[:3] == ["p & q: 200 ticks", "cube lane", "vector lane"] and texts[3:] == ["a<b", "c"]


def test_a_launch_without_spans_is_an_empty_picture() -> None:
    page = ElementTree.fromstring(picture(LaunchShape(LaunchType.MIX_AIV_1_0, 2), [], "nothing"))
    assert [text.text for text in page.iter(f"{NAME}text")] == ["nothing: 1 ticks", "vector lane"]
