"""targets.ascend.emulator.lanes: spans of an emulated launch -> a picture: one row per core, cube and vector lanes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from superkernel.plan.spans import Span

from ..core_types import CoreClass
from ..launch_shape import LaunchShape
from .trace import core_name

_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#eeca3b")
_WAIT = "#cccccc"
_LEFT, _WIDTH, _ROW, _HEAD, _GAP = 90, 900, 9, 40, 14


def picture(launch: LaunchShape, spans: Sequence[Span], title: str) -> str:
    """An SVG: time to the right in ticks of the emulator, a colour per op, waits in grey."""
    ops = list(dict.fromkeys(span.op for span in spans if span.what == "op" and span.op is not None))
    colours = {op: _COLOURS[place % len(_COLOURS)] for place, op in enumerate(ops)}
    end = max((span.end_ns for span in spans), default=0.0) or 1.0
    rows, tops, bottom = _rows(launch)
    height = bottom + 20 + 16 * -(-len(ops) // 6)
    shapes = [_text(_LEFT, 18, f"{title}: {end:.0f} ticks", 14)]
    shapes += [_text(4, top + 8, f"{core_class.value} lane", 11) for core_class, top in tops.items()]
    for span in sorted(spans, key=lambda span: span.what != "op"):  # waits inside an op lie on top of it
        if span.what in ("op", "wait"):
            fill = _WAIT if span.what == "wait" else colours[span.op or ""]
            left, width = _LEFT + _WIDTH * span.begin_ns / end, _WIDTH * (span.end_ns - span.begin_ns) / end
            name = f"{core_name(launch, span.core)}: {span.what} {span.op or ''} {span.begin_ns:.0f}-{span.end_ns:.0f}"
            shapes.append(
                f'<rect x="{left:.1f}" y="{rows[span.core]}" width="{max(width, 0.3):.1f}" height="{_ROW - 1}" '
                f'fill="{fill}"><title>{escape(name)}</title></rect>'
            )
    for place, op in enumerate(ops):
        x, y = _LEFT + 150 * (place % 6), bottom + 16 + 16 * (place // 6)
        shapes += [f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colours[op]}"/>', _text(x + 14, y, op, 11)]
    size = f'width="{_LEFT + _WIDTH + 20}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *shapes, "</svg>", ""])


def _rows(launch: LaunchShape) -> tuple[dict[int, int], dict[CoreClass, int], int]:
    """Where each core's row is, where each lane begins, and where all end."""
    rows, tops, place = {}, dict[CoreClass, int](), _HEAD
    for core in range(launch.cubes + launch.vectors):
        kind = core_name(launch, core).kind
        if kind not in tops:
            place += _GAP if tops else 0
            tops[kind] = place
        rows[core] = place
        place += _ROW
    return rows, tops, place


def _text(x: int, y: int, text: str, size: int) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}">{escape(text)}</text>'
