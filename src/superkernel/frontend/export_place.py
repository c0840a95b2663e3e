"""frontend.export_place: `file.py:make` -> the model and inputs that `make` returns, exported as a package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import GraphError, OptionError, nearest, shown
from .import_explain import import_explain, import_export


def export_place(place: str, output: Path, settings: Mapping[str, Any], arguments: Sequence[str] = ()) -> Path:
    """`make` returns (model, inputs), or (model, inputs, {"buckets": ...}); inputs as in `superkernel.export`."""
    export, explain = import_export().export, import_explain()
    file, _, name = place.partition(":")
    path = Path(file)
    if not path.is_file():
        raise GraphError(f"{file!r} is not a file; export takes file.py:function; the function returns (model, inputs)")
    if not name:
        raise GraphError(f"{place!r} names no function: write {place}:make for a function that returns (model, inputs)")
    with explain.as_program(path, arguments):
        module = explain.import_file(path)
        if not hasattr(module, name):
            known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            raise GraphError(f"{file} has no {name!r}{nearest(name, known)}")
        model, inputs, keywords = _returned(explain, module, name)
        for keyword in keywords:
            if keyword in settings:
                raise OptionError(f"{place} returns {keyword}, which the command gives as well: remove one of them")
        exported: Path = export(model, inputs, output, **settings, **keywords)
    return exported


def _returned(explain: Any, module: Any, name: str) -> tuple[Any, Any, Mapping[str, Any]]:
    found = getattr(module, name)
    is_maker = callable(found) and not isinstance(found, type) and not explain.needed_parameters(found)
    returned = found() if is_maker and not hasattr(found, "forward") else None
    if isinstance(returned, tuple) and len(returned) in (2, 3) and callable(returned[0]):
        keywords = returned[2] if len(returned) == 3 else {}
        if not isinstance(keywords, Mapping):
            raise GraphError(f"{name}() returns {shown(keywords)} as third value; a dict is needed")
        return returned[0], returned[1], keywords
    if returned is not None:
        raise GraphError(f"{name}() returns {shown(returned)}; it must return (model, inputs)")
    model, inputs = explain.with_inputs(module, name)
    return model, inputs, {}
