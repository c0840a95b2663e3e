"""The machine's own Chromium without a window, and a report that is open in it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
# as root it has no sandbox, and containers have little shared memory
FLAGS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")


def find_browser() -> str | None:
    return os.environ.get("SUPERKERNEL_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


@dataclass
class Opened:
    """A page with everything that it complained about and asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def run(self, script: str, argument: object = None) -> Any:
        return self.page.evaluate(script, argument)

    def shown_range(self, number: int = 0) -> tuple[float, float]:
        """What the timeline's axis shows, in microseconds."""
        begin, end = self.run(
            "id => superkernelReport.charts[id].getModel().getComponent('xAxis', 0).axis.scale.getExtent()",
            f"timeline-{number}",
        )
        return begin, end

    def at(self, chart: str, x: float, y: float) -> tuple[float, float]:
        """Where a point of a chart's axes is in the window, once the chart is there."""
        self.page.locator(f"#{chart}").scroll_into_view_if_needed()
        left, top = self.run(
            """([id, x, y]) => {
                const inside = superkernelReport.charts[id].convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, [x, y]);
                const box = document.getElementById(id).getBoundingClientRect();
                return [box.left + inside[0], box.top + inside[1]];
            }""",
            [chart, x, y],
        )
        return left, top

    def hover(self, chart: str, x: float, y: float) -> list[str]:
        """The lines of the tooltip that appears at a point of a chart's axes."""
        return self.hover_at(chart, *self.at(chart, x, y))

    def hover_at(self, chart: str, left: float, top: float) -> list[str]:
        """The same at a point of the window."""
        self.page.mouse.move(left + 3, top)
        self.page.mouse.move(left, top)
        tip = self.page.locator(f"#{chart} .tip:visible")
        tip.wait_for()
        return str(tip.inner_text()).splitlines()
