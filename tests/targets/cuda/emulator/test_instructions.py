"""What instructions compute, against numpy: one kernel holds all forms, each on 256 values with the special ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from targets.cuda.emulator.instruction_cases import (
    COUNT,
    TYPES,
    Array,
    InstructionCase,
    bits_of,
    from_bf16,
    inputs,
    kernel_text,
    to_bf16,
)

from superkernel.targets.cuda.emulator.alone import launch_entry
from superkernel.targets.cuda.reader import read_ptx

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
WIDE = {"u16": np.uint32, "s16": np.int32, "u32": np.uint64, "s32": np.int64}


def case(opcode: str, result: str, operands: str, compute: Any, tolerance: float = 0.0) -> InstructionCase:
    return InstructionCase(opcode, result, tuple(operands.split()), compute, tolerance)


def exact(a: Array) -> Array:
    return a.astype(object)


def wrapped(kind: str, numbers: Array) -> Array:
    """Python integers -> the low bits of a type."""
    bits = bits_of(kind)
    unsigned = np.array([int(n) & ((1 << bits) - 1) for n in numbers], np.uint64)
    return unsigned.astype(np.dtype(f"u{bits // 8}")).view(TYPES[kind])


def python_divide(a: int, b: int) -> int:
    """Towards zero."""
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def integer_cases() -> list[InstructionCase]:
    cases = []
    for kind in INTEGERS:
        two, bits = f"{kind} {kind}", bits_of(kind)
        both = lambda f, kind=kind: lambda a, b: wrapped(kind, [f(int(x), int(y)) for x, y in zip(a, b, strict=True)])  # noqa: E731
        cases += [
            case(f"add.{kind}", kind, two, both(lambda x, y: x + y)),
            case(f"sub.{kind}", kind, two, both(lambda x, y: x - y)),
            case(f"mul.lo.{kind}", kind, two, both(lambda x, y: x * y)),
            case(f"mul.hi.{kind}", kind, two, both(lambda x, y, bits=bits: (x * y) >> bits)),
            case(f"min.{kind}", kind, two, both(min)),
            case(f"max.{kind}", kind, two, both(max)),
            case(f"div.{kind}", kind, two, both(lambda x, y: python_divide(x, y) if y else -1)),
            case(f"rem.{kind}", kind, two, both(lambda x, y: x - y * python_divide(x, y) if y else x)),
            case(
                f"mad.lo.{kind}",
                kind,
                f"{two} {kind}",
                lambda a, b, c, kind=kind: wrapped(kind, exact(a) * exact(b) + exact(c)),
            ),
            case(
                f"shr.{kind}",
                kind,
                f"{kind} u32",
                lambda a, n, kind=kind, bits=bits: wrapped(
                    kind, [int(x) >> min(int(m), bits) for x, m in zip(a, n, strict=True)]
                ),
            ),
        ]
        for name, compare in (
            ("eq", np.equal),
            ("ne", np.not_equal),
            ("lt", np.less),
            ("le", np.less_equal),
            ("gt", np.greater),
            ("ge", np.greater_equal),
        ):
            cases.append(case(f"setp.{name}.{kind}", "pred", two, compare))
        if kind.startswith("s"):
            cases.append(case(f"abs.{kind}", kind, kind, lambda a, kind=kind: wrapped(kind, abs(exact(a)))))
            cases.append(case(f"neg.{kind}", kind, kind, lambda a, kind=kind: wrapped(kind, -exact(a))))
        if kind in WIDE:
            wide = f"{kind[0]}{2 * bits}"
            cases.append(
                case(f"mul.wide.{kind}", wide, two, lambda a, b, wide=wide: wrapped(wide, exact(a) * exact(b)))
            )
            cases.append(
                case(
                    f"mad.wide.{kind}",
                    wide,
                    f"{two} {wide}",
                    lambda a, b, c, wide=wide: wrapped(wide, exact(a) * exact(b) + exact(c)),
                )
            )
    for kind in ("b16", "b32", "b64"):
        bits = bits_of(kind)
        cases += [
            case(f"and.{kind}", kind, f"{kind} {kind}", np.bitwise_and),
            case(f"or.{kind}", kind, f"{kind} {kind}", np.bitwise_or),
            case(f"xor.{kind}", kind, f"{kind} {kind}", np.bitwise_xor),
            case(f"not.{kind}", kind, kind, np.bitwise_not),
            case(
                f"shl.{kind}",
                kind,
                f"{kind} u32",
                lambda a, n, kind=kind, bits=bits: wrapped(
                    kind, [int(x) << min(int(m), bits) for x, m in zip(a, n, strict=True)]
                ),
            ),
            case(f"selp.{kind}", kind, f"{kind} {kind} pred", lambda a, b: np.where(np.arange(COUNT) < 100, a, b)),
        ]
    return cases + bit_cases()


def bit_cases() -> list[InstructionCase]:
    def each(f: Any, kind: str = "u32") -> Any:
        return lambda *arrays: wrapped(kind, [f(*map(int, row)) for row in zip(*arrays, strict=True)])

    def permute(a: int, b: int, c: int) -> int:
        source, result = (b << 32 | a).to_bytes(8, "little"), 0
        for place in range(4):
            choice = c >> 4 * place & 15
            byte = source[choice & 7]
            result |= ((255 if byte & 128 else 0) if choice & 8 else byte) << 8 * place
        return result

    def funnel(left: bool, wrap: bool) -> Any:
        def shift(a: int, b: int, c: int) -> int:
            n = c & 31 if wrap else min(c, 32)
            return ((b << 32 | a) << n) >> 32 if left else (b << 32 | a) >> n

        return each(shift)

    def extract(bits: int, signed: bool) -> Any:
        def field(a: int, position: int, length: int) -> int:
            position, length = position & 255, length & 255
            a &= (1 << bits) - 1
            sign = a >> min(position + length - 1, bits - 1) & 1 if signed and length else 0
            return sum(
                ((a >> (position + k) & 1) if k < length and position + k < bits else sign) << k for k in range(bits)
            )

        return field

    def insert(a: int, b: int, position: int, length: int) -> int:
        position, length = position & 255, length & 255
        for k in range(length):
            if position + k < 32:
                b = (b & ~(1 << position + k)) | (a >> k & 1) << position + k
        return b

    def logic(a: int, b: int, c: int) -> int:
        return sum((0xE8 >> ((a >> k & 1) << 2 | (b >> k & 1) << 1 | (c >> k & 1)) & 1) << k for k in range(32))

    def dot(a: int, b: int, c: int) -> int:
        signed = [int.from_bytes(bytes([x]), "little", signed=True) for x in a.to_bytes(4, "little")]
        return c + sum(x * y for x, y in zip(signed, b.to_bytes(4, "little"), strict=True))

    three = "u32 u32 u32"
    return [
        case("popc.b32", "u32", "b32", each(lambda a: a.bit_count())),
        case("popc.b64", "u32", "b64", each(lambda a: a.bit_count())),
        case("clz.b32", "u32", "b32", each(lambda a: 32 - a.bit_length())),
        case("clz.b64", "u32", "b64", each(lambda a: 64 - a.bit_length())),
        case("brev.b32", "u32", "b32", each(lambda a: int(f"{a:032b}"[::-1], 2))),
        case("brev.b64", "u64", "b64", each(lambda a: int(f"{a:064b}"[::-1], 2), "u64")),
        case("bfind.u32", "u32", "u32", each(lambda a: a.bit_length() - 1)),
        case("bfind.s32", "u32", "s32", each(lambda a: (a if a >= 0 else ~a).bit_length() - 1)),
        case("bfe.u32", "u32", three, each(extract(32, False))),
        case("bfe.s32", "s32", "s32 u32 u32", each(extract(32, True))),
        case("bfe.u64", "u64", "u64 u32 u32", each(extract(64, False), "u64")),
        case("bfi.b32", "u32", "u32 u32 u32 u32", each(insert)),
        case("prmt.b32", "u32", three, each(permute)),
        case("shf.l.clamp.b32", "u32", three, funnel(True, False)),
        case("shf.l.wrap.b32", "u32", three, funnel(True, True)),
        case("shf.r.clamp.b32", "u32", three, funnel(False, False)),
        case("shf.r.wrap.b32", "u32", three, funnel(False, True)),
        case("lop3.b32", "u32", three, each(logic)),
        case("dp4a.s32.u32", "u32", three, each(dot)),
        case("sad.s32", "u32", "s32 s32 u32", each(lambda a, b, c: abs(a - b) + c)),
        case("add.sat.s32", "s32", "s32 s32", lambda a, b: saturated("s32")(exact(a) + exact(b))),
    ]  # fmt: skip


def flush(a: Array) -> Array:
    return np.where(np.abs(a) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), a), a).astype(np.float32)


def float_cases() -> list[InstructionCase]:
    cases = []
    for kind in ("f32", "f64"):
        two, t = f"{kind} {kind}", TYPES[kind]
        cases += [
            case(f"add.rn.{kind}", kind, two, np.add),
            case(f"sub.{kind}", kind, two, np.subtract),
            case(f"mul.{kind}", kind, two, np.multiply),
            case(f"div.rn.{kind}", kind, two, np.divide),
            case(f"min.{kind}", kind, two, np.fmin),
            case(f"max.{kind}", kind, two, np.fmax),
            case(f"neg.{kind}", kind, kind, np.negative),
            case(f"abs.{kind}", kind, kind, np.abs),
            case(f"sqrt.rn.{kind}", kind, kind, np.sqrt),
            case(f"rcp.rn.{kind}", kind, kind, lambda a, t=t: t(1) / a),
            case(f"copysign.{kind}", kind, two, lambda a, b: np.copysign(b, a)),
        ]
        for name, compare in (
            ("eq", np.equal),
            ("lt", np.less),
            ("le", np.less_equal),
            ("gt", np.greater),
            ("ge", np.greater_equal),
        ):
            cases.append(case(f"setp.{name}.{kind}", "pred", two, compare))
            cases.append(
                case(
                    f"setp.{name}u.{kind}",
                    "pred",
                    two,
                    lambda a, b, compare=compare: compare(a, b) | np.isnan(a) | np.isnan(b),
                )
            )
        cases += [
            case(f"setp.ne.{kind}", "pred", two, lambda a, b: (a != b) & ~np.isnan(a) & ~np.isnan(b)),
            case(f"setp.neu.{kind}", "pred", two, lambda a, b: (a != b) | np.isnan(a) | np.isnan(b)),
            case(f"setp.num.{kind}", "pred", two, lambda a, b: ~np.isnan(a) & ~np.isnan(b)),
            case(f"setp.nan.{kind}", "pred", two, lambda a, b: np.isnan(a) | np.isnan(b)),
            case(f"testp.finite.{kind}", "pred", kind, np.isfinite),
            case(f"setp.lt.and.{kind}", "pred", f"{two} pred", lambda a, b: (a < b) & (np.arange(COUNT) < 100)),
            case(f"setp.ge.or.{kind}", "pred", f"{two} pred", lambda a, b: (a >= b) | (np.arange(COUNT) < 100)),
            case(f"setp.ge.xor.{kind}", "pred", f"{two} pred", lambda a, b: (a >= b) ^ (np.arange(COUNT) < 100)),
        ]
    double = lambda f: lambda *a: f(*(x.astype(np.float64) for x in a)).astype(np.float32)  # noqa: E731
    towards = lambda exact, up: lambda a, b: _rounded(exact(a.astype(np.float64), b.astype(np.float64)), up)  # noqa: E731
    return [
        *cases,
        case("add.rz.f32", "f32", "f32 f32", towards(np.add, 0)),
        case("add.rm.f32", "f32", "f32 f32", towards(np.add, -1)),
        case("mul.rp.f32", "f32", "f32 f32", towards(np.multiply, 1)),
        case("fma.rn.f64", "f64", "f64 f64 f64", lambda a, b, c: a * b + c, 1e-12),
        case("fma.rn.f32", "f32", "f32 f32 f32", double(lambda a, b, c: a * b + c), 1e-7),
        case("mul.ftz.f32", "f32", "f32 f32", lambda a, b: flush(flush(a) * flush(b))),
        case("add.sat.f32", "f32", "f32 f32", lambda a, b: unit(a + b)),
        case("min.NaN.f32", "f32", "f32 f32", np.minimum),
        case("ex2.approx.ftz.f32", "f32", "f32", np.exp2, 1e-6),
        case("lg2.approx.f32", "f32", "f32", np.log2, 1e-6),
        case("sin.approx.f32", "f32", "f32", np.sin, 1e-6),
        case("cos.approx.f32", "f32", "f32", np.cos, 1e-6),
        case("tanh.approx.f32", "f32", "f32", np.tanh, 1e-6),
        case("rsqrt.approx.f32", "f32", "f32", lambda a: 1 / np.sqrt(a), 1e-6),
        case("rcp.approx.ftz.f32", "f32", "f32", lambda a: np.float32(1) / a, 1e-6),
        case("div.full.f32", "f32", "f32 f32", np.divide, 1e-6),
        case("set.gt.u32.f32", "u32", "f32 f32", lambda a, b: np.where(a > b, np.uint32(2**32 - 1), np.uint32(0))),
        case("slct.f32.s32", "f32", "f32 f32 s32", lambda a, b, c: np.where(c >= 0, a, b)),
    ]  # fmt: skip


def _rounded(exact: Array, up: int) -> Array:
    """float64 results, exact enough here, rounded to float32 downwards, towards zero or upwards."""
    near = exact.astype(np.float32)
    over = near.astype(np.float64) > exact
    under = near.astype(np.float64) < exact
    lower, higher = np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))
    down = np.where(over, lower, near)
    above = np.where(under, higher, near)
    towards_zero = np.where(exact > 0, down, above)
    return np.where(np.isnan(exact), near, down if up < 0 else above if up > 0 else towards_zero)


def pairs(f: Any, bfloat: bool) -> Any:
    """A function of numbers on both halves of packed registers."""

    def compute(*arrays: Array) -> Array:
        halves = [a.view(np.uint16) for a in arrays]
        numbers = [from_bf16(h) if bfloat else h.view(np.float16).astype(np.float32) for h in halves]
        result = f(*(n.astype(np.float64) for n in numbers)).astype(np.float32)
        raw = to_bf16(result) if bfloat else result.astype(np.float16).view(np.uint16)
        return raw.view(np.uint32) if arrays[0].dtype == np.uint32 else raw

    return compute


def half_cases() -> list[InstructionCase]:
    cases = []
    for kind in ("f16x2", "bf16x2", "bf16"):
        b = kind.startswith("b")
        two = f"{kind} {kind}"
        cases += [
            case(f"add.{kind}", kind, two, pairs(np.add, b)),
            case(f"sub.{kind}", kind, two, pairs(np.subtract, b)),
            case(f"mul.{kind}", kind, two, pairs(np.multiply, b)),
            case(f"fma.rn.{kind}", kind, f"{two} {kind}", pairs(lambda x, y, z: x * y + z, b)),
            case(f"min.{kind}", kind, two, pairs(np.minimum, b)),
            case(f"max.NaN.{kind}", kind, two, pairs(np.maximum, b)),
            case(f"neg.{kind}", kind, kind, pairs(np.negative, b)),
            case(f"abs.{kind}", kind, kind, pairs(np.abs, b)),
            case(f"fma.rn.relu.{kind}", kind, f"{two} {kind}", pairs(lambda x, y, z: np.maximum(x * y + z, 0), b)),
        ]
    return [
        *cases,
        case("add.f16", "f16", "f16 f16", np.add),
        case("setp.lt.f16", "pred", "f16 f16", np.less),
        case("tanh.approx.bf16", "bf16", "bf16", pairs(np.tanh, True)),
        case("ex2.approx.ftz.bf16x2", "bf16x2", "bf16x2", pairs(np.exp2, True)),
        case("ex2.approx.f16", "f16", "f16", lambda a: np.exp2(a.astype(np.float64)).astype(np.float16)),
    ]


def conversion_cases() -> list[InstructionCase]:
    cases = []
    for source in ("u8", "s8", *INTEGERS):
        for result in INTEGERS:
            cases.append(
                case(f"cvt.{result}.{source}", result, source, lambda a, result=result: wrapped(result, exact(a)))
            )
    for source in ("u32", "s32", "u64", "s64", "s8", "u16"):
        cases += [
            case(f"cvt.rn.{kind}.{source}", kind, source, lambda a, kind=kind: a.astype(TYPES[kind]))
            for kind in ("f32", "f64")
        ]
    for mode, function in (("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)):
        for source in ("f32", "f64", "f16"):
            for result in ("s32", "u32", "s16"):
                cases.append(
                    case(
                        f"cvt.{mode}.{result}.{source}",
                        result,
                        source,
                        lambda a, result=result, function=function: clamped(function(a), result),
                    )
                )
        cases.append(case(f"cvt.{mode}.f32.f32", "f32", "f32", function))
    return [
        *cases,
        *(
            case(f"cvt.sat.{result}.{source}", result, source, saturated(result))
            for result in ("s16", "u16", "s32", "u64")
            for source in ("s32", "u32", "s64")
        ),
        case("cvt.rn.f16.f32", "f16", "f32", lambda a: a.astype(np.float16)),
        case("cvt.rn.bf16.f32", "bf16", "f32", to_bf16),
        case("cvt.f32.f16", "f32", "f16", lambda a: a.astype(np.float32)),
        case("cvt.f32.bf16", "f32", "bf16", from_bf16),
        case("cvt.f64.f32", "f64", "f32", lambda a: a.astype(np.float64)),
        case("cvt.rn.f32.f64", "f32", "f64", lambda a: a.astype(np.float32)),
        case("cvt.rn.f16x2.f32", "b32", "f32 f32", lambda a, b: to_half(a).astype(np.uint32) << 16 | to_half(b)),
        case("cvt.rn.bf16x2.f32", "b32", "f32 f32", lambda a, b: to_bf16(a).astype(np.uint32) << 16 | to_bf16(b)),
        case("cvt.rna.tf32.f32", "b32", "f32", lambda a: np.where(np.isfinite(a), to_tf32(a), a.view(np.uint32))),
        case("cvt.sat.f32.f32", "f32", "f32", unit),
    ]  # fmt: skip


def unit(a: Array) -> Array:
    """Clamped to the range from 0 to 1; NaN becomes 0."""
    return np.where(np.isnan(a), 0, np.clip(a, 0, 1)).astype(np.float32)


def saturated(kind: str) -> Any:
    limits = np.iinfo(TYPES[kind])
    return lambda a: np.clip(exact(a), limits.min, limits.max).astype(TYPES[kind])


def to_tf32(a: Array) -> Array:
    return (a.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)


def to_half(numbers: Array) -> Array:
    """The GPU has one NaN."""
    return np.where(np.isnan(numbers), np.uint16(0x7FFF), numbers.astype(np.float16).view(np.uint16))


def clamped(numbers: Array, kind: str) -> Array:
    limits = np.iinfo(TYPES[kind])
    whole = [
        0 if np.isnan(n) else limits.max if n == np.inf else limits.min if n == -np.inf else int(n) for n in numbers
    ]
    return np.array([min(max(n, limits.min), limits.max) for n in whole], TYPES[kind])


@pytest.fixture(scope="module")
def computed() -> tuple[list[InstructionCase], Array, dict[tuple[str, int], Array]]:
    cases = [*integer_cases(), *float_cases(), *half_cases(), *conversion_cases()]
    buffer, columns = inputs(cases)
    results = np.zeros((len(cases), COUNT), np.uint64)
    launch_entry(
        read_ptx(kernel_text(cases), "forms.ptx"), "forms", [buffer, results], grid=(1, 1, 1), threads=(COUNT, 1, 1)
    )
    return cases, results, columns


def differs(case: InstructionCase, found: Array, columns: dict[tuple[str, int], Array]) -> str | None:
    operands = [columns[kind, place] for place, kind in enumerate(case.operands) if kind != "pred"]
    with np.errstate(all="ignore"):
        expected = np.asarray(case.compute(*operands))
    if case.result == "pred":
        return (
            None
            if np.array_equal(found.astype(bool), expected)
            else f"{case.opcode}: {np.flatnonzero(found.astype(bool) != expected)[:3]}"
        )
    kind = np.dtype(TYPES[case.result])
    raw = found.view(np.uint8).reshape(COUNT, 8)[:, : kind.itemsize].copy().view(kind).reshape(-1)
    expected = expected.astype(kind)
    same = raw == expected
    if kind.kind == "f":
        both_nan = np.isnan(raw) & np.isnan(expected)
        with np.errstate(all="ignore"):
            close = (
                np.abs(raw - expected) <= case.tolerance * np.maximum(np.abs(expected), 1e-3)
                if case.tolerance
                else same
            )
        same = both_nan | same | close
    if same.all():
        return None
    place = int(np.flatnonzero(~same)[0])
    return f"{case.opcode}({', '.join(str(o[place]) for o in operands)}) = {raw[place]}, not {expected[place]}"


def test_every_form_gives_what_numpy_gives(computed: Any) -> None:
    cases, results, columns = computed
    wrong = [text for case, found in zip(cases, results, strict=True) if (text := differs(case, found, columns))]
    assert not wrong, "\n".join(wrong)
    assert len(cases) > 250
