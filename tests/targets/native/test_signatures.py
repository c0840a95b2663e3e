"""targets.native.signatures: parameters that a C++ function does not have are refused; those of C are believed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import superkernel as sk
from superkernel import BuildError, Op, SubKernel
from superkernel.targets.native.symbols import argument_list

TEXT = """
#include <stdint.h>
#include <stddef.h>
enum class Mode { kPlain };
namespace ns {
template <class T>
void scale(const T* x, T* z, float factor) { for (int i = 0; i < 8; ++i) z[i] = x[i] * factor; }
template void scale<float>(const float*, float*, float);
}
void add(const float* x, const float (&y)[8], float* z, size_t n, Mode) {
    for (size_t i = 0; i < n; ++i) z[i] = x[i] + y[i];
}
extern "C" void c_add(const float* x, float* z) { z[0] = x[0]; }
"""
ADD = ("in:x:float32[8]", "in:y:float32[8]", "out:z:float32[8]", "scalar:n", "scalar:mode:int32")
SCALE = ("in:x:float32[8]", "out:z:float32[8]", "scalar:factor:float32")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("signatures") / "functions.cpp"
    path.write_text(TEXT)
    return path


def compiled(source: Path, name: str, params: tuple[str, ...]) -> sk.SuperKernel:
    kernel = SubKernel.from_source(source, name, block_dim=1, params=params, flags=("-O1",))
    args = [2 if param.startswith("scalar") else param.split(":")[1] for param in params]
    return sk.compile([Op(kernel, args)], name="signatures")


@pytest.mark.slow
def test_functions_that_fit_are_built_and_run(source: Path) -> None:
    x = np.arange(8, dtype=np.float32)
    with compiled(source, "scale", SCALE) as k:
        np.testing.assert_array_equal(k({"x": x})["z"], 2 * x)
    with compiled(source, "add", ADD) as k:
        z = np.zeros(8, np.float32)
        k({"x": x, "y": x, "z": z})
        np.testing.assert_array_equal(z, [0, 2, 0, 0, 0, 0, 0, 0])
    compiled(source, "c_add", ("in:x", "out:z", "scalar:extra")).close()  # C: nothing is known


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        (
            "scale",
            SCALE[:2],
            r"params are .* \(2\), but the function is void ns::scale<float>\(.*\), with 3 parameters",
        ),
        ("scale", (*SCALE, "scalar:n"), r"\(4\), but the function is .*, with 3 parameters"),
        ("scale", (*SCALE[:2], "in:factor"), r"parameter 3 is declared 'in:factor' \(a pointer\), but is float in"),
        ("scale", (*SCALE[:2], "scalar:factor"), r"'scalar:factor' \(long\), but is float in void ns::scale<float>"),
        ("scale", (*SCALE[:2], "scalar:factor:float64"), r"'scalar:factor:float64' \(double\), but is float in"),
        ("add", ("in:x", "scalar:y", *ADD[2:]), r"parameter 2 is declared 'scalar:y' \(long\), but is float const"),
        ("add", (*ADD[:3], "scalar:n:int32", ADD[4]), r"'scalar:n:int32' \(int\), but is unsigned long in add\("),
    ],
)
def test_parameters_that_differ_are_refused(source: Path, name: str, params: tuple[str, ...], said: str) -> None:
    with pytest.raises(BuildError, match=said) as raised:
        compiled(source, name, params)
    assert repr(name) in str(raised.value) and str(source) in str(raised.value)


@pytest.mark.parametrize(
    ("demangled", "types"),
    [
        ("add()", ()),
        ("add(void)", ()),
        ("add(float const*, int)", ("float const*", "int")),
        ("void ns::add<std::pair<int, float>, (Mode)1>(Map<int, float>*, void (*)(int, int))",
         ("Map<int, float>*", "void (*)(int, int)")),
        ("(anonymous namespace)::add(float (&) [8], unsigned long)", ("float (&) [8]", "unsigned long")),
        ("plain", ()),
    ],
)  # fmt: skip
def test_the_types_of_a_signature(demangled: str, types: tuple[str, ...]) -> None:
    assert argument_list(demangled) == types
