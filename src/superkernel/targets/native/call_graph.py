"""targets.native.call_graph: an object and a function in it -> the undefined symbols that it can reach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

from ...errors import BuildError


def references(path: Path, symbol: str) -> frozenset[str]:
    """Follow the relocations from the section of `symbol`: a file may hold kernels that need different things."""
    try:
        with path.open("rb") as stream:
            return frozenset(_walk(ELFFile(stream), symbol))
    except (ELFError, OSError) as reason:
        raise BuildError(f"{path}: cannot read the references of {symbol!r}: {reason}") from reason


def _walk(elf: Any, symbol: str) -> Iterator[str]:
    symbols = list(elf.get_section_by_name(".symtab").iter_symbols())
    targets: dict[int, list[Any]] = {}
    for section in elf.iter_sections():
        if isinstance(section, RelocationSection):
            named = targets.setdefault(section["sh_info"], [])
            named += [symbols[relocation["r_info_sym"]] for relocation in section.iter_relocations()]
    pending = [s["st_shndx"] for s in symbols if s.name == symbol and s["st_shndx"] != "SHN_UNDEF"]
    seen: set[object] = set()
    while pending:
        section = pending.pop()
        if section in seen:
            continue
        seen.add(section)
        for target in targets.get(section, ()):
            if target["st_shndx"] == "SHN_UNDEF":
                yield target.name
            else:
                pending.append(target["st_shndx"])
