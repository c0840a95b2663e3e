"""targets.cpu.kernels: sub-kernels that we ship for library ops of torch and our own, written for super kernels."""

from __future__ import annotations

# operator -> module:function of this package
_FUNCTIONS = {
    "aten::mm": "matmul:mm",
    "aten::addmm": "matmul:addmm",
    "aten::bmm": "matmul:bmm",
    "aten::baddbmm": "matmul:baddbmm",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "attention:flash_attention_for_cpu",
    "aten::sort": "sorting:sort",
    "aten::topk": "sorting:topk",
    "aten::cumsum": "scans:cumsum",
    "aten::cumprod": "scans:cumprod",
    "aten::cummax": "scans:cummax",
    "aten::cummin": "scans:cummin",
    "aten::histc": "scatter:histc",
    "aten::scatter_reduce_": "scatter:scatter_reduce_",
    "aten::index_put_": "scatter:index_put_",
    "aten::searchsorted": "scatter:searchsorted",
    "aten::bucketize": "scatter:bucketize",
    "aten::convolution": "convolution:convolution",
    "aten::_grouped_mm": "grouped_mm:_grouped_mm",
    "transformers::grouped_mm_fallback": "grouped_mm:grouped_mm_fallback",
    "superkernel::quant_matmul": "quant_matmul:quant_matmul",
    "superkernel::dequant_swiglu_quant": "swiglu_quant:dequant_swiglu_quant",
    "superkernel::grouped_matmul": "grouped:grouped_matmul",
    "superkernel::moe_gating_top_k": "gating:moe_gating_top_k",
}
# operator -> "module:function", as ModelSupport.shipped_kernels says
SHIPPED_KERNELS = {operator: f"{__name__}.{place}" for operator, place in _FUNCTIONS.items()}
