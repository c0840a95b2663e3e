"""observe.report.data: everything a report shows, as frozen dataclasses with a JSON form.

Times are microseconds from the beginning of their run, sizes are bytes. What is wrong is refused when an object is
made, with a BuildError that names it, so that a page is never written from it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

from ...errors import BuildError
from .decode import decode

FORMAT = "superkernel report"
VERSION = 1


class SpanKind(Enum):
    """What a core did."""

    KERNEL = "kernel"  # the whole launch, around all others
    OP = "op"
    WAIT = "wait"
    BARRIER = "barrier"
    NOTIFY = "notify"


class Sync(Enum):
    """How a dependency between two ops is kept: the planner's words."""

    NONE = "none"
    LOCAL = "local"
    FLAG = "flag"
    COUNTER = "counter"
    BARRIER = "barrier"
    LOCK = "lock"


@dataclass(frozen=True)
class Fact:
    """One line of a description: a name and its value."""

    name: str
    value: str


@dataclass(frozen=True)
class Launch:
    """One launch, or `count` equal ones that took `duration_us` together."""

    name: str
    type: str  # OP Type; SuperKernel for a super kernel
    start_us: float
    duration_us: float  # from dispatch to completion
    scope: str = ""
    count: int = 1

    def __post_init__(self) -> None:
        where = f"launch {self.name!r}"
        _check_numbers(where, start_us=self.start_us, duration_us=self.duration_us)
        _refuse_if(self.duration_us < 0, f"{where}: duration_us is {self.duration_us}, less than nothing")
        _refuse_if(self.count < 1, f"{where}: count is {self.count}; a launch happened at least once")


@dataclass(frozen=True)
class Span:
    """What one core did from `begin_us` to `end_us`."""

    core: int
    op: str  # empty for what belongs to no op
    kind: SpanKind
    begin_us: float
    end_us: float
    kernel: str = ""  # the Kernel whose op it is, fused or not; the launch where there is none

    def __post_init__(self) -> None:
        where = f"span {self.op or self.kind.value!r} on core {self.core}"
        _check_numbers(where, begin_us=self.begin_us, end_us=self.end_us)
        _refuse_if(self.end_us < self.begin_us, f"{where}: ends at {self.end_us} us, before it begins")
        _refuse_if(self.core < 0, f"{where}: cores count from 0")


@dataclass(frozen=True)
class Op:
    """One op of a super kernel. Bytes are what it must read and write at least; None where that is not known."""

    name: str
    type: str = ""
    blocks: int | None = None
    bytes_read: int | None = None
    bytes_written: int | None = None
    duration_us: float | None = None  # of one run; None: taken from the spans
    origin: str = ""  # the user's source line

    def __post_init__(self) -> None:
        where = f"op {self.name!r}"
        for name in ("blocks", "bytes_read", "bytes_written", "duration_us"):
            value = getattr(self, name)
            if value is not None:
                _check_numbers(where, **{name: value})
                _refuse_if(value < 0, f"{where}: {name} is {value}, less than nothing")

    @property
    def bytes_moved(self) -> int | None:
        if self.bytes_read is None and self.bytes_written is None:
            return None
        return (self.bytes_read or 0) + (self.bytes_written or 0)


@dataclass(frozen=True)
class Edge:
    """`consumer` follows `producer`."""

    producer: str
    consumer: str
    sync: Sync
    reasons: tuple[str, ...] = ()  # such as: read-after-write on 't0'


@dataclass(frozen=True)
class Kernel:
    """The ops of a super kernel, what depends on what, and the texts it was made from. Op names differ inside one."""

    name: str
    scope: str = ""
    options: str = ""
    ops: tuple[Op, ...] = ()
    edges: tuple[Edge, ...] = ()
    plan: str = ""
    source: str = ""
    fused: bool = True  # False: its ops were launched one by one

    def __post_init__(self) -> None:
        names = {op.name for op in self.ops}
        _refuse_if(len(names) < len(self.ops), f"kernel {self.name!r}: two ops have the same name")
        for edge in self.edges:
            for end in (edge.producer, edge.consumer):
                _refuse_if(end not in names, f"kernel {self.name!r}: an edge names {end!r}, which is none of its ops")


@dataclass(frozen=True)
class Split:
    """Why a part of a scope ended where it did, or stayed unfused."""

    scope: str
    reason: str
    fused: bool  # whether the part became a super kernel
    ops: tuple[str, ...] = ()
    origin: str = ""  # the user's source line


@dataclass(frozen=True)
class Run:
    """One run that was looked at."""

    title: str
    machine: tuple[Fact, ...] = ()
    launches: tuple[Launch, ...] = ()
    spans: tuple[Span, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    splits: tuple[Split, ...] = ()
    read_bytes_per_s: float | None = None  # measured on this machine with the cores of this run
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rate = self.read_bytes_per_s
        if rate is not None:
            _check_numbers(f"run {self.title!r}", read_bytes_per_s=rate)
            _refuse_if(
                rate <= 0, f"run {self.title!r}: read_bytes_per_s is {rate}; leave it out if it was not measured"
            )

    @property
    def launch_count(self) -> int:
        return sum(launch.count for launch in self.launches)

    @property
    def total_us(self) -> float:
        """What its launches took, added up."""
        return math.fsum(launch.duration_us for launch in self.launches)


@dataclass(frozen=True)
class Benefit:
    """What changed between two runs."""

    before_us: float
    after_us: float
    before_launches: int
    after_launches: int

    def __post_init__(self) -> None:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        _check_numbers("benefit", **values)
        for name, value in values.items():
            _refuse_if(value < 0, f"benefit: {name} is {value}, less than nothing")

    @property
    def time_percent(self) -> float | None:
        """How much less time; negative where it is more."""
        return _percent_less(self.before_us, self.after_us)

    @property
    def launch_percent(self) -> float | None:
        return _percent_less(self.before_launches, self.after_launches)


@dataclass(frozen=True)
class ReportData:
    """A report on one run, or on two: before and after."""

    title: str
    runs: tuple[Run, ...]
    benefit: Benefit | None = None  # None: from the launches of the two runs
    created: str = ""  # when, as it is to be shown
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.runs)
        _refuse_if(count not in (1, 2), f"a report shows one run, or two (before and after), not {count}")
        _refuse_if(count == 1 and self.benefit is not None, "a benefit needs two runs: before and after")

    @property
    def shown_benefit(self) -> Benefit | None:
        if self.benefit is not None or len(self.runs) == 1:
            return self.benefit
        before, after = self.runs
        return Benefit(before.total_us, after.total_us, before.launch_count, after.launch_count)

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **asdict(self, dict_factory=_plain)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    @staticmethod
    def from_dict(value: object, where: str = "report data") -> ReportData:
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise BuildError(f'{where}: not report data: it has no "format": "{FORMAT}"')
        if value.get("version") != VERSION:
            raise BuildError(
                f"{where}: version {value.get('version')!r} of the report data; this package reads version {VERSION}: "
                "write it again with this package"
            )
        content = {name: entry for name, entry in value.items() if name not in ("format", "version")}
        return decode(ReportData, content, where)

    @staticmethod
    def from_json(text: str, where: str = "report data") -> ReportData:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as reason:
            raise BuildError(f"{where}: not JSON: {reason}") from reason
        return ReportData.from_dict(value, where)


def _plain(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value.value if isinstance(value, Enum) else value for name, value in pairs}


def _percent_less(before: float, after: float) -> float | None:
    return 100 * (before - after) / before if before else None


def _check_numbers(where: str, **values: float) -> None:
    for name, value in values.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise BuildError(f"{where}: {name} is {value!r}, which is no finite number")


def _refuse_if(wrong: bool, message: str) -> None:
    if wrong:
        raise BuildError(message)
