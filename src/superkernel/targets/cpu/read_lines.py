"""targets.cpu.read_lines: the lines of C++ of one lane -> its statements."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .emitted_text import (
    GUARDS,
    ArgumentText,
    CallText,
    CopyText,
    Declared,
    FunctionText,
    Lines,
    Operand,
    Ranges,
    RankText,
    Statement,
    TextError,
    TilingArgument,
    TilingText,
    guard_ranges,
)

_CACHE_LINE = 64
_PLACE = r"(?:0|core\.id\(\)(?: - \d+)?|sk::rank\(core\.id\(\), \{[\d, ]+\}\))"
_RANK = rf"(?:\({_PLACE}\) % \d+|{_PLACE})"
_SLOT = r"slot\[at::(\w+)\]"
_MEETING = r"core\.rendezvous\((\d+)\)"
_STAMP = r"\((\d+)(?:, (\d+))?\);"
# Words whose operands are numbers, as they stand in a line; a slot is the number of its enumerator.
_SIMPLE = (
    ("wait", r"if \(!core\.wait\((\d+), (\d+), (\d+), (\d+)\)\) return;"),
    ("signal", rf"core\.signal{_STAMP}"),
    ("barrier", r"if \(!core\.barrier\((\d+), (\d+), (\d+), (\d+)\)\) return;"),
    ("wait_inside", r"if \(!core\.wait_inside\((\d+), (\d+), (\d+), (\d+)\)\) return;"),
    ("wait_all", r"if \(!core\.wait_all\((\d+), (\d+), (\d+)\)\) return;"),
    ("wait_inside_all", r"if \(!core\.wait_inside_all\((\d+), (\d+), (\d+)\)\) return;"),
    ("signal_early", rf"core\.signal_early{_STAMP}"),
    ("end_call", r"if \(!core\.end_call\(\)\) return;"),
    ("record", r"core\.record\((\d+)\);"),
    ("fence", r"core\.fence\(\);"),
    ("await_event", rf"if \(!core\.await_event\((\d+), {_SLOT}\)\) return;"),
    ("notify", rf"core\.notify\({_SLOT}\);"),
    ("reset_event", rf"core\.reset_event\({_SLOT}\);"),
    ("notify_ranks", rf"core\.notify_ranks\({_SLOT}, (\d+)\);"),
    ("await_ranks", rf"if \(!core\.await_ranks\((\d+), {_SLOT}, (\d+), (\d+)\)\) return;"),
    ("request", r"core\.request\((\d+)\);"),
    ("feed", rf"if \(!core\.feed\((\d+), {_MEETING}, (\d+)\)\) return;"),
    ("meet_in", rf"core\.meet_in\({_MEETING}, (\d+), (true|false)\);"),
)
_PATTERNS = [(word, re.compile(pattern)) for word, pattern in _SIMPLE]
_PRELOAD = re.compile(r"core\.preload\(reinterpret_cast<const void\*>\((.+)\), (\d+)\);")
_PREFETCH = re.compile(rf"core\.prefetch\({_SLOT}, bytes\[at::(\w+)\], ({_RANK}), (\d+), (\d+)\);")
_MEETING_OVER = re.compile(rf"core\.meeting_over\(({_RANK})\);")
_IDLE = re.compile(rf"if \(({_RANK}) >= choice_(\d+)\.blocks && choice_(\d+)\.blocks > 0 &&")
_IDLE_FEED = rf"!core\.feed\((\d+), {_MEETING}, (\d+)\)\) return;"
_BEGIN = re.compile(rf"core\.begin\((\d+), ({_RANK}), (\d+)\);")
_LOOP = re.compile(rf"for \(int block = ({_RANK}); block < (\d+|choice_\d+\.blocks); block \+= (\d+)\) \{{")
_FUNCTION = re.compile(r"(\w+)(?:\[core\.id\(\) % (\d+)\])?")
_CALL = re.compile(r"(\w+(?:\[core\.id\(\) % \d+\])?)\((.*)\);")
_CASE = re.compile(r"case (-?\d+): (.*) break;")
_SCALAR = re.compile(rf"sk::as<([\w: ]+)>\({_SLOT}\)")
_COPY = re.compile(rf"core\.copy\({_SLOT}, (?:core\.id\(\)|(\w+)\[core\.id\(\)\]), (\d+), (\d+)\)")
_ARGUMENT = re.compile(r"(?:[^,()\[\]]|\([^()]*(?:\([^()]*\)[^()]*)*\)|\[[^\]]*\])+")
_STOP = "if (!core.alive()) return;"


def read_lines(lines: Lines, declared: Declared) -> Iterator[Statement]:
    """The statements of a function, up to the brace that ends it."""
    reader = _LineReader(lines, declared)
    while found := re.fullmatch(r"sk::Choice choice_(\d+)\{\};", lines.peek()):
        reader.choices[found[1]] = -1
        lines.take()
    while lines.peek() != "}":
        guard: Ranges = ()
        if found := re.fullmatch(rf"if \(({GUARDS})\) \{{", lines.peek()):
            guard = guard_ranges(found[1])
            lines.take()
            while lines.peek() != "}":
                yield reader.statement(guard)
            lines.take()
        else:
            yield reader.statement(guard)
    lines.take()


class _LineReader:
    def __init__(self, lines: Lines, declared: Declared) -> None:
        self._lines, self._declared = lines, declared
        self._line = 0  # where the statement begins
        self.choices: dict[str, int] = {}  # choice -> the tiling that was selected

    def statement(self, guard: Ranges) -> Statement:
        lines, number = self._lines, self._lines.number
        self._line = number
        line = lines.take()
        for word, pattern in _PATTERNS:
            if found := pattern.fullmatch(line):
                operands = tuple(self._number(text) for text in found.groups())
                return Statement(number, guard, word, operands)
        word, operand = self._composed(number, line)
        return Statement(number, guard, word, operand)

    def _composed(self, number: int, line: str) -> tuple[str, tuple[Operand, ...]]:
        """A statement of several lines, or with other operands than numbers."""
        lines = self._lines
        if found := _BEGIN.fullmatch(line):
            function = self._function(None, lines.take(), number)
            step, blocks = int(found[1]), int(found[3])
            return "call", (CallText(step, blocks, None, _rank(found[2]), None, self._checked(), (function,)),)
        if found := _LOOP.fullmatch(line):
            return "call", (self._loop(number, *found.groups()),)
        if found := _PRELOAD.fullmatch(line):
            return "preload", (self._symbols(found[1], number), int(found[2]))
        if found := _PREFETCH.fullmatch(line):
            lines_ = -(-int(found[5]) // _CACHE_LINE)
            return "prefetch", (self._slot(found[1]), self._slot(found[2]), _rank(found[3]), int(found[4]), lines_)
        if found := _MEETING_OVER.fullmatch(line):
            return "meeting_over", (_rank(found[1]),)
        if found := re.fullmatch(r"static const int64_t keys_(\d+)\[\] = \{([-\d, ]+)\};", line):
            return "select", self._select(found[1], tuple(map(int, found[2].split(", "))))
        if found := re.fullmatch(r"const sk_tiling_argument arguments_(\d+)\[\] = \{", line):
            return "compute_tiling", (self._tiling(found[1]),)
        if found := _IDLE.fullmatch(line):
            if found[2] != found[3]:
                raise TextError(number, "compares two choices")
            step, meeting, members = map(int, lines.expect(_IDLE_FEED).groups())
            return "feed_idle", (step, meeting, members, _rank(found[1]), self._choice(found[2]))
        raise TextError(number, f"is {line!r}, which is no statement that is known")

    def _loop(self, number: int, rank: str, total: str, width: str) -> CallText:
        lines = self._lines
        each, last = re.escape(total), rf"block \+ {width} >= {re.escape(total)}"
        step = int(lines.expect(rf"core\.begin\((\d+), block, {each}, {last}\);")[1])
        if total.isdigit():
            functions = [self._function(None, lines.take(), number)]
            tiling = None
        else:
            choice = total.removeprefix("choice_").removesuffix(".blocks")
            tiling = self._choice(choice)
            lines.expect(rf"switch \(choice_{choice}\.key\) \{{")
            functions = []
            for at, line in lines.until("}"):
                case = _CASE.fullmatch(line)
                if case is None:
                    raise TextError(at, f"is {line!r}, which is not a case")
                functions.append(self._function(int(case[1]), case[2], at))
        checked = self._checked()
        lines.expect(r"\}")
        blocks = int(total) if total.isdigit() else None
        return CallText(step, blocks, tiling, _rank(rank), int(width), checked, tuple(functions))

    def _checked(self) -> bool:
        checked = self._lines.peek() == _STOP
        if checked:
            self._lines.take()
        return checked

    def _select(self, choice: str, keys: tuple[int, ...]) -> tuple[Operand, ...]:
        lines, number = self._lines, self._lines.number
        if choice not in self.choices:
            raise TextError(number, f"chooses choice_{choice}, which is not declared")
        selected = rf"choice_{choice} = core\.select\((\d+), (\d+), keys_{choice}, {len(keys)}, (\d+)\);"
        step, tiling, most = map(int, lines.expect(selected).groups())
        lines.expect(rf"if \(!choice_{choice}\.ok\) return;")
        self.choices[choice] = tiling
        return step, tiling, keys, most

    def _choice(self, choice: str) -> int:
        if self.choices.get(choice, -1) < 0:
            raise TextError(self._line, f"uses choice_{choice}, which was not selected")
        return self.choices[choice]

    def _tiling(self, op: str) -> TilingText:
        lines, arguments = self._lines, list[TilingArgument]()
        given = [text for _, text in lines.until("};")]
        if given[-1:] != ["{},"]:
            raise TextError(self._line, "begins an array without its end")
        for text in given[:-1]:
            arguments.append(self._tiling_argument(text, self._line))
        passed = rf"\{{{len(arguments)}, arguments_{op}, (\d+)\}}"
        call = lines.expect(rf"if \(!core\.compute_tiling\((\d+), (\d+), (\w+), {passed}\)\) return;")
        step, tiling, symbol, most = call.groups()
        return TilingText(int(step), int(tiling), symbol, int(most), tuple(arguments))

    def _tiling_argument(self, text: str, number: int) -> TilingArgument:
        if found := re.fullmatch(rf'\{{("[^"]*"), nullptr, 0, {_SLOT}\}},', text):
            return TilingArgument(found[1], None, None, self._slot(found[2]))
        if found := re.fullmatch(r'\{("[^"]*"), nullptr, bytes\[at::(\w+)\], 0\},', text):
            return TilingArgument(found[1], None, self._slot(found[2]), None)
        address = r'\{("[^"]*"), reinterpret_cast<const void\*>\((.*)\), bytes\[at::(\w+)\], 0\},'
        if found := re.fullmatch(address, text):
            return TilingArgument(found[1], self._argument(found[2], number), self._slot(found[3]), None)
        raise TextError(number, f"begins an array with {text!r}, which is no argument of a tiling function")

    def _function(self, key: int | None, line: str, number: int) -> FunctionText:
        found = _CALL.fullmatch(line)
        if found is None:
            raise TextError(number, f"begins a call, but {line!r} follows")
        arguments = (self._argument(text.strip(), number) for text in _ARGUMENT.findall(found[2]))
        return FunctionText(key, self._symbols(found[1], number), tuple(arguments))

    def _symbols(self, text: str, number: int) -> tuple[str, ...]:
        found = _FUNCTION.fullmatch(text)
        symbols = (text,) if found and not found[2] else self._declared.copies.get(found[1]) if found else None
        if found is None or symbols is None or (found[2] and int(found[2]) != len(symbols)):
            raise TextError(number, f"refers to {text!r}, which is not declared")
        return symbols

    def _argument(self, text: str, number: int) -> ArgumentText:
        if found := re.fullmatch(_SLOT, text):
            return ArgumentText(self._slot(found[1]))
        if found := _SCALAR.fullmatch(text):
            return ArgumentText(self._slot(found[2]), scalar=found[1])
        if (found := _COPY.fullmatch(text)) and (found[2] is None or found[2] in self._declared.copy_of):
            copy_of = self._declared.copy_of[found[2]] if found[2] else ()
            return ArgumentText(self._slot(found[1]), copy=CopyText(copy_of, int(found[3]), int(found[4])))
        raise TextError(number, f"passes {text!r}, which is no argument that is known")

    def _slot(self, name: str) -> int:
        if name not in self._declared.slots:
            raise TextError(self._line, f"uses at::{name}, which is not declared")
        return self._declared.slots[name]

    def _number(self, text: str | None) -> int:
        if text is None:
            return -1
        if text.isdigit():
            return int(text)
        return int(text == "true") if text in ("true", "false") else self._slot(text)


def _rank(text: str) -> RankText:
    width = 0
    if found := re.fullmatch(r"\((.*)\) % (\d+)", text):
        text, width = found[1], int(found[2])
    if text == "0":
        return RankText()
    if found := re.fullmatch(r"sk::rank\(core\.id\(\), \{([\d, ]+)\}\)", text):
        return RankText(cores=tuple(map(int, found[1].split(", "))), width=width)
    return RankText(base=int(text.partition(" - ")[2] or 0), width=width)
