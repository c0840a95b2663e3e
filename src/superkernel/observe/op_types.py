"""observe.op_types: a launch -> its OP Type and its Core Type, in the words of the tables.

A super kernel is a SuperKernel. An op has the type that its sub-kernel declares. What torch launches, and what Inductor
generates, is called by the operator it computes; a generated kernel of several operators keeps its generated name.
"""

from __future__ import annotations

import re

from ..model.binary import Core
from ..model.node import Node
from ..runtime.launch_events import LaunchEvent, TorchKernel
from .profile import SUPER_KERNEL

TORCH = "torch"  # the core type of what torch launched
_GENERATED = "fused_"

# operator -> type, where the name alone would say little or another name is usual
_TYPES = {
    "mm": "MatMul", "addmm": "MatMul", "linear": "MatMul", "bmm": "BatchMatMul", "baddbmm": "BatchMatMul",
    "mean": "ReduceMean", "sum": "ReduceSum", "amax": "ReduceMax", "amin": "ReduceMin", "prod": "ReduceProd",
    "var_mean": "ReduceVarMean", "cat": "Concat", "stack": "Concat", "split": "Split", "split_with_sizes": "Split",
    "unbind": "Split", "chunk": "Split", "_to_copy": "Cast", "convert_element_type": "Cast", "slice": "StridedSlice",
    "as_strided": "StridedSlice", "repeat": "Tile", "tile": "Tile", "expand": "Tile", "transpose": "Transpose",
    "permute": "Transpose", "t": "Transpose", "clone": "Clone", "copy": "Copy", "copy_": "Copy", "topk": "TopK",
    "_softmax": "Softmax", "native_layer_norm": "LayerNorm", "index_put": "IndexPut", "histc": "Histogram",
    "scatter_reduce": "ScatterReduce", "_scaled_dot_product_flash_attention_for_cpu": "Attention",
}  # fmt: skip
# operators that only move or reinterpret data: a kernel that also computes is not called after them
_MOVES = {"clone", "copy", "view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "lift_fresh", "detach", "alias"}
# if only these are left, the first of them names the kernel
_KINDS_OF_COPY = ("cat", "stack", "repeat", "tile", "split", "split_with_sizes", "permute", "transpose", "t", "slice")


def type_of(event: LaunchEvent) -> str:
    kernel = event.kernel
    if isinstance(kernel, TorchKernel):
        return operator_type(kernel.operator)
    return SUPER_KERNEL if kernel.node is None else op_type(kernel.node)


def op_type(node: Node) -> str:
    """What its sub-kernel is called, except that a generated one is called by what it computes."""
    name = node.kernel.type_name
    return operator_type(name) if name.startswith(_GENERATED) else name


def operator_type(name: str) -> str:
    """'aten::mm' -> 'MatMul'; 'fused_mean_0' -> 'ReduceMean'; 'MoeGatingTopK' as it is."""
    plain = re.sub(r"_\d+$", "", name.rpartition("::")[2])
    if not plain.startswith(_GENERATED):
        return _TYPES.get(plain) or _spelt(plain)
    found = operators_in(plain.removeprefix(_GENERATED))
    if len(found) > 1:
        found = [operator for operator in found if operator not in _MOVES] or found[:1]
    if len(found) > 1 and all(operator in _KINDS_OF_COPY for operator in found):
        found = [min(found, key=_KINDS_OF_COPY.index)]
    return _TYPES.get(found[0]) or _spelt(found[0]) if len(found) == 1 else plain


def operators_in(words: str) -> list[str]:
    """'_to_copy_add_mean' -> '_to_copy', 'add', 'mean': Inductor joins the operators of a kernel, in order."""
    found, rest = [], words
    while rest:
        known = [name for name in _NAMES if rest == name or rest.startswith(f"{name}_")]
        name = max(known, key=len) if known else rest.split("_")[0] or rest
        found.append(name)
        rest = rest[len(name) + 1 :]
    return found


_NAMES = (*_TYPES, *_MOVES, "_softmax", "leaky_relu", "masked_fill", "index_select", "native_dropout")


def _spelt(name: str) -> str:
    """'masked_fill' -> 'MaskedFill'; a name with capitals stays as it is."""
    if name != name.lower():
        return name
    return "".join(word[:1].upper() + word[1:] for word in name.strip("_").split("_") if word) or name


def core_type_of(event: LaunchEvent) -> str:
    """The kind of cores that the ops ask for; mix, if they ask for several."""
    kernel = event.kernel
    if isinstance(kernel, TorchKernel):
        return TORCH
    kinds = {node.kernel.core for node in (kernel.graph.nodes if kernel.node is None else [kernel.node])}
    return kinds.pop().value if len(kinds) == 1 else Core.MIX.value
