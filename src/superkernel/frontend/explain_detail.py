"""frontend.explain_detail: scopes -> lines on their segments and ops; what repeats is printed once, with a count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..errors import counted
from .collective_report import collective_lines
from .fit_width import cut, fitting_place, wrapped
from .fold_repeats import Repeat, fold_alike, fold_repeats
from .listed_ops import ListedOp
from .report_keys import ALIKE, EXACT, KeyFunctions
from .scope_report import OpReport, ScopeReport, SegmentReport

Item = TypeVar("Item")
_MOST_LINES = 28  # beyond, layers that are alike are printed once as well: with the advice, a screen has 40 lines
_LEAST_LAYER = 4  # ops; fewer that are merely alike are no layer
_STATES = {
    "unfused": "not fused",
    "left out": "left out: stock Inductor runs it",
    "measuring": "fused or not: still measuring",
    "emulated": "one super kernel, emulated",
}


def detail_lines(scopes: Sequence[ScopeReport], width: int) -> list[str]:
    """Lines of at most `width` columns."""
    lines = list(_DetailPrinter(width).scopes(scopes))
    if len(lines) <= _MOST_LINES:
        return lines
    shorter = list(_DetailPrinter(width, alike=True).scopes(scopes))
    return min(lines, shorter, key=len)


@dataclass(frozen=True)
class _Count:
    """How many times an item follows itself."""

    number: int = 1
    is_exact: bool = True

    def __str__(self) -> str:
        return "" if self.number == 1 else f"x {self.number}" if self.is_exact else f"x {self.number}, alike"

    @property
    def suffix(self) -> str:
        return f" {self}" if self.number > 1 else ""


ItemLines = Callable[[Item, str, _Count], Iterator[str]]


@dataclass(frozen=True)
class _DetailPrinter:
    """Prints scopes; `alike`: also what is not quite identical is printed once."""

    width: int
    alike: bool = False

    def _wrapped(self, text: str) -> list[str]:
        return wrapped(text, self.width)

    def _folded(
        self,
        items: Sequence[Item],
        key: Callable[[KeyFunctions], Callable[[Item], Hashable]],
        what: str,
        lines: ItemLines[Item],
        indent: str,
        least: int = 1,
    ) -> Iterator[str]:
        """Every item by `lines`; `least` items are the shortest repetition of what is merely alike."""
        exact = key(EXACT)
        folded = fold_alike(items, exact, key(ALIKE), least) if self.alike else fold_repeats(items, exact)

        def print_items(found: Sequence[Item | Repeat[Item]], indent: str, count: _Count) -> Iterator[str]:
            for item in found:
                if not isinstance(item, Repeat):
                    yield from lines(item, indent, count)
                elif len(item.items) == 1:
                    is_exact = count.is_exact and item.is_exact
                    yield from print_items(item.items, indent, _Count(count.number * item.count, is_exact))
                else:
                    yield f"{indent}{counted(item.length, what)} {_Count(item.count, item.is_exact)}:"
                    yield from print_items(item.items, f"{indent}  ", count)

        yield from print_items(folded, indent, _Count())

    def scopes(self, scopes: Sequence[ScopeReport]) -> Iterator[str]:
        yield from self._folded(scopes, lambda keys: keys.scope, "scope", self._scope, "")

    def _scope(self, scope: ScopeReport, indent: str, count: _Count) -> Iterator[str]:
        options = f", options {scope.options}" if scope.options else ""
        title = f"scope {scope.name!r} in graph {scope.graph}: {counted(len(scope.segments), 'segment')}{options}"
        yield from self._wrapped(f"{indent}{title}{count.suffix}")
        for found, number in Counter(scope.unfusible).items():
            text, times = f"{indent}  unfusible {found.op}: {found.reason}", _Count(number).suffix
            room = max(self.width - len(text) - len(" ()") - len(times), self.width // 2)
            where = f" ({fitting_place(found.origins[0], room)})" if found.origins else ""
            yield from self._wrapped(f"{text}{where}{times}")
        numbers = {id(segment): number for number, segment in enumerate(scope.segments, 1)}

        def lines(segment: SegmentReport, indent: str, count: _Count) -> Iterator[str]:
            yield from self._segment(segment, numbers[id(segment)], indent, count)

        yield from self._folded(scope.segments, lambda keys: keys.segment, "segment", lines, f"{indent}  ")

    def _segment(self, segment: SegmentReport, number: int, indent: str, count: _Count) -> Iterator[str]:
        state = _STATES.get(segment.launches, segment.launches)
        times = ", ".join(f"{launch} {us:.1f} us" for launch, us in segment.times_us.items())
        is_single = count.number == 1
        when = f"; {segment.measured}" if segment.measured else ""
        measured = f" ({'gate' if is_single else 'gate, the first'}: {times}{when})" if times else ""
        title = f"segment {number}" if is_single else f"segments {number} to {number + count.number - 1} ({count})"
        ops = counted(len(segment.ops), "op")
        yield from self._wrapped(f"{indent}{title}: {ops}, {state}{measured}; {segment.reason}")
        outer = f"{indent}  "
        if segment.kernel is not None:
            syncs = ", ".join(f"{number} {kind}" for kind, number in segment.syncs.items()) or "none"
            size = f"{counted(segment.buffers, 'buffer')}, {_bytes(segment.buffer_bytes)}"
            yield from self._wrapped(f"{outer}syncs: {syncs}; {size}")
        for line in collective_lines(segment.collectives):
            yield from self._wrapped(f"{outer}{line}")
        column = len(outer) + min(max((len(op.name) for op in segment.ops), default=0), self.width // 3)

        def lines(op: OpReport, indent: str, count: _Count) -> Iterator[str]:
            yield from self._op(op, indent, count, column)

        yield from self._folded(segment.ops, lambda keys: keys.op, "op", lines, outer, _LEAST_LAYER)
        reasons = [op.listed.missing for op in segment.ops if op.listed is not None and op.listed.missing]
        for reason in dict.fromkeys(reasons):
            yield from self._wrapped(f"{outer}without a compiled kernel: {_ops_without(segment, reason)}: {reason}")

    def _op(self, op: OpReport, indent: str, count: _Count, column: int) -> Iterator[str]:
        """`column`: where names end."""
        name = cut(op.name, column - len(indent) - len(count.suffix)) + count.suffix
        more = f" (+{len(op.origins) - 1})" if len(op.origins) > 1 else ""
        core = f"{op.listed.core:<6}  " if op.listed is not None else ""
        blocks = f"{op.blocks:>2} {'block ' if op.blocks == 1 else 'blocks'}"
        begin = f"{indent + name:<{column}}  {blocks}  {core}"
        origin = fitting_place(op.origins[0], self.width - len(begin) - len(more)) if op.origins else ""
        yield f"{begin}{origin}{more}".rstrip()
        for line in [] if op.listed is None else _listed_lines(op.listed):
            yield from self._wrapped(f"{indent}  {line}")


def _listed_lines(listed: ListedOp) -> Iterator[str]:
    yield str(listed)
    if listed.attributes:
        yield "attributes: " + ", ".join(f"{name}={value}" for name, value in listed.attributes.items())
    order = [f"stream {listed.stream}", *(f"sends {event}" for event in listed.send)]
    order += [f"receives {event}" for event in listed.recv]
    if len(order) > 1 or listed.stream:
        yield ", ".join(order)
    if listed.metadata is not None:
        yield f"metadata: {listed.metadata}"


def _ops_without(segment: SegmentReport, reason: str) -> str:
    names = [op.name for op in segment.ops if op.listed is not None and op.listed.missing == reason]
    return ", ".join(names) if len(names) < len(segment.ops) or len(names) == 1 else f"all {len(names)} ops"


def _bytes(number: int) -> str:
    for unit in ("B", "KB", "MB"):
        if number < 10_000:
            return f"{number} {unit}"
        number //= 1024
    return f"{number} GB"
