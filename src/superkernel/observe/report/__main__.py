"""observe.report as a program: python -m superkernel.observe.report data.json out.html."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ...errors import BuildError
from .data import ReportData
from .write import write_report


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m superkernel.observe.report",
        description="Writes the HTML report of data that ReportData.to_json gave.",
    )
    parser.add_argument("data", help="the JSON file; - reads from standard input")
    parser.add_argument("page", help="the HTML file to write")
    given = parser.parse_args(arguments)
    try:
        written = write_report(given.page, ReportData.from_json(_read(given.data), given.data))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"report: {written}")
    return 0


def _read(path: str) -> str:
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return content.decode()
    except OSError as reason:
        raise BuildError(f"{path}: cannot be read: {reason.strerror or reason}") from reason
    except UnicodeDecodeError as reason:
        raise BuildError(f"{path}: not report data: no UTF-8 text: {reason}") from reason


if __name__ == "__main__":
    sys.exit(main())
