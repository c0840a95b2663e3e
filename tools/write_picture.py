"""write_picture: examples/03_moe_compare.py, profiled unfused and fused -> docs/fusion.svg, the picture of the README.

Of many calls each, the call of median length is drawn, both on one scale: one rectangle per launch, from its dispatch
to its completion. Only launches are recorded, so that recording costs next to nothing.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import ModuleType

import torch

import superkernel as sk
from superkernel.frontend.explain import import_file
from superkernel.observe.profile import SUPER_KERNEL, ProfiledLaunch
from superkernel.tools.bench.sample import SAMPLE

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "fusion.svg"
WARM_UP, CALLS = 20, 200
BUSY = 1.0  # load average from which other processes decide the times
WIDTH, LEFT, RIGHT, ROW, GAP, TOP = 900, 20, 20, 34, 52, 60
SUPER_KERNEL_COLOUR, SUB_KERNEL_COLOUR, TORCH_COLOUR = "#0072b2", "#e69f00", "#999999"
LEGEND = ((SUPER_KERNEL_COLOUR, "super kernel"), (SUB_KERNEL_COLOUR, "sub-kernel"), (TORCH_COLOUR, "launched by torch"))


@dataclass(frozen=True)
class Call:
    """The launches of one call of the model."""

    title: str
    launches: tuple[ProfiledLaunch, ...]

    @property
    def duration_us(self) -> float:
        return (self.launches[-1].end_ns - self.launches[0].begin_ns) / 1000

    @property
    def label(self) -> str:
        return f"{self.title}: {len(self.launches)} launches, {self.duration_us:.0f} µs"


def record(sample: ModuleType, options: dict[str, object], title: str) -> Call:
    """The call of median length."""
    torch._dynamo.reset()
    model = torch.compile(sample.Model().eval(), backend="superkernel", fullgraph=True, dynamic=False, options=options)
    given = sample.inputs()
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for _ in range(WARM_UP):
            model(*given)
        with sk.profile(folder) as recorded:
            for _ in range(CALLS):
                model(*given)
    assert recorded.result is not None
    return median_call(recorded.result.launches, CALLS, title)


def median_call(launches: Sequence[ProfiledLaunch], calls: int, title: str) -> Call:
    """Every call launches the same kernels: the launches are cut into calls, and the call of median length is kept."""
    each, rest = divmod(len(launches), calls)
    if not each or rest:
        raise ValueError(f"{len(launches)} launches in {calls} calls: calls differ in their launches")
    cut = [Call(title, tuple(launches[start : start + each])) for start in range(0, len(launches), each)]
    return sorted(cut, key=lambda call: call.duration_us)[len(cut) // 2]


def drawn(calls: Sequence[Call], caption: str) -> str:
    """The picture as SVG."""
    longest = max(call.duration_us for call in calls)
    scale = (WIDTH - LEFT - RIGHT) / longest
    height = TOP + len(calls) * (ROW + GAP) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
        ' font-size="14">',
        f"<title>{escape('; '.join(call.label for call in calls))}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    across = LEFT
    for colour, word in LEGEND:
        parts.append(f'<rect x="{across}" y="14" width="14" height="14" fill="{colour}"/>')
        parts.append(f'<text x="{across + 20}" y="26" fill="#333333">{word}</text>')
        across += 20 + 9 * len(word) + 20
    for number, call in enumerate(calls):
        y = TOP + number * (ROW + GAP)
        parts.append(f'<text x="{LEFT}" y="{y + 10}" fill="#111111" font-weight="bold">{escape(call.label)}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y + 18}" width="{longest * scale:.1f}" height="{ROW}" fill="#f2f2f2"/>')
        begin = call.launches[0].begin_ns
        for launch in call.launches:
            x, width = LEFT + (launch.begin_ns - begin) / 1000 * scale, max(launch.duration_us * scale, 0.8)
            name = escape(f"{launch.name}: {launch.duration_us:.1f} µs")
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 18}" width="{width:.1f}" height="{ROW}" fill="{_colour(launch)}">'
                f"<title>{name}</title></rect>"
            )
    parts.append(f'<text x="{LEFT}" y="{height - 10}" fill="#555555" font-size="12">{escape(caption)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _colour(launch: ProfiledLaunch) -> str:
    if launch.type == SUPER_KERNEL:
        return SUPER_KERNEL_COLOUR
    return TORCH_COLOUR if launch.kernel is None else SUB_KERNEL_COLOUR


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=PICTURE)
    output: Path = parser.parse_args().output
    load = os.getloadavg()[0]
    sample = import_file(SAMPLE)
    calls = record(sample, sample.UNFUSED, "unfused"), record(sample, sample.FUSED, "fused")
    caption = f"examples/03_moe_compare.py, the call of median length of {CALLS} each, {torch.get_num_threads()} cores"
    if load > BUSY:
        caption += f"; the machine was busy, load {load:.1f}"
    output.write_text(drawn(calls, caption), encoding="utf-8")
    print(*(call.label for call in calls), output, sep="\n")


if __name__ == "__main__":
    main()
