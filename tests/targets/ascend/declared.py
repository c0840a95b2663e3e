"""Headers read with libclang: the functions, enums and macros of a kernel_operator.h."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clang.cindex import CursorKind, Diagnostic, Index, TranslationUnit

from superkernel.targets.ascend.source_check import DECLARATIONS

HEADER = "kernel_operator.h"
OURS = ("sk_", "SK_")  # what is not of the device compiler


@dataclass(frozen=True)
class Signature:
    result: str
    parameters: tuple[str, ...]


def plain(type_name: str) -> str:
    """Without the address space, which host code does not have."""
    return re.sub(r"__attribute__\(\(address_space\(\d\)\)\) ", "", type_name)


def parsed(folder: Path, *defines: str) -> Any:
    flags = ["-xc++", "-std=c++17", "-nostdinc", "-nostdinc++", "-Wno-pragma-once-outside-header", *defines]
    flags.append(f"-I{DECLARATIONS}")
    unit = Index.create().parse(str(folder / HEADER), flags, options=TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD)
    assert not [diagnostic for diagnostic in unit.diagnostics if diagnostic.severity >= Diagnostic.Warning]
    return unit


def own_cursors(unit: Any) -> list[Any]:
    return [
        cursor
        for cursor in unit.cursor.get_children()
        if cursor.location.file is not None and cursor.location.file.name == unit.spelling
    ]


def functions(unit: Any) -> dict[str, Signature]:
    """Overloads would need a list; neither header has any."""
    found = [cursor for cursor in own_cursors(unit) if cursor.kind is CursorKind.FUNCTION_DECL]
    found = [cursor for cursor in found if not cursor.spelling.startswith(OURS)]
    assert len({cursor.spelling for cursor in found}) == len(found)
    return {
        cursor.spelling: Signature(
            plain(cursor.result_type.get_canonical().spelling),
            # `line` is where the call stands: emitted code does not give it
            tuple(plain(p.type.get_canonical().spelling) for p in cursor.get_arguments() if p.spelling != "line"),
        )
        for cursor in found
    }


def enums(unit: Any) -> dict[str, dict[str, int]]:
    return {
        cursor.spelling: {value.spelling: value.enum_value for value in cursor.get_children()}
        for cursor in own_cursors(unit)
        if cursor.kind is CursorKind.ENUM_DECL
    }


def macros(unit: Any) -> set[str]:
    found = {cursor.spelling for cursor in own_cursors(unit) if cursor.kind is CursorKind.MACRO_DEFINITION}
    return {name for name in found if not name.startswith(OURS)}


def header_for_host_compilers() -> str:
    """The declared builtins with bodies that do nothing."""
    unit = parsed(DECLARATIONS, "-D__DAV_CUBE__")
    lines = [
        "#pragma once",
        "#include <cstdint>",
        *(f"#define {name}" for name in ("__aicore__", "__global__", "__gm__")),
    ]
    for name, values in enums(unit).items():
        lines.append(f"enum {name} {{ {', '.join(f'{value} = {number}' for value, number in values.items())} }};")
    for name, signature in functions(unit).items():
        body = "" if signature.result == "void" else "return 0;"
        lines.append(f"static inline {signature.result} {name}({', '.join(signature.parameters)}) {{ {body} }}")
    return "\n".join(lines) + "\n"
