"""opsfile: a JSON file that describes kernels and ops -> an OpsFile.

Of a file, `kernels` and `ops` are required; of a kernel one of `source`, `object` and `ptx`, `params`, and `block_dim`
or `grid`; of an op `kernel` and `args`; of the `tiling` of a dynamic op `symbol` and one of `source` and
`object`. A kernel without a `symbol` is called like its id. An argument is a name, a number, or a place in a buffer:
{"name": "x", "offset": 128}, in bytes. `outputs` lists the names that a launch returns. `ranks` of an op lists how it
synchronises with other processes: {"collective", "group": {"name", "ranks", "rank"}, "window", "sends", "terms"}.
Paths are relative to the JSON file; null counts as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import nearest
from .json_value import FieldPlace, JsonValue, located, parse_json, shown
from .op import Argument, Op, Place, Task
from .options import TARGETS, Options
from .ranks import ranks_from_json
from .subkernel import SubKernel
from .tiling import CompiledTiling, Tiling

_FILE = ("name", "target", "options", "kernels", "ops", "outputs")
_OP = ("kernel", "args", "name", "stream", "send", "recv", "task", "tiling", "ranks")
_TILING = ("source", "object", "symbol", "flags", "libraries")
_PLACE = ("name", "offset")


@dataclass(frozen=True)
class OpsFile:
    """What `superkernel.compile` needs, as read from a file."""

    name: str
    target: str
    options: Options
    ops: tuple[Op, ...]
    outputs: tuple[str, ...] | None = None  # None: the names whose last value no op reads
    ignored: tuple[FieldPlace, ...] = ()  # fields of a file of another tool that were not read


def read_ops(path: str | Path) -> OpsFile:
    """The ops of an ops.json; an error names the file and the field."""
    file = Path(path)
    whole = parse_json(file)
    if isinstance(whole.value, list):
        raise whole.error(
            "is a list; an object with kernels and ops is needed. If it is another tool's, name its --target"
        )
    top = whole.fields(_FILE, required=("kernels", "ops"))
    entries = top["kernels"].entries()
    kernels = {name: SubKernel.from_entry(entry, file.parent, name) for name, entry in entries.items()}
    ops = tuple(_op(entry, kernels, file.parent) for entry in top["ops"].items())
    if not ops:
        raise top["ops"].error("the list of ops is empty")
    return OpsFile(
        top["name"].text() if "name" in top else "super_kernel",
        top["target"].one_of(TARGETS, "target") if "target" in top else "cpu",
        read_options(top["options"]) if "options" in top else Options(),
        ops,
        tuple(top["outputs"].texts()) if "outputs" in top else None,
    )


def read_options(value: JsonValue) -> Options:
    text = value.line()
    with located(value):
        return Options.parse(text)


def _op(entry: JsonValue, kernels: Mapping[str, SubKernel], folder: Path) -> Op:
    fields = entry.fields(_OP, required=("kernel", "args"))
    used = fields["kernel"].text()
    if used not in kernels:
        raise fields["kernel"].error(f"{shown(used)} is no kernel{nearest(used, kernels)}")
    args = read_arguments(fields["args"])
    name = fields["name"].text() if "name" in fields else None
    stream = fields["stream"].whole() if "stream" in fields else 0
    send, recv = (read_events(fields[key]) if key in fields else () for key in ("send", "recv"))
    task = fields["task"].one_of([task.value for task in Task], "task") if "task" in fields else Task.NORMAL
    tiling = _tiling(fields["tiling"], folder) if "tiling" in fields else None
    ranks = ranks_from_json(fields["ranks"]) if "ranks" in fields else ()
    with located(entry):
        return Op(kernels[used], args, name, stream, send, recv, task, tiling, ranks=ranks)


def _tiling(entry: JsonValue, folder: Path) -> CompiledTiling:
    """The C function that chooses the tiling of a dynamic op."""
    fields = entry.fields(_TILING, required=("symbol",))
    if ("source" in fields) == ("object" in fields):
        raise entry.error("needs exactly one of source and object")
    symbol = fields["symbol"].text()
    listed = fields["libraries"].texts() if "libraries" in fields else ()
    libraries = [str(folder / library) if "/" in library else library for library in listed]
    if "object" in fields:
        if "flags" in fields:
            raise fields["flags"].error("flags are for the compiler of a source, and this is object")
        path = folder / fields["object"].text()
        with located(entry, fields["object"]):
            return Tiling.from_object(path, symbol, libraries=libraries)
    path = folder / fields["source"].text()
    flags = fields["flags"].texts() if "flags" in fields else ()
    with located(entry, fields["source"]):
        return Tiling.from_source(path, symbol, flags, libraries=libraries)


def read_arguments(value: JsonValue) -> list[Argument]:
    return [_argument(item) for item in value.items()]


def _argument(value: JsonValue) -> Argument:
    """The name of a buffer, a place in it, or the value of a scalar."""
    if isinstance(value.value, dict):
        fields = value.fields(_PLACE, required=("name",))
        return Place(fields["name"].text(), fields["offset"].whole() if "offset" in fields else 0)
    return value.value if isinstance(value.value, int | float) else value.text()


def read_events(value: JsonValue) -> tuple[int | str, ...]:
    listed = value.items() if isinstance(value.value, list) else [value]
    return tuple(item.text() if isinstance(item.value, str) else item.whole() for item in listed)
