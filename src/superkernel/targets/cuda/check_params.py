"""targets.cuda.check_params: the declared parameters of a sub-kernel and those of its PTX entry -> ParameterLayout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import GraphError, UnsupportedError
from ...model.params import DTYPES, Kind, Param
from ...model.subkernel import SubKernel
from .ptx import Entry, PtxParam

MOST_PARAMETER_BYTES = 32764
_SCRATCH_POINTERS = 2  # what Triton adds behind the parameters of a kernel: global scratch, profile scratch


@dataclass(frozen=True)
class ParameterLayout:
    """The parameters of an entry, in order: types, bytes and offsets."""

    names: tuple[str, ...]  # in the PTX
    types: tuple[str, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    scratch: tuple[int, int] | None  # the indices of Triton's global scratch and profile scratch pointers

    def to_json(self) -> Any:
        return [self.names, self.types, self.sizes, self.offsets, self.scratch]

    @classmethod
    def from_json(cls, fields: Any) -> ParameterLayout:
        names, types, sizes, offsets, scratch = fields
        pair = (int(scratch[0]), int(scratch[1])) if scratch else None
        return cls(tuple(names), tuple(types), tuple(sizes), tuple(offsets), pair)


def check_params(kernel: SubKernel, entry: Entry, origin: str, where: str) -> ParameterLayout:
    """Refuses a kernel whose declared parameters are not those of the entry."""
    declared, found = kernel.params, entry.params
    for given in found:
        if given.array:
            raise UnsupportedError(
                f"{where}{origin}:{given.line}: parameter {given.name} is a struct of {given.nbytes} bytes; pass its "
                f"members as parameters of their own"
            )
    extra = found[len(declared) :]
    scratch = len(extra) == _SCRATCH_POINTERS and all(param.pointer is not False for param in extra)
    if len(declared) != len(found) and not scratch:
        listed = ", ".join(f"{param.name} ({_described(param)})" for param in found) or "none"
        raise GraphError(
            f"{where}{origin}:{entry.line}: params names {len(declared)} parameters, the PTX has {len(found)}: {listed}"
        )
    for param, given in zip(declared, found, strict=False):
        _check_param(param, given, f"{where}{origin}:{given.line}: ")
    offsets, end = [], 0
    for given in found:
        end = -(-end // given.align) * given.align
        offsets.append(end)
        end += given.nbytes
    if end > MOST_PARAMETER_BYTES:
        raise UnsupportedError(f"{where}{end} bytes of parameters; the limit is {MOST_PARAMETER_BYTES}")
    return ParameterLayout(
        tuple(param.name for param in found),
        tuple(param.type for param in found),
        tuple(param.nbytes for param in found),
        tuple(offsets),
        (len(declared), len(declared) + 1) if scratch else None,
    )


def _described(param: PtxParam) -> str:
    return "pointer" if param.pointer else f"{param.type}"


def _check_param(param: Param, given: PtxParam, where: str) -> None:
    what = f"{where}parameter {param.name!r} is declared as {param}, but {given.name} in the PTX"
    if param.kind is not Kind.SCALAR:
        if given.pointer is False:
            raise GraphError(f"{what} is a {given.type} and no pointer; declare it as scalar:{param.name}:dtype")
        return
    if given.pointer:
        raise GraphError(f"{what} is a pointer; declare it as in, out or inout")
    floating = given.type.startswith(("f", "bf"))
    if param.dtype is None:
        if floating:
            raise GraphError(f"{what} is a {given.type}; declare it as scalar:{param.name}:float{8 * given.nbytes}")
        return
    size = DTYPES[param.dtype][0]
    if size != given.nbytes:
        raise GraphError(f"{what} has {given.nbytes} bytes ({given.type}), not {size}")
    if floating and not param.dtype.startswith(("float", "bfloat")):
        raise GraphError(f"{what} is a {given.type}")
