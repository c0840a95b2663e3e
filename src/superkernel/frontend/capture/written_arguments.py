"""frontend.capture.written_arguments: an operator in; the arguments that it writes, by its schema, out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def written_arguments(overload: Any) -> list[str]:
    """Their names, those of `out` arguments included."""
    arguments = overload._schema.arguments
    return [argument.name for argument in arguments if argument.alias_info is not None and argument.alias_info.is_write]


def written_values(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """What a call passes for them; lists are taken apart."""
    names = [argument.name for argument in overload._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    values = [given.get(name) for name in written_arguments(overload)]
    return [each for value in values for each in (value if isinstance(value, list | tuple) else [value])]
