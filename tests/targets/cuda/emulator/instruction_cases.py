"""Instruction forms with what numpy says they compute, and the PTX text of one kernel that runs all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
COUNT = 256  # values of each operand
TYPES = {
    "u8": np.uint8, "s8": np.int8, "u16": np.uint16, "s16": np.int16, "u32": np.uint32, "s32": np.int32,
    "u64": np.uint64, "s64": np.int64, "f16": np.float16, "f32": np.float32, "f64": np.float64, "b16": np.uint16,
    "b32": np.uint32, "b64": np.uint64, "f16x2": np.uint32, "bf16x2": np.uint32, "bf16": np.uint16,
}  # fmt: skip
REGISTERS = {1: "%h", 2: "%h", 4: "%w", 8: "%q"}


@dataclass(frozen=True)
class InstructionCase:
    opcode: str
    result: str
    operands: tuple[str, ...]  # types of registers; "pred" is a comparison of the first operand
    compute: Callable[..., Any]
    tolerance: float = 0.0


def bits_of(kind: str) -> int:
    return 8 * np.dtype(TYPES[kind]).itemsize


def values(kind: str, place: int) -> Array:
    """Random values of a type, with the special ones among them."""
    random = np.random.default_rng([place, len(kind), ord(kind[0]), bits_of(kind)])
    if kind in ("f32", "f64", "f16"):
        chosen = (random.standard_normal(COUNT) * 10.0 ** random.integers(-3, 4, COUNT)).astype(TYPES[kind])
        special = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.5, np.inf, -np.inf, np.nan, 1e-5, 65504.0, -3.5], TYPES[kind])
        chosen[random.permutation(COUNT)[: special.size]] = special
        return chosen
    if kind in ("bf16", "f16x2", "bf16x2"):
        return _packed(kind, random)
    nbytes = bits_of(kind) // 8
    chosen = np.frombuffer(random.bytes(COUNT * nbytes), TYPES[kind]).copy()
    chosen[: COUNT // 4] = random.integers(0, 9, COUNT // 4).astype(TYPES[kind])
    chosen[-4:] = (
        np.array([0, 1, -1, 1 << (bits_of(kind) - 1)], object).astype(np.int64, casting="unsafe").astype(TYPES[kind])
        if nbytes < 8
        else np.array([0, 1, 2**64 - 1, 1 << 63], np.uint64).view(TYPES[kind])
    )
    return chosen


def _packed(kind: str, random: np.random.Generator) -> Array:
    count = COUNT * (2 if kind.endswith("x2") else 1)
    numbers = (random.standard_normal(count) * 4).astype(np.float32)
    halves = numbers.astype(np.float16).view(np.uint16) if kind.startswith("f16") else to_bf16(numbers)
    return halves.view(np.uint32) if kind.endswith("x2") else halves


def to_bf16(numbers: Array) -> Array:
    """The nearest bfloat16, ties to even."""
    raw = numbers.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(numbers), np.uint16(0x7FFF), rounded)


def from_bf16(raw: Array) -> Array:
    return (raw.astype(np.uint32) << 16).view(np.float32)


def kernel_text(cases: list[InstructionCase]) -> str:
    """One thread per value: it loads the operands of each case, computes, and stores the result in 8 bytes."""
    body: list[str] = []
    kinds = sorted({(kind, place) for case in cases for place, kind in enumerate(case.operands)})
    for number, case in enumerate(cases):
        names = []
        for place, kind in enumerate(case.operands):
            if kind == "pred":
                body.append(f"setp.lt.u32 %p{place}, %tid.x, 100;")
                names.append(f"%p{place}")
                continue
            nbytes = bits_of(kind) // 8
            register = f"{REGISTERS[nbytes]}{place}"
            column = kinds.index((kind, place))
            sort = "u8" if kind == "u8" else "s8" if kind == "s8" else f"b{8 * nbytes}"
            body.append(f"ld.global.{sort} {register}, [%in{nbytes}+{column * COUNT * 8}];")
            names.append(register)
        if case.result == "pred":
            body += [f"{case.opcode} %p7, {', '.join(names)};", "selp.b64 %q7, 1, 0, %p7;"]
        else:
            nbytes = bits_of(case.result) // 8
            target = f"{REGISTERS[nbytes]}7"
            table = ", 0xE8" if case.opcode.startswith("lop3") else ""
            body.append(f"{case.opcode} {target}, {', '.join(names)}{table};")
            if nbytes < 8:
                body.append(f"cvt.u64.u{8 * nbytes} %q7, {target};")
        body.append(f"st.global.b64 [%out+{number * COUNT * 8}], %q7;")
    head = f"""
.version 8.0
.target sm_90a
.address_size 64
.visible .entry forms(.param .u64 inputs, .param .u64 outputs)
.reqntid {COUNT}, 1, 1
{{
.reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %w<9>; .reg .b64 %q<8>; .reg .b64 %in<9>; .reg .b64 %out;
.reg .b64 %base;
ld.param.u64 %base, [inputs]; ld.param.u64 %out, [outputs];
mov.u32 %w8, %tid.x;
mad.wide.u32 %in1, %w8, 1, %base; mad.wide.u32 %in2, %w8, 2, %base; mad.wide.u32 %in4, %w8, 4, %base;
mad.wide.u32 %in8, %w8, 8, %base; mad.wide.u32 %out, %w8, 8, %out;
"""
    return head + "\n".join(body) + "\nret;\n}\n"


def inputs(cases: list[InstructionCase]) -> tuple[Array, dict[tuple[str, int], Array]]:
    """The buffer that the kernel reads, and its columns by type and place."""
    kinds = sorted({(kind, place) for case in cases for place, kind in enumerate(case.operands)})
    columns = {(kind, place): values(kind, place) for kind, place in kinds if kind != "pred"}
    buffer = np.zeros(len(kinds) * COUNT * 8, np.uint8)
    for number, key in enumerate(kinds):
        if key in columns:
            raw = columns[key].view(np.uint8)
            buffer[number * COUNT * 8 : number * COUNT * 8 + raw.size] = raw
    return buffer, columns
