"""targets.ascend.operators.op_types: the table of CANN's op types: kernel type, outputs, torch operators.

Names of types, inputs and outputs are those of CANN's public list of operators. The kernel type is what profiles of
such models show; where metadata is given, it decides. An operator of torch that stands in no row is not fused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...operator_library import OperandLayout
from ..core_types import KernelType

_ANY, _TRANSPOSED = OperandLayout.ANY, OperandLayout.TRANSPOSED


@dataclass(frozen=True)
class Operator:
    """A torch operator, all overloads of it, and how its arguments become inputs of the CANN op."""

    name: str
    # its argument -> the input's name, in CANN's order; those that are left out follow under their own names
    inputs: tuple[tuple[str, str], ...] = ()
    layout: OperandLayout = OperandLayout.CONTIGUOUS


@dataclass(frozen=True)
class OpType:
    """One CANN op type. Without outputs, they are called y, or y0, y1, ..."""

    name: str
    type: KernelType
    operators: tuple[Operator, ...] = ()
    outputs: tuple[str, ...] = ()


def _typed(kind: KernelType, name: str, *operators: str | Operator, outputs: str = "") -> OpType:
    listed = tuple(Operator(given) if isinstance(given, str) else given for given in operators)
    return OpType(name, kind, listed, tuple(outputs.split()))


def _vector(name: str, *operators: str | Operator, outputs: str = "") -> OpType:
    return _typed(KernelType.AIV_ONLY, name, *operators, outputs=outputs)


def _cube(name: str, *operators: str | Operator, outputs: str = "") -> OpType:
    return _typed(KernelType.AIC_ONLY, name, *operators, outputs=outputs)


def _mix(name: str, *operators: str | Operator, outputs: str = "") -> OpType:
    return _typed(KernelType.MIX_AIC_1_2, name, *operators, outputs=outputs)


def _operator(name: str, layout: OperandLayout = OperandLayout.CONTIGUOUS, **inputs: str) -> Operator:
    return Operator(name, tuple(inputs.items()), layout)


OP_TYPES: tuple[OpType, ...] = (
    # matrices
    _cube(
        "MatMulV3",
        _operator("aten::mm", _TRANSPOSED, self="x1", mat2="x2"),
        _operator("aten::addmm", _TRANSPOSED, mat1="x1", mat2="x2", self="bias"),
    ),
    _cube(
        "BatchMatMulV3",
        _operator("aten::bmm", _TRANSPOSED, self="x1", mat2="x2"),
        _operator("aten::baddbmm", _TRANSPOSED, batch1="x1", batch2="x2", self="bias"),
    ),
    _cube("MatMul"),
    _cube("MatMulV2"),
    _cube("BatchMatMul"),
    _cube("BatchMatMulV2"),
    _cube("Conv2D", _operator("aten::convolution", input="x", weight="filter", bias="bias")),
    _mix(
        "QuantBatchMatmulV3",
        _operator("superkernel::quant_matmul", _TRANSPOSED),
        _operator("npu::npu_quant_matmul", _TRANSPOSED),
    ),
    _mix("WeightQuantBatchMatmulV2", _operator("npu::npu_weight_quant_batchmatmul", _TRANSPOSED)),
    _mix(
        "GroupedMatmul",
        _operator("superkernel::grouped_matmul", _TRANSPOSED),
        _operator("npu::npu_grouped_matmul", _TRANSPOSED),
        _operator("aten::_grouped_mm", _TRANSPOSED, self="x", mat2="weight", offs="group_list"),
    ),
    # attention
    _mix(
        "FlashAttentionScore",
        "npu::npu_fusion_attention",
        outputs="softmax_max softmax_sum softmax_out attention_out",
    ),
    _mix(
        "FusedInferAttentionScore",
        "npu::npu_fused_infer_attention_score",
        _operator("aten::_scaled_dot_product_flash_attention_for_cpu", query="query", key="key", value="value"),
        outputs="attention_out softmax_lse",
    ),
    _mix("PromptFlashAttention", "npu::npu_prompt_flash_attention", outputs="attention_out"),
    _mix("IncreFlashAttention", "npu::npu_incre_flash_attention", outputs="attention_out"),
    _mix("MlaProlog", "npu::npu_mla_prolog"),
    _vector("RotaryPositionEmbedding", "npu::npu_rotary_mul"),
    _vector("ApplyRotaryPosEmb", "npu::npu_apply_rotary_pos_emb"),
    _vector("InterleaveRope", "npu::npu_interleave_rope"),
    _vector("KvRmsNormRopeCache", "npu::npu_kv_rmsnorm_rope_cache"),
    # mixture of experts and quantisation
    _vector(
        "MoeGatingTopK",
        "superkernel::moe_gating_top_k",
        "npu::npu_moe_gating_top_k",
        outputs="y expert_idx out",
    ),
    _vector("MoeGatingTopKSoftmax", "npu::npu_moe_gating_top_k_softmax", outputs="y expert_idx row_idx"),
    _vector("MoeInitRoutingV2", "npu::npu_moe_init_routing_v2"),
    _vector("MoeInitRouting", "npu::npu_moe_init_routing", outputs="expanded_x expanded_row_idx expanded_expert_idx"),
    _vector("MoeComputeExpertTokens", "npu::npu_moe_compute_expert_tokens"),
    _vector("MoeFinalizeRoutingV2", "npu::npu_moe_finalize_routing"),
    _vector(
        "DequantSwigluQuant",
        "superkernel::dequant_swiglu_quant",
        "npu::npu_dequant_swiglu_quant",
        outputs="y scale",
    ),
    _vector("SwiGlu", "npu::npu_swiglu"),
    _vector("DynamicQuant", "npu::npu_dynamic_quant", outputs="y scale"),
    _vector("AscendQuantV2", "npu::npu_quantize"),
    _vector("AscendAntiQuantV2", "npu::npu_anti_quant"),
    # norms and activations
    _vector(
        "RmsNorm",
        "npu::npu_rms_norm",
        _operator("aten::_fused_rms_norm", input="x", weight="gamma"),
        outputs="y rstd",
    ),
    _vector("AddRmsNorm", "npu::npu_add_rms_norm", outputs="y rstd x"),
    _vector(
        "LayerNormV3",
        _operator("aten::native_layer_norm", input="x", weight="gamma", bias="beta"),
        outputs="y mean rstd",
    ),
    _vector("GroupNormV2", _operator("aten::native_group_norm", input="x", weight="gamma", bias="beta")),
    _vector("SoftmaxV2", _operator("aten::_softmax", self="x")),
    _vector("LogSoftmaxV2", _operator("aten::_log_softmax", self="logits")),
    _vector("Gelu", _operator("aten::gelu", self="x")),
    _vector("FastGelu", "npu::fast_gelu"),
    _vector("Swish", _operator("aten::silu", self="x")),
    _vector("Relu", _operator("aten::relu", self="x")),
    _vector("LeakyRelu", _operator("aten::leaky_relu", self="x")),
    _vector("HardSwish", _operator("aten::hardswish", self="x")),
    _vector("Softplus", _operator("aten::softplus", self="x")),
    _vector("Sigmoid", _operator("aten::sigmoid", self="x")),
    _vector("Tanh", _operator("aten::tanh", self="x")),
    # elementwise arithmetic
    _vector("Add", _operator("aten::add", self="x1", other="x2")),
    _vector("Sub", _operator("aten::sub", self="x1", other="x2")),
    _vector("Mul", _operator("aten::mul", self="x1", other="x2")),
    _vector("RealDiv", _operator("aten::div", self="x1", other="x2")),
    _vector("FloorMod", _operator("aten::remainder", self="x1", other="x2")),
    _vector("Pow", _operator("aten::pow", self="x1", exponent="x2")),
    _vector("Maximum", _operator("aten::maximum", self="x1", other="x2")),
    _vector("Minimum", _operator("aten::minimum", self="x1", other="x2")),
    _vector("Atan2", _operator("aten::atan2", self="x1", other="x2")),
    _vector("Addcmul", _operator("aten::addcmul", self="input_data", tensor1="x1", tensor2="x2")),
    _vector("Addcdiv", _operator("aten::addcdiv", self="input_data", tensor1="x1", tensor2="x2")),
    _vector("ClipByValue", _operator("aten::clamp", self="x", min="clip_value_min", max="clip_value_max")),
    _vector("Square"),
    *(
        _vector(name, _operator(f"aten::{operator}", self="x"))
        for name, operator in (
            ("Abs", "abs"), ("Neg", "neg"), ("Exp", "exp"), ("Expm1", "expm1"), ("Log", "log"), ("Log1p", "log1p"),
            ("Sqrt", "sqrt"), ("Rsqrt", "rsqrt"), ("Reciprocal", "reciprocal"), ("Sin", "sin"), ("Cos", "cos"),
            ("Tan", "tan"), ("Sinh", "sinh"), ("Cosh", "cosh"), ("Asin", "asin"), ("Acos", "acos"), ("Atan", "atan"),
            ("Erf", "erf"), ("Erfc", "erfc"), ("Floor", "floor"), ("Ceil", "ceil"), ("Round", "round"),
            ("Trunc", "trunc"), ("Sign", "sign"), ("IsNan", "isnan"), ("IsInf", "isinf"),
        )
    ),
    # comparisons and logic
    *(
        _vector(name, _operator(f"aten::{operator}", self="x1", other="x2"))
        for name, operator in (
            ("Equal", "eq"), ("NotEqual", "ne"), ("Less", "lt"), ("LessEqual", "le"), ("Greater", "gt"),
            ("GreaterEqual", "ge"), ("LogicalAnd", "logical_and"), ("LogicalOr", "logical_or"),
            ("BitwiseAnd", "bitwise_and"), ("BitwiseOr", "bitwise_or"), ("BitwiseXor", "bitwise_xor"),
        )
    ),
    _vector("LogicalNot", _operator("aten::logical_not", self="x")),
    _vector("Invert", _operator("aten::bitwise_not", self="x")),
    _vector("SelectV2", _operator("aten::where", condition="condition", self="then", other="else")),
    _vector("MaskedFill", _operator("aten::masked_fill", self="x")),
    # reductions, scans, order
    _vector("ReduceSum", _operator("aten::sum", self="x")),
    _vector("ReduceMean", _operator("aten::mean", self="x")),
    _vector("ReduceMax", _operator("aten::amax", self="x")),
    _vector("ReduceMin", _operator("aten::amin", self="x")),
    _vector("ReduceProd", _operator("aten::prod", self="x")),
    _vector("ReduceAny", _operator("aten::any", self="x")),
    _vector("ReduceAll", _operator("aten::all", self="x")),
    _vector("ArgMaxV2", _operator("aten::argmax", self="x")),
    _vector("ArgMin", _operator("aten::argmin", self="x")),
    _vector("Cumsum", _operator("aten::cumsum", self="x")),
    _vector("Cumprod", _operator("aten::cumprod", self="x")),
    _vector("Sort", _operator("aten::sort", self="x"), outputs="y1 y2"),
    _vector("TopKV2", _operator("aten::topk", self="x"), outputs="values indices"),
    # moving and making data
    _vector("Cast", _operator("aten::_to_copy", _ANY, self="x")),
    _vector(
        "TensorMove",
        _operator("aten::clone", _ANY, self="x"),
        _operator("aten::lift_fresh_copy", _ANY, self="x"),
        _operator("aten::copy_", _ANY, src="x"),
        _operator("prims::copy_strided", _ANY, a="x"),
    ),
    _vector("Transpose"),
    _vector("BroadcastTo"),
    _vector("StridedSlice"),
    _vector("AsStrided"),
    _vector("ConcatV2", _operator("aten::cat", tensors="x")),
    _vector("SplitV"),
    _vector("Tile", _operator("aten::repeat", self="x")),
    _vector("GatherV2", _operator("aten::index_select", self="x"), _operator("aten::embedding", weight="x")),
    _vector("GatherElements", _operator("aten::gather", self="x")),
    _vector("Index", _operator("aten::index", self="x")),
    _vector("IndexPutV2", _operator("aten::index_put", self="x")),
    _vector("ScatterElements", _operator("aten::scatter", self="data", index="indices", src="updates")),
    _vector("ScatterUpdate", "npu::scatter_update"),
    _vector("Pad", _operator("aten::constant_pad_nd", self="x")),
    _vector("ReverseV2", _operator("aten::flip", self="x")),
    _vector("Roll", _operator("aten::roll", self="x")),
    _vector("Triu", _operator("aten::triu", self="x")),
    _vector("Tril", _operator("aten::tril", self="x")),
    _vector("Range", "aten::arange"),
    _vector("Fill", "aten::full", "aten::scalar_tensor"),
    _vector("ZerosLike", _operator("aten::zeros_like", self="x")),
    _vector("OnesLike", _operator("aten::ones_like", self="x")),
    # collectives that CANN fuses; their compiled kernels talk to the other ranks themselves
    _vector("HcomAllReduce"),
    _vector("HcomAllGather"),
    _vector("HcomReduceScatter"),
    _vector("HcomAllToAll"),
)  # fmt: skip

# an op type that static compilation calls by another name; both names mean the same op
_ALIASES = {f"{name}D": name for name in (
    *("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ConcatV2", "StridedSlice", "Transpose"),
    *("Tile", "SplitV", "BroadcastTo", "Fill", "Pad", "Range", "Cumsum", "Cumprod"),
)} | {
    "AllReduce": "HcomAllReduce", "AllGather": "HcomAllGather", "ReduceScatter": "HcomReduceScatter",
    "AlltoAll": "HcomAllToAll", "AllToAll": "HcomAllToAll",
}  # fmt: skip

TYPE_BY_NAME: Mapping[str, OpType] = {row.name: row for row in OP_TYPES}
BY_OPERATOR: Mapping[str, tuple[OpType, Operator]] = {
    operator.name: (row, operator) for row in OP_TYPES for operator in row.operators
}


def find_op_type(name: str) -> OpType | None:
    """The row of a CANN op type, also by another name of it: compiled for fixed sizes (ReduceMeanD), without Hcom."""
    return TYPE_BY_NAME.get(_ALIASES.get(name, name))
