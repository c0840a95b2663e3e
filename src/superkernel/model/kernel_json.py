"""kernel_json: one entry of `kernels` in ops.json -> a call of the constructor that fits its form."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from .binary import Core, Form
from .json_value import JsonValue, located, shown
from .params import Param

Kernel = TypeVar("Kernel")
_TILING_KEY = re.compile(r"0|-?[1-9][0-9]{0,17}")
_FORMS = tuple(form.value for form in Form)


def read_entry(entry: JsonValue, folder: Path, name: str, constructors: Mapping[Form, Callable[..., Kernel]]) -> Kernel:
    """The kernel that `entry` describes, made by the constructor of its form; paths are relative to `folder`."""
    fields = entry.fields((*_FORMS, "symbol", *_READERS), required=("params",))
    given = [form for form in Form if form.value in fields]
    if len(given) != 1:
        found = " and ".join(form.value for form in given) or "none of them"
        raise entry.error(f"needs exactly one of {', '.join(_FORMS)}; found {found}")
    form = given[0]
    if "block_dim" not in fields and "grid" not in fields:
        raise entry.error("the field 'block_dim' is missing")
    if form is not Form.SOURCE and "flags" in fields:
        raise fields["flags"].error(f"flags are for the compiler of a source, and this is {form.value}")
    if form is not Form.PTX and "scratch" in fields:
        raise fields["scratch"].error(f"scratch is what Triton asks for beside its PTX, and this is {form.value}")
    if form is Form.PTX and "libraries" in fields:
        raise fields["libraries"].error("libraries are for sources and objects, and this is ptx")
    binary = fields[form.value]
    arguments: dict[str, Any] = {key: read(fields[key]) for key, read in _READERS.items() if key in fields}
    if "libraries" in arguments:
        libraries: tuple[str, ...] = arguments["libraries"]
        arguments["libraries"] = [str(folder / library) if "/" in library else library for library in libraries]
    symbol = fields.get("symbol", replace(entry, value=name)).text()
    path = folder / binary.text()
    with located(entry, binary):
        return constructors[form](path, symbol, **arguments)


def _params(value: JsonValue) -> list[Param]:
    params = []
    for item in value.items():
        text = item.text()
        with located(item):
            params.append(Param.parse(text))
    return params


def _early_start(value: JsonValue) -> bool | tuple[str, ...] | dict[int, bool | tuple[str, ...]]:
    """Whether a kernel waits inside, or the parameters that it reads before that; or either per tiling key."""
    if isinstance(value.value, dict):
        return {key: _promise(item) for key, item in _by_tiling_key(value).items()}
    return _promise(value)


def _promise(value: JsonValue) -> bool | tuple[str, ...]:
    if isinstance(value.value, str):
        return (value.text(),)
    return value.texts() if isinstance(value.value, list) else value.truth()


def _variants(value: JsonValue) -> dict[int, str]:
    return {key: symbol.text() for key, symbol in _by_tiling_key(value).items()}


def _by_tiling_key(value: JsonValue) -> dict[int, JsonValue]:
    for key in (entries := value.entries()):
        if not _TILING_KEY.fullmatch(key):
            raise value.error(f'{shown(key)} is no tiling key; keys are whole numbers such as "0"')
    return {int(key): item for key, item in entries.items()}


def _extent(value: JsonValue) -> tuple[int, ...]:
    return tuple(item.whole() for item in value.items())


# argument of the constructors -> what reads it
_READERS: Mapping[str, Callable[[JsonValue], object]] = {
    "block_dim": JsonValue.whole,
    "params": _params,
    "core": lambda value: value.one_of([core.value for core in Core], "kind of core"),
    "op_type": JsonValue.text,
    "sync_all": JsonValue.truth,
    "early_start": _early_start,
    "flags": JsonValue.texts,
    "variants": _variants,
    "libraries": JsonValue.texts,
    "threads": _extent,
    "grid": _extent,
    "shared": JsonValue.whole,
    "scratch": JsonValue.whole,
}
