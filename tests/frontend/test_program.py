"""Torch calls in a scope: what they return is seen as the program sees it."""

from __future__ import annotations

import torch
from frontend.fused import check

from superkernel.frontend.lowering.cpp import DIALECT
from superkernel.frontend.lowering.inductor import GeneratedProgram
from superkernel.frontend.lowering.program_trace import StorageOrigin
from superkernel.frontend.lowering.trace_program import trace_program
from superkernel.frontend.segments import match_calls
from superkernel.targets import find_target

X = torch.linspace(-2, 2, 60).reshape(3, 4, 5)


def test_a_result_may_be_lazily_conjugated() -> None:
    found = check(torch.fft.hfft2, X)
    assert any("_fft" in str(left) for left in found.report.scopes[0].unfusible)
    check(lambda x: torch.fft.fft(x).conj(), X)


REUSE = """
import torch
from torch._inductor.select_algorithm import extern_kernels
def call(args):
    in0, in1 = args
    args.clear()
    buf0 = torch.ops.aten.linalg_qr.default(in0)
    buf1 = buf0[0]
    buf2 = empty_strided_cpu((16, 16), (16, 1), torch.float32)
    extern_kernels.mm(buf1, in1, out=buf2)
    buf3 = reinterpret_tensor(buf1, (16, 16), (16, 1), 0); del buf1  # reuse
    extern_kernels.mm(buf2, in1, out=buf3)
    return (buf3,)
"""


def test_memory_that_a_torch_call_returned_stays_what_it_is_when_a_kernel_writes_to_it() -> None:
    inputs = [torch.rand(16, 16), torch.rand(16, 16)]
    trace = trace_program(GeneratedProgram(REUSE, {}, {}), inputs, DIALECT)
    program = match_calls(trace, find_target("cpu"), cores=2)
    assert [unfusible.op for unfusible in program.unfusible] == ["aten::linalg_qr"]
    (output,) = trace.outputs
    assert output.storage.origin is StorageOrigin.RETURNED
