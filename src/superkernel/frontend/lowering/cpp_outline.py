"""frontend.lowering.cpp_outline: an Inductor kernel (C++ with OpenMP) -> parts that can be sub-kernels.

Inductor shares work by `omp for` inside `omp parallel`. A part runs without waiting for another thread: it is one
shared loop (its blocks divide the iterations as libgomp would), or serial code (one block). Short loops that wait for
each other are serial code as well. A full reduction keeps one partial result per thread in arrays: they go to a
workspace, and the loop and the code that combines the results become two parts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .cpp_loops import block_share, element_count, inside_loops, iteration_count
from .cpp_parser import CountingLoop, OutlineError, ParseError, counting_loop, identifiers, inside, is_block, statements

BYTES_PER_PARTIAL_RESULT = 2048  # of a workspace, for one thread; checked by the compiler
MAX_ROWS = 64  # iterations around a parallel region that is outlined
ELEMENTS_PER_SYNC = 2048  # that other threads must take over for one more synchronisation to pay

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
_ATOMIC = re.compile(r"\batomic_add\w*(?:<[^()]*>)?\(&?(\w+)")
# How an Inductor kernel reports an integer division by zero on another thread; ours throws where it happens.
_DIVISION = re.compile(r"inductor_cpu_integer_div_error|inductor_cpu_throw_if_integer_div_error")


@dataclass(frozen=True)
class KernelParameter:
    """A parameter of a kernel: a pointer, or a number."""

    name: str
    ctype: str
    pointer: bool
    const: bool


@dataclass(frozen=True)
class KernelPart:
    """One sub-kernel of an outlined kernel. Two parts with one `workspace` share that many bytes."""

    blocks: int
    body: str
    workspace: str | None = None
    workspace_bytes: int = 0
    parameters: tuple[KernelParameter, ...] = ()  # those that the body mentions


@dataclass(frozen=True)
class OutlinedKernel:
    """The parts of a kernel, in order, and what its text includes."""

    includes: str
    parts: tuple[KernelPart, ...]


def parameters_of(source: str) -> tuple[KernelParameter, ...]:
    """The parameters of an Inductor kernel, in order."""
    return tuple(_parameter(text) for text in _signature(source).group(1).split(",") if text.strip())


def outline(source: str, threads: int) -> OutlinedKernel:
    """Cut the kernel into parts, for blocks that stand for `threads` threads."""
    match = _signature(source)
    parameters = parameters_of(source)
    body = inside(source[match.end() :].strip())
    try:
        return OutlinedKernel(source[: match.start()].strip(), tuple(_Outliner(parameters, threads).parts(body)))
    except OutlineError:
        raise
    except ParseError as reason:
        raise OutlineError(str(reason)) from reason


def _signature(source: str) -> re.Match[str]:
    match = _SIGNATURE.search(source)
    if match is None:
        raise OutlineError("no function called kernel")
    return match


def _parameter(text: str) -> KernelParameter:
    match = _PARAMETER.match(" ".join(text.split()))
    if match is None:
        raise OutlineError(f"parameter {text.strip()!r}")
    const, ctype, star, name = match.groups()
    return KernelParameter(name, ctype, bool(star), bool(const))


class _Outliner:
    """Cuts the body of one kernel into parts."""

    def __init__(self, parameters: Sequence[KernelParameter], threads: int) -> None:
        self._parameters, self._threads = parameters, threads
        self._aliases: list[tuple[str, str]] = []
        self._pieces: list[KernelPart] = []  # without their parameters
        self._workspaces = 0

    def parts(self, body: str) -> list[KernelPart]:
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
                self._add(KernelPart(1, statement))
        if pending:
            raise OutlineError(f"{pending!r} stands before nothing")
        return [self._finished(piece) for piece in self._pieces] or [KernelPart(1, "")]

    def _add(self, piece: KernelPart) -> None:
        """Adjacent serial code becomes one part: it runs on one core either way."""
        last = self._pieces[-1] if self._pieces else None
        if last and piece.blocks == 1 and last.blocks == 1 and None in (piece.workspace, last.workspace):
            with_workspace = piece if last.workspace is None else last
            self._pieces[-1] = replace(with_workspace, body=f"{last.body}\n{piece.body}")
        else:
            self._pieces.append(piece)

    def _region(self, pragma: str, block: str) -> None:
        """A parallel region at the top level: each of its loops is a part."""
        self._check_threads(pragma)
        items = statements(inside(block))
        if items and items[0] == _THREAD:
            items = items[1:]
        pending = ""
        # Loops in sequence, each waiting for the one before, are shared if that saves more than the waits cost.
        blocks = [item for item in items if not item.startswith("#")]
        taken_over = sum(map(element_count, blocks)) * (self._threads - 1) // self._threads
        shares = taken_over >= ELEMENTS_PER_SYNC * (len(blocks) - 1)
        for item in items:
            if pending:
                if pending != _SINGLE or not is_block(item):
                    raise OutlineError(f"{pending!r} in a parallel region")
                self._add(KernelPart(1, item))
                pending = ""
            elif item.startswith("#"):
                pending = item
            elif is_block(item) and item.count("#pragma omp") == 1:
                shared = self._shared(statements(inside(item)))
                serial = KernelPart(1, _SHARED_ANYWHERE.sub("", item))
                self._add(KernelPart(self._threads, shared) if shares else serial)
            else:
                raise OutlineError(f"every thread runs {item[:60]!r}")
        if pending:
            raise OutlineError(f"{pending!r} stands before nothing")

    def _reduction(self, statement: str) -> None:
        """A parallel region between variables and the code that combines its results, perhaps inside of loops.

        The iterations of loops around a region are independent: all regions may run before all combining code.
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
        rows = math.prod(map(iteration_count, loops))
        if rows > MAX_ROWS:
            raise OutlineError(f"a parallel region inside a loop of {rows} iterations")
        self._workspaces += 1
        workspace = f"results{self._workspaces}"
        room = max(1, len(arrays)) * self._threads * BYTES_PER_PARTIAL_RESULT
        begin = [*variables, *self._results(arrays, room)]
        share = [*begin, "const int tid = sk::block_idx();", self._shared(region[1:])]
        self._add(KernelPart(self._threads, inside_loops(loops, share, room), workspace, rows * room))
        self._add(KernelPart(1, inside_loops(loops, [*begin, *items[at + 2 :]], room), workspace, rows * room))

    def _variables(self, items: Sequence[str]) -> tuple[list[str], list[tuple[str, str, str]]]:
        """The statements before the region: variables, of which every part has a copy, and one array per result."""
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
        """The statements of one thread with one shared loop among them; each block takes its share of iterations."""
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
                lines[-1] = block_share(item, collapsed)
            else:
                lines.append(item)
        if not collapsed:
            raise OutlineError("a parallel region without a shared loop")
        text = "\n".join(lines)
        # Atomic sums of floats depend on the order of threads, and two runs must agree in every bit.
        integers = {parameter.name for parameter in self._parameters if re.match(r"u?int|bool", parameter.ctype)}
        if floats := set(_ATOMIC.findall(text)) - integers:
            raise OutlineError(f"threads add to {min(floats)} in any order")
        return text

    def _finished(self, piece: KernelPart) -> KernelPart:
        """The part with the aliases and parameters that its text mentions."""
        body = piece.body
        for name, value in reversed(self._aliases):
            if name in identifiers(body):
                body = f"auto {name} = {value};\n{body}"
        used = identifiers(body)
        parameters = tuple(parameter for parameter in self._parameters if parameter.name in used)
        return replace(piece, body=body, parameters=parameters)


def _down_to_region(statement: str) -> tuple[list[CountingLoop], list[str]]:
    """The loops around the block that holds the parallel region, and the statements of that block."""
    loops: list[CountingLoop] = []
    while True:
        if not is_block(statement):
            loops.append(counting_loop(statement))
            statement = loops[-1].body
        items = [item for item in statements(inside(statement)) if item not in _HINTS]
        if any(_PARALLEL.match(item) for item in items):
            return loops, items
        if len(items) != 1:
            raise OutlineError("a parallel region beside other code inside a block")
        statement = items[0]
