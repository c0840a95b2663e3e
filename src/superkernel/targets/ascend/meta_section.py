"""targets.ascend.meta_section: `meta_fields` of the toolkit and a launch -> the section `.ascend.meta.<entry>`.

No public document gives the encoding of that section, so it is data of the toolkit, and there is none without it. A
field is `<bytes>:<value>`, little-endian; its value is a number or one of the words of _WORDS.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...errors import OptionError
from .core_types import CoreClass

_FIELD = re.compile(r"([1248]):(0x[0-9a-fA-F]+|[0-9]+|[a-z_]+)")
_WORDS = ("core_type", "cubes", "vectors")  # of the launch: its kind, and the cores of a block by class
_KINDS = (frozenset({CoreClass.CUBE}), frozenset({CoreClass.VECTOR}), frozenset(CoreClass))


def check_meta_fields(fields: Sequence[str], core_types: Sequence[str], where: str) -> None:
    """Every field can be encoded, whatever the launch."""
    for place, kind in enumerate(core_types):
        _number(kind, 8, f"{where}.meta_core_types[{place}]")
    if len(core_types) not in (0, len(_KINDS)):
        raise OptionError(
            f"{where}.meta_core_types has {len(core_types)} numbers; three are needed: cube, vector, mixed"
        )
    for place, field in enumerate(fields):
        what = f"{where}.meta_fields[{place}]"
        found = _FIELD.fullmatch(field)
        if found is None:
            raise OptionError(f"{what} is {field!r}; it must be <bytes>:<value> with 1, 2, 4 or 8 bytes, as in '4:7'")
        size, value = int(found[1]), found[2]
        if value == _WORDS[0]:
            if not core_types:
                raise OptionError(f"{what} is {field!r}, and toolkit.meta_core_types does not say what that is")
            for kind in core_types:
                _number(kind, size, what)
        elif value not in _WORDS:
            _number(value, size, what)


def meta_section(
    fields: Sequence[str], core_types: Sequence[str], classes: Sequence[CoreClass], cubes: int, vectors: int
) -> bytes:
    """The contents of the section for a launch on these classes, with so many cores of each in a block."""
    values = {"cubes": cubes, "vectors": vectors}
    if core_types:
        values["core_type"] = _number(core_types[_KINDS.index(frozenset(classes))], 8, "meta_core_types")
    content = b""
    for field in fields:
        size, _, value = field.partition(":")
        number = values[value] if value in values else int(value, 0)
        content += number.to_bytes(int(size), "little")
    return content


def _number(text: str, size: int, what: str) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        words = ", ".join(_WORDS)
        raise OptionError(f"{what} is {text!r}; a number is needed, or in meta_fields one of {words}") from None
    if not 0 <= value < 256**size:
        raise OptionError(f"{what} is {text!r}, which {size} bytes do not hold")
    return value
