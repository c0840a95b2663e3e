"""targets.cuda.emulator.program: a decoded PTX entry as the arrays that the emulator's C++ library takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag
from typing import Any

import numpy as np

NONE = 2**32 - 1  # instead of an operand or a guard
OPERANDS = 18
LANES = 32

ENCODED = np.dtype(
    [
        *((name, np.uint32) for name in ("handler", "line", "flags", "guard")),
        ("immediate", np.uint64),
        *((name, np.uint32) for name in ("detail", "count")),
        ("operands", np.uint32, OPERANDS),
    ]
)  # as Encoded in machine.h
SPECIAL = np.dtype([("what", np.uint32), ("axis", np.uint32), ("offset", np.uint32)])  # as Special in machine.h

Array = np.ndarray[Any, Any]


class InstructionFlag(IntFlag):
    """As Flags in machine.h."""

    LEADER = 1  # lanes that parted may meet here
    GUARD_NEGATED = 2
    MEETS = 4  # lanes that parted wait here for the rest of the warp


@dataclass(frozen=True)
class DeviceVariable:
    """A .global variable of the module: its place in emulated memory, and its initial bytes."""

    name: str
    address: int
    content: bytes


@dataclass(frozen=True, eq=False)
class DecodedProgram:
    """What one entry needs to run: instructions, registers and the layout of its memory."""

    name: str
    encoded: Array  # of ENCODED
    targets: Array  # instructions that brx.idx branches to
    image: Array  # registers of a warp when its block begins
    specials: Array  # of SPECIAL
    registers: Mapping[str, int]  # of the entry itself, not of scopes inside it: name -> place
    params: Mapping[str, tuple[int, int]]  # name -> offset, bytes
    param_bytes: int
    constants: Mapping[str, tuple[int, int]]  # .const variables: offset, bytes
    constant_bank: bytes
    variables: tuple[DeviceVariable, ...]
    static_shared: int
    local_bytes: int
    text_lines: tuple[str, ...]  # of the file, for reports
