"""ops: quantised and mixture-of-experts operators, with the semantics of torch_npu's."""

from __future__ import annotations

from .gating import moe_gating_top_k
from .grouped import grouped_matmul
from .quantized import quant_matmul
from .swiglu import dequant_swiglu_quant

__all__ = ["dequant_swiglu_quant", "grouped_matmul", "moe_gating_top_k", "quant_matmul"]
