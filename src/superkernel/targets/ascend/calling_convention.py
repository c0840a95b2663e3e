"""targets.ascend.calling_convention: the text of a sub-kernel -> how it is called, and which protocol it speaks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from ...errors import GraphError
from ...model.params import Kind, Param

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]superkernel/(?:subkernel|host_kernel)\.h[>"]', re.MULTILINE)
_CPU_HEADER = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]superkernel/kernel\.h[>"]', re.MULTILINE)
_INDEX = re.compile(r"(?:const\s+)?(?:std\s*::\s*)?uint64_t(?:\s+const)?(?:\s+\w+)?")
_HOST_POINTER = re.compile(r"\*(?:\s*(?:const|__restrict__|__restrict))*\s*\w*$")
_AFTER_PARAMETERS = r"(?:\s|noexcept\b(?:\s*\(\s*\w+\s*\))?|__attribute__\s*\(\([^{};]*?\)\))*"
_ADDRESS = re.compile(r"\bGM_ADDR\b|\b__gm__\b[^*]*\*")


_EXPECTED = "a sub-kernel takes one uint64_t, the index of its first slot, or a GM_ADDR for each parameter"


class CallingConvention(Enum):
    """What the entry passes to a sub-kernel; the value is what metadata says in `superkernel_call`."""

    SLOT_INDEX = "slot_index"  # one uint64_t: the index of its first slot in the parameter block
    POINTERS = "pointers"  # a GM_ADDR per parameter: an adapter loads them from the slots


class SyncProtocol(Enum):
    """How a sub-kernel waits, arrives and meets inside itself; the value is for `superkernel_protocol` of metadata."""

    CANN = "cann"  # as objects that CANN's operator compiler built
    SUBKERNEL_H = "subkernel.h"  # by the functions of superkernel/subkernel.h


def protocol_of_text(text: str) -> SyncProtocol:
    return SyncProtocol.SUBKERNEL_H if _INCLUDE.search(text) else SyncProtocol.CANN


def convention_of_text(text: str, symbols: Sequence[str], params: Sequence[Param], where: str) -> CallingConvention:
    """As the functions declare themselves; one that is not found, such as one made by a macro, takes an index."""
    plain = _COMMENT.sub(" ", text)
    if _CPU_HEADER.search(text):
        raise GraphError(
            f"{where}its source includes superkernel/kernel.h, so it is a kernel for the cpu target; write it in "
            f"Ascend C for target ascend: {_EXPECTED}"
        )
    found = {symbol: _declared(plain, symbol, params, where) for symbol in symbols}
    if len(set(found.values())) > 1:
        index, pointers = (
            next(symbol for symbol, convention in found.items() if convention is wanted)
            for wanted in (CallingConvention.SLOT_INDEX, CallingConvention.POINTERS)
        )
        raise GraphError(
            f"{where}its function {index!r} takes a slot index, but {pointers!r} takes pointers: declare both alike"
        )
    return next(iter(found.values()), CallingConvention.SLOT_INDEX)


def _declared(plain: str, symbol: str, params: Sequence[Param], where: str) -> CallingConvention:
    declaration = re.compile(rf"\bvoid\s+{re.escape(symbol)}\s*\(([^(){{}};]*)\){_AFTER_PARAMETERS}[{{;]").search(plain)
    if declaration is None:
        return CallingConvention.SLOT_INDEX
    listed = " ".join(declaration[1].split())
    given = [] if listed in ("", "void") else [text.strip() for text in listed.split(",")]
    if len(given) == 1 and _INDEX.fullmatch(given[0]):
        return CallingConvention.SLOT_INDEX
    for text in given:
        if not _ADDRESS.search(text):
            raise GraphError(
                f"{where}its function {symbol!r} takes ({listed}), and {text!r} is no address in global memory: "
                f"{'that is a kernel for the cpu target; ' if _HOST_POINTER.search(text) else ''}{_EXPECTED}"
            )
    check_pointers(params, len(given), f"{where}its function {symbol!r} takes ({listed}): ")
    return CallingConvention.POINTERS


def check_pointers(params: Sequence[Param], count: int, where: str) -> None:
    """Refuses parameters that a function of `count` pointers cannot take."""
    if count != len(params):
        expected = ", ".join(map(str, params)) or "none"
        raise GraphError(f"{where}{count} pointers for {len(params)} parameters ({expected}): they must be as many")
    for param in params:
        if param.kind is Kind.SCALAR:
            raise GraphError(
                f"{where}its parameter {param.name!r} is a scalar, which is no pointer: pass it in a buffer, "
                "or let the function take the index of its first slot"
            )
