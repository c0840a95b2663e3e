"""observe.profile: what ran, as frozen dataclasses that tables, timeline, comparison and report read.

Times are nanoseconds from the beginning of the profile, sizes are bytes. An object that contradicts itself is refused
where it is made, with a BuildError that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import fsum

from ..errors import BuildError
from ..plan.plan import SyncKind
from ..plan.spans import Span

SUPER_KERNEL = "SuperKernel"  # the type of a launch that is a whole super kernel
LARGEST_NUMBER = 2**63  # a larger number is neither a time nor a size


class Clock(StrEnum):
    """What one unit of the times of a profile is."""

    NANOSECONDS = "ns"
    TICKS = "tick"  # a step of an emulator, which says nothing about the time on a chip


@dataclass(frozen=True)
class MachineLoad:
    """What other programs did on the processors that this process may use, while a run was recorded."""

    seconds: float
    processors: int
    others: float  # processors that other programs kept busy, on average

    def __post_init__(self) -> None:
        _check_numbers("load", seconds=self.seconds, others=self.others)
        _refuse_if(self.processors < 1 or self.others < 0, f"load: {self.others} of {self.processors} processors")


@dataclass(frozen=True)
class ProfiledLaunch:
    """One launch, from dispatch to completion."""

    name: str
    type: str  # the OP Type of the tables
    begin_ns: float
    end_ns: float
    scope: str = ""
    kernel: int | None = None  # which of the profile's kernels it is, or is an op of; None: torch launched it
    core_type: str = ""
    block_dim: int = 0  # 0: not known
    wait_ns: float = 0  # since the previous launch of the same thread completed
    thread: int = 0
    stream: int = 0
    reason: str = ""  # why it is not part of a super kernel, if torch launched it inside of a scope
    call: int | None = None  # launches of one number belong to one call; None: a call by itself
    spans: tuple[Span, ...] = ()  # what the cores did; empty: not recorded

    def __post_init__(self) -> None:
        _check_interval(f"launch {self.name!r}", self.begin_ns, self.end_ns)
        _check_numbers(f"launch {self.name!r}", wait_ns=self.wait_ns)
        for span in self.spans:  # there may be a million of them
            if not (-LARGEST_NUMBER < span.begin_ns <= span.end_ns < LARGEST_NUMBER and span.core >= 0):
                where = f"span {span.op or span.what.value!r} on core {span.core}"
                _check_interval(where, span.begin_ns, span.end_ns)
                _refuse_if(span.core < 0, f"{where}: cores count from 0")

    @property
    def start_us(self) -> float:
        return self.begin_ns / 1000

    @property
    def duration_us(self) -> float:
        return (self.end_ns - self.begin_ns) / 1000


@dataclass(frozen=True)
class ProfiledOp:
    """One op of a kernel. Bytes are what it reads and writes at least; None: not known."""

    name: str
    type: str = ""
    blocks: int | None = None
    stream: int = 0
    bytes_read: int | None = None
    bytes_written: int | None = None
    origin: str = ""  # the source line of the model

    def __post_init__(self) -> None:
        counts = {"blocks": self.blocks, "bytes_read": self.bytes_read, "bytes_written": self.bytes_written}
        for name, count in counts.items():
            _refuse_if(count is not None and count < 0, f"op {self.name!r}: {name} is {count}, less than nothing")

    @property
    def bytes_moved(self) -> int | None:
        if self.bytes_read is None and self.bytes_written is None:
            return None
        return (self.bytes_read or 0) + (self.bytes_written or 0)


@dataclass(frozen=True)
class ProfiledEdge:
    """A dependency between two ops, and the sync that keeps it."""

    producer: str
    consumer: str
    sync: SyncKind
    reasons: tuple[str, ...] = ()  # such as: read-after-write on 't0'


@dataclass(frozen=True)
class ProfiledCollective:
    """What the ranks of a group do together: the sender stores for them, the receivers wait for them."""

    name: str  # equal on all ranks
    ranks: tuple[int, ...]  # of the group
    sender: str  # an op; empty: it is in another kernel
    receivers: tuple[str, ...]


@dataclass(frozen=True)
class ProfiledKernel:
    """A graph that was launched as one super kernel, or op by op."""

    name: str
    scope: str = ""
    options: str = ""
    ops: tuple[ProfiledOp, ...] = ()
    edges: tuple[ProfiledEdge, ...] = ()
    plan: str = ""
    source: str = ""
    fused: bool = True  # False: its ops were launched one by one
    cores: int = 0
    runs: int = 1
    reason: str = ""  # why it ends where it does, or why it is not fused
    unfusible: tuple[str, ...] = ()  # descriptions of the other ops of its scope
    identity: str = ""  # equal for the same ops on buffers of the same sizes, fused or not
    collectives: tuple[ProfiledCollective, ...] = ()

    def __post_init__(self) -> None:
        names = {op.name for op in self.ops}
        _refuse_if(len(names) < len(self.ops), f"kernel {self.name!r}: two ops have the same name")
        for edge in self.edges:
            for end in (edge.producer, edge.consumer):
                _refuse_if(end not in names, f"kernel {self.name!r}: an edge names {end!r}, which is none of its ops")


@dataclass(frozen=True)
class ProfiledRank:
    """Which of several processes that run one model together was recorded."""

    rank: int
    ranks: int
    boot: str  # of the machine: processes of one boot have one clock
    monotonic_ns: int  # the beginning of the profile on that clock

    def __post_init__(self) -> None:
        _refuse_if(not 0 <= self.rank < self.ranks, f"rank {self.rank} of {self.ranks} ranks")


@dataclass(frozen=True)
class Profile:
    """Everything that was recorded of one run."""

    launches: tuple[ProfiledLaunch, ...] = ()  # in the order of dispatch
    kernels: tuple[ProfiledKernel, ...] = ()
    machine: Mapping[str, str | int] = field(default_factory=dict)  # name of a fact -> its value
    read_bytes_per_s: float | None = None  # the bandwidth that the cores of this run measured
    detail: bool = False  # time stamps were asked for
    notes: tuple[str, ...] = ()
    package: str = ""  # the version of superkernel
    began_ns: int = 0  # nanoseconds since 1970; 0: not known
    load: MachineLoad | None = None  # None: not measured
    clock: Clock = Clock.NANOSECONDS
    rank: ProfiledRank | None = None  # None: a process by itself

    def __post_init__(self) -> None:
        count = len(self.kernels)
        for launch in self.launches:
            known = launch.kernel is None or 0 <= launch.kernel < count
            _refuse_if(not known, f"launch {launch.name!r} is of kernel {launch.kernel}, and there are {count}")
        if (rate := self.read_bytes_per_s) is not None:
            _check_numbers("profile", read_bytes_per_s=rate)
            _refuse_if(rate <= 0, f"profile: read_bytes_per_s is {rate}; leave it out if it was not measured")

    @property
    def total_us(self) -> float:
        return fsum(launch.duration_us for launch in self.launches)

    @property
    def runs_by_identity(self) -> dict[str, int]:
        """The graphs that ran, and how often each of them did."""
        runs: dict[str, int] = {}
        for kernel in self.kernels:
            runs[kernel.identity] = runs.get(kernel.identity, 0) + kernel.runs
        return runs

    @property
    def torch_types(self) -> set[str]:
        """The types of what torch launched."""
        return {launch.type for launch in self.launches if launch.kernel is None}


def _check_interval(where: str, begin_ns: float, end_ns: float) -> None:
    _check_numbers(where, begin_ns=begin_ns, end_ns=end_ns)
    _refuse_if(end_ns < begin_ns, f"{where}: ends at {end_ns} ns, before it begins")


def _check_numbers(where: str, **numbers: float) -> None:
    for name, number in numbers.items():
        _refuse_if(not abs(number) < LARGEST_NUMBER, f"{where}: {name} is {number!r}, which is no finite number")


def _refuse_if(wrong: bool, message: str) -> None:
    if wrong:
        raise BuildError(message)
