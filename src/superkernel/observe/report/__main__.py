"""observe.report as a program: python -m superkernel.observe.report profile_directory [another] report.html."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ...errors import SuperKernelError
from .. import store
from ..compare import compare
from .data import ReportData
from .page import write_report


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m superkernel.observe.report",
        description="Writes the HTML report on one profile directory, or on two: before and after.",
    )
    parser.add_argument("profile", help="a directory that superkernel.profile or superkernel trace wrote")
    parser.add_argument("after", nargs="?", help="another one, to compare with the first")
    parser.add_argument("page", help="the HTML file to write")
    given = parser.parse_args(arguments)
    try:
        if given.after is None:
            data = ReportData.on_one(store.read(given.profile), Path(given.profile).name)
        else:
            data = ReportData.on_two(compare(given.profile, given.after))
        written = write_report(given.page, data)
    except SuperKernelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"report: {written}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
