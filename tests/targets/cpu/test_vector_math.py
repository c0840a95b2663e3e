"""The functions of vectors that generated kernels call: every name is there, results are within 1 ulp, no torch."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import superkernel as sk
from superkernel.targets.cpu.build import build_context
from superkernel.targets.cpu.vector_functions import compile_vector_functions, sources_of, vector_functions
from superkernel.targets.native.architectures import this_architecture
from superkernel.targets.native.elf import read_object
from superkernel.targets.native.toolchain import cpu_features, find_toolchain, run

X86 = platform.machine() == "x86_64"
V4 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"} <= {*cpu_features().split()}
BYTES = (64 if V4 else 32) if X86 else 16  # the widest vectors of this machine
MARCH = [f"-march=x86-64-v{4 if V4 else 3}"] if X86 else []
pytestmark = pytest.mark.skipif(
    not vector_functions() or (X86 and not {"avx2", "fma"} <= {*cpu_features().split()}),
    reason="no vectors of this width here",
)
PAIRS = ("atan2", "copysign", "fmod", "hypot", "nextafter", "pow")
HARNESS = """
#include <cstdint>
typedef {ctype} Vector __attribute__((vector_size({nbytes})));
typedef {ctype} Unaligned __attribute__((vector_size({nbytes}), aligned({itemsize})));
struct Both {{ Vector first, second; }};
"""
UNARY = """
extern "C" Vector {symbol}(Vector);
extern "C" void apply_{symbol}(const {ctype}* x, const {ctype}*, {ctype}* y, int64_t count) {{
  for (int64_t i = 0; i < count; i += {lanes}) *(Unaligned*)(y + i) = {symbol}(*(const Unaligned*)(x + i));
}}
"""
BINARY = """
extern "C" Vector {symbol}(Vector, Vector);
extern "C" void apply_{symbol}(const {ctype}* x, const {ctype}* z, {ctype}* y, int64_t count) {{
  for (int64_t i = 0; i < count; i += {lanes})
    *(Unaligned*)(y + i) = {symbol}(*(const Unaligned*)(x + i), *(const Unaligned*)(z + i));
}}
"""


def symbol_of(function: str, dtype: str = "f") -> str:
    name, _, accuracy = function.partition("_")
    return f"Sleef_{name}{dtype}{BYTES // (4 if dtype == 'f' else 8)}{'_' if accuracy else ''}{accuracy}"


def text_of(symbols: list[str], dtype: str) -> str:
    ctype, itemsize = ("float", 4) if dtype == "f" else ("double", 8)
    facts = {"ctype": ctype, "itemsize": itemsize, "nbytes": BYTES, "lanes": BYTES // itemsize}
    calls = [
        (BINARY if symbol.removeprefix("Sleef_").startswith(PAIRS) else UNARY).format(symbol=symbol, **facts)
        for symbol in symbols
    ]
    return HARNESS.format(**facts) + "".join(calls)


class Functions:
    """All functions of one width, on numpy arrays."""

    def __init__(self, folder: Path) -> None:
        known = [s for s, source in vector_functions().items() if source.vector_bytes == BYTES and "sincos" not in s]
        context, tools = build_context(), find_toolchain()
        parts = compile_vector_functions(sources_of(known, this_architecture()), context, [])
        for dtype in "fd":
            mine = [s for s in known if re.search(rf"{dtype}\d+(_u\d+)?$", s)]
            text = text_of(mine, dtype)
            source, shared = folder / f"{dtype}.cpp", folder / f"{dtype}.so"
            source.write_text(text)
            files = [str(source), *map(str, parts), "-o", str(shared)]
            run([*tools.cxx, "-O2", "-shared", "-fPIC", *MARCH, *files, "-lm"], what="a harness")
        self.libraries = {dtype: ctypes.CDLL(str(folder / f"{dtype}.so")) for dtype in "fd"}
        self.known = known

    def __call__(self, function: str, x: np.ndarray, z: np.ndarray | None = None) -> np.ndarray:
        dtype = "f" if x.dtype == np.float32 else "d"
        apply = getattr(self.libraries[dtype], f"apply_{symbol_of(function, dtype)}")
        count = -len(x) % 16
        x = np.pad(x, (0, count))
        z = x if z is None else np.pad(z, (0, count))
        y = np.empty_like(x)
        apply(*(ctypes.c_void_p(array.ctypes.data) for array in (x, z, y)), ctypes.c_int64(len(x)))
        return y[: len(y) - count]


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Functions:
    return Functions(tmp_path_factory.mktemp("vector_math"))


def elementwise(function: Callable[..., float]) -> Callable[..., np.ndarray]:
    def safe(*values: float) -> float:
        try:
            return function(*values)
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    return np.vectorize(safe, otypes=[np.float64])


def log_gamma(x: float) -> float:
    return math.inf if x <= 0 and x == math.floor(x) else math.lgamma(x)


REFERENCES: dict[str, Callable[..., np.ndarray]] = {
    "exp_u10": np.exp, "exp2_u10": np.exp2, "expm1_u10": np.expm1, "cosh_u10": np.cosh, "sinh_u10": np.sinh,
    "log_u10": np.log, "log2_u10": np.log2, "log10_u10": np.log10, "log1p_u10": np.log1p, "tanh_u10": np.tanh,
    "erf_u10": elementwise(math.erf), "erfc_u15": elementwise(math.erfc), "sin_u10": np.sin, "sin_u35": np.sin,
    "cos_u10": np.cos, "cos_u35": np.cos, "tan_u10": np.tan, "asin_u10": np.arcsin, "acos_u10": np.arccos,
    "atan_u10": np.arctan, "asinh_u10": np.arcsinh, "acosh_u10": np.arccosh, "atanh_u10": np.arctanh,
    "lgamma_u10": elementwise(log_gamma),
}  # fmt: skip
PAIR_REFERENCES: dict[str, Callable[..., np.ndarray]] = {
    "pow_u10": np.power, "hypot_u05": np.hypot, "atan2_u10": np.arctan2, "fmod": np.fmod, "copysign": np.copysign,
}  # fmt: skip


def errors_in_ulp(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Of float32 results; what must be NaN, infinite or zero is so exactly, with its sign, or the error is infinite."""
    with np.errstate(all="ignore"):
        want = exact.astype(np.float32)
        ulp = np.ldexp(1.0, np.maximum(np.frexp(want.astype(np.float64))[1], -125) - 24)
        error = np.abs(got.astype(np.float64) - exact) / ulp
        same = (got == want) & (np.signbit(got) == np.signbit(want)) | (np.isnan(got) & np.isnan(want))
        exactly = ~np.isfinite(want) | (want == 0) & (np.abs(exact) < 2.0**-151)
        # the largest float and infinity are neighbours
        near_top = np.isinf(want) & (np.abs(exact) < 2.0**128) | (np.isfinite(want) & np.isinf(got))
        error = np.where(near_top, np.abs(np.minimum(np.abs(got), 2.0**128) - np.abs(exact)) / 2.0**104, error)
        return np.where(
            same, np.minimum(np.nan_to_num(error, posinf=0.0), 0.5), np.where(exactly & ~near_top, np.inf, error)
        )


def floats_of_all_exponents(count: int, seed: int = 0) -> np.ndarray:
    """Random mantissas for every sign and exponent, and all special values."""
    random = np.random.default_rng(seed)
    patterns = np.arange(512, dtype=np.uint32)[:, None] << 23 | random.integers(0, 2**23, (512, count), dtype=np.uint32)
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1.0,
        -1.0,
        2.0,
        -2.0,
        0.5,
        1e-45,
        -1e-45,
        1.1754944e-38,
        3.4028235e38,
    ]
    return np.concatenate([patterns.ravel().view(np.float32), np.array(special, np.float32)])


def test_every_function_that_the_headers_of_torch_call_is_there() -> None:
    found = importlib.util.find_spec("torch")
    assert found is not None and found.submodule_search_locations is not None
    folder = Path(found.submodule_search_locations[0], "include", "ATen", "cpu", "vec")
    subfolders = ("vec256", "vec512") if X86 else ("vec128",)
    files = [path for name in subfolders for path in (folder / name).glob("*.h")]
    called = {name for path in files for name in re.findall(r"\bSleef_[a-z0-9]+[fd]\d+(?:_u\d+)?\b", path.read_text())}
    widths = {"f8", "d4", "f16", "d8"} if X86 else {"f4", "d2"}
    called = {name for name in called if re.search(r"([fd]\d+)(_u\d+)?$", name)[1] in widths}  # type: ignore[index]
    assert len(called) > 50 and called <= vector_functions().keys()


def test_objects_define_what_the_table_says() -> None:
    known = vector_functions()
    sources = sources_of(known, this_architecture())
    for source, path in zip(sources, compile_vector_functions(sources, build_context(), []), strict=True):
        defined = {function.name for function in read_object(path).functions if function.name.startswith("Sleef_")}
        assert defined == {symbol for symbol, where in known.items() if where == source}


@pytest.mark.parametrize("function", REFERENCES)
def test_functions_are_within_one_ulp_over_all_exponents(functions: Functions, function: str) -> None:
    slow = isinstance(REFERENCES[function], np.vectorize)
    x = floats_of_all_exponents(8 if slow else 60)
    # where the function is neither constant nor infinite
    x = np.concatenate([x, np.random.default_rng(1).uniform(-12, 12, 4000 if slow else 40000).astype(np.float32)])
    with np.errstate(all="ignore"):
        exact = REFERENCES[function](x.astype(np.float64))
    errors = errors_in_ulp(functions(function, x), exact)
    worst = int(errors.argmax())
    assert errors[worst] <= 1.0, f"{function}({x[worst]!r}): {errors[worst]} ulp"


@pytest.mark.parametrize("function", PAIR_REFERENCES)
def test_functions_of_two_values_are_within_one_ulp(functions: Functions, function: str) -> None:
    x, z = floats_of_all_exponents(30, 1), floats_of_all_exponents(30, 2)
    np.random.default_rng(3).shuffle(z)
    special = floats_of_all_exponents(0)
    some = np.random.default_rng(4).uniform(-30, 30, (2, 20000)).astype(np.float32)
    x = np.concatenate([x, np.repeat(special, len(special)), some[0], np.round(some[0])])
    z = np.concatenate([z, np.tile(special, len(special)), some[1], np.round(some[1])])
    with np.errstate(all="ignore"):
        exact = PAIR_REFERENCES[function](x.astype(np.float64), z.astype(np.float64))
    errors = errors_in_ulp(functions(function, x, z), exact)
    worst = int(errors.argmax())
    assert errors[worst] <= 1.0, f"{function}({x[worst]!r}, {z[worst]!r}): {errors[worst]} ulp"


def test_neighbours_of_floats_and_functions_of_doubles(functions: Functions) -> None:
    x, z = floats_of_all_exponents(4, 5), floats_of_all_exponents(4, 6)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(functions("nextafter", x, z), np.nextafter(x, z), equal_nan=True)
    values = np.random.default_rng(7).uniform(0.1, 0.9, 64)
    for function in ("exp_u10", "log_u10", "tanh_u10", "erf_u10", "sin_u10", "asin_u10", "erfc_u15"):
        np.testing.assert_allclose(functions(function, values), REFERENCES[function](values), rtol=4e-16)
    np.testing.assert_allclose(functions("lgamma_u10", values), REFERENCES["lgamma_u10"](values), rtol=2e-14)
    np.testing.assert_allclose(functions("pow_u10", values, values), values**values, rtol=4e-16)
    assert np.array_equal(functions("fmod", values, values * 0.3), np.fmod(values, values * 0.3))


KERNEL = f"""
typedef float Vector __attribute__((vector_size({BYTES})));
extern "C" Vector {symbol_of("exp_u10")}(Vector);
typedef float Unaligned __attribute__((vector_size({BYTES}), aligned(4)));
extern "C" void powers(const Unaligned* x, Unaligned* y) {{ *y = {symbol_of("exp_u10")}(*x); }}
"""


def test_a_kernel_takes_the_functions_into_itself(functions: Functions, tmp_path: Path) -> None:
    source = tmp_path / "powers.cpp"
    source.write_text(KERNEL)
    powers = sk.SubKernel.from_source(source, "powers", block_dim=1, params=["in:x", "out:y"])
    x = np.linspace(-3, 3, BYTES // 4, dtype=np.float32)
    y = np.empty_like(x)
    with sk.compile([sk.Op(powers, ["x", "y"])], name="powers") as kernel:
        kernel({"x": x, "y": y})
        kernel.save(tmp_path / "saved")
    assert np.array_equal(y, functions("exp_u10", x))
    binary = max((tmp_path / "saved").glob("*.so"), key=lambda path: b"powers" in path.read_bytes())
    listed = run([find_toolchain().objcopy.replace("objcopy", "nm"), "-D", str(binary)], what="symbols")
    assert "Sleef_" not in listed


@pytest.mark.conformance
@pytest.mark.parametrize("function", ["exp_u10", "tanh_u10", "erf_u10"])
def test_functions_are_within_one_ulp_on_every_hundredth_float(functions: Functions, function: str) -> None:
    for start in range(0, 2**32, 2**28):
        x = np.arange(start, start + 2**28, 101, dtype=np.uint32).view(np.float32)
        with np.errstate(all="ignore"):
            exact = REFERENCES[function](x.astype(np.float64))
        assert errors_in_ulp(functions(function, x), exact).max() <= 1.0


@pytest.mark.conformance
@pytest.mark.parametrize("function", ["exp_u10", "tanh_u10", "erf_u10"])
def test_functions_are_as_fast_as_those_in_torch(functions: Functions, function: str, tmp_path: Path) -> None:
    """Both are called in turns; the best of many times of each counts."""
    found = importlib.util.find_spec("torch")
    assert found is not None and found.submodule_search_locations is not None
    library = Path(found.submodule_search_locations[0], "lib", "libtorch_cpu.so")
    symbol = symbol_of(function)
    source, shared = tmp_path / "peer.cpp", tmp_path / "peer.so"
    source.write_text(text_of([symbol], "f"))
    options = ["-O2", "-shared", "-fPIC", *MARCH, str(source), str(library), f"-Wl,-rpath,{library.parent}"]
    run([*find_toolchain().cxx, *options, "-Wl,--unresolved-symbols=ignore-in-shared-libs", "-o", str(shared)], what="")
    ours = getattr(functions.libraries["f"], f"apply_{symbol}")
    theirs = getattr(ctypes.CDLL(str(shared)), f"apply_{symbol}")
    x = np.random.default_rng(0).uniform(-4, 4, 2**15).astype(np.float32)
    y = np.empty_like(x)
    arguments = [*(ctypes.c_void_p(array.ctypes.data) for array in (x, x, y)), ctypes.c_int64(len(x))]
    best = [math.inf, math.inf]
    for _ in range(400):
        for which, apply in enumerate((ours, theirs)):
            begin = time.perf_counter()
            apply(*arguments)
            best[which] = min(best[which], time.perf_counter() - begin)
    assert best[0] <= 1.03 * best[1]
