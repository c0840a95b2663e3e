"""targets.ascend.oplist: a list of ops as CANN's tools write it -> an OpsFile; ops.json is read as everywhere else.

A list, or an object with `op_list` and perhaps `name` and `options`. An entry has the fields of `_ENTRY`; `name` and
`args` may be left out. Without `args` it is unknown what memory an op shares: it follows all earlier ops of its
stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...model.json_value import JsonValue, located, parse_json
from ...model.op import Argument, EventId, Op, Task
from ...model.opsfile import OpsFile, read_arguments, read_events, read_ops, read_options
from ...model.options import Options
from ...model.subkernel import SubKernel
from .argument_layout import ORDER_EVENT
from .chips import Chip
from .metadata import read_metadata

_ENTRY = ("json_path", "bin_path", "stream_id", "task_type", "send_event_list", "recv_event_list")
_MORE = ("name", "args")
_FILE = ("op_list", "name", "options", "target")


def read_op_list(path: Path, chip: Chip) -> OpsFile:
    top = parse_json(path)
    found = top.value
    if isinstance(found, dict) and "op_list" not in found:
        if found.keys().isdisjoint(("kernels", "ops")):
            raise top.error("has neither op_list nor kernels and ops: what should be compiled?")
        return read_ops(path)
    fields = top.fields(_FILE, required=("op_list",)) if isinstance(found, dict) else {"op_list": top}
    known: dict[_Files, SubKernel] = {}  # most lists use a kernel more than once
    entries = [_entry(place, path.parent, chip, known) for place in fields["op_list"].items()]
    if not entries:
        raise fields["op_list"].error("the list of ops is empty")
    stem = path.stem if path.stem.isidentifier() and path.stem.isascii() else "super_kernel"
    return OpsFile(
        fields["name"].text() if "name" in fields else stem,
        fields["target"].text() if "target" in fields else "ascend",
        read_options(fields["options"]) if "options" in fields else Options(),
        _ops(entries),
    )


_Files = tuple[Path, Path, Task]


@dataclass(frozen=True)
class _Entry:
    place: JsonValue
    kernel: SubKernel
    name: str | None
    args: tuple[Argument, ...] | None
    stream: int
    task: Task
    send: tuple[EventId, ...]
    recv: tuple[EventId, ...]


def _entry(place: JsonValue, folder: Path, chip: Chip, known: dict[_Files, SubKernel]) -> _Entry:
    fields = place.fields((*_ENTRY, *_MORE), required=_ENTRY)
    task = Task(fields["task_type"].one_of([task.value for task in Task], "task type"))
    metadata, binary = (folder / fields[key].text() for key in ("json_path", "bin_path"))
    for key, file in (("json_path", metadata), ("bin_path", binary)):
        if not file.is_file():
            raise fields[key].error(f"{str(file)!r} does not exist or is not a file")
    stream = fields["stream_id"].whole()
    if stream < 0:
        raise fields["stream_id"].error(f"{stream} is out of range; streams count from 0")
    files = metadata, binary, task
    kernel = known[files] = known.get(files) or read_metadata(*files, chip)
    name = fields["name"].text() if "name" in fields else None
    args = tuple(read_arguments(fields["args"])) if "args" in fields else None
    if args is not None and len(args) != len(kernel.params):
        expected = ", ".join(param.name for param in kernel.params)
        raise fields["args"].error(f"{len(args)} arguments for {len(kernel.params)} parameters ({expected})")
    send, recv = (read_events(fields[f"{which}_event_list"]) for which in ("send", "recv"))
    return _Entry(place, kernel, name, args, stream, task, send, recv)


def _ops(entries: Sequence[_Entry]) -> tuple[Op, ...]:
    """Ops without args get names of their own, and an edge from and to their neighbours in their stream."""
    previous: dict[int, int] = {}
    extra: list[tuple[list[EventId], list[EventId]]] = [([], []) for _ in entries]
    for i, entry in enumerate(entries):
        before = previous.get(entry.stream)
        if before is not None and (entry.args is None or entries[before].args is None):
            link = f"{ORDER_EVENT}{entry.stream}, {before} to {i}"
            extra[before][0].append(link)
            extra[i][1].append(link)
        previous[entry.stream] = i
    ops = []
    for i, (entry, (send, recv)) in enumerate(zip(entries, extra, strict=True)):
        name = entry.name or f"{entry.kernel.name}_{i}"
        args = entry.args if entry.args is not None else tuple(f"{name}.{p.name}" for p in entry.kernel.params)
        with located(entry.place):
            ops.append(
                Op(entry.kernel, args, name, entry.stream, (*entry.send, *send), (*entry.recv, *recv), entry.task)
            )
    return tuple(ops)
