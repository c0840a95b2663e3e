"""observe.facts: everything a profile directory says, as frozen dataclasses with a JSON form.

Times are microseconds from the beginning of the profile, sizes are bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from ..plan.plan import SyncKind

FORMAT = "superkernel profile"
VERSION = 1
SPAN_KINDS = ("kernel", "op", "wait", "barrier", "notify")
SYNC_KINDS = tuple(kind.value for kind in SyncKind)
_MOST = 2**63  # what is larger is no time and no size


@dataclass(frozen=True)
class LaunchFact:
    name: str
    type: str
    core_type: str
    block_dim: int  # 0: not known
    start_us: float
    duration_us: float
    wait_us: float  # since the launch before it, of the same thread, had completed
    thread: int
    stream: int
    scope: str
    kernel: int  # which of the profile's kernels it is, or is an op of; -1: none


@dataclass(frozen=True)
class OpFact:
    name: str
    type: str
    blocks: int
    stream: int
    bytes_read: int | None
    bytes_written: int | None
    origin: str  # the line of the model


@dataclass(frozen=True)
class EdgeFact:
    producer: str
    consumer: str
    sync: str  # one of SYNC_KINDS
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class KernelFact:
    """A graph that was launched, as one super kernel or op by op."""

    identity: str  # the same for the same ops on the same buffers, fused or not
    name: str
    scope: str
    options: str
    cores: int
    fused: bool
    runs: int
    reason: str  # why it ends where it does, or why it is not fused
    unfusible: tuple[str, ...]
    ops: tuple[OpFact, ...]
    edges: tuple[EdgeFact, ...]
    plan: str
    source: str


@dataclass(frozen=True)
class SpanFact:
    launch: int  # which launch
    core: int
    kind: str  # one of SPAN_KINDS
    op: str
    begin_us: float
    end_us: float


@dataclass(frozen=True)
class ForeignFact:
    """Why torch launched something that a scope was meant to take."""

    name: str
    scope: str
    reason: str


@dataclass(frozen=True)
class Profile:
    package: str
    began_ns: int  # nanoseconds since 1970
    detail: bool
    machine: dict[str, Any]
    launches: tuple[LaunchFact, ...]
    kernels: tuple[KernelFact, ...]
    spans: tuple[SpanFact, ...] = ()
    foreign: tuple[ForeignFact, ...] = ()
    read_bytes_per_s: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def total_us(self) -> float:
        return sum(launch.duration_us for launch in self.launches)

    @property
    def model(self) -> dict[str, int]:
        """What ran: the graphs, and how often each did."""
        runs: dict[str, int] = {}
        for kernel in self.kernels:
            runs[kernel.identity] = runs.get(kernel.identity, 0) + kernel.runs
        return runs

    @property
    def outside(self) -> set[str]:
        """What torch launched: the types of it."""
        return {launch.type for launch in self.launches if launch.kernel < 0}

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Profile:
        """What to_dict gave. KeyError, TypeError and ValueError: something is missing or is not what it should be."""
        kernels = tuple(
            KernelFact(
                **{
                    **_known(KernelFact, one),
                    "ops": tuple(OpFact(**_known(OpFact, op)) for op in one["ops"]),
                    "edges": tuple(_edge(edge) for edge in one["edges"]),
                    "unfusible": tuple(one["unfusible"]),
                }
            )
            for one in given["kernels"]
        )
        found = cls(
            **{
                **_known(cls, given),
                "launches": tuple(LaunchFact(**_known(LaunchFact, one)) for one in given["launches"]),
                "spans": tuple(SpanFact(**_known(SpanFact, one)) for one in given["spans"]),
                "foreign": tuple(ForeignFact(**_known(ForeignFact, one)) for one in given["foreign"]),
                "notes": tuple(given["notes"]),
                "kernels": kernels,
            }
        )
        found._check_references()
        return found

    def _check_references(self) -> None:
        """Launches and spans name others by number, and kinds by a word: each of them must be known."""
        for launch in self.launches:
            if not -1 <= launch.kernel < len(self.kernels):
                raise ValueError(f"a launch is of kernel {launch.kernel}, and there are {len(self.kernels)}")
        for span in self.spans:
            if not 0 <= span.launch < len(self.launches):
                raise ValueError(f"a span is of launch {span.launch}, and there are {len(self.launches)}")
            if span.kind not in SPAN_KINDS:
                raise ValueError(f"a span is of kind {span.kind!r}")
        for edge in (edge for kernel in self.kernels for edge in kernel.edges):
            if edge.sync not in SYNC_KINDS:
                raise ValueError(f"an edge is kept by {edge.sync!r}")


def _edge(given: dict[str, Any]) -> EdgeFact:
    return EdgeFact(**{**_known(EdgeFact, given), "reasons": tuple(given["reasons"])})


def _known(kind: type, given: dict[str, Any]) -> dict[str, Any]:
    """Exactly the fields of `kind`, each of its type."""
    found = {}
    for field in fields(kind):
        value = given[field.name]
        if not _fits(value, str(field.type)):
            raise TypeError(f"{kind.__name__}.{field.name} is {value!r}, not {field.type}")
        found[field.name] = value
    return found


_PLAIN: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}


def _fits(value: object, wanted: str) -> bool:
    if wanted.endswith(" | None"):
        return value is None or _fits(value, wanted.removesuffix(" | None"))
    if wanted.startswith("dict"):  # of a machine: words and numbers
        return isinstance(value, dict) and all(_fits(one, "str") or _fits(one, "int") for one in value.values())
    if wanted.startswith("tuple"):
        of_words = wanted == "tuple[str, ...]"
        return isinstance(value, list | tuple) and not (of_words and not all(isinstance(one, str) for one in value))
    if isinstance(value, int | float) and wanted != "bool":
        return not isinstance(value, bool) and isinstance(value, _PLAIN[wanted]) and _is_number(value)
    return isinstance(value, _PLAIN[wanted])


def _is_number(value: int | float) -> bool:
    return abs(value) < _MOST  # infinity is not, and neither is what is no number
