"""observe.report.shown_calls: the calls of a report's runs -> those that its timelines can show, side by side.

A timeline shows one call of each run, from the dispatch of its first launch on: the fastest, the median or the slowest
of the calls that ran the same graphs. So both runs show the same work on one scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from ..calls import CallKind, ProfiledCall
from .data import ReportData

MOST_KINDS = 4  # kinds of calls to choose from
MOST_CALLS = 200  # of the view of all calls


class Which(StrEnum):
    MEDIAN = "median"
    FASTEST = "fastest"
    SLOWEST = "slowest"
    ALL = "all calls"


@dataclass(frozen=True)
class KindPair:
    """Calls of the same graphs, per run of the report; None: the run has none."""

    name: str
    kinds: tuple[CallKind | None, ...]

    @property
    def most_calls(self) -> int:
        return max(len(kind.calls) for kind in self.kinds if kind is not None)


@dataclass(frozen=True)
class Choice:
    """One entry of the choice of calls; per run the calls that it shows."""

    name: str
    which: Which
    calls: tuple[tuple[ProfiledCall, ...], ...]

    @property
    def label(self) -> str:
        return self.which.value if self.which is Which.ALL else f"{self.name}: {self.which.value}"


def kind_pairs(data: ReportData) -> list[KindPair]:
    """Kinds of calls, paired by what they ran; kinds that only one run has are paired in the order of their time."""
    if len(data.runs) == 1:
        return [KindPair(kind.name, (kind,)) for kind in data.runs[0].calls]
    before, after = (list(run.calls) for run in data.runs)
    pairs = []
    for kind in list(before):
        match = next((other for other in after if other.signature == kind.signature), None)
        if match is not None:
            pairs.append(KindPair(match.name, (kind, match)))
            before.remove(kind)
            after.remove(match)
    while before or after:
        first, second = (kinds.pop(0) if kinds else None for kinds in (before, after))
        names = dict.fromkeys(kind.name for kind in (first, second) if kind is not None)
        pairs.append(KindPair(" / ".join(names), (first, second)))
    return pairs


def choices(data: ReportData) -> list[Choice]:
    """What the timelines can show, the first of them at first."""
    pairs = kind_pairs(data)
    found = [choice for pair in pairs[:MOST_KINDS] for choice in _of_kind(pair)]
    if not pairs or (len(pairs) == 1 and pairs[0].most_calls == 1):
        return found
    runs = [sorted((call for kind in run.calls for call in kind.calls), key=_begin) for run in data.runs]
    shown = min(MOST_CALLS, min((len(calls) for calls in runs if calls), default=0))  # as many of each run
    return [*found, Choice("", Which.ALL, tuple(tuple(calls[:shown]) for calls in runs))]


def _of_kind(pair: KindPair) -> Iterator[Choice]:
    picks = (Which.MEDIAN, Which.FASTEST, Which.SLOWEST) if pair.most_calls > 1 else (Which.MEDIAN,)
    for which in picks:
        yield Choice(pair.name, which, tuple((_pick(kind, which),) if kind else () for kind in pair.kinds))


def _pick(kind: CallKind, which: Which) -> ProfiledCall:
    return {Which.FASTEST: kind.fastest, Which.SLOWEST: kind.slowest}.get(which, kind.middle)


def _begin(call: ProfiledCall) -> float:
    return call.begin_ns
