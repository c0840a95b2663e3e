"""frontend.outline: an Inductor kernel (C++ with OpenMP) -> parts that are sub-kernels: serial, or blocks of one loop.

Inductor shares work by `omp for` inside `omp parallel`. A part is what may run without waiting for anybody: one shared
loop (its blocks divide the iterations as libgomp would), or serial code (one block). Short loops that wait for each
other are serial code as well. A full reduction keeps one partial result per thread in arrays: those go to a workspace,
the loop and the code that joins the results become two parts.
"""

from __future__ import annotations

import math
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from .cpp_parser import Loop, TextError, identifiers, inside, is_block, loop, statements

ROOM_PER_RESULT = 2048  # bytes of a workspace for one thread's partial result; checked by the compiler
MOST_ROWS = 64  # iterations around a parallel region that are outlined
WORTH_A_SYNC = 2048  # elements that others must take over for one more synchronisation to pay

_SIGNATURE = re.compile(r'extern\s+"C"\s+void\s+kernel\s*\((.*?)\)\s*(?=\{)', re.DOTALL)
_PARAMETER = re.compile(r"(const\s+)?(\w+(?:::\w+)*)\s*(\*?)\s*(\w+)$")
_PARALLEL = re.compile(r"#pragma omp parallel(?: num_threads\((\d+)\))?$")
_SHARED_LOOP = re.compile(r"#pragma omp for(?: collapse\((\d+)\))?$")
_SHARED_ANYWHERE = re.compile(r"#pragma omp for[^\n]*\n")
_SINGLE = "#pragma omp single"
_HINTS = ("#pragma GCC ivdep",)
_THREAD = "int tid = omp_get_thread_num();"
_ALIAS = re.compile(r"auto (\w+) = (\w+);$")
_ARRAY = re.compile(r"([\w:<>, ]+?) (\w+)\[(\d+)\];$")
_VARIABLE = re.compile(r"([\w:<>, ]+?) (\w+) = ([^;]*);$")
_FILL = re.compile(r"for \(int i = 0; i < \d+; i\+\+\)\s*\{\s*(\w+)\[i\] = [^;]*;\s*\}$", re.DOTALL)
_EXTENT = re.compile(r"for\s*\(int64_t (\w+)=[^;]*;\s*\1<([^;]*);")
_NUMBER = re.compile(r"(?:static_cast<int64_t>\()?(-?\d+)L?\)?$")
_ATOMIC = re.compile(r"\batomic_add\w*(?:<[^()]*>)?\(&?(\w+)")
# How a kernel learns of an integer division by zero on another thread; ours throws where it happens, and is caught.
_DIVISION = re.compile(r"inductor_cpu_integer_div_error|inductor_cpu_throw_if_integer_div_error")


@dataclass(frozen=True)
class Parameter:
    """One parameter of the kernel: a pointer, or a number."""

    name: str
    ctype: str
    pointer: bool
    const: bool


@dataclass(frozen=True)
class Part:
    """One sub-kernel of an outlined kernel. `results`: bytes of the workspace that it shares with the next or last."""

    parameters: tuple[Parameter, ...]
    blocks: int
    workspace: str | None
    workspace_bytes: int
    body: str


@dataclass(frozen=True)
class Outlined:
    includes: str
    parts: tuple[Part, ...]


class OutlineError(TextError):
    """The kernel is not of the shape that can be outlined; the reason is for the report."""


def parameters_of(source: str) -> tuple[Parameter, ...]:
    """The parameters of an Inductor kernel, in order."""
    return tuple(_parameter(text) for text in _signature(source).group(1).split(",") if text.strip())


def outline(source: str, threads: int) -> Outlined:
    """Cut the kernel into parts, for blocks that stand for `threads` threads."""
    match = _signature(source)
    parameters = parameters_of(source)
    body = inside(source[match.end() :].strip())
    try:
        return Outlined(source[: match.start()].strip(), tuple(_Cutter(parameters, threads).cut(body)))
    except OutlineError:
        raise
    except TextError as reason:
        raise OutlineError(str(reason)) from reason


def _signature(source: str) -> re.Match[str]:
    match = _SIGNATURE.search(source)
    if match is None:
        raise OutlineError("no function called kernel")
    return match


def _parameter(text: str) -> Parameter:
    match = _PARAMETER.match(" ".join(text.split()))
    if match is None:
        raise OutlineError(f"parameter {text.strip()!r}")
    const, ctype, star, name = match.groups()
    return Parameter(name, ctype, bool(star), bool(const))


@dataclass(frozen=True)
class _Piece:
    """A part before its parameters are known."""

    blocks: int
    body: str
    workspace: str | None = None
    workspace_bytes: int = 0


class _Cutter:
    def __init__(self, parameters: Sequence[Parameter], threads: int) -> None:
        self._parameters, self._threads = parameters, threads
        self._aliases: list[tuple[str, str]] = []
        self._pieces: list[_Piece] = []
        self._workspaces = 0

    def cut(self, body: str) -> list[Part]:
        pending = ""
        for statement in statements(body):
            if _DIVISION.search(statement) and not is_block(statement):
                continue
            if alias := _ALIAS.match(statement):
                self._aliases.append((alias.group(1), alias.group(2)))
            elif pending:
                self._region(pending, statement)
                pending = ""
            elif statement.startswith("#"):
                pending = statement
            elif "#pragma omp" in statement:
                self._reduction(statement)
            else:
                self._add(_Piece(1, statement))
        if pending:
            raise OutlineError(f"{pending!r} stands before nothing")
        return [self._finished(piece) for piece in self._pieces] or [Part((), 1, None, 0, "")]

    def _add(self, piece: _Piece) -> None:
        """Serial code next to serial code is one part: it would run on one core anyway."""
        last = self._pieces[-1] if self._pieces else None
        if last and piece.blocks == 1 and last.blocks == 1 and None in (piece.workspace, last.workspace):
            owner = piece if last.workspace is None else last
            self._pieces[-1] = _Piece(1, f"{last.body}\n{piece.body}", owner.workspace, owner.workspace_bytes)
        else:
            self._pieces.append(piece)

    def _region(self, pragma: str, block: str) -> None:
        """A parallel region with nothing around it: each of its loops is a part."""
        self._check_threads(pragma)
        items = statements(inside(block))
        if items and items[0] == _THREAD:
            items = items[1:]
        pending = ""
        shares = self._worth_sharing([item for item in items if not item.startswith("#")])
        for item in items:
            if pending:
                if pending != _SINGLE or not is_block(item):
                    raise OutlineError(f"{pending!r} in a parallel region")
                self._add(_Piece(1, item))
                pending = ""
            elif item.startswith("#"):
                pending = item
            elif is_block(item) and item.count("#pragma omp") == 1:
                shared = self._shared(statements(inside(item)))
                self._add(_Piece(self._threads, shared) if shares else _Piece(1, _SHARED_ANYWHERE.sub("", item)))
            else:
                raise OutlineError(f"every thread runs {item[:60]!r}")
        if pending:
            raise OutlineError(f"{pending!r} stands before nothing")

    def _worth_sharing(self, blocks: Sequence[str]) -> bool:
        """Loops in a row, each waiting for the one before, are shared if that saves more than the waits cost."""
        handed_over = sum(map(_elements, blocks)) * (self._threads - 1) // self._threads
        return handed_over >= WORTH_A_SYNC * (len(blocks) - 1)

    def _reduction(self, statement: str) -> None:
        """A parallel region between variables and the code that joins its results, perhaps inside of loops.

        Iterations of loops around a region depend on nothing but their own: all regions may come before all joining.
        """
        loops, items = _down_to_region(statement)
        at = next(at for at, item in enumerate(items) if _PARALLEL.match(item))
        if "#pragma omp" in "".join(items[:at] + items[at + 2 :]):
            raise OutlineError("several parallel regions inside one block")
        self._check_threads(items[at])
        variables, arrays = self._variables(items[:at])
        region = statements(inside(items[at + 1]))
        if not region or region[0] != _THREAD:
            raise OutlineError("a parallel region that does not begin with the number of the thread")
        for _, name, _ in arrays:
            if not any(re.match(rf"{name}\[tid\] = ", item) for item in region):
                raise OutlineError(f"{name} is not assigned once per thread")
        rows = math.prod(map(_count, loops))
        if rows > MOST_ROWS:
            raise OutlineError(f"a parallel region inside a loop of {rows} iterations")
        self._workspaces += 1
        workspace = f"results{self._workspaces}"
        room = max(1, len(arrays)) * self._threads * ROOM_PER_RESULT
        begin = [*variables, *self._results(arrays, room)]
        share = [*begin, "const int tid = sk::block_idx();", self._shared(region[1:])]
        self._add(_Piece(self._threads, _around(loops, share, room), workspace, rows * room))
        self._add(_Piece(1, _around(loops, [*begin, *items[at + 2 :]], room), workspace, rows * room))

    def _variables(self, items: Sequence[str]) -> tuple[list[str], list[tuple[str, str, str]]]:
        """What stands before the region: variables, which every part has for itself, and one array per result."""
        variables, arrays = [], list[tuple[str, str, str]]()
        for item in items:
            if array := _ARRAY.match(item):
                arrays.append((array.group(1), array.group(2), array.group(3)))
            elif fill := _FILL.match(item):
                if fill.group(1) not in {name for _, name, _ in arrays}:
                    raise OutlineError(f"{fill.group(1)} is filled before a parallel region")
            elif _VARIABLE.match(item):
                variables.append(item)
            else:
                raise OutlineError(f"{item[:60]!r} before a parallel region")
        if {int(size) for _, _, size in arrays} - {self._threads}:
            raise OutlineError("partial results for another number of threads")
        return variables, arrays

    def _results(self, arrays: Sequence[tuple[str, str, str]], room: int) -> list[str]:
        lines = []
        offset = "0"
        for ctype, name, size in arrays:
            lines.append(f"auto* const {name} = reinterpret_cast<{ctype}*>(room + ({offset}));")
            offset += f" + sk::room_for<{ctype}>({size})"
        return [*lines, f"static_assert({offset} <= {room});"]

    def _check_threads(self, pragma: str) -> None:
        match = _PARALLEL.match(pragma)
        if match is None:
            raise OutlineError(f"{pragma!r}")
        if match.group(1) is not None and int(match.group(1)) != self._threads:
            raise OutlineError(f"{pragma!r} for {self._threads} threads")

    def _shared(self, items: Sequence[str]) -> str:
        """One thread's statements with one shared loop among them; each block takes its part of the iterations."""
        lines, collapsed = [], 0
        for item in items:
            if match := _SHARED_LOOP.match(item):
                if collapsed:
                    raise OutlineError("two shared loops in one block")
                collapsed = int(match.group(1) or 1)
                lines.append("")
            elif "#pragma omp" in item:
                raise OutlineError(f"{item[:60]!r} in a shared loop")
            elif lines and lines[-1] == "":
                lines[-1] = _divided(item, collapsed)
            else:
                lines.append(item)
        if not collapsed:
            raise OutlineError("a parallel region without a shared loop")
        text = "\n".join(lines)
        self._check_order(text)
        return text

    def _check_order(self, text: str) -> None:
        """Sums of rounded numbers depend on the order in which threads come, and two runs must agree in every bit."""
        whole = {parameter.name for parameter in self._parameters if re.match(r"u?int|bool", parameter.ctype)}
        if rounded := set(_ATOMIC.findall(text)) - whole:
            raise OutlineError(f"threads add to {min(rounded)} in any order")

    def _finished(self, piece: _Piece) -> Part:
        """Only the aliases and parameters that the text mentions."""
        body = piece.body
        for name, value in reversed(self._aliases):
            if name in identifiers(body):
                body = f"auto {name} = {value};\n{body}"
        used = identifiers(body)
        mine = tuple(parameter for parameter in self._parameters if parameter.name in used)
        return Part(mine, piece.blocks, piece.workspace, piece.workspace_bytes, body)


def _elements(text: str) -> int:
    """How many elements the loops of a block go over; beyond counting if a bound is no number."""
    extents: dict[str, int] = {}
    for variable, bound in _EXTENT.findall(text):
        number = _NUMBER.match(bound)
        extents[variable] = max(extents.get(variable, 1), int(number.group(1)) if number else sys.maxsize)
    return math.prod(extents.values())


def _block(text: str) -> str:
    return "{\n" + textwrap.indent(text, "    ") + "\n}"


def _down_to_region(statement: str) -> tuple[list[Loop], list[str]]:
    """The loops around the block in which the parallel region stands, and the statements of that block."""
    loops: list[Loop] = []
    while True:
        if not is_block(statement):
            loops.append(loop(statement))
            statement = loops[-1].body
        items = [item for item in statements(inside(statement)) if item not in _HINTS]
        if any(_PARALLEL.match(item) for item in items):
            return loops, items
        if len(items) != 1:
            raise OutlineError("a parallel region beside other code inside a block")
        statement = items[0]


def _count(one: Loop) -> int:
    """How often the loop runs."""
    bounds = [_NUMBER.match(text) for text in (one.first, one.last, one.step)]
    if None in bounds:
        raise OutlineError(f"a parallel region inside a loop up to {one.last}")
    first, last, step = (int(bound.group(1)) for bound in bounds if bound)
    return len(range(first, last, step))


def _around(loops: Sequence[Loop], items: Sequence[str], room: int) -> str:
    """The items in every iteration of the loops, each with a room of its own in the workspace."""
    if not loops:
        return _block("\n".join(["char* const room = results;", *items]))
    text = _block("\n".join([f"char* const room = results + row++ * {room};", *items]))
    for one in reversed(loops):
        head = f"for (int64_t {one.variable} = {one.first}; {one.variable} < {one.last}; {one.variable} += {one.step})"
        text = f"{head}\n{_block(text)}"
    return _block(f"int64_t row = 0;\n{text}")


def _divided(statement: str, depth: int) -> str:
    """The loop nest over this block's share of its iterations, as libgomp's static schedule divides them."""
    loops = [loop(statement)]
    for _ in range(depth - 1):
        items = statements(inside(loops[-1].body))
        if len(items) != 1:
            raise OutlineError("a collapsed loop with something between its loops")
        loops.append(loop(items[0]))
    if depth == 1:
        one = loops[0]
        return (
            f"const auto share = sk::block_share({one.first}, {one.last}, {one.step});\n"
            f"for (int64_t {one.variable} = share.first; {one.variable} < share.last; {one.variable} += {one.step})\n"
            f"{one.body}"
        )
    return _divided_nest(loops)


def _divided_nest(loops: Sequence[Loop]) -> str:
    outer, inner = loops[:-1], loops[-1]
    counts = [f"sk::iterations({one.first}, {one.last}, {one.step})" for one in loops]
    rows = " * ".join(counts[:-1])
    lines: list[str] = []
    below = "1"
    for one, count in reversed(list(zip(outer, counts[:-1], strict=True))):
        lines.insert(0, f"const int64_t {one.variable} = {one.first} + row / ({below}) % {count} * ({one.step});")
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
