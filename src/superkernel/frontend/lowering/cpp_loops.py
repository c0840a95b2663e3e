"""frontend.lowering.cpp_loops: the loops of a generated kernel -> their counts, and loops over one block's share."""

from __future__ import annotations

import math
import re
import sys
import textwrap
from collections.abc import Sequence

from .cpp_parser import CountingLoop, OutlineError, counting_loop, inside, statements

_EXTENT = re.compile(r"for\s*\(int64_t (\w+)=[^;]*;\s*\1<([^;]*);")
_NUMBER = re.compile(r"(?:static_cast<int64_t>\()?(-?\d+)L?\)?$")


def element_count(text: str) -> int:
    """How many elements the loops of a block cover; the largest integer if a bound is not a number."""
    extents: dict[str, int] = {}
    for variable, bound in _EXTENT.findall(text):
        number = _NUMBER.match(bound)
        extents[variable] = max(extents.get(variable, 1), int(number.group(1)) if number else sys.maxsize)
    return math.prod(extents.values())


def iteration_count(loop: CountingLoop) -> int:
    """How often the loop runs; an OutlineError if a bound is not a number."""
    bounds = [_NUMBER.match(text) for text in (loop.first, loop.last, loop.step)]
    if None in bounds:
        raise OutlineError(f"a parallel region inside a loop up to {loop.last}")
    first, last, step = (int(bound.group(1)) for bound in bounds if bound)
    return len(range(first, last, step))


def inside_loops(loops: Sequence[CountingLoop], items: Sequence[str], room: int) -> str:
    """The statements in every iteration of the loops, each with its own part of the workspace, `room` bytes."""
    if not loops:
        return _block("\n".join(["char* const room = results;", *items]))
    text = _block("\n".join([f"char* const room = results + row++ * {room};", *items]))
    for loop in reversed(loops):
        name = loop.variable
        head = f"for (int64_t {name} = {loop.first}; {name} < {loop.last}; {name} += {loop.step})"
        text = f"{head}\n{_block(text)}"
    return _block(f"int64_t row = 0;\n{text}")


def block_share(statement: str, depth: int) -> str:
    """The loop nest over this block's share of its iterations, as libgomp's static schedule divides them."""
    loops = [counting_loop(statement)]
    for _ in range(depth - 1):
        items = statements(inside(loops[-1].body))
        if len(items) != 1:
            raise OutlineError("a collapsed loop with something between its loops")
        loops.append(counting_loop(items[0]))
    if depth == 1:
        (loop,) = loops
        name = loop.variable
        return (
            f"const auto share = sk::block_share({loop.first}, {loop.last}, {loop.step});\n"
            f"for (int64_t {name} = share.first; {name} < share.last; {name} += {loop.step})\n"
            f"{loop.body}"
        )
    return _nest_share(loops)


def _nest_share(loops: Sequence[CountingLoop]) -> str:
    outer, inner = loops[:-1], loops[-1]
    counts = [f"sk::iterations({loop.first}, {loop.last}, {loop.step})" for loop in loops]
    rows = " * ".join(counts[:-1])
    lines: list[str] = []
    below = "1"
    for loop, count in reversed(list(zip(outer, counts[:-1], strict=True))):
        lines.insert(0, f"const int64_t {loop.variable} = {loop.first} + row / ({below}) % {count} * ({loop.step});")
        below = f"{below} * {count}"
    text = "\n".join(lines)
    return (
        f"const sk::NestShare share({rows}, {counts[-1]});\n"
        "for (int64_t row = share.first_row; row < share.last_row; ++row)\n"
        "{\n"
        f"{textwrap.indent(text, '    ')}\n"
        f"    const auto columns = share.columns(row, {inner.first}, {inner.step});\n"
        f"    for (int64_t {inner.variable} = columns.first; {inner.variable} < columns.last; "
        f"{inner.variable} += {inner.step})\n"
        f"{textwrap.indent(textwrap.dedent(inner.body), '    ')}\n"
        "}"
    )


def _block(text: str) -> str:
    return "{\n" + textwrap.indent(text, "    ") + "\n}"
