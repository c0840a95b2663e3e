"""targets.ascend.chips: a chip's name, or a JSON file that describes one -> Chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ...errors import OptionError, nearest, shown
from ...model.plain_values import checked_path
from ..chip_file import read_chip_file
from .core_types import CUBE, CoreClass, KernelType
from .toolkit import Toolkit, read_toolkit, toolkit_fields

FOLDER = Path(__file__).parent / "chipdata"
DEFAULT = "a3"


@dataclass(frozen=True)
class Chip:
    """What the emitted code must know of an Ascend part."""

    name: str
    architecture: str  # dav-<chip>, as in the keys of sub-kernel metadata
    cube_cores: int
    vector_cores: int
    cache_line: int  # bytes
    preload_line: int  # bytes of code that one line of preload() brings
    preload_bytes: int  # most bytes of one function that are worth preloading
    cube_flag: int  # all cube cores
    vector_flag: int  # all vector cores
    vectors_to_cube_flag: int  # inside a block
    cube_to_vectors_flag: int
    flag_limit: int  # how many signals a flag holds that no core has waited for
    cube_macro: str  # defined when code is compiled for cube cores
    vector_macro: str
    toolkit: Toolkit = field(default_factory=Toolkit)  # may be left out of a file

    @property
    def flags(self) -> tuple[int, ...]:
        return self.cube_flag, self.vector_flag, self.vectors_to_cube_flag, self.cube_to_vectors_flag

    def architecture_of(self, core_class: CoreClass) -> str:
        """What the compiler, and metadata, call the cores of a class."""
        return f"{self.architecture}-{'cube' if core_class is CUBE else 'vec'}"

    def most_blocks(self, kind: KernelType) -> int:
        """Blocks of a kernel that the chip can hold at once; 0 if it has not the cores of one."""
        cubes, vectors = kind.cores(1)
        return min(have // need for have, need in ((self.cube_cores, cubes), (self.vector_cores, vectors)) if need)


def chip_fields(chip: Chip) -> dict[str, Any]:
    """As a file that describes the chip has them."""
    return asdict(chip) | {"toolkit": toolkit_fields(chip.toolkit)}


def known_chips() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def find_chip(given: str | Path | Mapping[str, Any] | None) -> Chip:
    """A known chip by name, one described by a file, or one by its fields."""
    if isinstance(given, Mapping):
        return _chip(Path("described"), given)
    if given is None:
        given = DEFAULT
    known = known_chips()
    if not isinstance(given, str | Path):
        raise OptionError(f"chip is {shown(given)}; give the name of a chip, or a .json file that describes one")
    checked_path(given, "chip", OptionError)
    if str(given) in known:
        path = FOLDER / f"{given}.json"
        return _chip(path, read_chip_file(path))
    path = Path(given)
    if path.suffix == ".json" or path.is_file():
        return _chip(path, read_chip_file(path))
    raise OptionError(
        f"unknown chip {str(given)!r}{nearest(str(given), known)}; known chips are {', '.join(known)}, "
        "or give a .json file that describes one"
    )


def _chip(path: Path, found: object) -> Chip:
    if not isinstance(found, Mapping):
        raise OptionError(f"chip {path}: not a JSON object")
    known = {field.name: field.type for field in fields(Chip)}
    for key in found:
        if key not in known:
            raise OptionError(f"chip {path}: unknown field {key!r}{nearest(key, known)}; fields are {', '.join(known)}")
    values = {key: _checked(path, key, kind, found) for key, kind in known.items()}
    chip = Chip(**values)
    _check_whole(path, chip)
    return chip


def _checked(path: Path, key: str, kind: Any, found: Mapping[str, Any]) -> Any:
    if key == "toolkit":
        return read_toolkit(found.get(key, {}), str(path))
    if key not in found:
        raise OptionError(f"chip {path}: the field {key!r} is missing")
    value = found[key]
    if kind == "str":
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise OptionError(f"chip {path}: {key} is {value!r}; a text is needed")
        return value
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise OptionError(f"chip {path}: {key} is {value!r}; a whole number is needed")
    return value


def _check_whole(path: Path, chip: Chip) -> None:
    """Facts that the emitted code relies on."""
    powers = ("cache_line", "preload_line")
    for key in powers:
        size = getattr(chip, key)
        if size < 8 or size & (size - 1):
            raise OptionError(f"chip {path}: {key} is {size}; a power of two from 8 is needed")
    if not chip.cube_cores and not chip.vector_cores:
        raise OptionError(f"chip {path}: cube_cores and vector_cores are both 0")
    if chip.preload_bytes < chip.preload_line:
        raise OptionError(f"chip {path}: preload_bytes is {chip.preload_bytes}, less than one preload_line")
    if len(set(chip.flags)) < len(chip.flags) or max(chip.flags) > 15:
        raise OptionError(f"chip {path}: the four flags are {chip.flags}; they must differ and lie between 0 and 15")
    if chip.flag_limit < 3:
        raise OptionError(f"chip {path}: flag_limit is {chip.flag_limit}; a flag must hold at least 3 signals")
    for key in ("cube_macro", "vector_macro"):
        if not getattr(chip, key).isidentifier():
            raise OptionError(f"chip {path}: {key} is {getattr(chip, key)!r}, which is no C identifier")
    if chip.cube_macro == chip.vector_macro:
        raise OptionError(f"chip {path}: cube_macro and vector_macro are the same")
