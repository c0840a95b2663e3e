"""Scalars arrive as the type they were declared with, from every kind of number; what does not fit is refused."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from runtime.given import MARK, compiled, kernel, refused

import superkernel as sk
from superkernel import Op
from superkernel.model.params import SCALAR_CODES

# dtype -> its smallest and its largest value
RANGES: dict[str, tuple[float, float]] = {
    "bool": (0, 1),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
    "float32": (-3.4028234663852886e38, 3.4028234663852886e38),
    "float64": (-1.7976931348623157e308, 1.7976931348623157e308),
}
WHOLE = [dtype for dtype in RANGES if "int" in dtype]


def store(dtype: str, value: Any) -> Op:
    return Op(kernel(f"store_{dtype}", f"scalar:value:{dtype}", "out:out:int64[1]"), [value, f"out_{dtype}"])


def stored(made: dict[str, Any], dtype: str) -> Any:
    return struct.unpack_from("<" + SCALAR_CODES[dtype], np.asarray(made[f"out_{dtype}"]).tobytes())[0]


@pytest.fixture(scope="module")
def every() -> Iterator[sk.SuperKernel]:
    """One op per dtype, its scalar by name; `n` is untyped."""
    untyped = kernel("store_int64", "scalar:value", "out:out:int64[1]")
    ops = [Op(MARK, ["ran"]), Op(untyped, ["n", "out_n"]), *(store(dtype, f"v_{dtype}") for dtype in RANGES)]
    with compiled(*ops) as k:
        yield k


def given(**changed: Any) -> dict[str, Any]:
    plain = {f"v_{dtype}": 1 for dtype in RANGES}
    return {"ran": np.zeros(1, np.int64), "n": 1, **plain, **changed}


def test_the_table_knows_every_dtype_of_a_scalar() -> None:
    assert set(RANGES) == set(SCALAR_CODES)


@pytest.mark.parametrize("end", [0, 1])
def test_the_ends_of_every_range_arrive(every: sk.SuperKernel, end: int) -> None:
    made = every(given(**{f"v_{dtype}": ends[end] for dtype, ends in RANGES.items()}))
    assert {dtype: stored(made, dtype) for dtype in RANGES} == {dtype: ends[end] for dtype, ends in RANGES.items()}


@pytest.mark.parametrize("end", [0, 1])
def test_literals_arrive_as_well(end: int) -> None:
    with compiled(*(store(dtype, ends[end]) for dtype, ends in RANGES.items())) as k:
        made = k({})
    assert {dtype: stored(made, dtype) for dtype in RANGES} == {dtype: ends[end] for dtype, ends in RANGES.items()}


@pytest.mark.parametrize("dtype", WHOLE)
def test_a_whole_number_out_of_range(every: sk.SuperKernel, dtype: str) -> None:
    low, high = RANGES[dtype]
    for value in (low - 1, high + 1, 2**100):
        refused(every, given(**{f"v_{dtype}": int(value)}), f"'v_{dtype}'", str(int(value)), f"does not fit {dtype}")


@pytest.mark.parametrize("dtype", [*WHOLE, "bool"])
def test_a_fraction_for_a_whole_number(every: sk.SuperKernel, dtype: str) -> None:
    for value in (1.0, 0.5, math.nan, np.float32(1), np.float64(1)):
        refused(every, given(**{f"v_{dtype}": value}), f"'v_{dtype}'", f"no {dtype}")


def test_an_untyped_scalar_is_an_int64(every: sk.SuperKernel) -> None:
    assert int(every(given(n=-(2**63)))["out_n"][0]) == -(2**63)
    refused(every, given(n=2**63), "'n'", "does not fit int64")
    refused(every, given(n=1.0), "'n'", "no int64", "scalar:name:float32")


def test_a_bool_takes_only_0_and_1(every: sk.SuperKernel) -> None:
    for value in (2, -1):
        refused(every, given(v_bool=value), "'v_bool'", f"{value} is no bool")


def test_a_real_number_that_is_too_large(every: sk.SuperKernel) -> None:
    refused(every, given(v_float32=1e39), "'v_float32'", "1e+39 does not fit float32")
    refused(every, given(v_float64=10**400), "'v_float64'", "does not fit float64")
    refused(every, given(v_float64=10**5000), "'v_float64'", "too long to show does not fit float64")


@pytest.mark.parametrize("value", [math.inf, -math.inf, -0.0, math.nan, 0.1])
def test_special_real_numbers_arrive(every: sk.SuperKernel, value: float) -> None:
    made = every(given(v_float32=value, v_float64=value))
    assert made["out_float64"].tobytes() == struct.pack("<d", value)
    assert made["out_float32"].tobytes() == struct.pack("<f", value) + bytes(4)


@pytest.mark.parametrize(
    "value", [None, "1", b"1", 1j, [1], (1,), Decimal(1), Fraction(1), np.complex64(1), np.str_("1"), object]
)
def test_what_is_no_number(every: sk.SuperKernel, value: Any) -> None:
    refused(every, given(v_float64=value), "'v_float64'", "no number")


@pytest.mark.parametrize("value", [np.ones(2), np.ones(0), np.ones((1, 2))], ids=["two", "none", "row"])
def test_an_array_that_is_not_one_number(every: sk.SuperKernel, value: Any) -> None:
    refused(every, given(v_float64=value), "'v_float64'", "one number")


def test_a_scalar_that_is_not_passed(every: sk.SuperKernel) -> None:
    values = given()
    del values["v_int8"]
    refused(every, values, "scalar 'v_int8'", "not passed")


@pytest.mark.parametrize(
    "value",
    [True, 3, np.int8(3), np.uint64(3), np.bool_(True), np.array(3), np.array([3]), np.array([[3]], np.int16)],
    ids=lambda value: f"{type(value).__name__} {value}",
)
def test_every_kind_of_whole_number_is_taken(every: sk.SuperKernel, value: Any) -> None:
    made = every(given(v_int32=value, v_float32=value))
    assert stored(made, "int32") == stored(made, "float32") == np.asarray(value).item()


@pytest.mark.parametrize(
    "value", [1.5, np.float16(1.5), np.float32(1.5), np.float64(1.5), np.array(1.5), np.array([1.5], np.float32)]
)
def test_every_kind_of_real_number_is_taken(every: sk.SuperKernel, value: Any) -> None:
    made = every(given(v_float32=value, v_float64=value))
    assert stored(made, "float32") == stored(made, "float64") == 1.5


def test_tensors_of_one_number(every: sk.SuperKernel) -> None:
    torch = pytest.importorskip("torch")
    for value in (torch.tensor(3), torch.tensor([3], dtype=torch.int8), torch.tensor(3).reshape(1, 1)):
        assert stored(every(given(v_int16=value)), "int16") == 3
    for value in (torch.tensor(1.5), torch.tensor([1.5], dtype=torch.bfloat16)):
        assert stored(every(given(v_float64=value)), "float64") == 1.5
    assert stored(every(given(v_bool=torch.tensor(True))), "bool") is True
    refused(every, given(v_int16=torch.tensor(1.0)), "'v_int16'", "no int16")
    refused(every, given(v_float64=torch.ones(2)), "'v_float64'", "one number")
    refused(every, given(v_float64=torch.ones(1, device="meta")), "'v_float64'", "no value")
    refused(every, given(v_float64=torch.tensor(1j)), "'v_float64'", "no number")
