"""targets.cpu.kernels.embedding_bag: tensors by name in, the op that reduces bags of table rows out."""

from __future__ import annotations

from ....errors import UnsupportedError
from ....model.op import Op
from .shipping import Tensor, check_dtypes, parameters, place, shipped, shown
from .strided_rows import ELEMENTS

_ELEMENTS = ("float32", "float64", "bfloat16", "float16")
_MAX = 2  # of the modes sum, mean and max
_ELEMENTS_PER_BLOCK = 4096  # least work of a block
_PARAMS = parameters(
    "in:weight in:indices in:offsets in:factors out:out out:bag_of_index out:bag_sizes out:max_rows "
    "rows columns count bags offset_count mode has_factors padding writes_bags writes_max weight_row"
)


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
    *,
    out0: Tensor,
    out1: Tensor,
    out2: Tensor,
    out3: Tensor,
    cores: int,
) -> Op:
    """The reduced rows; the bag of each index, the size of each bag, and the row of each maximum."""
    factors = weight if per_sample_weights is None else per_sample_weights
    check_dtypes("embedding_bag", [weight, factors, out0], _ELEMENTS)
    check_dtypes("embedding_bag by indices", [indices, offsets, out1, out2, out3], ("int64", "int32"))
    contiguous = (indices, offsets, out0, out2, *(() if per_sample_weights is None else (per_sample_weights,)))
    if weight.strides[1] != 1 or not all(tensor.contiguous for tensor in contiguous):
        raise UnsupportedError(f"embedding_bag of {shown(weight)}, with a table or indices that are not contiguous")
    (rows, columns), count = weight.shape, indices.numel
    bags = out0.shape[0]
    numbers = [
        rows, columns, count, bags, offsets.numel, mode, int(per_sample_weights is not None), padding_idx,
        int(out1.numel == count), int(mode == _MAX and out3.numel == bags * columns), weight.strides[0],
    ]  # fmt: skip
    kernel = shipped(
        "embedding_bag.cpp",
        "embedding_bag",
        _PARAMS,
        blocks=max(1, min(cores, bags, count * columns // _ELEMENTS_PER_BLOCK)),
        op_type="EmbeddingBag",
        defines=(f"SK_ELEMENT={ELEMENTS[weight.dtype]}", f"SK_INDEX={ELEMENTS[indices.dtype]}"),
    )
    tensors = (weight, indices, offsets, factors, out0, out1, out2, out3)
    return Op(kernel, [*map(place, tensors), *numbers], "embedding_bag")


_embedding_bag_forward_only = _embedding_bag
