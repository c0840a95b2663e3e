"""targets.ascend.processors: the objects of a sub-kernel -> the processor they are for; refuses those of another chip.

Objects for this machine are taken as well: the emulator runs them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...errors import BuildError
from .archive import members
from .chips import Chip

_IDENTITY = 16  # bytes in front of the fields of an ELF header
_FIELDS = {1: "HHIIIII", 2: "HHIQQQI"}  # by class: type, machine, version, entry, two tables, flags


@dataclass(frozen=True)
class Processor:
    """Of an ELF header."""

    bits: int
    machine: int
    flags: int

    def __str__(self) -> str:
        name = _known_machines().get(self.machine)
        return f"{name or 'a processor'} (ELF machine {self.machine:#x}, {self.bits} bit)"


@dataclass(frozen=True)
class DeviceObject:
    """An object that is not for this machine."""

    path: Path
    name: str
    processor: Processor


def device_objects(path: Path, names: Sequence[str], chip: Chip, where: str) -> tuple[DeviceObject, ...]:
    """Those of the objects that are for the chip; refuses what is neither for it nor for this machine."""
    contents = members(path)
    found = {name: processor_of(contents[name], f"{where}: {path}: {name}") for name in names or tuple(contents)}
    host = {name: processor for name, processor in found.items() if _same_machine(processor, _host())}
    device = tuple(DeviceObject(path, name, found[name]) for name in found if name not in host)
    for given in device:
        _check_chip(given, chip, where)
    check_alike(device, where)
    if host and device:
        raise BuildError(
            f"{where}: {path}: {device[0].name} is for {device[0].processor}, and {next(iter(host))} is for this "
            "machine: the objects of a sub-kernel must be for one processor"
        )
    return device


def check_alike(objects: Sequence[DeviceObject], where: str) -> None:
    """Refuses objects for one class of cores that are for different chips."""
    for given in objects[1:]:
        first = objects[0]
        if given.processor == first.processor:
            continue
        if _same_machine(given.processor, first.processor):
            other, this = f"ELF flags {given.processor.flags:#x}", f"{first.processor.flags:#x}"
        else:
            other, this = f"ELF machine {given.processor.machine:#x}", f"{first.processor.machine:#x}"
        beside = first.name if first.path == given.path else f"{first.path}: {first.name}"
        raise BuildError(
            f"{where}: {given.path}: {given.name} has {other}, and {beside} has {this}: they are for different chips; "
            "compile all sub-kernels for one"
        )


def processor_of(content: bytes, where: str) -> Processor:
    if content[:4] != b"\x7fELF" or len(content) < 64 or content[4] not in _FIELDS or content[5] not in (1, 2):
        raise BuildError(f"{where} is no object file: it does not begin like an ELF file")
    order = "<" if content[5] == 1 else ">"
    fields = struct.unpack_from(order + _FIELDS[content[4]], content, _IDENTITY)
    return Processor(32 * content[4], fields[1], fields[-1])


def _check_chip(given: DeviceObject, chip: Chip, where: str) -> None:
    toolkit, processor = chip.toolkit, given.processor
    wrong = processor.machine in _known_machines()
    needed = "an AI core"
    if toolkit.elf_machine:
        wrong, needed = processor.machine != toolkit.elf_machine, f"ELF machine {toolkit.elf_machine:#x}"
    if wrong:
        raise BuildError(
            f"{where}: {given.path}: {given.name} is for {processor}, and chip {chip.name} is {needed}: "
            "compile it for the chip, or for this machine to emulate it"
        )
    if toolkit.elf_flags and processor.flags not in toolkit.elf_flags:
        known = ", ".join(map(hex, toolkit.elf_flags))
        raise BuildError(
            f"{where}: {given.path}: {given.name} has ELF flags {processor.flags:#x}, and chip {chip.name} takes "
            f"{known}: it is for another chip; compile it again"
        )


def _same_machine(one: Processor, other: Processor) -> bool:
    return (one.bits, one.machine) == (other.bits, other.machine)


@cache
def _host() -> Processor:
    with open("/proc/self/exe", "rb") as program:
        return processor_of(program.read(64), "this program")


@cache
def _known_machines() -> Mapping[int, str]:
    """Processors that the registry of ELF machines names."""
    from elftools.elf.enums import ENUM_E_MACHINE

    return {number: name.removeprefix("EM_") for name, number in ENUM_E_MACHINE.items() if isinstance(number, int)}
