"""write_docs: tables of options and settings, and the sources -> pages of docs/; `--check` says which page is stale."""

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

from superkernel.configuration import READ_VARIABLES, SETTINGS, ReadVariable, Setting  # noqa: E402
from superkernel.model.options import OPTIONS, TARGETS, OptionRow, TargetSupport  # noqa: E402

OPTIONS_PAGE = ROOT / "docs" / "options.md"
CONFIGURATION_PAGE = ROOT / "docs" / "configuration.md"
FILES_PAGE = ROOT / "docs" / "files.md"
PACKAGE = ROOT / "src" / "superkernel"
# the packages in processing order; what is at the top comes first
ORDER = ("", "cache", "model", "frontend", "plan", "targets", "runtime", "package", "observe", "ops", "tools")
COMMENTED = (".cpp", ".cu", ".cuh", ".h", ".hpp", ".js")

INTRODUCTION = """\
# Options

<!-- Written by tools/write_docs.py from the table in src/superkernel/model/options.py. Change it there. -->

An option text is `key=value` pairs joined by `:`, for example `stream-fusion=1:early-start=2`.
`super_kernel(name, options)`, `superkernel.compile(..., options=...)` and [ops.json](ops-json.md) take such a text.

- Empty pairs (`profiling=1:`) and white space around pairs, keys, values and list items are ignored.
- Keys are case-sensitive and written with hyphens; underscores are accepted in place of hyphens.
- Double quotes around the whole text are removed.
- A value may contain `=` but not `:`. List items are separated by commas and cannot contain one: write
  `-Xlinker,-z,-Xlinker,now` for `-Wl,-z,now`.
- Numbers are decimal digits without sign, `_` or exponent. Only `debug-watchdog` accepts a decimal point.
- `OptionError` names key, value and the allowed values. It is raised for a pair without `=`, an empty key, value or
  list item, a duplicate key, an unknown key (with the nearest known one), a value out of range, and a ratio of cube to
  vector cores other than 1:0, 0:1, 1:1 or 1:2.

In Python, `Options.parse(text)` returns a frozen, hashable `Options`; its fields are the keys with underscores.
`str(options)` prints the values that differ from the defaults, and `Options.parse(str(options)) == options`.
"""

LEGEND = """\
Every target accepts every option. *yes*: works as described. *no*: no effect; compiling says so once. *fence*: a full
memory fence replaces cache maintenance. *front end*: applied while the graph is captured, independent of the target.
*emulator*: applies when the super kernel runs on the host emulator.

## When the watchdog fires

- A launch that stalls in waits of the super kernel: all cores leave, the launch raises `LaunchError`, and the next
  launch works.
- A launch that stalls inside a sub-kernel: a report goes to stderr and to a file. `debug-watchdog-action=report`
  repeats it every period; `exit` ends the process with status 70. A running kernel cannot be stopped inside a process.
- A sub-kernel that crashes: a report goes to stderr and to a file, then the signal has its usual effect, which ends the
  process.
"""


CONFIGURATION_INTRODUCTION = """\
# Settings of a process

<!-- Written by tools/write_docs.py from the tables in src/superkernel/configuration.py. Change it there. -->

Every setting is an environment variable and an attribute of `superkernel.config`:

```python
import superkernel as sk

print(sk.config)  # every setting, its value, and where the value comes from
sk.config.cache_limit = "2G"  # for this process
with sk.config.patch(dump="dumped", huge_pages=0):
    ...  # inside, these values hold
sk.config.cache_limit = None  # back to SUPERKERNEL_CACHE_LIMIT, else the default
```

A value is found in this order: an argument of the call (`options={"cache": ...}` of `torch.compile`), a value assigned
to `sk.config`, the environment variable, the default. An assigned value that is not allowed raises `OptionError`; a
variable with such a value raises it when the setting is used. Settings belong to the process, not to a thread.
"""

VARIABLES_INTRODUCTION = """\
## Variables of other programs

SuperKernel reads these as well; they have no attribute.
"""

SETTINGS_ELSEWHERE = """\
## What is set elsewhere

| what | where |
|---|---|
| how one scope is fused and synchronised | [option texts](options.md) of `super_kernel`, `compile` and `ops.json` |
| what the `torch.compile` back end does | [its options](torch.md#back-end-options): `fuse`, `profit_gate`, ... |
| the processor that kernels are compiled for | [`march=`](saving.md) of `sk.compile` |
| the number of cores of a kernel | `cores=` of `sk.compile`, and `torch.set_num_threads` |
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


def configuration_page() -> str:
    """The text of docs/configuration.md."""
    settings = _table(("setting", "variable", "values", "default", "what it does"), list(map(_setting_cells, SETTINGS)))
    variables = _table(("variable", "what it does"), list(map(_variable_cells, READ_VARIABLES)))
    return "\n".join((CONFIGURATION_INTRODUCTION, settings, VARIABLES_INTRODUCTION, variables, SETTINGS_ELSEWHERE))


def _setting_cells(setting: Setting) -> tuple[str, ...]:
    return f"`config.{setting.name}`", f"`{setting.variable}`", setting.allowed, setting.default, setting.what


def _variable_cells(read: ReadVariable) -> tuple[str, ...]:
    return ", ".join(f"`{name}`" for name in read.variable.split(", ")), read.what


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


PAGES = {OPTIONS_PAGE: options_page, CONFIGURATION_PAGE: configuration_page, FILES_PAGE: files_page}


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or with --check return 1 when one of them is not what would be written."""
    parser = argparse.ArgumentParser(description="Write docs/options.md, docs/configuration.md and docs/files.md.")
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
