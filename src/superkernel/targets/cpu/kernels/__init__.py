"""targets.cpu.kernels: sub-kernels that we ship for library ops of torch and our own, written for super kernels."""

from __future__ import annotations

# module of this package -> the operators that it has a function for, of the same name
_OPERATORS = {
    "matmul": "aten::mm aten::addmm aten::bmm aten::baddbmm",
    "sorting": "aten::sort aten::topk",
    "scans": "aten::cumsum aten::cumprod aten::cummax aten::cummin",
    "scatter": "aten::histc aten::scatter_reduce_ aten::index_put_ aten::searchsorted aten::bucketize",
    "convolution": "aten::convolution",
    "grouped_mm": "aten::_grouped_mm transformers::grouped_mm_fallback",
    "weight_only": "aten::_weight_int8pack_mm aten::_weight_int4pack_mm_for_cpu quantized::int4mm_packed_weight_cpu "
    "aten::_convert_weight_to_int4pack_for_cpu",
    "embedding_bag": "aten::_embedding_bag aten::_embedding_bag_forward_only",
    "triangular": "aten::linalg_solve_triangular",
    "quant_matmul": "superkernel::quant_matmul",
    "swiglu_quant": "superkernel::dequant_swiglu_quant",
    "grouped": "superkernel::grouped_matmul",
    "gating": "superkernel::moe_gating_top_k",
}
# operator -> "module:function", as ModelSupport.shipped_kernels says
SHIPPED_KERNELS = {
    operator: f"{__name__}.{module}:{operator.partition('::')[2]}"
    for module, operators in _OPERATORS.items()
    for operator in operators.split()
} | {"aten::_scaled_dot_product_flash_attention_for_cpu": f"{__name__}.attention:flash_attention_for_cpu"}
