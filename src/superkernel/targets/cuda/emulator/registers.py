"""targets.cuda.emulator.registers: register declarations, numbers and special registers -> places in a register file.

A register has 32 lanes of 4 bytes, of 8 bytes if it is 64 bits wide; a predicate is one word with a bit per lane.
Numbers are registers that hold the same value in all lanes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from ....errors import UnsupportedError
from ..ptx import RegisterDeclaration, Scope, Statement
from .program import LANES, SPECIAL, Array

PREDICATE = 0  # bytes per lane, in the place of 4 or 8
_PREDICATE_BYTES = 4
_ALIGNMENT = 64


class SpecialRegister(IntEnum):
    """As Register in scheduler.cpp."""

    TID = 0
    NTID = 1
    CTAID = 2
    NCTAID = 3
    LANEID = 4
    WARPID = 5
    NWARPID = 6
    SMID = 7
    NSMID = 8
    LANEMASK_EQ = 9
    LANEMASK_LT = 10
    LANEMASK_LE = 11
    LANEMASK_GT = 12
    LANEMASK_GE = 13
    DYNAMIC_SMEM_SIZE = 14
    TOTAL_SMEM_SIZE = 15


_AXES = {"x": 0, "y": 1, "z": 2}
_CLOCKS = {"%clock": (4, 0), "%clock_hi": (4, 32), "%clock64": (8, 0), "%globaltimer": (8, 0),
           "%globaltimer_lo": (4, 0), "%globaltimer_hi": (4, 32)}  # fmt: skip


@dataclass(frozen=True)
class Register:
    offset: int
    lane_bytes: int  # 4, 8, or PREDICATE
    bits: int  # as declared


def clock_of(name: str) -> tuple[int, int] | None:
    """Bytes and shift of a register that counts time; None: it is none."""
    return _CLOCKS.get(name)


def number_bits(text: str, nbytes: int, is_float: bool) -> int | None:
    """The bits of a number as PTX writes it, in an operand of so many bytes; None: it is no number."""
    text = text.strip()
    sign, digits = (-1, text[1:].strip()) if text.startswith("-") else (1, text)
    if digits[:2] in ("0f", "0F", "0d", "0D") and len(digits) in (10, 18):
        raw = bytes.fromhex(digits[2:])
        value = struct.unpack(">f" if len(raw) == 4 else ">d", raw)[0]
        if (len(raw) == nbytes or not is_float) and sign > 0:
            return int(digits[2:], 16)
        return _float_bits(sign * value, nbytes)
    if not digits[:1].isdigit():
        return None
    if "." in digits or (is_float and "e" in digits.lower() and not digits.lower().startswith("0x")):
        return _float_bits(sign * float(digits), nbytes)
    whole = digits.rstrip("uU")
    octal = len(whole) > 1 and whole[0] == "0" and whole.isdigit()
    try:
        number = sign * int(whole, 8 if octal else 0)
    except ValueError:
        return None
    return number % (1 << 8 * nbytes)


def _float_bits(value: float, nbytes: int) -> int:
    kind = {2: np.float16, 4: np.float32, 8: np.float64}[nbytes]
    return int.from_bytes(np.array(value, kind).tobytes(), "little")


def declared_bytes(statements: Iterable[Statement]) -> int:
    """The most bytes that the registers of a scope and of those inside it need together."""
    here = inside = 0
    for statement in statements:
        if isinstance(statement, RegisterDeclaration):
            step = _PREDICATE_BYTES if statement.type == "pred" else 8 * LANES
            here += -(-step * len(statement.names) // _ALIGNMENT) * _ALIGNMENT
        elif isinstance(statement, Scope):
            inside = max(inside, declared_bytes(statement.statements))
    return here + inside


@dataclass
class RegisterFile:
    """Places of registers, and what they hold when a block begins.

    Registers of scopes come first, those of scopes side by side in the same places; numbers, special registers and
    temporary values follow.
    """

    scoped_bytes: int  # the most that nested scopes declare together
    scoped: int = 0  # bytes of the scopes that are open
    size: int = 0
    _constants: dict[tuple[int, int], int] = field(default_factory=dict)  # lane bytes, bits -> offset
    _specials: dict[tuple[SpecialRegister, int], int] = field(default_factory=dict)

    def declare(self, declaration: RegisterDeclaration) -> dict[str, Register]:
        kind = declaration.type
        if kind == "pred":
            lane_bytes, bits = PREDICATE, 1
        else:
            digits = kind.lstrip("bfsu")
            bits = 32 if kind in ("f16x2", "bf16x2") else int(digits) if digits.isdigit() else 0
            if bits not in (8, 16, 32, 64):
                raise UnsupportedError(
                    f"line {declaration.line}: the emulator has no registers of type .{kind} ({declaration.name})"
                )
            lane_bytes = 8 if bits == 64 else 4
        names, place = declaration.names, self.scoped
        step = lane_bytes * LANES or _PREDICATE_BYTES
        self.scoped += -(-step * len(names) // _ALIGNMENT) * _ALIGNMENT
        assert self.scoped <= self.scoped_bytes
        return {name: Register(place + step * number, lane_bytes, bits) for number, name in enumerate(names)}

    def allocate(self, lane_bytes: int) -> int:
        nbytes = lane_bytes * LANES or _PREDICATE_BYTES
        self.size = max(self.size, self.scoped_bytes)
        self.size = -(-self.size // min(nbytes, _ALIGNMENT)) * min(nbytes, _ALIGNMENT)
        self.size += nbytes
        return self.size - nbytes

    def constant(self, bits: int, lane_bytes: int) -> int:
        key = lane_bytes, bits
        if key not in self._constants:
            self._constants[key] = self.allocate(lane_bytes)
        return self._constants[key]

    def special(self, name: str) -> int | None:
        """The place of a special register of 32 bits; None: there is none of that name."""
        stem, _, axis = name.removeprefix("%").partition(".")
        found = SpecialRegister.__members__.get(stem.upper())
        if found is None or axis not in ("", *_AXES) or bool(axis) != (found <= SpecialRegister.NCTAID):
            return None
        key = found, _AXES.get(axis, 0)
        if key not in self._specials:
            self._specials[key] = self.allocate(4)
        return self._specials[key]

    def image(self) -> Array:
        """What a warp's registers hold when its block begins."""
        image = np.zeros(-(-max(self.size, self.scoped_bytes) // _ALIGNMENT) * _ALIGNMENT, np.uint8)
        for (lane_bytes, bits), offset in self._constants.items():
            if lane_bytes == PREDICATE:
                image[offset : offset + 4] = 255 if bits else 0
            else:
                kind = np.uint64 if lane_bytes == 8 else np.uint32
                image[offset : offset + lane_bytes * LANES].view(kind)[:] = bits
        return image

    def specials(self) -> Array:
        entries = [(int(what), axis, offset) for (what, axis), offset in self._specials.items()]
        return np.array(entries, SPECIAL)
