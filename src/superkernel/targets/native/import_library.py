"""targets.native.import_library: a large shared library in, a small one out that stands in for it at link time.

A linker reads every symbol of a library, which takes half a second for torch's. The import library has the same name
for the loader and defines only what the objects refer to.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ...cache import digest
from .build_context import BuildContext
from .toolchain import run

_LARGE_BYTES = 2**25


def is_large(library: str | Path) -> bool:
    """Whether the library is a file whose symbols take long to read."""
    path = Path(library)
    return ".so" in path.name and path.is_absolute() and path.is_file() and path.stat().st_size > _LARGE_BYTES


def import_library(library: Path, names: Collection[str], context: BuildContext, log: list[str]) -> Path | None:
    """A library of the same name that defines those of `names` that `library` defines; None: it defines none of them.

    Raises LookupError for a library that has no table to look names up in, and for a thread-local variable.
    """
    soname, defined = _definitions(library, names)
    return stand_in(soname, defined, context, log) if defined else None


def stand_in(soname: str, defined: Collection[str], context: BuildContext, log: list[str]) -> Path:
    """A library that the loader calls `soname` and that defines these names; it only serves to link against."""
    text = "\n".join(f".globl {name}\n.type {name}, %function\n{name}:" for name in sorted(defined))
    source = f'.text\n{text}\n.byte 0\n.section .note.GNU-stack,"",%progbits\n'

    def build(output: Path) -> None:
        flags = ["-shared", "-nostdlib", "-x", "assembler", "-", "-Xlinker", "-soname", "-Xlinker", soname]
        run([*context.toolchain.cxx, *flags, "-o", str(output)], what=f"standing in for {soname}", text=source, log=log)

    return context.cache.make(digest("import library", soname, source, context.toolchain.identity), ".so", build)


def _definitions(library: Path, names: Collection[str]) -> tuple[str, list[str]]:
    """What the loader calls the library, and which of the names it defines."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.hash import GNUHashSection

    try:
        with library.open("rb") as file:
            elf = ELFFile(file)
            table, dynamic = elf.get_section_by_name(".gnu.hash"), elf.get_section_by_name(".dynamic")
            if not isinstance(table, GNUHashSection) or not isinstance(dynamic, DynamicSection):
                raise LookupError(f"{library} has no hash table of its symbols")
            found = {name: symbol for name in sorted(names) if (symbol := table.get_symbol(name)) is not None}
            sonames = [str(vars(tag)["soname"]) for tag in dynamic.iter_tags("DT_SONAME")]
    except ELFError as failure:
        raise LookupError(f"{library}: {failure}") from failure
    defined = {name: symbol for name, symbol in found.items() if symbol["st_shndx"] != "SHN_UNDEF"}
    if any(symbol["st_info"]["type"] == "STT_TLS" for symbol in defined.values()):
        raise LookupError(f"{library}: a thread-local variable needs its own kind of symbol")
    return sonames[0] if sonames else library.name, list(defined)
