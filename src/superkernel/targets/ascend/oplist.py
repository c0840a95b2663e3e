"""targets.ascend.oplist: a list of ops as CANN's tools write it -> an OpsFile; ops.json is read as everywhere else.

A list, or an object with `op_list` and perhaps `name` and `super_kernel_options` (or `options`). An entry has the
fields of `_ENTRY`; only `json_path` and `bin_path` are required, and a collective has none of them: see
oplist_collectives. Fields that are not known are left alone, and listed.
Without `args` it is unknown what memory an op shares: it follows all earlier ops of its stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import nearest
from ...model.json_value import FieldPlace, JsonValue, located, parse_json
from ...model.op import Argument, EventId, Op, Task
from ...model.opsfile import OpsFile, read_arguments, read_events, read_ops, read_options
from ...model.options import Options
from ...model.ranks import RankSync, ranks_from_json
from ...model.subkernel import SubKernel
from .argument_layout import ORDER_EVENT
from .chips import Chip
from .core_types import CoreClass
from .metadata import Metadata, read_metadata
from .oplist_collectives import NO_STREAM, CollectiveEntry, is_collective, read_collective
from .processors import check_alike

_FILES = ("json_path", "bin_path")
_ENTRY = (*_FILES, "stream_id", "task_type", "send_event_list", "recv_event_list", "name", "args", "ranks")
_TOP = ("op_list", "name", "options", "super_kernel_options", "target")


def read_op_list(path: Path, chip: Chip) -> OpsFile:
    top = parse_json(path)
    found = top.value
    if isinstance(found, dict) and "op_list" not in found:
        if found.keys().isdisjoint(("kernels", "ops")):
            raise top.error(
                f"has neither op_list{nearest('op_list', found)} nor kernels and ops: what is to be compiled?"
            )
        return read_ops(path)
    fields, unknown = top.foreign_fields(_TOP, ("op_list",)) if isinstance(found, dict) else ({"op_list": top}, ())
    known: dict[_Files, Metadata] = {}  # most lists use a kernel more than once
    entries = [
        read_collective(place, number, chip) if is_collective(place) else _entry(place, path.parent, chip, known)
        for number, place in enumerate(fields["op_list"].items())
    ]
    if not entries:
        raise fields["op_list"].error("the list of ops is empty")
    _check_one_chip(fields["op_list"], list(known.values()))
    stem = path.stem if path.stem.isidentifier() and path.stem.isascii() else "super_kernel"
    places = (unknown, *(entry.ignored for entry in entries), *(metadata.ignored for metadata in known.values()))
    return OpsFile(
        fields["name"].text() if "name" in fields else stem,
        fields["target"].text() if "target" in fields else "ascend",
        _options(fields),
        _ops(entries),
        ignored=tuple(dict.fromkeys(place for several in places for place in several)),
    )


def _check_one_chip(place: JsonValue, used: Sequence[Metadata]) -> None:
    for core_class in CoreClass:
        check_alike([given for metadata in used for given in metadata.device_objects.get(core_class, ())], place.where)


def _options(fields: Mapping[str, JsonValue]) -> Options:
    given = [read_options(fields[key]) for key in ("options", "super_kernel_options") if key in fields]
    if len(given) == 2 and given[0] != given[1]:
        raise fields["super_kernel_options"].error(f"{given[1]}, but options is {given[0]}: leave one of them out")
    return given[0] if given else Options()


_Files = tuple[Path, Path, Task]


@dataclass(frozen=True)
class _Entry:
    place: JsonValue
    ignored: tuple[FieldPlace, ...]
    kernel: SubKernel
    name: str | None
    args: tuple[Argument, ...] | None
    stream: int  # as the list says, NO_STREAM where it says nothing
    task: Task
    send: tuple[EventId, ...]
    recv: tuple[EventId, ...]
    ranks: tuple[RankSync, ...]

    def placed(self, number: int, stream: int, send: Sequence[EventId], recv: Sequence[EventId]) -> Op:
        """In a stream, with more events."""
        name = self.name or f"{self.kernel.name}_{number}"
        args = self.args if self.args is not None else tuple(f"{name}.{param.name}" for param in self.kernel.params)
        sends, receives = (*self.send, *send), (*self.recv, *recv)
        with located(self.place):
            return Op(self.kernel, args, name, stream, sends, receives, self.task, ranks=self.ranks)


def _entry(place: JsonValue, folder: Path, chip: Chip, known: dict[_Files, Metadata]) -> _Entry:
    fields, ignored = place.foreign_fields(_ENTRY, _FILES)
    tasks = [task.value for task in Task]
    task = Task(fields["task_type"].one_of(tasks, "task type")) if "task_type" in fields else Task.NORMAL
    metadata, binary = (folder / fields[key].text() for key in _FILES)
    for key, file in (("json_path", metadata), ("bin_path", binary)):
        if not file.is_file():
            raise fields[key].error(f"{str(file)!r} does not exist or is not a file")
    stream = fields["stream_id"].whole() if "stream_id" in fields else NO_STREAM
    if stream < NO_STREAM:
        raise fields["stream_id"].error(f"{stream} is out of range; streams count from 0, and -1 is none")
    files = metadata, binary, task
    kernel = known.setdefault(files, known.get(files) or read_metadata(*files, chip)).kernel
    name = fields["name"].text() if "name" in fields else None
    args = tuple(read_arguments(fields["args"])) if "args" in fields else None
    if args is not None and len(args) != len(kernel.params):
        expected = ", ".join(param.name for param in kernel.params)
        raise fields["args"].error(f"{len(args)} arguments for {len(kernel.params)} parameters ({expected})")
    send, recv = (read_events(fields[key]) if key in fields else () for key in ("send_event_list", "recv_event_list"))
    ranks = ranks_from_json(fields["ranks"]) if "ranks" in fields else ()
    return _Entry(place, ignored, kernel, name, args, stream, task, send, recv, ranks)


def _streams(entries: Sequence[_Entry | CollectiveEntry]) -> list[int]:
    """Ops without a stream are in one of their own, the first that the list does not name."""
    named = {entry.stream for entry in entries}
    own = next(stream for stream in range(len(named) + 1) if stream not in named)
    return [own if entry.stream == NO_STREAM else entry.stream for entry in entries]


def _ops(entries: Sequence[_Entry | CollectiveEntry]) -> tuple[Op, ...]:
    """Ops without args get names of their own, and an edge from and to their neighbours in their stream."""
    previous: dict[int, int] = {}
    extra: list[tuple[list[EventId], list[EventId]]] = [([], []) for _ in entries]
    streams = _streams(entries)
    for i, (entry, stream) in enumerate(zip(entries, streams, strict=True)):
        before = previous.get(stream)
        if before is not None and (_is_private(entry) or _is_private(entries[before])):
            link = f"{ORDER_EVENT}{stream}, {before} to {i}"
            extra[before][0].append(link)
            extra[i][1].append(link)
        previous[stream] = i
    ops: list[Op] = []
    for i, (entry, stream, (send, recv)) in enumerate(zip(entries, streams, extra, strict=True)):
        if isinstance(entry, CollectiveEntry):
            ops += entry.placed(stream, send, recv)
        else:
            ops.append(entry.placed(i, stream, send, recv))
    return tuple(ops)


def _is_private(entry: _Entry | CollectiveEntry) -> bool:
    """Whether it is unknown what memory the entry shares."""
    return isinstance(entry, _Entry) and entry.args is None
