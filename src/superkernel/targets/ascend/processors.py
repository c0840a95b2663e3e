"""targets.ascend.processors: the objects of a sub-kernel -> the processor they are for; refuses those of another chip.

Objects for this machine are taken as well: the emulator runs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ...errors import BuildError
from .archive import host_processor, objects
from .chips import Chip
from .elf_object import Processor


@dataclass(frozen=True)
class DeviceObject:
    """An object that is not for this machine."""

    path: Path
    name: str
    processor: Processor


def device_objects(path: Path, names: Sequence[str], chip: Chip, where: str) -> tuple[DeviceObject, ...]:
    """Those of the objects that are for the chip; refuses what is neither for it nor for this machine."""
    found = {name: parsed.processor for name, parsed in objects(path, tuple(names)).items()}
    host = [name for name, processor in found.items() if processor.machine == host_processor().machine]
    device = tuple(DeviceObject(path, name, found[name]) for name in found if name not in host)
    for given in device:
        _check_chip(given, chip, where)
    check_alike(device, where)
    if host and device:
        raise BuildError(
            f"{where}: {path}: {device[0].name} is for {_spelled(device[0].processor)}, and {host[0]} is for this "
            "machine: the objects of a sub-kernel must be for one processor"
        )
    return device


def check_alike(objects: Sequence[DeviceObject], where: str) -> None:
    """Refuses objects for one class of cores that are for different chips."""
    for given in objects[1:]:
        first = objects[0]
        if given.processor == first.processor:
            continue
        if given.processor.machine == first.processor.machine:
            other, this = f"ELF flags {given.processor.flags:#x}", f"{first.processor.flags:#x}"
        else:
            other, this = f"ELF machine {given.processor.machine:#x}", f"{first.processor.machine:#x}"
        beside = first.name if first.path == given.path else f"{first.path}: {first.name}"
        raise BuildError(
            f"{where}: {given.path}: {given.name} has {other}, and {beside} has {this}: they are for different chips; "
            "compile all sub-kernels for one"
        )


def _check_chip(given: DeviceObject, chip: Chip, where: str) -> None:
    toolkit, processor = chip.toolkit, given.processor
    wrong = processor.machine in _known_machines()
    needed = "an AI core"
    if toolkit.elf_machine:
        wrong, needed = processor.machine != toolkit.elf_machine, f"ELF machine {toolkit.elf_machine:#x}"
    if wrong:
        raise BuildError(
            f"{where}: {given.path}: {given.name} is for {_spelled(processor)}, and chip {chip.name} is {needed}: "
            "compile it for the chip, or for this machine to emulate it"
        )
    if toolkit.elf_flags and processor.flags not in toolkit.elf_flags:
        known = ", ".join(map(hex, toolkit.elf_flags))
        raise BuildError(
            f"{where}: {given.path}: {given.name} has ELF flags {processor.flags:#x}, and chip {chip.name} takes "
            f"{known}: it is for another chip; compile it again"
        )


def _spelled(processor: Processor) -> str:
    name = _known_machines().get(processor.machine, "a processor")
    return f"{name} (ELF machine {processor.machine:#x})"


@cache
def _known_machines() -> Mapping[int, str]:
    """Processors that the registry of ELF machines names."""
    from elftools.elf.enums import ENUM_E_MACHINE

    return {number: name.removeprefix("EM_") for name, number in ENUM_E_MACHINE.items() if isinstance(number, int)}
