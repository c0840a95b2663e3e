"""targets.ascend.source_check: an emitted source -> what a device compiler would refuse of it, found with libclang.

The source is parsed once per class of cores against declarations/, which states what public documents say of the
builtins. Two rules are checked on the syntax tree, because clang accepts what breaks them: casts keep the address space
of a pointer, and every function runs on an AI core.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from ctypes import c_void_p
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from ...errors import BuildError
from .core_types import CUBE, VECTOR, CoreClass
from .kernel_description import EmittedKernel

DECLARATIONS = Path(__file__).parent / "declarations"
_LANGUAGE = ("-xc++", "-std=c++17", "--target=aarch64-unknown-linux-gnu", "-nostdinc", "-nostdinc++")
_WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-ferror-limit=0")
_DEVICE = ("-D__CCE_IS_AICORE__=1", "-D__NPU_ARCH__=2201")  # what the device compiler defines by itself
_CLASS = {CUBE: "-D__DAV_CUBE__", VECTOR: "-D__DAV_VEC__"}
_DEVICE_ATTRIBUTES = ("block_local",)  # those that clang does not know
_UNUSED = ("-Wunused-function", "-Wunused-const-variable", "-Wunneeded-internal-declaration")
_OPERAND = "operand: "  # how messages about an operand outside its range begin
_SHOWN = 5  # errors of a message


class Severity(Enum):
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    file: str
    line: int
    message: str
    severity: Severity
    unused: bool  # by the class that the source was parsed for
    core_class: CoreClass

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.severity.value}: {self.message} ({self.core_class.value} cores)"


@cache
def libclang_installed() -> bool:
    try:
        from clang.cindex import Index, LibclangError
    except ImportError:
        return False
    try:
        Index.create()
    except LibclangError:
        return False
    return True


def check_emitted(emitted: EmittedKernel) -> str:
    """What the user is told of the emitted source; one with errors is refused."""
    name = source_name(emitted)
    if not libclang_installed():
        return f"{name} was not parsed: libclang is not installed (pip install libclang)"
    errors = [finding for finding in emitted_findings(emitted) if finding.severity is Severity.ERROR]
    if errors:
        shown = "\n".join(f"  {error}" for error in errors[:_SHOWN])
        more = f"\n  and {len(errors) - _SHOWN} more" if len(errors) > _SHOWN else ""
        raise BuildError(
            f"super_kernel_scope {emitted.name!r}: the emitted source has errors. Try other names of ops and "
            f"sub-kernels, which stand in it; if those are not the cause, it is a defect of SuperKernel:\n{shown}{more}"
        )
    classes = " and ".join(core_class.value for core_class in emitted.launch.classes)
    return f"{name} parsed for {classes} cores without an error"


def source_name(emitted: EmittedKernel) -> str:
    return f"{emitted.name}_kernel.cpp"


def emitted_findings(emitted: EmittedKernel) -> tuple[Finding, ...]:
    """What is found for any class of the launch; what one class does not use counts if no other uses it."""
    classes, name = emitted.launch.classes, source_name(emitted)
    common = emitted.cann_defines
    per_class = [
        findings(emitted.source, core_class, (*emitted.defines[core_class], *common), name) for core_class in classes
    ]
    unused_by = Counter((found.line, found.message) for of_class in per_class for found in of_class if found.unused)
    chosen: dict[tuple[str, int, str], Finding] = {}
    for found in (found for of_class in per_class for found in of_class):
        if not found.unused or unused_by[found.line, found.message] == len(classes):
            chosen.setdefault((found.file, found.line, found.message), found)
    return tuple(chosen.values())


def findings(
    source: str, core_class: CoreClass, defines: Sequence[str] = (), name: str = "kernel.cpp"
) -> tuple[Finding, ...]:
    """In the order of the source; `defines` as the compiler is given them."""
    unit = parse(source, core_class, defines, name)
    found = [*_diagnosed(unit, core_class), *_misused(unit, core_class, name)]
    if any(finding.message.startswith(_OPERAND) for finding in found):  # limits that the other class may not have
        unreachable = _unreachable(unit, name)
        found = [item for item in found if not (item.message.startswith(_OPERAND) and item.line in unreachable)]
    return tuple(sorted(found, key=lambda finding: finding.line))


def parse(source: str, core_class: CoreClass, defines: Sequence[str], name: str) -> Any:
    """The translation unit of a source that includes kernel_operator.h."""
    from clang.cindex import Index

    flags = [*_LANGUAGE, *_WARNINGS, *_DEVICE, _CLASS[core_class], *defines, f"-I{DECLARATIONS}"]
    return Index.create().parse(name, args=flags, unsaved_files=[(name, source)])


def _diagnosed(unit: Any, core_class: CoreClass) -> Iterator[Finding]:
    from clang.cindex import Diagnostic

    known = tuple(f"unknown attribute '{attribute}' ignored" for attribute in _DEVICE_ATTRIBUTES)
    for diagnostic in unit.diagnostics:
        if diagnostic.severity < Diagnostic.Warning or diagnostic.spelling in known:
            continue
        where = diagnostic.location
        file = Path(where.file.name).name if where.file else unit.spelling
        severity = Severity.WARNING if diagnostic.severity == Diagnostic.Warning else Severity.ERROR
        yield Finding(file, where.line, diagnostic.spelling, severity, diagnostic.option in _UNUSED, core_class)


def _misused(unit: Any, core_class: CoreClass, name: str) -> Iterator[Finding]:
    """What the syntax tree of the source itself, without headers, must not contain."""
    for cursor in _cursors(unit, name):
        if message := _misuse(cursor):
            yield Finding(name, cursor.location.line, message, Severity.ERROR, False, core_class)


def _cursors(unit: Any, name: str) -> Iterator[Any]:
    for top in unit.cursor.get_children():
        if top.location.file is not None and top.location.file.name == name:
            yield from top.walk_preorder()


def _unreachable(unit: Any, name: str) -> set[int]:
    """The lines of branches that a constant condition excludes, and of functions that the entry does not call."""
    from clang.cindex import CursorKind

    lines: set[int] = set()
    functions = {}
    for cursor in _cursors(unit, name):
        if cursor.kind is CursorKind.IF_STMT:
            condition, *branches = cursor.get_children()
            value = _constant(condition)
            for taken, branch in zip((True, False), branches, strict=False):
                if value is not None and value is not taken:
                    lines |= _lines(branch)
        elif cursor.kind in _function_kinds():
            functions[cursor.spelling] = cursor
    called = [function for function, cursor in functions.items() if "global" in _annotations(cursor)]
    for function in called:
        for cursor in functions[function].walk_preorder():
            if cursor.spelling in functions and cursor.spelling not in called and cursor.location.line not in lines:
                called.append(cursor.spelling)
    uncalled = (cursor for function, cursor in functions.items() if function not in called)
    return lines.union(*map(_lines, uncalled)) if called else lines


def _lines(cursor: Any) -> set[int]:
    return set(range(cursor.extent.start.line, cursor.extent.end.line + 1))


@cache
def _function_kinds() -> frozenset[Any]:
    from clang.cindex import CursorKind

    return frozenset((CursorKind.FUNCTION_DECL, CursorKind.FUNCTION_TEMPLATE))


def _constant(condition: Any) -> bool | None:
    """The value of a condition that the compiler can compute."""
    from clang.cindex import Cursor, conf

    evaluate, value_of, dispose = (
        getattr(conf.lib, f"clang_{name}") for name in ("Cursor_Evaluate", "EvalResult_getAsInt", "EvalResult_dispose")
    )
    evaluate.argtypes, evaluate.restype = [Cursor], c_void_p
    value_of.argtypes = dispose.argtypes = [c_void_p]
    result = evaluate(condition)
    if not result:
        return None
    try:
        return bool(value_of(result))
    finally:
        dispose(result)


def _misuse(cursor: Any) -> str | None:
    from clang.cindex import CursorKind

    kind = cursor.kind
    if kind in (CursorKind.CSTYLE_CAST_EXPR, CursorKind.CXX_FUNCTIONAL_CAST_EXPR, CursorKind.CXX_REINTERPRET_CAST_EXPR):
        *_, operand = cursor.get_children()
        literal = operand.kind is CursorKind.INTEGER_LITERAL
        return None if literal else _lost_space(operand.type.get_canonical(), cursor.type.get_canonical())
    if kind in _function_kinds():
        if "aicore" not in _annotations(cursor):
            return f"the function {cursor.spelling!r} has no __aicore__"
    elif kind is CursorKind.CALL_EXPR and cursor.referenced is not None and "global" in _annotations(cursor.referenced):
        return f"{cursor.spelling!r} is __global__: only the host can call it"
    return None


def _lost_space(operand: Any, result: Any) -> str | None:
    from clang.cindex import TypeKind

    if result.kind is not TypeKind.POINTER:
        return None
    space = result.get_pointee().get_address_space()
    changes = f"the cast from {operand.spelling!r} to {result.spelling!r} changes the address space"
    if operand.kind is TypeKind.POINTER:
        return changes if operand.get_pointee().get_address_space() != space else None
    if operand.kind is TypeKind.FUNCTIONPROTO:  # code has no address space
        return changes if space else None
    if operand.kind in _addresses() and not space:
        return f"an address becomes {result.spelling!r}, which has no address space"
    return None


@cache
def _addresses() -> frozenset[Any]:
    """The types of integers that can hold an address."""
    from clang.cindex import TypeKind

    return frozenset((TypeKind.LONG, TypeKind.ULONG, TypeKind.LONGLONG, TypeKind.ULONGLONG))


def _annotations(cursor: Any) -> set[str]:
    from clang.cindex import CursorKind

    return {child.spelling for child in cursor.get_children() if child.kind is CursorKind.ANNOTATE_ATTR}
