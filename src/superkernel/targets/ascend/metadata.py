"""targets.ascend.metadata: the JSON that CANN's compiler writes beside an object -> a SubKernel.

Fields that this target has no use for are left alone: the file is CANN's. An error in a field that it uses
names file and field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import GraphError, nearest
from ...model.binary import Binary, Form
from ...model.json_value import JsonValue, located, parse_json
from ...model.op import Task
from ...model.params import Param
from ...model.subkernel import SubKernel
from .archive import check_function, check_members, is_archive
from .chips import Chip
from .core_types import CUBE, CoreClass, KernelType, kernel_type
from .facts import CORE_OF, PRINTING, AscendFacts, Code, check_identifier, split_name

_REQUIRED = (
    *("kernelName", "blockDim", "sub_operator_kernel_type", "sub_operator_kernel_name", "sub_operator_params"),
    *("sub_operator_early_start_set_flag", "sub_operator_early_start_wait_flag"),
)
_OPTIONAL = (
    *("split_mode", "sub_op_with_sync_all", "sub_operator_op_type", "debugOptions", "debugBufSize"),
    *(f"sub_operator_call_dcci_{when}" for when in ("before_kernel_start", "after_kernel_end", "disable_on_kernel")),
)
_DYNAMIC = "dynamic_func_names"
_ANY_CORE = "AiCore"
_KEY = re.compile(r"0|-?[1-9][0-9]{0,17}")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MOST_COPIES = 64
MOST_DUMP = 1 << 40


def read_metadata(path: Path, binary: Path, task: Task, chip: Chip) -> SubKernel:
    """One sub-kernel, as its op uses it: with one function per class, or with one per tiling key."""
    fields = _fields(parse_json(path))
    name = fields["kernelName"].text()
    with located(fields["kernelName"]):
        check_identifier(name, "the kernel's name")
    kind = _kind(fields["sub_operator_kernel_type"])
    codes = _codes(fields["sub_operator_kernel_name"], kind, task, chip)
    split = _split(fields.get("split_mode"), codes)
    _check_objects(path, binary, codes)
    sets, waits = (fields[f"sub_operator_early_start_{which}_flag"].truth() for which in ("set", "wait"))
    debug = _debug_options(fields.get("debugOptions"))
    facts = AscendFacts(
        kind,
        tuple((core_class, key, code) for core_class, key, code, _ in codes),
        split,
        flags_declared=True,
        debug_options=debug,
        debug_bytes=_debug_bytes(fields, debug),
        origin=str(path),
        fence_before=_truth(fields, "sub_operator_call_dcci_before_kernel_start"),
        fence_after=_truth(fields, "sub_operator_call_dcci_after_kernel_end"),
        fence_never=_truth(fields, "sub_operator_call_dcci_disable_on_kernel"),
    )
    keys = sorted({key for _, key, _, _ in codes})
    symbols = {key: code.symbol for _, key, code, _ in reversed(codes)}
    with located(fields["kernelName"]):
        return SubKernel(
            name,
            Binary(Form.OBJECT, binary.resolve()),
            _between(fields["blockDim"], 1, 65535),
            _params(fields["sub_operator_params"]),
            CORE_OF[kind.op_class],
            fields["sub_operator_op_type"].text() if "sub_operator_op_type" in fields else None,
            _truth(fields, "sub_op_with_sync_all"),
            None,
            tuple((key, symbols[key]) for key in keys) if task is Task.DYNAMIC else (),
            waits_inside=waits,
            signals_inside=sets,
            target_facts=facts,
        )


def _fields(top: JsonValue) -> dict[str, JsonValue]:
    found = {key: place for key, place in top.entries().items() if place.value is not None}
    for key in _REQUIRED:
        if key not in found:
            others = [other for other in found if other not in (*_REQUIRED, *_OPTIONAL)]
            raise top.error(f"the field {key!r} is missing{nearest(key, others)}")
    return found


def _truth(fields: Mapping[str, JsonValue], key: str) -> bool:
    return key in fields and fields[key].truth()


def _kind(place: JsonValue) -> KernelType:
    text = place.text()
    with located(place):
        return kernel_type(text, "")


def _between(place: JsonValue, least: int, most: int) -> int:
    value = place.whole()
    if not least <= value <= most:
        raise place.error(f"{value} is out of range; it must be from {least} to {most}")
    return value


def _params(place: JsonValue) -> tuple[Param, ...]:
    """kind:name[:type]; a bare name may be read and written."""
    params = []
    for item in place.items():
        text = item.text()
        with located(item):
            params.append(Param.parse(text if ":" in text else f"inout:{text}"))
    if len({param.name for param in params}) < len(params):
        names = [param.name for param in params]
        raise place.error(f"two parameters are called {next(n for n in names if names.count(n) > 1)!r}")
    return tuple(params)


Found = tuple[CoreClass, int, Code, JsonValue]


def _codes(place: JsonValue, kind: KernelType, task: Task, chip: Chip) -> list[Found]:
    """The function of every class that the kernel runs on; for a dynamic op, per tiling key."""
    entries = place.entries()
    by_key = _by_tiling_key(place, entries)
    if task is Task.DYNAMIC and by_key:
        return [found for key, tables in by_key.items() for found in _of_classes(place, tables, key, kind, chip)]
    static = {key: entry for key, entry in entries.items() if key != _DYNAMIC}
    if task is Task.NORMAL and by_key and not any("func_name" in entry.entries() for entry in static.values()):
        raise place.error(f"has {_DYNAMIC} only: its op needs task_type 'dynamic'")
    return list(_of_classes(place, static, 0, kind, chip))


def _by_tiling_key(place: JsonValue, entries: Mapping[str, JsonValue]) -> dict[int, dict[str, JsonValue]]:
    """Tiling key -> architecture -> entry, from either way to nest the two."""
    found: dict[int, dict[str, JsonValue]] = {}
    if _DYNAMIC in entries:
        for key, tables in entries[_DYNAMIC].entries().items():
            found.setdefault(_tiling_key(entries[_DYNAMIC], key), {}).update(tables.entries())
    for architecture, entry in entries.items():
        if architecture == _DYNAMIC or _DYNAMIC not in entry.entries():
            continue
        table_of_keys = entry.at(_DYNAMIC)
        for key, table in table_of_keys.entries().items():
            found.setdefault(_tiling_key(table_of_keys, key), {})[architecture] = table
    if _DYNAMIC in entries and not found:
        raise entries[_DYNAMIC].error("no tiling key at all")
    return found


def _tiling_key(place: JsonValue, key: str) -> int:
    if not _KEY.fullmatch(key):
        raise place.error(f'{key!r} is no tiling key; keys are whole numbers such as "1"')
    return int(key)


def _of_classes(
    place: JsonValue, tables: Mapping[str, JsonValue], key: int, kind: KernelType, chip: Chip
) -> list[Found]:
    classes = kind.op_class.classes
    found = []
    for core_class in classes:
        architecture = f"{chip.architecture}-{'cube' if core_class is CUBE else 'vec'}"
        accepted = [architecture, *([_ANY_CORE] if len(classes) == 1 else [])]
        entry = next((tables[name] for name in accepted if name in tables), None)
        if entry is None:
            has = ", ".join(tables) or "nothing"
            raise place.error(f"no entry {' or '.join(accepted)} for {kind.value} on chip {chip.name}; it has {has}")
        found.append((core_class, key, _code(entry), entry))
    return found


def _code(entry: JsonValue) -> Code:
    fields = entry.entries()
    for name in ("func_name", "obj_files"):
        if name not in fields:
            raise entry.error(f"the field {name!r} is missing")
    symbol = fields["func_name"].text()
    with located(fields["func_name"]):
        check_identifier(symbol, "the function's name")
    split: list[tuple[str, ...]] = []
    while (name := f"obj_files_split{len(split) + 1}") in fields:
        split.append(_files(fields[name]))
    return Code(symbol, _files(fields["obj_files"]), tuple(split))


def _files(place: JsonValue) -> tuple[str, ...]:
    names = place.texts() if isinstance(place.value, list) else (place.text(),)
    if not names:
        raise place.error("the list of objects is empty")
    for name in names:
        if "/" in name or name in (".", ".."):
            raise place.error(f"{name!r} is no member of an archive: those have no folder")
    return names


def _split(place: JsonValue | None, codes: Sequence[Found]) -> int | None:
    """How many copies the sub-kernel comes in; None: as many as the option asks for are made."""
    ready = {len(code.split) for _, _, code, _ in codes}
    if place is None:
        for _, _, code, entry in codes:
            if code.split:
                raise entry.error("has obj_files_split1, but the file has no split_mode")
        return None
    copies = _between(place, 1, MOST_COPIES)
    for _, _, code, entry in codes:
        if (code.split and len(code.split) != copies - 1) or len(ready) > 1:
            raise entry.error(
                f"split_mode is {copies}, so obj_files_split1 to obj_files_split{copies - 1} are needed; "
                f"found {len(code.split)} of them"
            )
    return copies


def _check_objects(path: Path, binary: Path, codes: Sequence[Found]) -> None:
    if not binary.is_file():
        raise GraphError(f"{path}: its binary {binary} does not exist or is not a file")
    archive = is_archive(binary)
    for _, _, code, entry in codes:
        wanted = (*code.objects, *(name for names in code.split for name in names))
        if archive or wanted != (binary.name,):
            check_members(binary, wanted, entry.where)
        check_function(binary, code.objects, (code.symbol,), entry.where)
        for copy, names in enumerate(code.split, 1):
            check_function(binary, names, (code.symbol, split_name(code.symbol, copy)), entry.where)


def _debug_options(place: JsonValue | None) -> tuple[str, ...]:
    if place is None:
        return ()
    words = place.texts() if isinstance(place.value, list) else tuple(place.line().split(","))
    words = tuple(word.strip() for word in words if word.strip())
    for word in words:
        if not _WORD.fullmatch(word):
            raise place.error(f"{word!r} is no debug option; they are words such as {', '.join(PRINTING)}")
    return words


def _debug_bytes(fields: Mapping[str, JsonValue], debug: Sequence[str]) -> int:
    prints = any(word in PRINTING for word in debug)
    if "debugBufSize" in fields:
        return _between(fields["debugBufSize"], int(prints), MOST_DUMP)
    if prints:
        raise fields["debugOptions"].error("the field 'debugBufSize' is missing: where should it print?")
    return 0
