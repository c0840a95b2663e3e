"""opsfile: a JSON file that describes kernels and ops -> an OpsFile; one kernel in a file of its own -> a SubKernel.

The fields are those of `_FILE`, `_KERNEL` and `_OP` below. Of a file, `kernels` and `ops` are required; of a kernel one
of `source`, `object` and `ptx`, `block_dim` and `params`; of an op `kernel` and `args`. A kernel without a `symbol` is
called like its id, or like its file if it has one of its own. An argument is a name, a number, or a place in a buffer:
{"name": "x", "offset": 128}, in bytes. Paths are relative to the JSON file; null is as absent.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import BuildError, GraphError, SuperKernelError, nearest
from .options import TARGETS, Options
from .params import Param
from .subkernel import Argument, Core, Form, Op, Place, SubKernel, Task

MAX_BYTES = 64 << 20
_MAX_DIGITS = 40
_MAX_TEXT = 4000  # no path is longer; and sizes written in it stay short enough for Python to print
_SHOWN = 60
_TILING_KEY = re.compile(r"0|-?[1-9][0-9]{0,17}")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_FILE = ("name", "target", "options", "kernels", "ops")
_BINARIES = tuple(form.value for form in Form)
_KERNEL = (
    *_BINARIES,
    *("symbol", "block_dim", "params", "core", "op_type", "sync_all", "early_start", "flags", "variants", "libraries"),
)
_OP = ("kernel", "args", "name", "stream", "send", "recv", "task")
_PLACE = ("name", "offset")


@dataclass(frozen=True)
class OpsFile:
    """What `superkernel.compile` needs, as read from a file."""

    name: str
    target: str
    options: Options
    ops: tuple[Op, ...]


def read_ops(path: str | Path) -> OpsFile:
    """The ops of an ops.json; every mistake is told with the file and the field it is in."""
    file = Path(path)
    whole = JsonValue(str(file), "", parse_json(file))
    if isinstance(whole.value, list):
        raise whole.error(
            "is a list; an object with kernels and ops is needed. If it is another tool's, name its --target"
        )
    top = whole.fields(_FILE, required=("kernels", "ops"))
    kernels = {name: _kernel(place, file.parent, name) for name, place in top["kernels"].entries().items()}
    ops = tuple(_op(place, kernels) for place in top["ops"].items())
    if not ops:
        raise top["ops"].error("the list of ops is empty")
    return OpsFile(
        top["name"].text() if "name" in top else "super_kernel",
        top["target"].one_of(TARGETS, "target") if "target" in top else "cpu",
        read_options(top["options"]) if "options" in top else Options(),
        ops,
    )


def read_kernel(path: Path) -> SubKernel:
    """One entry of `kernels` in a file of its own."""
    return _kernel(JsonValue(str(path), "", parse_json(path)), path.parent, path.stem)


class _Refused(Exception):
    """A number that JSON readers disagree on; whoever catches it knows the file."""


class _Object(dict[str, Any]):
    """A JSON object that remembers a key which stood twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        counts = Counter(key for key, _ in pairs) if len(self) < len(pairs) else {}
        self.twice = next((key for key, count in counts.items() if count > 1), None)


def parse_json(file: Path) -> Any:
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as reason:  # a path with a NUL in it is a ValueError
        raise GraphError(f"{file}: cannot be read: {getattr(reason, 'strerror', None) or reason}") from reason
    if len(raw) > MAX_BYTES:
        raise GraphError(f"{file}: larger than {MAX_BYTES >> 20} MiB, which is no description of kernels")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as reason:
        line = raw.count(b"\n", 0, reason.start) + 1
        column = reason.start - raw.rfind(b"\n", 0, reason.start)
        raise GraphError(f"{file}: line {line}, column {column}: not UTF-8 text: {reason.reason}") from reason
    try:
        return json.loads(
            text, object_pairs_hook=_Object, parse_int=_whole, parse_float=_finite, parse_constant=_no_constant
        )
    except json.JSONDecodeError as reason:
        raise GraphError(f"{file}: line {reason.lineno}, column {reason.colno}: not JSON: {reason.msg}") from reason
    except _Refused as reason:
        raise GraphError(f"{file}: {reason}") from None
    except RecursionError:
        raise GraphError(f"{file}: lists and objects are nested too deeply") from None


def _whole(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise _Refused(f"the number {digits[:_SHOWN]}... has more than {_MAX_DIGITS} digits")
    return int(digits)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Refused(f"the number {text[:_SHOWN]} is too large")
    return value


def _no_constant(name: str) -> None:
    raise _Refused(f"{name} is not JSON: pass such a value by name, at launch")


@dataclass(frozen=True)
class JsonValue:
    """A value of the file and where it stands, so that a wrong one can be pointed at."""

    file: str
    path: str
    value: Any

    def error(self, message: str) -> GraphError:
        return GraphError(f"{self.where}: {message}")

    @property
    def where(self) -> str:
        return f"{self.file}: {self.path}" if self.path else self.file

    def at(self, key: str | int) -> JsonValue:
        if isinstance(key, int):
            step = f"[{key}]"
        elif _PLAIN_KEY.fullmatch(key):
            step = f".{key}" if self.path else key
        else:
            step = f"[{shown(key)}]"
        return JsonValue(self.file, self.path + step, self.value[key])

    def entries(self) -> dict[str, JsonValue]:
        """The fields of an object, whatever they are called."""
        if not isinstance(self.value, _Object):
            raise self.error(f"{shown(self.value)} is not an object")
        if self.value.twice is not None:
            raise self.error(f"the key {shown(self.value.twice)} stands twice")
        return {key: self.at(key) for key in self.value}

    def fields(self, known: Sequence[str], required: Sequence[str]) -> dict[str, JsonValue]:
        """The fields of an object that has only known ones; one that is null counts as absent."""
        found = self.entries()
        for key, place in found.items():
            if key not in known:
                raise place.error(f"unknown field{nearest(key, known)}; fields are {', '.join(known)}")
        present = {key: place for key, place in found.items() if place.value is not None}
        for key in required:
            if key not in present:
                raise self.error(f"the field {key!r} is missing")
        return present

    def items(self) -> list[JsonValue]:
        if not isinstance(self.value, list):
            raise self.error(f"{shown(self.value)} is not a list")
        return [self.at(index) for index in range(len(self.value))]

    def text(self) -> str:
        """A string that can be a name, a path or a symbol."""
        if not isinstance(self.value, str):
            raise self.error(f"{shown(self.value)} is not a string")
        if not self.value.strip():
            raise self.error("the string is blank")
        return self.line()

    def line(self) -> str:
        """A string, perhaps blank, without what no file name, symbol or command line can carry."""
        if not isinstance(self.value, str):
            raise self.error(f"{shown(self.value)} is not a string")
        if len(self.value) > _MAX_TEXT:
            raise self.error(f"the string has {len(self.value)} characters; at most {_MAX_TEXT} are allowed")
        if bad := re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", self.value):
            raise self.error(f"{shown(self.value)} contains the character {bad[0]!r}")
        return self.value

    def one_of(self, known: Sequence[str], what: str) -> str:
        text = self.text()
        if text not in known:
            raise self.error(f"{shown(text)} is no {what}{nearest(text, known)}; there are {', '.join(known)}")
        return text

    def whole(self) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self.error(f"{shown(self.value)} is not a whole number")
        return self.value

    def truth(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.error(f"{shown(self.value)} is not true or false")
        return self.value

    def texts(self) -> tuple[str, ...]:
        return tuple(item.text() for item in self.items())


def shown(value: object) -> str:
    """A value for a message: short, and containers by their kind only, for they may be deep."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "...")
    return json.dumps(value)


@contextmanager
def told_at(place: JsonValue, binary: JsonValue | None = None) -> Iterator[None]:
    """An error of the same class that also says where in the file its cause is; `binary` names a file."""
    try:
        yield
    except BuildError as error:
        raise BuildError(f"{(binary or place).where}: {error}") from error
    except SuperKernelError as error:
        raise type(error)(f"{place.where}: {error}") from error
    except OSError as reason:  # a path that is too long, or in a folder that is not ours to read
        raise BuildError(f"{(binary or place).where}: {reason}") from reason


def read_options(place: JsonValue) -> Options:
    text = place.line()
    with told_at(place):
        return Options.parse(text)


def _kernel(place: JsonValue, folder: Path, name: str) -> SubKernel:
    fields = place.fields(_KERNEL, required=("block_dim", "params"))
    given = [form for form in Form if form.value in fields]
    if len(given) != 1:
        found = " and ".join(form.value for form in given) or "none of them"
        raise place.error(f"needs exactly one of {', '.join(_BINARIES)}; found {found}")
    form = given[0]
    if form is not Form.SOURCE and "flags" in fields:
        raise fields["flags"].error(f"flags are for the compiler of a source, and this is {form.value}")
    if form is Form.PTX and "libraries" in fields:
        raise fields["libraries"].error("libraries are for sources and objects, and this is ptx")
    binary = fields[form.value]
    chosen: dict[str, Any] = {key: read(fields[key]) for key, read in _OPTIONAL.items() if key in fields}
    if "libraries" in chosen:
        chosen["libraries"] = [str(folder / one) if "/" in one else one for one in chosen["libraries"]]
    symbol = fields.get("symbol", replace(place, value=name)).text()
    path = folder / binary.text()
    block_dim, params = fields["block_dim"].whole(), read_params(fields["params"])
    with told_at(place, binary):
        return _MAKERS[form](path, symbol, block_dim=block_dim, params=params, **chosen)


def read_params(place: JsonValue) -> list[Param]:
    params = []
    for item in place.items():
        text = item.text()
        with told_at(item):
            params.append(Param.parse(text))
    return params


def _early_start(place: JsonValue) -> bool | tuple[str, ...]:
    """Whether a kernel may start early, or the names of the parameters it reads before it waits."""
    if isinstance(place.value, str):
        return (place.text(),)
    return place.texts() if isinstance(place.value, list) else place.truth()


def _variants(place: JsonValue) -> dict[int, str]:
    for key in (entries := place.entries()):
        if not _TILING_KEY.fullmatch(key):
            raise place.error(f'{shown(key)} is no tiling key; keys are whole numbers such as "0"')
    return {int(key): symbol.text() for key, symbol in entries.items()}


# form of the binary -> the constructor that takes it
_MAKERS: Mapping[Form, Callable[..., SubKernel]] = {
    Form.SOURCE: SubKernel.from_source,
    Form.OBJECT: SubKernel.from_object,
    Form.PTX: SubKernel.from_ptx,
}
# optional field of a kernel -> what reads it
_OPTIONAL: Mapping[str, Callable[[JsonValue], object]] = {
    "core": lambda place: place.one_of([core.value for core in Core], "kind of core"),
    "op_type": JsonValue.text,
    "sync_all": JsonValue.truth,
    "early_start": _early_start,
    "flags": JsonValue.texts,
    "variants": _variants,
    "libraries": JsonValue.texts,
}


def _op(place: JsonValue, kernels: Mapping[str, SubKernel]) -> Op:
    fields = place.fields(_OP, required=("kernel", "args"))
    used = fields["kernel"].text()
    if used not in kernels:
        raise fields["kernel"].error(f"{shown(used)} is no kernel{nearest(used, kernels)}")
    args = read_arguments(fields["args"])
    name = fields["name"].text() if "name" in fields else None
    stream = fields["stream"].whole() if "stream" in fields else 0
    send, recv = (read_events(fields[key]) if key in fields else () for key in ("send", "recv"))
    task = fields["task"].one_of([task.value for task in Task], "task") if "task" in fields else Task.NORMAL
    with told_at(place):
        return Op(kernels[used], args, name, stream, send, recv, task)


def read_arguments(place: JsonValue) -> list[Argument]:
    return [_argument(item) for item in place.items()]


def _argument(place: JsonValue) -> Argument:
    """The name of a buffer, a place in it, or the value of a scalar."""
    if isinstance(place.value, _Object):
        fields = place.fields(_PLACE, required=("name",))
        return Place(fields["name"].text(), fields["offset"].whole() if "offset" in fields else 0)
    return place.value if isinstance(place.value, int | float) else place.text()


def read_events(place: JsonValue) -> tuple[int | str, ...]:
    listed = place.items() if isinstance(place.value, list) else [place]
    return tuple(item.text() if isinstance(item.value, str) else item.whole() for item in listed)
