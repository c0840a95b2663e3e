"""observe.facts: everything a profile directory says, as frozen dataclasses with a JSON form.

Times are microseconds from the beginning of the profile, sizes are bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

FORMAT = "superkernel profile"
VERSION = 1


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
    sync: str
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
    kind: str  # kernel, op, wait, barrier, notify
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
        return cls(
            **{
                **_known(cls, given),
                "launches": tuple(LaunchFact(**_known(LaunchFact, one)) for one in given["launches"]),
                "spans": tuple(SpanFact(**_known(SpanFact, one)) for one in given["spans"]),
                "foreign": tuple(ForeignFact(**_known(ForeignFact, one)) for one in given["foreign"]),
                "notes": tuple(given["notes"]),
                "kernels": kernels,
            }
        )


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
    if wanted.startswith("dict"):
        return isinstance(value, dict)
    if wanted.startswith("tuple"):
        return isinstance(value, list | tuple)
    return isinstance(value, _PLAIN[wanted]) and (wanted == "bool" or not isinstance(value, bool))
