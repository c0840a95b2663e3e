"""frontend.export.returned_values: what a model returns, by torch.export -> names of its outputs, and structure."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument
from torch.utils._pytree import tree_leaves, tree_unflatten

from ...errors import UnsupportedError, shown
from ...model.json_value import is_whole
from ...package.return_structure import (
    MOST_NESTED,
    ContainerKind,
    ReturnedConstant,
    ReturnedContainer,
    ReturnedOutput,
    ReturnStructure,
    is_key,
    is_record,
)


@dataclass(frozen=True)
class ReturnedValues:
    """The tensors among the values that a program returns, as outputs of the entry, and the containers around them."""

    places: tuple[int, ...]  # of the outputs among all values
    names: tuple[str, ...]
    structure: ReturnStructure


@dataclass(frozen=True)
class _Value:
    """Stands for a value of the program while its containers are built."""

    structure: ReturnedOutput | ReturnedConstant


def returned_values(program: ExportedProgram, entry: str) -> ReturnedValues:
    """Outputs are named by the keys and fields that lead to them, otherwise output_0, output_1, ..."""
    values: list[_Value] = []
    places: list[int] = []
    for place, spec in enumerate(program.graph_signature.output_specs):
        if not isinstance(spec.arg, ConstantArgument):
            values.append(_Value(ReturnedOutput(len(places))))
            places.append(place)
        elif _is_stored(spec.arg.value):
            values.append(_Value(ReturnedConstant(spec.arg.value)))
        else:
            raise UnsupportedError(
                f"entry {entry!r}: output {place} is {shown(spec.arg.value)}; a package returns tensors, numbers, "
                "texts and None: leave it out"
            )
    structure = _structure(_with_containers(program, values), 0)
    names = _names(structure, (), [])
    return ReturnedValues(tuple(places), tuple(names), structure)


def _is_stored(value: object) -> bool:
    """Whether JSON can hold the value."""
    if isinstance(value, str):
        return value.isascii() or value.encode(errors="ignore").decode() == value
    if isinstance(value, int):
        return is_whole(value)
    return value is None or (isinstance(value, float) and math.isfinite(value))


def _with_containers(program: ExportedProgram, values: Sequence[_Value]) -> Any:
    """The return value with stand-ins for its tensors; a tuple where a class of the user takes nothing but tensors."""
    try:
        return tree_unflatten(values, program.call_spec.out_spec)
    except (TypeError, ValueError, AttributeError, RuntimeError, AssertionError):
        return tuple(values)


def _structure(value: Any, depth: int) -> ReturnStructure:
    """Containers of other classes become tuples of their values."""
    if isinstance(value, _Value):
        return value.structure
    kind, keys, items = _container(value) if depth < MOST_NESTED - 1 else _flattened(value)
    inner = tuple(_structure(item, depth + 1) for item in items)
    return ReturnedContainer(kind, inner, keys, type(value).__name__ if kind is ContainerKind.RECORD else "")


def _container(value: Any) -> tuple[ContainerKind, tuple[str | int, ...], Sequence[Any]]:
    fields = _fields(value)
    if fields is not None and is_record(type(value).__name__, fields):
        return ContainerKind.RECORD, fields, [_constant(getattr(value, field)) for field in fields]
    if isinstance(value, Mapping) and all(map(is_key, value)):
        return ContainerKind.DICT, tuple(value), list(value.values())
    if isinstance(value, list):
        return ContainerKind.LIST, (), value
    if isinstance(value, tuple):
        return ContainerKind.TUPLE, (), value
    return _flattened(value)


def _fields(value: Any) -> tuple[str, ...] | None:
    """Of a named tuple or a dataclass."""
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    return value._fields if isinstance(value, tuple) and hasattr(value, "_fields") else None


def _constant(value: Any) -> Any:
    """A field that torch.export does not return as a value, such as None."""
    return _Value(ReturnedConstant(value)) if _is_stored(value) else value


def _flattened(value: Any) -> tuple[ContainerKind, tuple[str | int, ...], Sequence[Any]]:
    return ContainerKind.TUPLE, (), [leaf for leaf in tree_leaves(value) if isinstance(leaf, _Value)]


def _names(structure: ReturnStructure, path: tuple[str, ...], names: list[str]) -> list[str]:
    """`names`, with those of the outputs of `structure`, in the order of the outputs."""
    if isinstance(structure, ReturnedOutput):
        names.append(_free_name(re.sub(r"\W", "_", "_".join(path)), structure.index, names))
    elif isinstance(structure, ReturnedContainer):
        for index, item in enumerate(structure.items):
            step = (str(structure.keys[index]),) if structure.keys else ()
            _names(item, (*path, *step), names)
    return names


def _free_name(name: str, index: int, taken: Sequence[str]) -> str:
    """Names begin with a letter, and no two are equal."""
    numbered = f"output_{index}"
    given = [name] if name and not name[0].isdigit() else [f"output_{name}"] if name else []
    more = (f"{numbered}_{number}" for number in count(2))
    return next(each for each in chain(given, [numbered], more) if each not in taken)
