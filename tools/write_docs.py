"""write_docs: the option table comes in, docs/options.md goes out; `--check` only says whether the page is stale."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# This checkout's table, whatever is installed.
sys.path.insert(0, str(ROOT / "src"))

from superkernel.model.options import OPTIONS, TARGETS, OptionRow, TargetSupport  # noqa: E402

OPTIONS_PAGE = ROOT / "docs" / "options.md"

INTRODUCTION = """\
# Options

<!-- Written by tools/write_docs.py from the table in src/superkernel/options.py. Change it there. -->

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


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or with --check return 1 when it is not what would be written."""
    parser = argparse.ArgumentParser(description="Write docs/options.md from the option table.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is stale")
    check = parser.parse_args(arguments).check
    wanted = options_page()
    if not check:
        OPTIONS_PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if OPTIONS_PAGE.is_file() and OPTIONS_PAGE.read_text(encoding="utf-8") == wanted:
        return 0
    print(f"{OPTIONS_PAGE} is stale: run tools/write_docs.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
