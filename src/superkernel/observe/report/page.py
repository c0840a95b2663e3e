"""observe.report.page: the profiles of a report -> one HTML page that needs no other file, on disk."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from string import Template

from ...errors import BuildError
from ...model.gc_pause import without_collection
from ...model.notebook_html import escaped
from ...version import __version__
from ..store import write_synced
from .data import ReportData
from .sections import sections
from .view import view

_SCRIPTS = (
    "common.js", "sort.js", "calls.js", "bars.js", "timeline.js", "graph.js", "roofline.js", "start.js",
)  # fmt: skip


@without_collection
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
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {hashes}"


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


def write_report(path: str | os.PathLike[str], data: ReportData) -> Path:
    """Write one self-contained HTML file and return its path; folders that are missing are made.

    An existing report stays as it was until the new one is complete.
    """
    target = Path(path)
    content = page(data).encode(errors="backslashreplace")  # a name need not be text that UTF-8 knows
    try:
        if target.is_dir():
            raise BuildError(f"the report cannot be written to {target}: it is a folder; name a file in it")
        if target.exists() and not target.is_file():  # a pipe or a device cannot be put in place whole
            target.write_bytes(content)
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        _put(target.resolve(), content)
    except OSError as reason:
        raise BuildError(
            f"the report cannot be written to {target}: {reason.strerror or reason}; name another place, or make room"
        ) from reason
    return target


def _put(target: Path, content: bytes) -> None:
    unfinished = target.with_name(f".{secrets.token_hex(6)}.unfinished")
    try:
        write_synced(unfinished, content)
        unfinished.replace(target)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
