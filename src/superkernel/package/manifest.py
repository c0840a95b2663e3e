"""package.manifest: what a package holds, as frozen dataclasses <-> manifest.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from ..errors import BuildError
from ..model.json_value import JsonValue, parse_json
from .file_names import MANIFEST
from .return_structure import ReturnStructure, structure_from_json, structure_to_json

FORMAT = "superkernel package"
VERSION = 1
# element types of inputs, outputs, weights and states -> bytes of an element
ELEMENT_BYTES: Mapping[str, int] = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "int16": 2, "int32": 4, "int64": 8,
    "bool": 1,
}  # fmt: skip
MOST_DIMENSIONS = 16  # of a tensor
_T = TypeVar("_T")


class PlaceKind(Enum):
    """The memory that a place lies in."""

    INPUT = "input"
    OUTPUT = "output"
    WEIGHT = "weight"
    STATE = "state"
    ARENA = "arena"

    @property
    def is_numbered(self) -> bool:
        return self in (PlaceKind.INPUT, PlaceKind.OUTPUT)

    @property
    def is_named(self) -> bool:
        return self in (PlaceKind.WEIGHT, PlaceKind.STATE)


@dataclass(frozen=True)
class PackagePlace:
    """A range of bytes: in an input or output (`index`), a weight or state (`name`), or the arena of a call."""

    kind: PlaceKind
    offset: int
    nbytes: int
    index: int = 0
    name: str = ""

    def to_json(self) -> dict[str, Any]:
        which: dict[str, Any] = {}
        if self.kind.is_numbered:
            which["index"] = self.index
        elif self.kind.is_named:
            which["name"] = self.name
        return {"in": self.kind.value, **which, "offset": self.offset, "bytes": self.nbytes}

    @classmethod
    def from_json(cls, value: JsonValue) -> PackagePlace:
        fields = value.fields(("in", "index", "name", "offset", "bytes"), ("in", "offset", "bytes"))
        kind = PlaceKind(fields["in"].one_of([kind.value for kind in PlaceKind], "kind of memory"))
        needed = "index" if kind.is_numbered else "name" if kind.is_named else None
        if needed is not None and needed not in fields:
            raise value.error(f"the field {needed!r} is missing")
        index = _natural(fields["index"]) if kind.is_numbered else 0
        name = fields["name"].text() if kind.is_named else ""
        return cls(kind, _natural(fields["offset"]), _natural(fields["bytes"]), index, name)


@dataclass(frozen=True)
class PackagedTensor:
    """An input, an output or a state: contiguous, in C order."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        elements = 1
        for size in self.shape:
            elements *= size
        return elements * ELEMENT_BYTES[self.dtype]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: JsonValue) -> PackagedTensor:
        fields = value.fields(names := ("name", "dtype", "shape"), names)
        dtype = fields["dtype"].one_of(list(ELEMENT_BYTES), "element type")
        return cls(fields["name"].text(), dtype, _naturals(fields["shape"]))


@dataclass(frozen=True)
class PackagedPlan:
    """A plan of a launch for a number of cores: what the run time must know beside the code."""

    cores: int
    entry: str  # symbol
    slot_source: tuple[int, ...]  # per argument slot: the source of its value; negative: a literal
    slot_literal: tuple[int, ...]  # per argument slot: 64 bits, or what is added to the value
    rendezvous: int
    counters: int
    copies_bytes: int  # private copies of the outputs of replicated ops
    needs_team: bool
    arena_bytes: int
    source_offset: tuple[int, ...]
    source_bytes: tuple[int, ...]
    blocking_steps: int
    steps: tuple[str, ...]
    stamp_room: int

    def to_json(self) -> dict[str, Any]:
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        # 64-bit numbers as text: readers of JSON may keep 53 bits of a number
        return {**fields, "slot_literal": [str(literal) for literal in self.slot_literal]}

    @classmethod
    def from_json(cls, value: JsonValue) -> PackagedPlan:
        names = tuple(cls.__dataclass_fields__)
        fields = value.fields(names, names)
        return cls(
            cores=_natural(fields["cores"]),
            entry=fields["entry"].text(),
            slot_source=tuple(item.whole() for item in fields["slot_source"].items()),
            slot_literal=tuple(_literal(item) for item in fields["slot_literal"].items()),
            rendezvous=_natural(fields["rendezvous"]),
            counters=_natural(fields["counters"]),
            copies_bytes=_natural(fields["copies_bytes"]),
            needs_team=fields["needs_team"].truth(),
            arena_bytes=_natural(fields["arena_bytes"]),
            source_offset=tuple(item.whole() for item in fields["source_offset"].items()),
            source_bytes=_naturals(fields["source_bytes"]),
            blocking_steps=_natural(fields["blocking_steps"]),
            steps=tuple(item.line() for item in fields["steps"].items()),
            stamp_room=_natural(fields["stamp_room"]),
        )


@dataclass(frozen=True)
class PackagedLaunch:
    """One launch of a super kernel: its object, the places of its arguments, its plans, most cores first."""

    object: str
    arguments: tuple[PackagePlace, ...]
    plans: tuple[PackagedPlan, ...]

    def to_json(self) -> dict[str, Any]:
        return {"object": self.object, "arguments": _list(self.arguments), "plans": _list(self.plans)}

    @classmethod
    def from_json(cls, value: JsonValue) -> PackagedLaunch:
        fields = value.fields(names := ("object", "arguments", "plans"), names)
        arguments = _each(fields["arguments"], PackagePlace.from_json)
        return cls(fields["object"].text(), arguments, _each(fields["plans"], PackagedPlan.from_json))


@dataclass(frozen=True)
class PackagedCopy:
    """Elements that are copied after the launches; strides count elements."""

    target: PackagePlace
    source: PackagePlace
    dtype: str
    shape: tuple[int, ...]
    target_strides: tuple[int, ...]
    source_strides: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "to": self.target.to_json(),
            "from": self.source.to_json(),
            "dtype": self.dtype,
            "shape": list(self.shape),
            "to_strides": list(self.target_strides),
            "from_strides": list(self.source_strides),
        }

    @classmethod
    def from_json(cls, value: JsonValue) -> PackagedCopy:
        fields = value.fields(names := ("to", "from", "dtype", "shape", "to_strides", "from_strides"), names)
        return cls(
            PackagePlace.from_json(fields["to"]),
            PackagePlace.from_json(fields["from"]),
            fields["dtype"].one_of(list(ELEMENT_BYTES), "element type"),
            _naturals(fields["shape"]),
            _naturals(fields["to_strides"]),
            _naturals(fields["from_strides"]),
        )


@dataclass(frozen=True)
class PackagedBucket:
    """A dimension that is padded with its rows up to `size`: (index, axis) of the inputs, and of the outputs to cut."""

    name: str
    size: int
    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]

    def to_json(self) -> dict[str, Any]:
        axes = {"inputs": [list(pair) for pair in self.inputs], "outputs": [list(pair) for pair in self.outputs]}
        return {"name": self.name, "size": self.size, **axes}

    @classmethod
    def from_json(cls, value: JsonValue) -> PackagedBucket:
        fields = value.fields(names := ("name", "size", "inputs", "outputs"), names)
        axes = [_each(fields[name], _pair) for name in ("inputs", "outputs")]
        return cls(fields["name"].text(), _natural(fields["size"]), axes[0], axes[1])


@dataclass(frozen=True)
class PackagedShape:
    """A program of an entry for one set of shapes. `isa`: the instruction sets that it is for; empty: all."""

    inputs: tuple[PackagedTensor, ...]
    outputs: tuple[PackagedTensor, ...]
    bucket: PackagedBucket | None
    arena: int  # bytes of scratch memory of a call
    launches: tuple[PackagedLaunch, ...]
    copies: tuple[PackagedCopy, ...]
    isa: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "inputs": _list(self.inputs),
            "outputs": _list(self.outputs),
            "bucket": None if self.bucket is None else self.bucket.to_json(),
            "isa": list(self.isa),
            "arena": self.arena,
            "launches": _list(self.launches),
            "copies": _list(self.copies),
        }

    @classmethod
    def from_json(cls, value: JsonValue) -> PackagedShape:
        names = ("inputs", "outputs", "bucket", "isa", "arena", "launches", "copies")
        fields = value.fields(names, [name for name in names if name not in ("bucket", "isa")])
        return cls(
            _each(fields["inputs"], PackagedTensor.from_json),
            _each(fields["outputs"], PackagedTensor.from_json),
            PackagedBucket.from_json(fields["bucket"]) if "bucket" in fields else None,
            _natural(fields["arena"]),
            _each(fields["launches"], PackagedLaunch.from_json),
            _each(fields["copies"], PackagedCopy.from_json),
            fields["isa"].texts() if "isa" in fields else (),
        )


@dataclass(frozen=True)
class PackagedEntry:
    """A function of the package; its shapes are those that calls may have, smallest bucket first."""

    name: str
    shapes: tuple[PackagedShape, ...]
    doc: str = ""
    returns: ReturnStructure | None = None  # None: its only output, or a tuple of all

    def to_json(self) -> dict[str, Any]:
        returns = {} if self.returns is None else {"returns": structure_to_json(self.returns)}
        return {"name": self.name, "doc": self.doc, **returns, "shapes": _list(self.shapes)}

    @classmethod
    def from_json(cls, value: JsonValue) -> PackagedEntry:
        fields = value.fields(("name", "doc", "returns", "shapes"), ("name", "shapes"))
        doc = fields["doc"].line() if "doc" in fields else ""
        shapes = _each(fields["shapes"], PackagedShape.from_json)
        count = len(shapes[0].outputs) if shapes else 0
        returns = structure_from_json(fields["returns"], count) if "returns" in fields else None
        return cls(fields["name"].text(), shapes, doc, returns)


@dataclass(frozen=True)
class PackagedObject:
    """The code of a launch for one instruction set, and what the processor must have, as in /proc/cpuinfo."""

    isa: str
    file: str
    features: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"isa": self.isa, "file": self.file, "features": list(self.features)}

    @classmethod
    def from_json(cls, value: JsonValue) -> PackagedObject:
        fields = value.fields(("isa", "file", "features"), ("isa", "file"))
        features = fields["features"].texts() if "features" in fields else ()
        return cls(fields["isa"].text(), fields["file"].text(), features)


@dataclass(frozen=True)
class Manifest:
    """What a package holds. The objects of a launch: the most demanding instruction set first."""

    name: str
    superkernel: str  # version that wrote it
    entries: tuple[PackagedEntry, ...]
    objects: Mapping[str, tuple[PackagedObject, ...]] = field(default_factory=dict)
    states: tuple[PackagedTensor, ...] = ()
    needs_torch: str = ""  # why; empty: it does not
    options: str = ""
    torch: str = ""  # version that exported it

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "superkernel": self.superkernel,
            "name": self.name,
            "needs_torch": self.needs_torch,
            "options": self.options,
            "torch": self.torch,
            "states": _list(self.states),
            "objects": {name: _list(objects) for name, objects in self.objects.items()},
            "entries": _list(self.entries),
        }

    def text(self) -> str:
        return json.dumps(self.to_json(), indent=1) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a package. Its hash is not checked here."""
    return parse_manifest(parse_json(folder / MANIFEST), folder)


def parse_manifest(value: JsonValue, folder: Path) -> Manifest:
    """The same of its JSON."""
    entries = value.entries()
    if "format" not in entries or entries["format"].value != FORMAT:
        raise BuildError(f"{folder} is not a package of SuperKernel: {MANIFEST} has no format {FORMAT!r}")
    if "version" not in entries:
        raise value.error("the field 'version' is missing")
    if (version := entries["version"].whole()) > VERSION:
        raise BuildError(f"{folder}: made by a newer SuperKernel (format {version}); export again or update")
    if version < 1:
        raise entries["version"].error(f"there is no version {version}")
    required = ("format", "version", "superkernel", "name", "states", "objects", "entries")
    fields = value.fields((*required, "needs_torch", "options", "torch"), required)
    return Manifest(
        name=fields["name"].text(),
        superkernel=fields["superkernel"].text(),
        entries=_each(fields["entries"], PackagedEntry.from_json),
        objects={name: _each(item, PackagedObject.from_json) for name, item in fields["objects"].entries().items()},
        states=_each(fields["states"], PackagedTensor.from_json),
        **{name: fields[name].line() for name in ("needs_torch", "options", "torch") if name in fields},
    )


def _list(items: Sequence[Any]) -> list[Any]:
    return [item.to_json() for item in items]


def _each(value: JsonValue, read: Callable[[JsonValue], _T]) -> tuple[_T, ...]:
    return tuple(read(item) for item in value.items())


def _natural(value: JsonValue) -> int:
    if (number := value.whole()) < 0:
        raise value.error(f"{number} is negative")
    return number


def _naturals(value: JsonValue) -> tuple[int, ...]:
    return _each(value, _natural)


def _pair(value: JsonValue) -> tuple[int, int]:
    numbers = _naturals(value)
    if len(numbers) != 2:
        raise value.error("not a pair of an index and an axis")
    return numbers[0], numbers[1]


def _literal(value: JsonValue) -> int:
    text = value.text()
    try:
        number = int(text, 0)
    except ValueError:
        raise value.error(f"{text!r} is not a whole number") from None
    if not 0 <= number < 2**64:
        raise value.error(f"{text!r} has more than 64 bits")
    return number
