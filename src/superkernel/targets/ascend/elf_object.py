"""targets.ascend.elf_object: the bytes of an object file, for whatever processor -> its symbols and relocations.

A reader of these tables alone: it takes a tenth of the time of a general one, and lists name many objects.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from ...errors import BuildError

_IDENTITY, _HEADER = 16, 64
_HEADER_FIELDS = "HHIQQQIHHHHHH"  # type, machine, version, entry, two tables, flags, sizes and counts
_SECTION_FIELDS = "IIQQQQIIQQ"  # name, type, flags, address, offset, size, link, info, alignment, entry size
_SYMBOL_FIELDS = "IBBHQQ"  # name, binding and type, visibility, section, value, size
_SYMBOLS, _WITH_ADDEND, _WITHOUT_ADDEND, _NO_BYTES, _LARGE_NUMBERS = 2, 4, 9, 8, 18  # types of sections
_CODE = 0x4 | 0x2  # SHF_EXECINSTR and SHF_ALLOC
_RESERVED, _LARGE = 0xFF00, 0xFFFF  # numbers of sections from here on mean something else
_LOCAL = 0


class SymbolKind(IntEnum):
    NONE = 0
    OBJECT = 1
    FUNCTION = 2
    SECTION = 3
    OTHER = -1


@dataclass(frozen=True)
class Processor:
    """Of an ELF header."""

    bits: int
    little: bool
    machine: int
    flags: int


@dataclass(frozen=True)
class Symbol:
    name: str
    section: int | None  # None: it is defined elsewhere, or has no place
    value: int  # bytes from the beginning of its section
    size: int
    kind: SymbolKind
    local: bool


@dataclass(frozen=True)
class Relocation:
    section: int  # that it changes
    offset: int
    symbol: int  # its number


@dataclass(frozen=True)
class ElfObject:
    processor: Processor
    code_bytes: int
    symbols: tuple[Symbol, ...]
    relocations: tuple[Relocation, ...]

    @property
    def functions(self) -> list[str]:
        """The global symbols that it defines."""
        return [symbol.name for symbol in self.symbols if symbol.section and not symbol.local and symbol.name]


@dataclass(frozen=True)
class _Section:
    kind: int
    flags: int
    begin: int
    size: int
    link: int
    info: int
    entry: int


def read_processor(content: bytes, where: str) -> Processor:
    if content[:4] != b"\x7fELF" or len(content) < _HEADER or content[4] not in (1, 2) or content[5] not in (1, 2):
        raise BuildError(f"{where} is no object file: it does not begin like an ELF file")
    little = content[5] == 1
    fields = struct.unpack_from(("<" if little else ">") + ("HHIIIII" if content[4] == 1 else "HHIQQQI"), content, 16)
    return Processor(32 * content[4], little, fields[1], fields[-1])


def parse_object(content: bytes, where: str) -> ElfObject:
    processor = read_processor(content, where)
    if processor.bits != 64:
        raise BuildError(
            f"{where} is a {processor.bits}-bit object; those of AI cores and of this machine have 64 bits"
        )
    try:
        return _Reader(content, processor).read()
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as reason:
        raise BuildError(f"{where} is a corrupt object file: {reason}") from reason


class _Reader:
    def __init__(self, content: bytes, processor: Processor) -> None:
        self.content, self.processor = content, processor
        self.order = "<" if processor.little else ">"

    def read(self) -> ElfObject:
        sections = self._sections()
        symbols: tuple[Symbol, ...] = ()
        for number, section in enumerate(sections):
            if section.kind == _SYMBOLS:
                symbols = tuple(self._symbols(number, section, sections))
        relocations = tuple(found for section in sections for found in self._relocations(section))
        for relocation in relocations:
            if relocation.symbol >= len(symbols) or relocation.section >= len(sections):
                raise ValueError("a relocation refers to a symbol or section that is not there")
        code = sum(section.size for section in sections if section.flags & _CODE == _CODE)
        return ElfObject(self.processor, code, symbols, relocations)

    def _sections(self) -> list[_Section]:
        header = struct.unpack_from(self.order + _HEADER_FIELDS, self.content, _IDENTITY)
        begin, entry, count = header[5], header[10], header[11]
        if not begin:
            return []
        if entry != struct.calcsize("<" + _SECTION_FIELDS):
            raise ValueError(f"an entry of its section table has {entry} bytes")
        first = self._section(begin)
        return [self._section(begin + entry * i) for i in range(count or first.size)]

    def _section(self, place: int) -> _Section:
        fields = struct.unpack_from(self.order + _SECTION_FIELDS, self.content, place)
        _, kind, flags, _, begin, size, link, info, _, entry = fields
        if kind not in (0, _NO_BYTES) and begin + size > len(self.content):
            raise ValueError(f"it has {len(self.content)} bytes and refers to byte {begin + size}")
        return _Section(kind, flags, begin, size, link, info, entry)

    def _bytes(self, section: _Section) -> bytes:
        return self.content[section.begin : section.begin + section.size]

    def _symbols(self, number: int, section: _Section, sections: list[_Section]) -> Iterator[Symbol]:
        names = self._bytes(sections[section.link])
        large = [self._bytes(other) for other in sections if other.kind == _LARGE_NUMBERS and other.link == number]
        for i, fields in enumerate(struct.iter_unpack(self.order + _SYMBOL_FIELDS, self._bytes(section))):
            name, info, _, place, value, size = fields
            if place == _LARGE and large:
                place = struct.unpack_from(self.order + "I", large[0], 4 * i)[0]
            elif place >= _RESERVED:
                place = 0
            if place >= len(sections) or name > len(names):
                raise ValueError("a symbol refers to a section or name that is not there")
            kind = SymbolKind(info & 15) if info & 15 <= SymbolKind.SECTION else SymbolKind.OTHER
            text = names[name : names.find(b"\0", name)].decode()
            yield Symbol(text, place or None, value, size, kind, info >> 4 == _LOCAL)

    def _relocations(self, section: _Section) -> Iterator[Relocation]:
        if section.kind in (_WITH_ADDEND, _WITHOUT_ADDEND):
            layout = self.order + ("QQq" if section.kind == _WITH_ADDEND else "QQ")
            for offset, info, *_ in struct.iter_unpack(layout, self._bytes(section)):
                yield Relocation(section.info, offset, info >> 32)
