"""targets.cpu.read_table: the tables of an entry -> the statements of its lanes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .emitted_text import (
    ArgumentText,
    CallText,
    CopyText,
    Declared,
    FunctionText,
    Lines,
    RankText,
    Statement,
    TextError,
    TilingArgument,
    TilingText,
    enumerators,
)


class _Kernel(NamedTuple):
    symbols: tuple[str, ...]
    scalars: tuple[str | None, ...]  # per parameter
    bytes: int
    checked: bool
    key: int


class _Tiling(NamedTuple):
    symbol: str
    arguments: tuple[tuple[str, str], ...]  # name, kind: scalar, address or size


class Tables(NamedTuple):
    """What the rows of an entry refer to."""

    kernels: tuple[_Kernel, ...]
    tilings: tuple[_Tiling, ...]
    areas: tuple[CopyText, ...]
    names: Mapping[str, int]  # what stands for a number in a row


_CALL = (
    r"static void (\w+)_call\(const sk::Core&(?: core)?, \[\[maybe_unused\]\] const uint64_t\* slot\) "
    r"\{ (\w+)(?:\[core\.id\(\) % (\d+)\])?\((.*)\); \}"
)
_CODE = r"static const void\* const (\w+)_code\[\] = \{(.*)\};"
_ADDRESS = re.compile(r"reinterpret_cast<const void\*>\((\w+)\)")
_KERNEL = re.compile(r"\{(\w+)_call, (\w+)_code, (\d+), (\d+), (true|false)\},  //.*")
_TILING = re.compile(r"static bool (\w+)\(sk::Core& core, uint32_t step, int tiling, int64_t most_blocks, .*\) \{")
_AREA = re.compile(r"\{(nullptr|\w+), (\d+), (\d+)\},  //.*")
_ROW = re.compile(r"\{Do::(\w+), (\d+), (\d+)(?:, ([^{}]+))?\},(?:  //.*)?")
_ARITY = {
    **dict.fromkeys(("end_call", "fence"), 0),
    **dict.fromkeys(("preload", "notify", "reset_event", "request", "record"), 1),
    **dict.fromkeys(("await_event", "signal", "signal_early", "arguments", "replicated"), 2),
    **dict.fromkeys(("meeting_over", "notify_ranks"), 2),
    **dict.fromkeys(("wait_all", "wait_inside_all", "meet_in", "feed"), 3),
    **dict.fromkeys(("prefetch", "wait", "wait_inside", "barrier", "await_ranks"), 4),
    "select": 5,
    **dict.fromkeys(("call", "call_chosen", "feed_idle", "compute_tiling"), 6),
}
# of these words the operands are the numbers in their columns
_PLAIN = frozenset(
    {
        *("end_call", "fence", "notify", "reset_event", "request", "record", "await_event", "signal", "signal_early"),
        *("wait_all", "wait_inside_all", "meet_in", "feed", "wait", "wait_inside", "barrier"),
        *("notify_ranks", "await_ranks"),
    }
)
_TAKE_COPIES = frozenset({"replicated", "call", "call_chosen", "compute_tiling"})
_COPIED = -1


def read_tables(lines: Lines, declared: Declared) -> Tables:
    lines.expect(r"using sk::Do;")
    functions: dict[str, tuple[tuple[str, ...], tuple[str | None, ...]]] = {}
    while found := re.fullmatch(_CALL, lines.peek()):
        number = lines.number
        lines.take()
        symbols = declared.copies.get(found[2], ()) if found[3] else (found[2],)
        if found[3] and len(symbols) != int(found[3]):
            raise TextError(number, f"calls one of {found[3]} copies of {found[2]}, which has {len(symbols)}")
        functions[found[1]] = symbols, _scalars(found[4], number)
        code = lines.expect(_CODE)
        if code[1] != found[1] or tuple(_ADDRESS.findall(code[2])) != symbols:
            raise TextError(number, f"defines {found[1]}_call; what follows is not the code of {', '.join(symbols)}")
    kernel_numbers = enumerators(lines, "kernel")
    lines.expect(r"static const sk::Kernel kernels\[\] = \{")
    rows = list(lines.until("};"))
    keys = lines.expect(r"static const int64_t keys\[\] = \{([-\d, ]+)\};  //.*")[1].split(", ")
    if not len(rows) == len(keys) == len(kernel_numbers):
        raise lines.error(f"follows {len(kernel_numbers)} names of kernels, {len(rows)} kernels and {len(keys)} keys")
    kernels = []
    for (number, row), key, name in zip(rows, keys, kernel_numbers, strict=True):
        kernel = _KERNEL.fullmatch(row)
        if kernel is None or kernel[1] != name or kernel[2] != name or name not in functions:
            raise TextError(number, f"is {row!r}, which is not kernel {name}")
        symbols, scalars = functions[name]
        if int(kernel[3]) != len(symbols):
            raise TextError(number, f"says {kernel[3]} copies of {name}, which has {len(symbols)}")
        kernels.append(_Kernel(symbols, scalars, int(kernel[4]), kernel[5] == "true", int(key)))
    tilings = _read_tilings(lines)
    names = {f"at::{name}": slot for name, slot in declared.slots.items()}
    names |= {f"kernel::{name}": index for name, index in kernel_numbers.items()}
    names |= {"sk::kNoCounter": -1, "sk::kCopiedArguments": _COPIED}
    return Tables(tuple(kernels), tilings, _read_areas(lines, declared), names)


def _scalars(text: str, number: int) -> tuple[str | None, ...]:
    """The type of each argument that is a scalar."""
    scalars: list[str | None] = []
    for i, argument in enumerate(text.split(", ") if text else ()):
        found = re.fullmatch(rf"slot\[{i}\]|sk::as<([\w: ]+)>\(slot\[{i}\]\)", argument)
        if found is None:
            raise TextError(number, f"passes {argument!r} as argument {i}")
        scalars.append(found[1])
    return tuple(scalars)


def _read_tilings(lines: Lines) -> tuple[_Tiling, ...]:
    found: dict[str, _Tiling] = {}
    while head := _TILING.fullmatch(lines.peek()):
        lines.take()
        lines.expect(r"const sk_tiling_argument arguments\[\] = \{")
        arguments = [_tiling_argument(i, *place) for i, place in enumerate(lines.until("};"))]
        if not arguments or arguments[-1] != ("", "end"):
            raise lines.error("follows an array without its end")
        count = len(arguments) - 1
        call = rf"return core\.compute_tiling\(step, tiling, (\w+), \{{{count}, arguments, most_blocks\}}\);"
        found[head[1]] = _Tiling(lines.expect(call)[1], tuple(arguments[:-1]))
        lines.expect(r"\}")
    lines.expect(r"static const sk::TilingCall tilings\[\] = \{")
    listed = [line.removesuffix(",") for _, line in lines.until("};")]
    if listed != [*found, "nullptr"]:
        raise lines.error(f"follows the tiling functions {', '.join(listed)}; defined are {', '.join(found)}")
    return tuple(found.values())


def _tiling_argument(i: int, number: int, text: str) -> tuple[str, str]:
    forms = {
        "scalar": rf'\{{("[^"]*"), nullptr, 0, slot\[{i}\]\}},',
        "size": rf'\{{("[^"]*"), nullptr, bytes\[{i}\], 0\}},',
        "address": rf'\{{("[^"]*"), reinterpret_cast<const void\*>\(slot\[{i}\]\), bytes\[{i}\], 0\}},',
        "end": r"\{(),?\},",
    }
    for kind, form in forms.items():
        if found := re.fullmatch(form, text):
            return found[1], kind
    raise TextError(number, f"is {text!r}, which is no argument of a tiling function")


def _read_areas(lines: Lines, declared: Declared) -> tuple[CopyText, ...]:
    if lines.peek() == "static const sk::Area* const areas = nullptr;":
        lines.take()
        return ()
    lines.expect(r"static const sk::Area areas\[\] = \{")
    areas = []
    for number, line in lines.until("};"):
        found = _AREA.fullmatch(line)
        if found is None or (found[1] != "nullptr" and found[1] not in declared.copy_of):
            raise TextError(number, f"is {line!r}, which is not where copies lie")
        copy_of = () if found[1] == "nullptr" else declared.copy_of[found[1]]
        areas.append(CopyText(copy_of, int(found[2]), int(found[3])))
    return tuple(areas)


def read_rows(lines: Lines, tables: Tables) -> Iterator[Statement]:
    """The statements of a function, up to the brace that ends it."""
    if lines.peek() == "}":
        lines.take()
        return
    lines.expect(r"static const sk::Row rows\[\] = \{")
    reader = _RowReader(tables)
    for number, line in lines.until("};"):
        statement = reader.statement(number, line)
        if statement is not None:
            yield statement
    most = max((len(kernel.scalars) for kernel in tables.kernels), default=0)
    for name in ("sk::Choice choices", "int variants"):
        if int(lines.expect(rf"{name}\[(\d+)\]\{{\}};")[1]) <= reader.last_tiling:
            raise lines.error(f"follows an array of {name.split()[-1]} that is too small")
    if int(lines.expect(r"uint64_t arguments\[(\d+)\];")[1]) < most:
        raise lines.error("follows an array of arguments that is too small")
    given = r"\{kernels, keys, tilings, areas, slot, bytes, choices, variants, arguments\}"
    lines.expect(rf"sk::walk\(core, rows, sizeof rows / sizeof \*rows, {given}\);")
    lines.expect(r"\}")


class _RowReader:
    def __init__(self, tables: Tables) -> None:
        self._tables, self._names = tables, tables.names
        self._copied: tuple[str, int, list[CopyText | None]] | None = None  # cores, first slot, copies
        self._variants: dict[int, tuple[int, int]] = {}  # tiling -> the kernels that it selects from
        self.last_tiling = -1

    def statement(self, number: int, line: str) -> Statement | None:
        """The statement of a row; None for a row that only prepares the arguments of the next."""
        found = _ROW.fullmatch(line)
        if found is None:
            raise TextError(number, f"is {line!r}, which is not a row")
        word, first, last, text = found.groups()
        columns = [self._number(column, number) for column in text.split(", ")] if text else []
        if len(columns) != _ARITY.get(word, -1):
            raise TextError(number, f"is a row {word!r} of {len(columns)} operands, which is not known")
        guard = ((int(first), int(last)),)
        if self._copied is not None and word not in _TAKE_COPIES:
            raise TextError(number, f"is a row {word!r} between a call and the rows of its arguments")
        if word in _PLAIN:
            return Statement(number, guard, word, tuple(columns))
        try:
            return self._composed(number, guard, word, columns)
        except IndexError:
            raise TextError(number, f"is {line!r}, which refers to nothing that is there") from None

    def _composed(self, number: int, guard: tuple[tuple[int, int]], word: str, columns: list[int]) -> Statement | None:
        kernels = self._tables.kernels
        match word, columns:
            case "arguments", [slot, count]:
                self._copied = f"{guard}", slot, [None] * count
                return None
            case "replicated", [position, area]:
                if self._copied is None:
                    raise TextError(number, "replaces an argument of no call")
                self._copied[2][position] = self._tables.areas[area]
                return None
            case (("call" | "call_chosen"), [step, blocks, width, base, kernel, slot]):
                chosen = word == "call_chosen"
                self.last_tiling = max(self.last_tiling, blocks if chosen else -1)
                rank = RankText(base=base, width=width)
                slots, copies = self._arguments(slot, len(kernels[kernel].scalars), f"{guard}", number)
                variants = self._variants.get(blocks) if chosen else (kernel, 1)
                if variants is None or variants[0] != kernel:
                    raise TextError(number, "calls other kernels than were selected")
                functions = tuple(
                    FunctionText(kernels[at].key if chosen else None, kernels[at].symbols, arguments)
                    for at in range(kernel, kernel + variants[1])
                    for arguments in [_passed(slots, kernels[at].scalars, copies)]
                )
                tiling = blocks if chosen else None
                number_of_blocks = None if chosen else blocks
                call = CallText(step, number_of_blocks, tiling, rank, width, kernels[kernel].checked, functions)
                return Statement(number, guard, "call", (call,))
            case "preload", [kernel]:
                return Statement(number, guard, word, (kernels[kernel].symbols, kernels[kernel].bytes))
            case "prefetch", [slot, base, width, cache_lines]:
                rank = RankText(base=base, width=width)
                return Statement(number, guard, word, (slot, slot, rank, width, cache_lines))
            case "select", [step, tiling, kernel, count, most]:
                self.last_tiling = max(self.last_tiling, tiling)
                self._variants[tiling] = (kernel, count)
                keys = tuple(kernels[at].key for at in range(kernel, kernel + count))
                return Statement(number, guard, word, (step, tiling, keys, most))
            case "compute_tiling", _:
                return Statement(number, guard, word, (self._tiling(number, guard, columns),))
            case "feed_idle", [step, meeting, members, base, width, tiling]:
                rank = RankText(base=base, width=width)
                return Statement(number, guard, word, (step, meeting, members, rank, tiling))
            case _:
                base, width = columns
                return Statement(number, guard, word, (RankText(base=base, width=width),))

    def _arguments(self, slot: int, count: int, guard: str, number: int) -> tuple[int, list[CopyText | None]]:
        """The first slot of a call, and the copies that it takes in place of buffers."""
        if slot != _COPIED:
            return slot, [None] * count
        copied, self._copied = self._copied, None
        if copied is None or copied[0] != guard or len(copied[2]) != count:
            raise TextError(number, "takes arguments that were not copied")
        return copied[1], copied[2]

    def _tiling(self, number: int, guard: tuple[tuple[int, int]], columns: list[int]) -> TilingText:
        step, tiling, function, slot, sizes, most = columns
        found = self._tables.tilings[function]
        first, copies = self._arguments(slot, len(found.arguments), f"{guard}", number)
        if first != sizes:
            raise TextError(number, "takes the sizes of other slots")
        arguments = [
            TilingArgument(
                name,
                ArgumentText(first + i, copy=copies[i]) if kind == "address" else None,
                None if kind == "scalar" else first + i,
                first + i if kind == "scalar" else None,
            )
            for i, (name, kind) in enumerate(found.arguments)
        ]
        return TilingText(step, tiling, found.symbol, most, tuple(arguments))

    def _number(self, text: str, number: int) -> int:
        if text.isdigit():
            return int(text)
        found = self._names.get(text)
        if found is None:
            try:
                return int(text)
            except ValueError:
                raise TextError(number, f"refers to {text!r}, which is not declared") from None
        return found


def _passed(first: int, scalars: tuple[str | None, ...], copies: list[CopyText | None]) -> tuple[ArgumentText, ...]:
    return tuple(
        ArgumentText(first + i, scalar, copy) for i, (scalar, copy) in enumerate(zip(scalars, copies, strict=True))
    )
