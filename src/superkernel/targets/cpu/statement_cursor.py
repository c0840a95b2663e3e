"""targets.cpu.statement_cursor: the statements of one lane, taken one by one; a statement that differs is an error."""

from __future__ import annotations

from typing import TypeVar

from .emitted_text import CallText, Operand, Ranges, Statement

_AnyKey = TypeVar("_AnyKey")


class Difference(Exception):
    """The text and the plan differ at a line."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line, self.reason = line, reason


class StatementCursor:
    def __init__(self, statements: tuple[Statement, ...]) -> None:
        self._statements, self._next = statements, 0

    def check_end(self) -> None:
        if self._next < len(self._statements):
            statement = self._statements[self._next]
            raise Difference(statement.line, f"says {_text(statement)}; the plan has no further step there")

    def peek(self) -> Statement:
        if self._next < len(self._statements):
            return self._statements[self._next]
        raise Difference(
            self._statements[-1].line if self._statements else 0, "is the last of its lane, and the step is missing"
        )

    def take(self, word: str, guard: Ranges) -> Statement:
        statement = self.peek()
        if statement.word != word or statement.guard != guard:
            raise unlike(statement, f"{word} for cores {_range_text(guard)}")
        self._next += 1
        return statement

    def expect(self, word: str, guard: Ranges, *operands: Operand) -> None:
        self.same(self.take(word, guard), operands)

    def same(self, statement: Statement, operands: tuple[Operand, ...]) -> None:
        if statement.operands != operands:
            raise unlike(statement, f"with {operands}")

    def learn(self, known: dict[_AnyKey, int], key: _AnyKey, number: Operand, statement: Statement) -> None:
        assert isinstance(number, int)
        if known.setdefault(key, number) != number:
            raise unlike(statement, f"with number {known[key]}")


def unlike(statement: Statement, wanted: str) -> Difference:
    return Difference(statement.line, f"says {_text(statement)}, where the plan has: {wanted}")


def _text(statement: Statement) -> str:
    operands = ", ".join(_operand_text(operand) for operand in statement.operands)
    return f"{statement.word}({operands}) for cores {_range_text(statement.guard)}"


def _operand_text(operand: Operand) -> str:
    if isinstance(operand, CallText):
        functions = " or ".join(function.symbols[0] for function in operand.functions)
        return f"{operand.step}, {operand.blocks} blocks, every {operand.width}, {functions}"
    return str(operand)


def _range_text(ranges: Ranges) -> str:
    return ", ".join(f"{first} to {last - 1}" for first, last in ranges) or "of the lane"
