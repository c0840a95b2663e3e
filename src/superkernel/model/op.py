"""op: one use of a sub-kernel: the names of its arguments, its stream, its events -> Op, Place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from ..errors import GraphError, nearest, shown
from .events import Event
from .params import MOST_BYTES, Kind, Number, Param, check_name, scalar_bits
from .plain_values import plain_number, whole_number
from .ranks import RankSync, checked_ranks
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

    def __post_init__(self) -> None:
        if (offset := whole_number(self.offset)) is not None:  # others are refused where the place is used
            object.__setattr__(self, "offset", offset)

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
_MOST_STREAM = 2**31 - 1


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
    ranks: Sequence[RankSync] = field(default=(), kw_only=True)  # how it synchronises with other processes

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, SubKernel):
            raise GraphError(f"an op needs a SubKernel, not {shown(self.kernel)}")
        if self.name is not None:
            check_name(self.name, f"op of {shown(self.kernel.name)}: its name")
        where = f"op {shown(self.name or self.kernel.name)}: "
        if isinstance(self.args, str | bytes | bytearray) or not isinstance(self.args, Sequence):
            raise GraphError(f"{where}args is a list of names, not {shown(self.args)}")
        object.__setattr__(self, "args", tuple(plain_number(argument) for argument in self.args))
        object.__setattr__(self, "send", _event_ids(self.send, where + "send"))
        object.__setattr__(self, "recv", _event_ids(self.recv, where + "recv"))
        stream = whole_number(self.stream)
        if stream is None or not 0 <= stream <= _MOST_STREAM:
            raise GraphError(f"{where}stream is {shown(self.stream)}; it must be a whole number from 0")
        object.__setattr__(self, "stream", stream)
        object.__setattr__(self, "ranks", checked_ranks(self.ranks, where))
        tasks = [t.value for t in Task]
        if not isinstance(self.task, Task):
            if not isinstance(self.task, str) or self.task not in tasks:
                raise GraphError(
                    f"{where}unknown task {shown(self.task)}{nearest(self.task, tasks)}; tasks are normal, dynamic"
                )
            object.__setattr__(self, "task", Task(self.task))
        if self.tiling is not None and not isinstance(self.tiling, CompiledTiling) and not callable(self.tiling):
            raise GraphError(
                f"{where}tiling must be a function, Tiling.from_source(...) or Tiling.from_object(...), "
                f"not {shown(self.tiling)}"
            )
        if self.tiling is not None and self.task is not Task.DYNAMIC:
            raise GraphError(f"{where}a tiling function belongs to task='dynamic'")
        if self.kernel.variants and self.task is not Task.DYNAMIC:
            raise GraphError(f"{where}a sub-kernel with variants belongs to task='dynamic'")
        _check_arguments(self, where)

    @property
    def dynamic(self) -> bool:
        return self.task is Task.DYNAMIC


def _event_id(given: EventId) -> EventId:
    """A number of numpy becomes Python's: the same number is the same event."""
    return given if isinstance(given, bool) or (whole := whole_number(given)) is None else whole


def _event_ids(ids: EventId | Sequence[EventId], where: str) -> tuple[EventId, ...]:
    ids = _event_id(ids) if not isinstance(ids, Sequence) else ids
    if isinstance(ids, bytes | bytearray | memoryview) or not isinstance(ids, int | str | Event | Sequence):
        raise GraphError(f"{where}: {shown(ids)} is no event id; use numbers, names or Events")
    listed = tuple(map(_event_id, (ids,) if isinstance(ids, int | str | Event) else ids))
    for event in listed:
        if isinstance(event, bool) or not isinstance(event, int | str | Event):
            raise GraphError(f"{where}: {shown(event)} is no event id; use a number, a name or an Event")
        if isinstance(label := event.name if isinstance(event, Event) else event, str):
            check_name(label, f"{where}: the event")
    if len(set(listed)) != len(listed):
        raise GraphError(f"{where}: an event id stands twice in {shown(listed)}")
    return listed


def _check_arguments(op: Op, where: str) -> None:
    params = op.kernel.params
    if len(op.args) != len(params):
        expected = ", ".join(f"{p.kind.value}:{p.name}" for p in params)
        raise GraphError(f"{where}{len(op.args)} arguments for {len(params)} parameters ({expected})")
    for arg, param in zip(op.args, params, strict=True):
        if isinstance(arg, Place):
            _check_place(arg, param, f"{where}the argument for {shown(param.name)}")
        elif isinstance(arg, str):
            check_name(arg, f"{where}the argument for {shown(param.name)}")
        elif param.kind is not Kind.SCALAR or not isinstance(arg, int | float):
            raise GraphError(
                f"{where}the argument for {shown(param.name)} ({param.kind.value}) must be a name, not {shown(arg)}"
            )
        else:
            scalar_bits(arg, param.dtype, f"{where}scalar {shown(param.name)}", GraphError)


def _check_place(place: Place, param: Param, what: str) -> None:
    check_name(place.name, what)
    if param.kind is Kind.SCALAR:
        raise GraphError(
            f"{what} is the place {shown(str(place))}; a scalar is passed as a number, or by its name alone"
        )
    offset = place.offset
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= MOST_BYTES:
        raise GraphError(
            f"{what}: the offset in {shown(place.name)} is {shown(offset)}; it must be a whole number of bytes from 0"
        )
    if offset % param.alignment:
        raise GraphError(
            f"{what}: the offset in {shown(place.name)} is {offset}, which is no multiple of {param.alignment}: "
            f"{param.dtype} must begin at one"
        )
