"""targets.ascend.metadata: the JSON that CANN's compiler writes beside an object -> a SubKernel.

The file is CANN's: fields that are not known are left alone, and listed. An error in a field that is read names file
and field. Two fields are our own: `superkernel_call` and `superkernel_protocol`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import GraphError, OptionError
from ...model.binary import Binary, Form
from ...model.json_value import FieldPlace, JsonValue, located, parse_json
from ...model.op import Task
from ...model.params import Param
from ...model.subkernel import SubKernel
from .archive import check_function, check_members, is_archive
from .calling_convention import CallingConvention, SyncProtocol, check_pointers
from .chips import Chip
from .core_types import CoreClass, KernelType, kernel_type
from .facts import CORE_OF, PRINTING, AscendFacts, check_identifier, split_name
from .function_table import FoundCode, read_functions
from .object_references import calls_barrier
from .processors import DeviceObject, check_alike, device_objects

_REQUIRED = (
    *("kernelName", "blockDim", "sub_operator_kernel_type", "sub_operator_kernel_name", "sub_operator_params"),
    *("sub_operator_early_start_set_flag", "sub_operator_early_start_wait_flag"),
)
_CALL, _PROTOCOL = "superkernel_call", "superkernel_protocol"
_OPTIONAL = (
    *("split_mode", "sub_op_with_sync_all", "sub_operator_op_type", "debugOptions", "debugBufSize"),
    *(f"sub_operator_call_dcci_{when}" for when in ("before_kernel_start", "after_kernel_end", "disable_on_kernel")),
    *(_CALL, _PROTOCOL),
)
# known, and of no concern to a super kernel
_UNUSED = (
    *("binFileName", "binFileSuffix", "coreType", "core_type", "magic", "opParaSize", "parameters", "workspace"),
    *("intercoreSync", "taskRation", "localMemorySize", "sha256", "supportSuperKernel"),
)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MOST_COPIES = 64
MOST_DUMP = 1 << 40


DeviceObjects = Mapping[CoreClass, tuple[DeviceObject, ...]]


@dataclass(frozen=True)
class Metadata:
    kernel: SubKernel
    ignored: tuple[FieldPlace, ...]  # fields that are not known
    device_objects: DeviceObjects


def read_metadata(path: Path, binary: Path, task: Task, chip: Chip) -> Metadata:
    """One sub-kernel, as its op uses it: with one function per class, or with one per tiling key."""
    fields, unknown = parse_json(path).foreign_fields((*_REQUIRED, *_OPTIONAL, *_UNUSED), _REQUIRED)
    name = fields["kernelName"].text()
    with located(fields["kernelName"]):
        check_identifier(name, "the kernel's name")
    kind = _kind(fields["sub_operator_kernel_type"])
    table = read_functions(fields["sub_operator_kernel_name"], kind, task, chip)
    codes = table.codes
    split = _split(fields.get("split_mode"), codes)
    params = _params(fields["sub_operator_params"])
    convention = _convention(fields, params)
    blocks = _blocks(fields["blockDim"], kind, task, chip)
    device = _check_objects(path, binary, codes, chip)
    sets, waits = (fields[f"sub_operator_early_start_{which}_flag"].truth() for which in ("set", "wait"))
    debug = _debug_options(fields.get("debugOptions"))
    facts = AscendFacts(
        kind,
        tuple((found.core_class, found.key, found.code) for found in codes),
        split,
        flags_declared=True,
        debug_options=debug,
        debug_bytes=_debug_bytes(fields, debug),
        origin=str(path),
        fence_before=_truth(fields, "sub_operator_call_dcci_before_kernel_start"),
        fence_after=_truth(fields, "sub_operator_call_dcci_after_kernel_end"),
        fence_never=_truth(fields, "sub_operator_call_dcci_disable_on_kernel"),
        convention=convention,
        protocol=_protocol(fields.get(_PROTOCOL)),
    )
    keys = sorted({found.key for found in codes})
    symbols = {found.key: found.code.symbol for found in reversed(codes)}
    with located(fields["kernelName"]):
        kernel = SubKernel(
            name,
            Binary(Form.OBJECT, binary.resolve()),
            blocks,
            params,
            CORE_OF[kind.op_class],
            fields["sub_operator_op_type"].text() if "sub_operator_op_type" in fields else None,
            _truth(fields, "sub_op_with_sync_all") or _calls_barrier(binary, codes, chip),
            None,
            tuple((key, symbols[key]) for key in keys) if task is Task.DYNAMIC else (),
            waits_inside=waits,
            signals_inside=sets,
            target_facts=facts,
        )
    return Metadata(kernel, (*unknown, *table.ignored), device)


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


def _blocks(place: JsonValue, kind: KernelType, task: Task, chip: Chip) -> int:
    """The block count of a dynamic op is known at run time only: as many as the chip holds, whatever the file says."""
    if task is Task.NORMAL:
        return _between(place, 1, 65535)
    place.whole()
    most = chip.most_blocks(kind)
    if not most:
        raise OptionError(f"{place.where}: chip {chip.name} has not the cores of one block of {kind.value}")
    return most


def _convention(fields: Mapping[str, JsonValue], params: Sequence[Param]) -> CallingConvention:
    if _CALL not in fields:
        return CallingConvention.SLOT_INDEX
    place, listed = fields[_CALL], fields["sub_operator_params"]
    convention = CallingConvention(place.one_of([known.value for known in CallingConvention], "calling convention"))
    if convention is CallingConvention.POINTERS:
        for item in listed.items():
            if ":" not in item.text():
                raise item.error(
                    f"{item.text()!r} has no kind, and {_CALL} is {convention.value!r}: say for each parameter of a "
                    f"plain kernel whether it is in, out, inout or workspace, as in 'in:{item.text()}'"
                )
        with located(listed):
            check_pointers(params, len(params), "")
    return convention


def _protocol(place: JsonValue | None) -> SyncProtocol:
    if place is None:
        return SyncProtocol.CANN
    return SyncProtocol(place.one_of([known.value for known in SyncProtocol], "protocol"))


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


def _split(place: JsonValue | None, codes: Sequence[FoundCode]) -> int | None:
    """How many copies the sub-kernel comes in; None: as many as the option asks for are made."""
    ready = {len(found.code.split) for found in codes}
    if place is None:
        for found in codes:
            if found.code.split:
                raise found.place.error("has obj_files_split1, but the file has no split_mode")
        return None
    copies = _between(place, 1, MOST_COPIES)
    for found in codes:
        count = len(found.code.split)
        if (count and count != copies - 1) or len(ready) > 1:
            raise found.place.error(
                f"split_mode is {copies}, so obj_files_split1 to obj_files_split{copies - 1} are needed; "
                f"found {count} of them"
            )
    return copies


def _check_objects(path: Path, binary: Path, codes: Sequence[FoundCode], chip: Chip) -> DeviceObjects:
    """Every object is there, is for the chip and defines its function; those that are not for this machine."""
    if not binary.is_file():
        raise GraphError(f"{path}: its binary {binary} does not exist or is not a file")
    archive = is_archive(binary)
    device: dict[CoreClass, dict[DeviceObject, None]] = {}
    for found in codes:
        symbol = found.code.symbol
        for copy, (place, names) in enumerate(found.of_copies()):
            if archive or names != (binary.name,):
                check_members(binary, names, place.where)
            known = device.setdefault(found.core_class, {})
            known |= dict.fromkeys(device_objects(binary, names, chip, place.where))
            check_alike(tuple(known), place.where)
            known_as = (symbol, split_name(symbol, copy)) if copy else (symbol,)
            check_function(binary, names, known_as, (place if copy else found.function).where)
    return {core_class: tuple(objects) for core_class, objects in device.items()}


def _calls_barrier(binary: Path, codes: Sequence[FoundCode], chip: Chip) -> bool:
    """A file need not say that its functions call the all-core barrier: their references do."""
    barriers = chip.toolkit.barrier_functions
    return any(calls_barrier(binary, found.code.objects, found.code.symbol, barriers) for found in codes)


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
