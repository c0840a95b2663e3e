"""targets.native.elf: a compiled object file in, its functions and its references out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from superkernel.errors import BuildError

_COMPILE_SO = "give the object that g++ -c makes"
_FOREIGN = {  # how files begin that people pass by mistake
    b"!<arch>": f"a static archive (.a): {_COMPILE_SO}, or extract one with ar x",
    b"!<thin>": f"a thin archive (.a): {_COMPILE_SO}",
    b"BC\xc0\xde": "LLVM bitcode: compile without -flto",
    b"MZ": "a Windows file",
    b"\xcf\xfa\xed\xfe": "a macOS file",
}
_KINDS = {"ET_EXEC": "an executable", "ET_DYN": "a shared object or an executable", "ET_CORE": "a core dump"}
_FUNCTION_TYPES = ("STT_FUNC", "STT_GNU_IFUNC", "STT_LOOS")  # pyelftools calls an indirect function either of two names
_GLOBAL_BINDING, _UNIQUE_BINDING = 1, 10  # STB_GLOBAL and STB_GNU_UNIQUE in a symbol's upper four bits
_CODE_FLAGS = 0x4 | 0x2  # SHF_EXECINSTR and SHF_ALLOC
_WITHOUT_CONTENTS = ("SHT_NOBITS", "SHT_NULL")
_MADE_BY_LINKER = "_GLOBAL_OFFSET_TABLE_"


class Binding(Enum):
    """Who may refer to a symbol, and what happens when two objects define it."""

    GLOBAL = "global"
    WEAK = "weak"
    LOCAL = "local"


_BINDINGS = {"STB_LOCAL": Binding.LOCAL, "STB_WEAK": Binding.WEAK}  # any other is global


@dataclass(frozen=True)
class Function:
    """A function that an object defines."""

    name: str
    size: int  # bytes of code
    binding: Binding


@dataclass(frozen=True)
class ObjectFile:
    """What another object can see of a relocatable object, and what it needs from others."""

    path: Path
    functions: tuple[Function, ...]  # global and weak
    local_functions: tuple[Function, ...]  # static ones; several may have one name
    undefined: frozenset[str]


def read_object(path: str | os.PathLike[str], architecture: str | None = None) -> ObjectFile:
    """The functions and references of a relocatable object; a BuildError says what else it is.

    It must be for the architecture, as in the header of an ELF file: X86_64, AARCH64; None: for this machine.
    """
    path = Path(path)
    try:
        with path.open("rb") as stream:
            return _read(path, stream, architecture)
    except IsADirectoryError as reason:
        raise BuildError(f"{path} is a directory, not an object file") from reason
    except FileNotFoundError as reason:
        raise BuildError(f"object file {path} does not exist") from reason
    except OSError as reason:
        raise BuildError(f"cannot read object file {path}: {reason}") from reason


def symbol_size(object_file: ObjectFile, symbol: str) -> int:
    """The bytes of code of one function of the object."""
    for function in (*object_file.functions, *object_file.local_functions):
        if function.name == symbol:
            return function.size
    raise BuildError(f"{object_file.path} does not define the function {symbol!r}")


def demote_unique(path: Path) -> None:
    """Make the object's unique symbols (GNU_UNIQUE) ordinary global ones, in place: objcopy leaves unique ones alone.

    A unique symbol is one variable for a whole process, whatever library it is in: static variables of inline
    functions and templates would be shared between kernels that have nothing to do with each other.
    """
    with path.open("r+b") as stream:
        elf = _parsed(stream)
        table = next(elf.iter_sections("SHT_SYMTAB"), None)
        if table is None:
            return
        start, stride = table["sh_offset"] + (4 if elf.elfclass == 64 else 12), table["sh_entsize"]
        stream.seek(start)
        kinds = stream.read(table["sh_size"])[::stride]
        for number, kind in enumerate(kinds):
            if kind >> 4 == _UNIQUE_BINDING:
                stream.seek(start + number * stride)
                stream.write(bytes([_GLOBAL_BINDING << 4 | kind & 0x0F]))


def _read(path: Path, stream: BinaryIO, architecture: str | None) -> ObjectFile:
    start = stream.read(8)
    if not start:
        raise BuildError(f"object file {path} is empty")
    for magic, kind in _FOREIGN.items():
        if start.startswith(magic):
            raise BuildError(f"{path} is {kind}; it is not an object file")
    if not start.startswith(b"\x7fELF"):
        raise BuildError(f"{path} is not an object file: it does not begin like an ELF file; {_COMPILE_SO}")
    try:
        elf = _parsed(stream)
        _check_kind(path, elf, architecture)
        _check_section_table(path, elf, os.fstat(stream.fileno()).st_size)
        sections = list(elf.iter_sections())  # once: it is what takes the time
        _check_sections(path, sections, os.fstat(stream.fileno()).st_size)
        return _object_file(path, sections)
    except BuildError:
        raise
    except Exception as reason:  # bytes from anywhere: whatever the reader trips over, the file is at fault
        raise BuildError(f"object file {path} is corrupt: {type(reason).__name__}: {reason}") from reason


def _parsed(stream: BinaryIO) -> Any:
    from elftools.elf.elffile import ELFFile  # many modules: not for a process that finds all it needs in the cache

    return ELFFile(stream)


def _object_file(path: Path, sections: Sequence[Any]) -> ObjectFile:
    table = next((section for section in sections if section["sh_type"] == "SHT_SYMTAB"), None)
    if table is None:
        raise BuildError(f"object file {path} has no symbols: was it stripped?")
    code = {*_code_sections(sections), "SHN_XINDEX"}  # the latter: more sections than the field can count
    functions, undefined = [], set()
    for symbol in table.iter_symbols():
        if symbol["st_shndx"] == "SHN_UNDEF":
            undefined.add(symbol.name)
        elif symbol.name and symbol["st_shndx"] in code and _is_function(symbol["st_info"]):
            binding = _BINDINGS.get(symbol["st_info"]["bind"], Binding.GLOBAL)
            functions.append(Function(symbol.name, symbol["st_size"], binding))
    return ObjectFile(
        path,
        functions=tuple(function for function in functions if function.binding is not Binding.LOCAL),
        local_functions=tuple(function for function in functions if function.binding is Binding.LOCAL),
        undefined=frozenset(undefined - {"", _MADE_BY_LINKER}),
    )


def _is_function(info: Any) -> bool:
    """Hand-written assembly often leaves its global functions without a type."""
    return info["type"] in _FUNCTION_TYPES or (info["type"] == "STT_NOTYPE" and info["bind"] != "STB_LOCAL")


def _check_kind(path: Path, elf: Any, architecture: str | None) -> None:
    if elf["e_type"] != "ET_REL":
        kind = _KINDS.get(elf["e_type"], f"an ELF file of type {elf['e_type']}")
        raise BuildError(f"{path} is {kind}, not a relocatable object: {_COMPILE_SO}")
    if architecture is not None:
        if _architecture(elf).split()[0] != architecture:
            raise BuildError(f"object file {path} is for {_architecture(elf)}, and not for {architecture}")
    elif _architecture(elf) != host_architecture():
        raise BuildError(
            f"object file {path} is for {_architecture(elf)}, but this machine is {host_architecture()}: "
            "compile it for this machine"
        )


def _architecture(elf: Any) -> str:
    """What the code of a parsed object is for."""
    order = "little" if elf.little_endian else "big"
    return f"{str(elf['e_machine']).removeprefix('EM_')} ({elf.elfclass} bit, {order} endian)"


@cache
def host_architecture() -> str:
    """What a shared object must be made for to be loaded into this process."""
    with open("/proc/self/exe", "rb") as program:
        return _architecture(_parsed(program))


def _check_section_table(path: Path, elf: Any, file_bytes: int) -> None:
    """The table comes last, so a file that was cut short has lost it."""
    if not elf["e_shoff"]:
        raise BuildError(f"object file {path} is corrupt: it has no sections")
    _check_extent(path, elf["e_shoff"] + elf.num_sections() * elf["e_shentsize"], file_bytes)


def _check_sections(path: Path, sections: Sequence[Any], file_bytes: int) -> None:
    for section in sections:
        if section["sh_type"] not in _WITHOUT_CONTENTS:
            _check_extent(path, section["sh_offset"] + section["sh_size"], file_bytes)
    optimiser_data = any(section.name.startswith(".gnu.lto_") for section in sections)
    if optimiser_data and not any(_code_sections(sections).values()):
        raise BuildError(f"object file {path} holds no machine code, only data for -flto: compile it without -flto")


def _check_extent(path: Path, end: int, file_bytes: int) -> None:
    if end > file_bytes:
        raise BuildError(f"object file {path} is truncated: it has {file_bytes} bytes and refers to byte {end}")


def _code_sections(sections: Sequence[Any]) -> dict[int, int]:
    """The sizes of the sections that hold code, by number."""
    return {
        number: section["sh_size"]
        for number, section in enumerate(sections)
        if section["sh_flags"] & _CODE_FLAGS == _CODE_FLAGS
    }
