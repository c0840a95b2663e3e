"""tools.demo: two kernels, pow and isinf, are compiled, linked into one, launched and checked."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..errors import LaunchError
from ..model.op import Op
from ..model.subkernel import SubKernel

ELEMENTS = 4096
BLOCKS = 2
POW = """\
#include <cmath>
#include <superkernel/kernel.h>

extern "C" void pow_f32(const float* in1, const float* in2, float* out1, void*) {
    const int part = %d / sk::block_num(), begin = sk::block_idx() * part;
    for (int i = begin; i < begin + part; ++i) out1[i] = std::pow(in1[i], in2[i]);
}
"""
ISINF = """\
#include <cmath>
#include <superkernel/kernel.h>

extern "C" void isinf_f32(const float* in1, bool* out1, void*) {
    const int part = %d / sk::block_num(), begin = sk::block_idx() * part;
    for (int i = begin; i < begin + part; ++i) out1[i] = std::isinf(in1[i]);
}
"""


@dataclass(frozen=True)
class Demo:
    """The result of a demo whose output was right."""

    plan: str
    layout: str
    checked: int  # elements compared with numpy's

    def __str__(self) -> str:
        return f"{self.layout}\n{self.plan}\n{self.checked} elements agree with numpy's\nexecute sample success"


def run() -> Demo:
    """From source to checked output; a LaunchError if the output differs from numpy's."""
    import numpy as np

    from ..runtime.compile import compile

    base = np.linspace(10, 100, ELEMENTS, dtype=np.float32)
    exponent = np.where(np.arange(ELEMENTS) % 2, 50, 2).astype(np.float32)  # every second power overflows
    with tempfile.TemporaryDirectory(prefix="superkernel-demo-") as folder:
        ops = _ops(Path(folder))
        with compile(ops, name="pow_isinf", outputs=["powers", "infinite"]) as kernel:
            outputs = kernel({"base": base, "exponent": exponent})
            demo = Demo(str(kernel.plan), str(kernel.layout), ELEMENTS)
    with np.errstate(over="ignore"):
        expected = np.power(base, exponent)
    if not np.array_equal(outputs["infinite"], np.isinf(expected)):
        raise LaunchError("super_kernel_scope 'pow_isinf': the output of isinf differs from numpy's")
    if not np.allclose(outputs["powers"], expected, rtol=1e-5):
        raise LaunchError("super_kernel_scope 'pow_isinf': the output of pow differs from numpy's")
    return demo


def _ops(folder: Path) -> list[Op]:
    """The same name is the same memory: isinf reads the `powers` that pow writes."""
    floats, flags, workspace = f"float32[{ELEMENTS}]@block", f"bool[{ELEMENTS}]@block", "workspace:ws:uint8[64]"
    pow_params = [f"in:in1:{floats}", f"in:in2:{floats}", f"out:out1:{floats}", workspace]
    isinf_params = [f"in:in1:{floats}", f"out:out1:{flags}", workspace]
    pow_kernel = _kernel(folder, "pow_f32", POW, pow_params)
    isinf_kernel = _kernel(folder, "isinf_f32", ISINF, isinf_params)
    return [
        Op(pow_kernel, ["base", "exponent", "powers", "pow_memory"], name="pow"),
        Op(isinf_kernel, ["powers", "infinite", "isinf_memory"], name="isinf"),
    ]


def _kernel(folder: Path, name: str, source: str, params: list[str]) -> SubKernel:
    path = folder / f"{name}.cpp"
    path.write_text(source % ELEMENTS)
    return SubKernel.from_source(path, name, block_dim=BLOCKS, params=params)
