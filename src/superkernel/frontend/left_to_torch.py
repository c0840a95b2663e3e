"""frontend.left_to_torch: a library call without a sub-kernel -> why it is left to torch."""

from __future__ import annotations

from ..targets.protocol import ModelSupport
from .lowering.program_trace import LibraryCall, TracedTensor

# The beginning of an operator's name -> the reason.
_REASONS = {
    "aten::_fft_": "Fourier transforms are left to torch's library, which has plans for each size",
    "superkernel::recurrent_layers": "recurrent layers of many steps are left to torch's library; few are unrolled",
}


def why_left_to_torch(call: LibraryCall, support: ModelSupport) -> str:
    name = call.op._schema.name
    for beginning, reason in _REASONS.items():
        if name.startswith(beginning):
            return reason
    tensors = [value for value in (*call.args, *call.results) if isinstance(value, TracedTensor)]
    if any(tensor.dtype.is_complex for tensor in tensors):
        return "it computes with complex numbers; kernels compute with real ones, and there is no rule to rewrite it"
    return support.why_no_kernel(name)
