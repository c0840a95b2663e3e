"""params: `kind:name:dtype[shape]@block` -> Param; Python numbers -> the bits of a scalar slot."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ..errors import GraphError, nearest, shown

Number = int | float | bool


class Kind(Enum):
    IN = "in"
    OUT = "out"
    INOUT = "inout"
    WORKSPACE = "workspace"
    SCALAR = "scalar"

    @property
    def reads(self) -> bool:
        return self in (Kind.IN, Kind.INOUT)

    @property
    def writes(self) -> bool:
        return self in (Kind.OUT, Kind.INOUT, Kind.WORKSPACE)


# dtype name -> (bytes, C type); the C type matters for scalars only
DTYPES: Mapping[str, tuple[int, str]] = {
    "bool": (1, "bool"), "int8": (1, "int8_t"), "uint8": (1, "uint8_t"), "int16": (2, "int16_t"),
    "uint16": (2, "uint16_t"), "int32": (4, "int32_t"), "uint32": (4, "uint32_t"), "int64": (8, "int64_t"),
    "uint64": (8, "uint64_t"), "float16": (2, "uint16_t"), "bfloat16": (2, "uint16_t"),
    "float8_e4m3fn": (1, "uint8_t"), "float8_e5m2": (1, "uint8_t"), "float32": (4, "float"), "float64": (8, "double"),
    "complex64": (8, "uint64_t"), "complex128": (16, "void"),
}  # fmt: skip
# scalar dtype -> struct code
SCALAR_CODES: Mapping[str, str] = {
    "bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q",
    "uint64": "Q", "float32": "f", "float64": "d",
}  # fmt: skip

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_NO_ARGUMENT = re.compile(r"[\x00\ud800-\udc7f\udd00-\udfff]")
MOST_DIMENSIONS = 32
MOST_BYTES = 2**47  # what an address can reach
_PARAM = re.compile(
    r"(?P<kind>[a-z]+):(?P<name>[^:@\[\]\s]+)(?::(?P<dtype>[A-Za-z0-9_]+)(?P<shape>\[[^\]]*\])?)?(?P<block>@block)?"
)


@dataclass(frozen=True)
class Param:
    """One parameter of a sub-kernel: `kind:name`, `kind:name:dtype[shape]`, either with `@block`."""

    kind: Kind
    name: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    block: bool = False

    @classmethod
    def parse(cls, text: str | Param, where: str = "") -> Param:
        if isinstance(text, Param):
            return text
        where = f"{where}parameter {shown(text)}"
        found = _PARAM.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise GraphError(f"{where} is not kind:name or kind:name:dtype[shape], with an optional @block")
        check_name(found["name"], f"{where}: its name")
        kinds = [k.value for k in Kind]
        if found["kind"] not in kinds:
            hint = nearest(found["kind"], kinds)
            raise GraphError(f"{where}: unknown kind {shown(found['kind'])}{hint}; kinds are {', '.join(kinds)}")
        kind, dtype = Kind(found["kind"]), found["dtype"]
        if dtype is not None and dtype not in DTYPES:
            raise GraphError(f"{where}: unknown dtype {shown(dtype)}{nearest(dtype, DTYPES)}")
        shape = None if found["shape"] is None else _parse_shape(found["shape"], where)
        if shape is not None and math.prod(shape) * DTYPES[dtype][0] > MOST_BYTES:
            raise GraphError(f"{where}: larger than any memory ({MOST_BYTES} bytes)")
        if kind is Kind.SCALAR:
            if shape is not None or found["block"]:
                raise GraphError(f"{where}: a scalar has no shape and no @block")
            if dtype is not None and dtype not in SCALAR_CODES:
                raise GraphError(f"{where}: a scalar cannot be {dtype}; use {', '.join(SCALAR_CODES)}")
        return cls(kind, found["name"], dtype, shape, bool(found["block"]))

    @property
    def elements(self) -> int | None:
        return None if self.shape is None else math.prod(self.shape)

    @property
    def nbytes(self) -> int | None:
        if self.shape is None or self.dtype is None:
            return None
        return math.prod(self.shape) * DTYPES[self.dtype][0]

    @property
    def alignment(self) -> int:
        """Bytes of which its address is a multiple; 1 where it says nothing."""
        if self.dtype is None:
            return 1
        size = DTYPES[self.dtype][0]
        return size // 2 if self.dtype.startswith("complex") else size

    def __str__(self) -> str:
        typed = "" if self.dtype is None else f":{self.dtype}"
        shaped = "" if self.shape is None else "[" + ",".join(map(str, self.shape)) + "]"
        return f"{self.kind.value}:{self.name}{typed}{shaped}{'@block' if self.block else ''}"


def _parse_shape(text: str, where: str) -> tuple[int, ...]:
    inner = text[1:-1].strip()
    if not inner:
        return ()
    sizes = [piece.strip() for piece in inner.split(",")]
    if len(sizes) > MOST_DIMENSIONS:
        raise GraphError(f"{where}: more than {MOST_DIMENSIONS} dimensions")
    if not all(re.fullmatch(r"[0-9]{1,18}", size) for size in sizes):
        raise GraphError(f"{where}: shape {text} is not a list of whole numbers")
    return tuple(int(size) for size in sizes)


def check_name(name: object, what: str) -> None:
    """A name ends up in reports, in C and in files: it must be a line of text."""
    if not isinstance(name, str) or not name.strip():
        raise GraphError(f"{what} is {shown(name)}; a name is needed")
    if bad := _UNPRINTABLE.search(name):
        raise GraphError(f"{what} is {shown(name)}; a name cannot contain the character {shown(bad[0])}")


def check_text(text: str, what: str) -> None:
    """A text that is given to programs: neither NUL nor what no encoding has can be in it."""
    if bad := _NO_ARGUMENT.search(text):
        raise GraphError(f"{what} is {shown(text)}; it cannot contain the character {shown(bad[0])}")


def scalar_bits(value: Number, dtype: str | None, where: str, error: type[Exception]) -> int:
    """The 64-bit slot that carries `value` as `dtype` (an untyped scalar is an int64)."""
    dtype = dtype or "int64"
    if isinstance(value, float) and dtype not in ("float32", "float64"):
        raise error(f"{where}: {shown(value)} is no {dtype}; declare the parameter as scalar:name:float32 or float64")
    if dtype == "bool" and value not in (0, 1):
        raise error(f"{where}: {shown(value)} is no bool")
    try:
        packed = struct.pack("<" + SCALAR_CODES[dtype], float(value) if dtype.startswith("float") else value)
    except (struct.error, OverflowError):
        raise error(f"{where}: {shown(value)} does not fit {dtype}") from None
    return int.from_bytes(packed.ljust(8, b"\0"), "little")
