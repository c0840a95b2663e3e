"""op: one use of a sub-kernel: the names of its arguments, its stream, its events -> Op, Place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from ..errors import GraphError, nearest
from .events import Event
from .params import MOST_BYTES, Kind, Number, Param, check_name, scalar_bits
from .subkernel import SubKernel
from .tiling import CompiledTiling, TilingFunction


class Task(Enum):
    NORMAL = "normal"
    DYNAMIC = "dynamic"


@dataclass(frozen=True)
class Place:
    """An address inside a named buffer, `offset` bytes from its beginning."""

    name: str
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.name}+{self.offset}" if self.offset else self.name

    def seen_as(self, param: Param) -> Param:
        """What `param` says of the buffer: a part of it says nothing of the whole, nor of which block touches what."""
        return replace(param, dtype=None, shape=None, block=False) if self.offset else param


Argument = str | Place | Number


def place_of(argument: str | Place) -> Place:
    """A name is the place where its buffer begins."""
    return argument if isinstance(argument, Place) else Place(argument)


EventId = int | str | Event


@dataclass(frozen=True, eq=False)
class Op:
    """One use of a sub-kernel. The same argument name is the same memory, at whatever offset."""

    kernel: SubKernel
    args: Sequence[Argument]
    name: str | None = None
    stream: int = 0
    send: Sequence[EventId] = ()
    recv: Sequence[EventId] = ()
    task: str | Task = Task.NORMAL
    tiling: TilingFunction | CompiledTiling | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, SubKernel):
            raise GraphError(f"an op needs a SubKernel, not {self.kernel!r}")
        where = f"op {self.name or self.kernel.name!r}: "
        if self.name is not None:
            check_name(self.name, f"op of {self.kernel.name!r}: its name")
        if isinstance(self.args, str) or not isinstance(self.args, Sequence):
            raise GraphError(f"{where}args is a list of names, not {self.args!r}")
        object.__setattr__(self, "args", tuple(self.args))
        object.__setattr__(self, "send", _event_ids(self.send, where + "send"))
        object.__setattr__(self, "recv", _event_ids(self.recv, where + "recv"))
        if not isinstance(self.stream, int) or isinstance(self.stream, bool) or self.stream < 0:
            raise GraphError(f"{where}stream is {self.stream!r}; it must be a whole number from 0")
        tasks = [t.value for t in Task]
        if not isinstance(self.task, Task):
            if self.task not in tasks:
                raise GraphError(
                    f"{where}unknown task {self.task!r}{nearest(str(self.task), tasks)}; tasks are normal, dynamic"
                )
            object.__setattr__(self, "task", Task(self.task))
        if self.tiling is not None and not isinstance(self.tiling, CompiledTiling) and not callable(self.tiling):
            raise GraphError(
                f"{where}tiling must be a function, Tiling.from_source(...) or Tiling.from_object(...), "
                f"not {self.tiling!r}"
            )
        if self.tiling is not None and self.task is not Task.DYNAMIC:
            raise GraphError(f"{where}a tiling function belongs to task='dynamic'")
        if self.kernel.variants and self.task is not Task.DYNAMIC:
            raise GraphError(f"{where}a sub-kernel with variants belongs to task='dynamic'")
        _check_arguments(self, where)

    @property
    def dynamic(self) -> bool:
        return self.task is Task.DYNAMIC


def _event_ids(ids: EventId | Sequence[EventId], where: str) -> tuple[EventId, ...]:
    if not isinstance(ids, int | str | Event | Sequence):
        raise GraphError(f"{where}: {ids!r} is no event id; use numbers, names or Events")
    listed = (ids,) if isinstance(ids, int | str | Event) else tuple(ids)
    for event in listed:
        if isinstance(event, bool) or not isinstance(event, int | str | Event):
            raise GraphError(f"{where}: {event!r} is no event id; use a number, a name or an Event")
        if isinstance(label := event.name if isinstance(event, Event) else event, str):
            check_name(label, f"{where}: the event")
    if len(set(listed)) != len(listed):
        raise GraphError(f"{where}: an event id stands twice in {listed!r}")
    return listed


def _check_arguments(op: Op, where: str) -> None:
    params = op.kernel.params
    if len(op.args) != len(params):
        expected = ", ".join(f"{p.kind.value}:{p.name}" for p in params)
        raise GraphError(f"{where}{len(op.args)} arguments for {len(params)} parameters ({expected})")
    for arg, param in zip(op.args, params, strict=True):
        if isinstance(arg, Place):
            _check_place(arg, param, f"{where}the argument for {param.name!r}")
        elif isinstance(arg, str):
            check_name(arg, f"{where}the argument for {param.name!r}")
        elif param.kind is not Kind.SCALAR or not isinstance(arg, int | float):
            raise GraphError(f"{where}the argument for {param.name!r} ({param.kind.value}) must be a name, not {arg!r}")
        else:
            scalar_bits(arg, param.dtype, f"{where}scalar {param.name!r}", GraphError)


def _check_place(place: Place, param: Param, what: str) -> None:
    check_name(place.name, what)
    if param.kind is Kind.SCALAR:
        raise GraphError(f"{what} is the place {str(place)!r}; a scalar is passed as a number, or by its name alone")
    offset = place.offset
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= MOST_BYTES:
        raise GraphError(
            f"{what}: the offset in {place.name!r} is {offset!r}; it must be a whole number of bytes from 0"
        )
    if offset % param.alignment:
        raise GraphError(
            f"{what}: the offset in {place.name!r} is {offset}, which is no multiple of {param.alignment}: "
            f"{param.dtype} must begin at one"
        )
