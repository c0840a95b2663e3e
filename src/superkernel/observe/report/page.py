"""observe.report.page: the profiles of a report -> the text of one HTML page that needs no other file."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib import resources
from string import Template

from ...version import __version__
from .data import ReportData
from .markup import escaped
from .sections import sections
from .view import view

_SCRIPTS = ("common.js", "bars.js", "timeline.js", "graph.js", "roofline.js", "start.js")


def page(data: ReportData) -> str:
    shown = sections(data)
    charts, script = _asset("echarts/echarts.min.js"), _page_script()
    return Template(_asset("assets/page.html")).substitute(
        title=escaped(data.title),
        created=escaped(data.created),
        version=escaped(__version__),
        policy=_policy(charts, script),
        style=_asset("assets/style.css"),
        links="".join(f'<a href="#{section.id}">{escaped(section.title)}</a>' for section in shown),
        sections="\n".join(section.html for section in shown),
        data=_embedded(view(data)),
        charts=charts,
        script=script,
    )


def _policy(*scripts: str) -> str:
    """Nothing is loaded, and only our scripts run, whatever names and sources contain."""
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {hashes}"


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _embedded(value: object) -> str:
    """JSON inside a script element: no text in it may end the element or begin a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def _page_script() -> str:
    parts = "\n".join(_asset(f"assets/{name}") for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}}})();'


@cache
def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
