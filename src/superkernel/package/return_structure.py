"""package.return_structure: the containers around the outputs of an entry <-> JSON; and results put into them."""

from __future__ import annotations

import keyword
import unicodedata
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from ..model.json_value import JsonValue, is_line, is_whole

Constant = None | bool | int | float | str
Key = str | int  # of a dict
MOST_NESTED = 20  # containers inside of each other


class ContainerKind(Enum):
    """RECORD: a named tuple, a dataclass or an output class of a model library; its class is not stored."""

    TUPLE = "tuple"
    LIST = "list"
    DICT = "dict"
    RECORD = "record"


@dataclass(frozen=True)
class ReturnedOutput:
    """An output of the entry, by its index."""

    index: int


@dataclass(frozen=True)
class ReturnedConstant:
    """A value that the export has fixed."""

    value: Constant


@dataclass(frozen=True)
class ReturnedContainer:
    """`keys`: those of a dict, or the names of the fields of a record, whose class is called `name`."""

    kind: ContainerKind
    items: tuple[ReturnStructure, ...]
    keys: tuple[Key, ...] = ()
    name: str = ""


ReturnStructure = ReturnedOutput | ReturnedConstant | ReturnedContainer


def plain_structure(count: int) -> ReturnStructure:
    """Of an entry that says nothing: its only output, or a tuple of all."""
    if count == 1:
        return ReturnedOutput(0)
    return ReturnedContainer(ContainerKind.TUPLE, tuple(map(ReturnedOutput, range(count))))


def output_indices(structure: ReturnStructure) -> list[int]:
    """The outputs in the order in which the structure holds them."""
    if isinstance(structure, ReturnedOutput):
        return [structure.index]
    items = structure.items if isinstance(structure, ReturnedContainer) else ()
    return [index for item in items for index in output_indices(item)]


# -- JSON ------------------------------------------------------------------------------------------------------


def structure_to_json(structure: ReturnStructure) -> Any:
    if isinstance(structure, ReturnedOutput):
        return {"output": structure.index}
    if isinstance(structure, ReturnedConstant):
        return {"constant": structure.value}
    items = [structure_to_json(item) for item in structure.items]
    fields: dict[str, Any] = {structure.kind.value: items}
    if structure.kind in (ContainerKind.DICT, ContainerKind.RECORD):
        fields["keys"] = list(structure.keys)
    if structure.kind is ContainerKind.RECORD:
        fields["name"] = structure.name
    return fields


def structure_from_json(value: JsonValue, count: int) -> ReturnStructure:
    """Refuses a structure that does not hold each of `count` outputs once."""
    structure = _read(value, 0)
    if sorted(output_indices(structure)) != list(range(count)):
        raise value.error(f"this does not hold each of the {count} outputs once")
    return structure


def _read(value: JsonValue, depth: int) -> ReturnStructure:
    if depth > MOST_NESTED:
        raise value.error(f"more than {MOST_NESTED} containers inside of each other")
    kinds = [kind.value for kind in ContainerKind]
    known = ("output", "constant", *kinds)
    found = [name for name in known if isinstance(value.value, dict) and name in value.value]
    if len(found) != 1:
        raise value.error(f"one of {', '.join(known)} is needed")
    if found[0] == "constant":
        constant = value.value["constant"]
        if not isinstance(constant, Constant):
            raise value.error("the constant is no number, text or null")
        return ReturnedConstant(constant)
    fields = value.fields(("output", *kinds, "keys", "name"), (found[0],))
    if found[0] == "output":
        return ReturnedOutput(fields["output"].whole())
    kind = ContainerKind(found[0])
    items = tuple(_read(item, depth + 1) for item in fields[found[0]].items())
    keys = tuple(_key(item) for item in fields["keys"].items()) if "keys" in fields else ()
    if len(keys) != (len(items) if kind in (ContainerKind.DICT, ContainerKind.RECORD) else 0):
        raise value.error("there is not one key for every item")
    if len(set(keys)) < len(keys):
        raise value.error("two keys are the same")
    name = fields["name"].text() if "name" in fields else ""
    if kind is ContainerKind.RECORD and not is_record(name, keys):
        raise value.error("the name of a record and of its fields are names of Python")
    return ReturnedContainer(kind, items, keys, name)


def is_key(key: object) -> bool:
    """Whether a package can store it as the key of a dict."""
    return (type(key) is int and is_whole(key)) or (type(key) is str and is_line(key))


def _key(value: JsonValue) -> Key:
    return value.whole() if isinstance(value.value, int) else value.line()


def is_record(name: str, keys: Sequence[Key]) -> bool:
    """Whether a class of Python can have this name and these fields."""
    return all(map(_is_identifier, (name, *keys))) and not any(str(key).startswith("_") for key in keys)


def _is_identifier(name: Key) -> bool:
    """As it stands: Python reads other forms of the same letters as one name."""
    if not isinstance(name, str) or unicodedata.normalize("NFKC", name) != name:
        return False
    return name.isidentifier() and not keyword.iskeyword(name)


# -- results ---------------------------------------------------------------------------------------------------


@cache
def record_type(name: str, fields: tuple[Key, ...]) -> Callable[..., Any]:
    """A named tuple whose fields are also found as record["field"], as in the output classes of model libraries."""
    base: Any = namedtuple(name, [str(field) for field in fields])  # type: ignore[misc]

    def item(record: Any, key: Any) -> Any:
        return getattr(record, key) if isinstance(key, str) and key in fields else tuple.__getitem__(record, key)

    names: dict[str, Any] = {"__slots__": (), "__getitem__": item}
    if "keys" not in fields:  # a field of that name, such as the keys of a cache, stays one
        names["keys"] = lambda record: record._fields
    return type(name, (base,), names)


def expression(structure: ReturnStructure, results: Sequence[str], names: dict[str, Any]) -> str:
    """Python text that puts `results` into the structure. The classes of records are added to `names`."""
    if isinstance(structure, ReturnedOutput):
        return results[structure.index]
    if isinstance(structure, ReturnedConstant):
        return repr(structure.value)
    items = [expression(item, results, names) for item in structure.items]
    match structure.kind:
        case ContainerKind.TUPLE:
            return f"({''.join(f'{item}, ' for item in items)})"
        case ContainerKind.LIST:
            return f"[{', '.join(items)}]"
        case ContainerKind.DICT:
            return f"{{{', '.join(f'{key!r}: {item}' for key, item in zip(structure.keys, items, strict=True))}}}"
        case ContainerKind.RECORD:
            record = f"record{len(names)}"
            names[record] = record_type(structure.name, structure.keys)
            return f"{record}({', '.join(items)})"


def put_results(structure: ReturnStructure, results: Sequence[Any]) -> Any:
    """What a call returns for the arrays of its outputs."""
    if isinstance(structure, ReturnedOutput):
        return results[structure.index]
    if isinstance(structure, ReturnedConstant):
        return structure.value
    items = [put_results(item, results) for item in structure.items]
    match structure.kind:
        case ContainerKind.TUPLE:
            return tuple(items)
        case ContainerKind.LIST:
            return items
        case ContainerKind.DICT:
            return dict(zip(structure.keys, items, strict=True))
        case ContainerKind.RECORD:
            return record_type(structure.name, structure.keys)(*items)


def flat_results(structure: ReturnStructure, returned: Any) -> list[Any]:
    """The arrays of the outputs, in their order, from what a call returned."""
    found: dict[int, Any] = {}

    def visit(part: ReturnStructure, value: Any) -> None:
        if isinstance(part, ReturnedOutput):
            found[part.index] = value
        elif isinstance(part, ReturnedContainer):
            values = value.values() if isinstance(value, Mapping) else value
            for item, inner in zip(part.items, values, strict=True):
                visit(item, inner)

    visit(structure, returned)
    return [found[index] for index in range(len(found))]
