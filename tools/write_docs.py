"""write_docs: the option table -> docs/options.md; the sources -> docs/files.md; `--check` says which page is stale."""

from __future__ import annotations

import argparse
import ast
import re
import sys
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# This checkout's table, whatever is installed.
sys.path.insert(0, str(ROOT / "src"))

from superkernel.model.options import OPTIONS, TARGETS, OptionRow, TargetSupport  # noqa: E402

OPTIONS_PAGE = ROOT / "docs" / "options.md"
FILES_PAGE = ROOT / "docs" / "files.md"
PACKAGE = ROOT / "src" / "superkernel"
# the packages in processing order; what is at the top comes first
ORDER = ("", "cache", "model", "frontend", "plan", "targets", "runtime", "observe", "ops", "tools")
COMMENTED = (".cpp", ".h", ".js")

INTRODUCTION = """\
# Options

<!-- Written by tools/write_docs.py from the table in src/superkernel/model/options.py. Change it there. -->

An option text is `key=value` pairs joined by `:`, for example `stream-fusion=1:early-start=2`. It is what
`super_kernel(name, options)`, `superkernel.compile(..., options=...)` and `ops.json` take.

- Blank pieces are allowed (`profiling=1:`), and so is white space around pieces, keys, values and list items.
- Keys are case-sensitive and written with hyphens; an underscore in a key counts as a hyphen.
- Double quotes around the whole text are stripped.
- A value may contain `=`, never `:`. Lists are comma separated, so an item never contains a comma: write
  `-Xlinker,-z,-Xlinker,now` for `-Wl,-z,now`.
- Numbers are plain decimal digits: no sign, no `_`, no exponent. Only `debug-watchdog` takes a decimal point.
- Refused with `OptionError`, naming key, value and what is allowed: a piece without `=`, an empty key, value or list
  item, a key given twice, an unknown key (with the nearest known one), a value outside its range, cube and vector core
  numbers in another ratio than 1:0, 0:1, 1:1 or 1:2.

In Python, `Options.parse(text)` gives a frozen, hashable `Options` whose fields are the keys with underscores.
`str(options)` prints what differs from the defaults, and `Options.parse(str(options)) == options` always holds.
"""

LEGEND = """\
Every option is accepted on every target. *yes*: it works as described. *no*: it has no effect there, and compiling
says so once. *fence*: a full memory fence stands in for cache maintenance. *front end*: decided while the graph is
captured, before a target is involved. *emulator*: when the super kernel runs on the host emulator.

## When the watchdog fires

Stalled in our own waits: all cores leave, the launch raises `LaunchError`, and the next launch works. Stalled or
crashed inside a sub-kernel: the report goes to stderr and to a file and the process ends with status 70, because an
endless kernel cannot be stopped inside a process.
"""


FILES_INTRODUCTION = """\
# Every source file

<!-- Written by tools/write_docs.py from the first sentence of every file. Change it there. -->

Paths are under `src/superkernel/`, packages in processing order. [layout.md](layout.md) says where to start.
"""


def options_page() -> str:
    """The text of docs/options.md."""
    values = _table(("key", "values", "default", "what it does"), [_value_cells(row) for row in OPTIONS])
    support = _table(("key", *TARGETS), [_support_cells(row) for row in OPTIONS])
    return "\n".join((INTRODUCTION, values, "## What each target does with them", "", support, LEGEND))


def _value_cells(row: OptionRow) -> tuple[str, ...]:
    return f"`{row.key}`", row.allowed, row.default, row.what


def _support_cells(row: OptionRow) -> tuple[str, ...]:
    return f"`{row.key}`", *(_support_text(row.support[target]) for target in TARGETS)


def _support_text(support: TargetSupport) -> str:
    return f"{support.level.value}: {support.note}" if support.note else support.level.value


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def files_page() -> str:
    """The text of docs/files.md: one table per folder, one row per file."""
    files = sorted((path.relative_to(PACKAGE) for path in source_files()), key=_processing_order)
    tables = [
        f"## {folder.as_posix()}/\n\n" + _table(("file", "what it does"), [_file_cells(path) for path in paths])
        for folder, paths in groupby(files, key=lambda path: path.parent)
    ]
    return "\n".join((FILES_INTRODUCTION, *tables)).replace("## ./\n\n", "")


def source_files() -> list[Path]:
    """The files of the package that we wrote in a language with comments; empty ones have nothing to say."""
    named = (path for path in PACKAGE.rglob("*") if path.suffix in (".py", *COMMENTED) and "echarts" not in path.parts)
    return [path for path in named if path.read_text(encoding="utf-8").strip()]


def first_sentence(path: Path) -> str:
    """The first sentence of a file's docstring or first comment, without the name of the file before it."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        comment = ast.get_docstring(ast.parse(text)) or ""
    else:
        lines = re.match(r"(?://.*\n)*", text)
        comment = re.sub(r"^// ?", "", lines[0] if lines else "", flags=re.MULTILINE)
    paragraph = " ".join(comment.split("\n\n")[0].split())
    sentence = re.split(r"(?<=\w{2}[.])\s+(?=[A-Z`])", paragraph)[0].removesuffix(".")
    return re.sub(r"^[\w.]+: ", "", sentence).replace("|", "\\|")


def _processing_order(path: Path) -> tuple[object, ...]:
    folder = path.parent
    package = folder.parts[0] if folder.parts else ""
    return ORDER.index(package), folder.parts, path.name


def _file_cells(path: Path) -> tuple[str, ...]:
    return f"`{path.name}`", first_sentence(PACKAGE / path)


PAGES = {OPTIONS_PAGE: options_page, FILES_PAGE: files_page}


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or with --check return 1 when one of them is not what would be written."""
    parser = argparse.ArgumentParser(description="Write docs/options.md and docs/files.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is stale")
    check = parser.parse_args(arguments).check
    stale = [page for page, text in PAGES.items() if not page.is_file() or page.read_text(encoding="utf-8") != text()]
    for page in stale:
        if check:
            print(f"{page} is stale: run tools/write_docs.py", file=sys.stderr)
        else:
            page.write_text(PAGES[page](), encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
