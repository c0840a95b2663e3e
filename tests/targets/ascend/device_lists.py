"""Op lists as CANN's tools write them, whose objects are for another processor than this machine's."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from superkernel.targets.ascend.core_types import CUBE, CoreClass, KernelType

DEVICE = 0x1029  # e_machine of no processor that a host has
_ARCHITECTURES = {core_class: f"dav-c220-{'cube' if core_class is CUBE else 'vec'}" for core_class in CoreClass}
_ANY_CORE = (KernelType.AIC_ONLY, KernelType.AIV_ONLY)
_HEADER, _SECTION, _SYMBOL = 64, 64, 24


@dataclass(frozen=True)
class DeviceKernel:
    """A sub-kernel as its metadata describe it."""

    name: str
    type: KernelType
    blocks: int
    params: tuple[str, ...]
    keys: tuple[int, ...] = ()  # of a dynamic kernel
    sync_all: bool = False
    waits: bool = False
    sets: bool = False
    more: Mapping[str, Any] = field(default_factory=dict, hash=False)  # fields of the metadata

    def functions(self, core_class: CoreClass) -> dict[int, str]:
        suffix = f"_{core_class.value}" if len(self.type.op_class.classes) == 2 else ""
        return {key: f"{self.name}{suffix}_{key}" for key in self.keys} or {0: f"{self.name}{suffix}"}

    def metadata(self) -> dict[str, Any]:
        return {
            "kernelName": self.name,
            "blockDim": self.blocks,
            "sub_operator_kernel_type": self.type.value,
            "sub_operator_kernel_name": self._function_table(),
            "sub_operator_params": list(self.params),
            "sub_operator_early_start_set_flag": self.sets,
            "sub_operator_early_start_wait_flag": self.waits,
            "sub_op_with_sync_all": self.sync_all,
            "binFileName": self.name,
            "coreType": "MIX",
            "magic": "RT_DEV_BINARY_MAGIC_ELF",
            "supportSuperKernel": 1,
            **self.more,
        }

    def _function_table(self) -> dict[str, Any]:
        found: dict[int, dict[str, Any]] = {}
        for core_class in self.type.op_class.classes:
            architecture = "AiCore" if self.type in _ANY_CORE else _ARCHITECTURES[core_class]
            for key, function in self.functions(core_class).items():
                entry = {"func_name": function, "obj_files": f"{self.name}_{core_class.value}.o"}
                found.setdefault(key, {})[architecture] = entry
        return {"dynamic_func_names": {str(key): table for key, table in found.items()}} if self.keys else found[0]

    def archive(self) -> bytes:
        members = {
            f"{self.name}_{core_class.value}.o": device_object(tuple(self.functions(core_class).values()))
            for core_class in self.type.op_class.classes
        }
        return archive_of(members)


@dataclass(frozen=True)
class Entry:
    """One op of a list; without args its names are private."""

    kernel: DeviceKernel
    args: tuple[str, ...] | None = None
    stream: int = 0
    send: tuple[int | str, ...] = ()
    recv: tuple[int | str, ...] = ()
    name: str | None = None

    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "json_path": f"{self.kernel.name}.json",
            "bin_path": f"{self.kernel.name}.a",
            "stream_id": self.stream,
            "task_type": "dynamic" if self.kernel.keys else "normal",
            "send_event_list": list(self.send),
            "recv_event_list": list(self.recv),
        }
        return (
            fields
            | ({"args": list(self.args)} if self.args is not None else {})
            | ({"name": self.name} if self.name else {})
        )


def write_list(folder: Path, entries: Sequence[Entry], options: str = "", name: str = "ops") -> Path:
    """The list, with metadata and archives beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for kernel in {entry.kernel.name: entry.kernel for entry in entries}.values():
        (folder / f"{kernel.name}.json").write_text(json.dumps(kernel.metadata()))
        (folder / f"{kernel.name}.a").write_bytes(kernel.archive())
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"op_list": [entry.fields() for entry in entries], "name": name, "options": options}))
    return path


def device_object(functions: Sequence[str], machine: int = DEVICE, code: int = 3000) -> bytes:
    """A relocatable object that defines functions, without an instruction that a host knows."""
    text = b"\xff" * code
    names = b"\0" + b"".join(function.encode() + b"\0" for function in functions)
    symbols = b"\0" * _SYMBOL
    for function in functions:
        symbols += struct.pack("<IBBHQQ", names.index(b"\0" + function.encode() + b"\0") + 1, 0x12, 0, 1, 0, code)
    section_names = b"\0.text\0.symtab\0.strtab\0.shstrtab\0"
    bodies = (b"", text, symbols, names, section_names)
    kinds = (0, 1, 2, 3, 3)  # none, program, symbols, strings, strings
    begin, places = _HEADER, []
    for body in bodies:
        places.append(begin)
        begin += len(body)
    table = b""
    for number, (body, kind, place) in enumerate(zip(bodies, kinds, places, strict=True)):
        title = section_names.index((b"", b".text", b".symtab", b".strtab", b".shstrtab")[number] + b"\0")
        flags, link, info, entry = (
            (6 if kind == 1 else 0),
            (3 if kind == 2 else 0),
            int(kind == 2),
            _SYMBOL * (kind == 2),
        )
        table += struct.pack(
            "<IIQQQQIIQQ", title, kind, flags, 0, place if kind else 0, len(body), link, info, 1, entry
        )
    identity = b"\x7fELF\x02\x01\x01" + b"\0" * 9
    header = identity + struct.pack(
        "<HHIQQQIHHHHHH", 1, machine, 1, 0, 0, begin, 0, _HEADER, 0, 0, _SECTION, len(bodies), 4
    )
    return header + b"".join(bodies) + table


def archive_of(members: Mapping[str, bytes]) -> bytes:
    """An ar archive with a table of names, as those have more than 15 characters."""
    names = "".join(f"{name}/\n" for name in members)
    made = b"!<arch>\n" + _member("//", names.encode())
    for name, content in members.items():
        made += _member(f"/{names.index(f'{name}/')}", content)
    return made


def _member(title: str, content: bytes) -> bytes:
    header = f"{title:<16}{0:<12}{0:<6}{0:<6}{'644':<8}{len(content):<10}`\n"
    return header.encode() + content + b"\n" * (len(content) % 2)
