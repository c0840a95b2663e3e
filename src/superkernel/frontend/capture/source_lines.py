"""frontend.capture.source_lines: a graph node -> the line of the user's model it comes from, and of its scope."""

from __future__ import annotations

import ast
import contextlib
import linecache
import os
import re
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.fx import Node

_LIBRARY_FOLDERS = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[2]))
_STANDARD_LIBRARY = Path(contextlib.__file__).parent


@dataclass(frozen=True)
class SourceLine:
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        here = f"{Path.cwd()}{os.sep}"
        code = linecache.getline(self.file, self.line).strip()
        return f"{self.file.removeprefix(here)}:{self.line}: {code}".removesuffix(": ")


_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in ')


def _user_lines(node: Node) -> list[SourceLine]:
    """The lines of the user's files that call the op, the innermost call first."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    return _lines_in_user_files((file, int(line)) for file, line in frames)


def _lines_in_user_files(frames: Iterable[tuple[str, int]]) -> list[SourceLine]:
    """The innermost call first; `frames` begin with the outermost."""
    lines = [SourceLine(file, line) for file, line in frames if not file.startswith((*_LIBRARY_FOLDERS, "<eval_with_"))]
    return lines[::-1]


def user_line(frames: Iterable[tuple[str, int]]) -> SourceLine | None:
    """The innermost line of the user's files in a stack of files and line numbers, which begins with the outermost."""
    return next(iter(_lines_in_user_files(frames)), None)


def line_in_traceback(text: str) -> str | None:
    """The innermost line of the user's files in a printed stack, as "model.py:12: y = x.sin()"."""
    found = user_line((file, int(line)) for file, line in _FRAME.findall(text))
    return str(found) if found is not None else None


def line_that_raised(error: BaseException) -> str | None:
    """The innermost line of the user's files that an exception passed through."""
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    found = user_line((file, line) for file, line in frames if Path(file).parent != _STANDARD_LIBRARY)
    return str(found) if found is not None and Path(found.file).is_file() else None


def source_line(node: Node) -> str | None:
    """The line of the user's model that the op comes from, as "model.py:12: y = x.sin()"."""
    lines = _user_lines(node)
    return str(lines[0]) if lines else None


def opening_line(node: Node) -> str:
    """The line that opens the scope of the op; the line of the op if no opening is found."""
    lines = _user_lines(node)
    opening = next((opened for at in lines for opened in _openings(at)), None)
    return str(opening or (lines[0] if lines else "an unknown line"))


def _openings(at: SourceLine) -> Iterator[SourceLine]:
    """The `with super_kernel(...)` and `@super_kernel(...)` lines around a line, the innermost first."""
    try:
        tree = ast.parse("".join(linecache.getlines(at.file)))
    except SyntaxError:
        return
    imported = [alias for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    names = {"super_kernel", *(alias.asname or alias.name for alias in imported if alias.name == "super_kernel")}
    lines: list[int] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.With | ast.AsyncWith):
            openers = [item.context_expr for item in node.items]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            openers = node.decorator_list
        else:
            continue
        if node.lineno <= at.line <= (node.end_lineno or 0):
            lines += [opener.lineno for opener in openers if _called_name(opener) in names]
    yield from (SourceLine(at.file, line) for line in sorted(lines, reverse=True))


def _called_name(expression: ast.expr) -> str | None:
    called = expression.func if isinstance(expression, ast.Call) else None
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else None
