"""targets.ascend.function_table: `sub_operator_kernel_name` of metadata -> a sub-kernel's functions and their objects.

Architecture key -> {func_name, obj_files, obj_files_split1, ...}; and `dynamic_func_names`: a decimal tiling key -> the
functions per architecture key, and `kernel_type`. There a function may be a name alone: its objects are those of its
architecture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...model.json_value import FieldPlace, JsonValue, located
from ...model.op import Task
from .chips import Chip
from .core_types import CoreClass, KernelType, kernel_type
from .facts import Code, check_identifier

_DYNAMIC, _KIND = "dynamic_func_names", "kernel_type"
_ANY_CORE = "AiCore"  # the architecture key of kernels for one class
_ONE_CLASS = (KernelType.AIC_ONLY, KernelType.AIV_ONLY)
_KEY = re.compile(r"0|-?[1-9][0-9]{0,19}")
_COPY = re.compile(r"obj_files_split[0-9]+")
_MOST_KEY = 2**64  # keys are 64 bits, with or without a sign


@dataclass(frozen=True)
class FoundCode:
    """The function for one class and one tiling key, and where the file names it and its objects."""

    core_class: CoreClass
    key: int  # 0 for a static op
    code: Code
    place: JsonValue  # the entry
    function: JsonValue
    objects: tuple[JsonValue, ...]  # obj_files, then those of copies 1, 2, ...

    def of_copies(self) -> Iterator[tuple[JsonValue, tuple[str, ...]]]:
        """Where the objects of copy 0, 1, ... are named, and their names."""
        return zip(self.objects, (self.code.objects, *self.code.split), strict=True)


@dataclass(frozen=True)
class FunctionTable:
    codes: tuple[FoundCode, ...]
    ignored: tuple[FieldPlace, ...]


def read_functions(place: JsonValue, kind: KernelType, task: Task, chip: Chip) -> FunctionTable:
    """The function of every class that the kernel runs on; for a dynamic op, per tiling key."""
    return _Reader(place, kind, chip).read(task)


class _Reader:
    def __init__(self, place: JsonValue, kind: KernelType, chip: Chip) -> None:
        self.place, self.kind, self.chip = place, kind, chip
        entries = place.entries()
        self.static = {key: entry for key, entry in entries.items() if key != _DYNAMIC}
        self.dynamic = entries.get(_DYNAMIC)
        self.ignored: dict[FieldPlace, None] = {}

    def read(self, task: Task) -> FunctionTable:
        by_key = self._by_tiling_key()
        if task is Task.DYNAMIC and by_key:
            codes = [found for key, table in by_key.items() for found in self._of_classes(table, key)]
        else:
            if by_key and not any("func_name" in entry.entries() for entry in self.static.values()):
                raise self.place.error(f"has {_DYNAMIC} only: its op needs task_type 'dynamic'")
            codes = self._of_classes(self.static, 0)
        return FunctionTable(tuple(codes), tuple(self.ignored))

    def _by_tiling_key(self) -> dict[int, dict[str, JsonValue]]:
        """Tiling key -> architecture -> entry, from either way to nest the two."""
        found: dict[int, dict[str, JsonValue]] = {}
        for key, table in self.dynamic.entries().items() if self.dynamic is not None else ():
            number, functions = _tiling_key(table, key), table.entries()
            if number in found:
                raise table.error(f"the tiling key {number} stands twice")
            if _KIND in functions:
                self._check_kind(functions.pop(_KIND), key)
            for function in functions.values():
                self._check_kind_of_function(function, key)
            found[number] = functions
        for architecture, entry in self.static.items():
            if _DYNAMIC in entry.entries():
                for key, function in entry.at(_DYNAMIC).entries().items():
                    self._check_kind_of_function(function, key)
                    found.setdefault(_tiling_key(function, key), {})[architecture] = function
        if self.dynamic is not None and not found:
            raise self.dynamic.error("no tiling key at all")
        return found

    def _check_kind_of_function(self, function: JsonValue, key: str) -> None:
        if isinstance(function.value, dict) and _KIND in function.entries():
            self._check_kind(function.at(_KIND), key)

    def _check_kind(self, place: JsonValue, key: str) -> None:
        """Every tiling of a sub-kernel runs on the same cores."""
        text = place.text()
        with located(place):
            kind = kernel_type(text, "")
        if kind.op_class is not self.kind.op_class or kind.vectors_per_cube != self.kind.vectors_per_cube:
            raise place.error(
                f"tiling key {key} is {kind.value}, which runs on other cores than the sub-kernel, {self.kind.value}: "
                "all tilings of a sub-kernel must be of one kind; make a sub-kernel of each"
            )

    def _of_classes(self, table: Mapping[str, JsonValue], key: int) -> list[FoundCode]:
        found = []
        for core_class in self.kind.op_class.classes:
            architecture = self.chip.architecture_of(core_class)
            accepted = (_ANY_CORE, architecture) if self.kind in _ONE_CLASS else (architecture,)
            name = next((name for name in accepted if name in table), None)
            if name is None:
                has, wanted = ", ".join(table) or "nothing", " or ".join(accepted)
                of = f" of tiling key {key}" if table is not self.static else ""
                raise self.place.error(
                    f"no entry {wanted}{of} for {self.kind.value} on chip {self.chip.name}; it has {has}"
                )
            function, objects = self._places(table[name], name)
            code = Code(_symbol(function), _files(objects[0]), tuple(map(_files, objects[1:])))
            found.append(FoundCode(core_class, key, code, table[name], function, objects))
        return found

    def _places(self, entry: JsonValue, architecture: str) -> tuple[JsonValue, tuple[JsonValue, ...]]:
        """Where a function and the objects of its copies are named."""
        if isinstance(entry.value, str):
            return entry, self._shared_objects(entry, architecture)
        fields = entry.entries()
        if "func_name" not in fields:
            raise entry.error("the field 'func_name' is missing")
        self._ignore(fields)
        if "obj_files" in fields:
            return fields["func_name"], _copies(entry, fields)
        return fields["func_name"], self._shared_objects(entry, architecture)

    def _shared_objects(self, entry: JsonValue, architecture: str) -> tuple[JsonValue, ...]:
        """The objects of an architecture, for a function that names none of its own."""
        shared = self.static.get(architecture)
        fields = shared.entries() if shared is not None else {}
        if shared is None or "obj_files" not in fields:
            if isinstance(entry.value, str):
                where = f"{self.place.path}.{architecture}"
                raise entry.error(f"names a function, and {where} has no obj_files: in which object is it?")
            raise entry.error("the field 'obj_files' is missing")
        self._ignore(fields)
        return _copies(shared, fields)

    def _ignore(self, fields: Mapping[str, JsonValue]) -> None:
        for name, field in fields.items():
            if name not in ("func_name", "obj_files", _DYNAMIC, _KIND) and not _COPY.fullmatch(name):
                self.ignored[field.place] = None


def _tiling_key(place: JsonValue, key: str) -> int:
    """As the 64 bits with a sign that a core compares."""
    if not _KEY.fullmatch(key) or not -_MOST_KEY // 2 <= int(key) < _MOST_KEY:
        raise place.error(f'{key!r} is no tiling key; keys are whole numbers of 64 bits such as "1"')
    return (int(key) + _MOST_KEY // 2) % _MOST_KEY - _MOST_KEY // 2


def _symbol(place: JsonValue) -> str:
    symbol = place.text()
    with located(place):
        check_identifier(symbol, "the function's name")
    return symbol


def _files(place: JsonValue) -> tuple[str, ...]:
    names = place.texts() if isinstance(place.value, list) else (place.text(),)
    if not names:
        raise place.error("the list of objects is empty")
    for name in names:
        if "/" in name or name in (".", ".."):
            raise place.error(f"{name!r} is no member of an archive: those have no folder")
    return names


def _copies(entry: JsonValue, fields: Mapping[str, JsonValue]) -> tuple[JsonValue, ...]:
    """obj_files, obj_files_split1, ..."""
    given = [name for name in fields if _COPY.fullmatch(name)]
    wanted = [f"obj_files_split{copy}" for copy in range(1, len(given) + 1)]
    for name in wanted:
        if name not in fields:
            raise entry.error(f"has {', '.join(given)}: {name} is missing")
    return fields["obj_files"], *(fields[name] for name in wanted)
