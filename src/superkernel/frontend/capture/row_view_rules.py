"""frontend.capture.row_view_rules: views, slices, new tensors and indices -> where the rows of their results are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from .row_layouts import OpCall, RowLayout, RowsMix, Rule, Shape, expression, shape_of

NO_END = 2**62  # slices without an end have one beyond every size


def _viewed(call: OpCall) -> RowLayout:
    """Another shape of the same elements: as many elements must lie before and after each row."""
    layout = call.only("self")
    before, after = call.shape(call.arguments["self"]), call.output_shape
    found = [dim for dim, size in enumerate(after) if call.rows in size.free_symbols]
    if len(found) == 1:
        (dim,) = found
        outer = _quotient(_product(before[: layout.dim]) * layout.outer, _product(after[:dim]))
        inner = _quotient(layout.inner * _product(before[layout.dim + 1 :]), _product(after[dim + 1 :]))
        if outer is not None and inner is not None:
            return RowLayout(dim, outer, inner, layout.step)
    raise RowsMix(f"a view of shape {list(after)} does not keep rows apart")


def _product(sizes: Sequence[sympy.Expr]) -> sympy.Expr:
    return sympy.Mul(*sizes)


def _quotient(dividend: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr | None:
    """None: it does not divide evenly."""
    if divisor == 0:
        return None
    quotient = sympy.cancel(dividend / divisor)
    return quotient if sympy.fraction(quotient)[1] == 1 else None


def _strided(call: OpCall) -> RowLayout:
    """as_strided as a view, in which decompositions write group_norm: all elements, in their order in memory."""
    value, given = call.arguments["self"].meta["val"], call.arguments
    begin = given["storage_offset"] in (None, value.storage_offset())
    if not begin or not _is_in_order(value.shape, value.stride()) or not _is_in_order(given["size"], given["stride"]):
        raise RowsMix("it takes elements by their position in memory")
    return _viewed(call)


def _is_in_order(sizes: Sequence[object], strides: Sequence[object]) -> bool:
    expected = sympy.S.One
    for size, stride in zip(map(expression, reversed(sizes)), map(expression, reversed(strides)), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _permuted(call: OpCall) -> RowLayout:
    layout = call.only("self")
    order = call.arguments["dims"]
    return layout.at([call.wrapped(dimension, len(order)) for dimension in order].index(layout.dim))


def _transposed(call: OpCall) -> RowLayout:
    layout = call.only("self")
    count = len(call.output_shape)
    first = call.wrapped(call.arguments.get("dim0", 0), count)
    second = call.wrapped(call.arguments.get("dim1", 1), count)
    return layout.at({first: second, second: first}.get(layout.dim, layout.dim))


def _unsqueezed(call: OpCall) -> RowLayout:
    layout = call.only("self")
    dimension = call.wrapped(call.arguments["dim"], len(call.output_shape))
    return layout.at(layout.dim + (dimension <= layout.dim))


def _squeezed(call: OpCall) -> RowLayout:
    layout = call.only("self")
    before = call.shape(call.arguments["self"])
    given = call.arguments.get("dim")
    chosen = range(len(before)) if given is None else given if isinstance(given, list | tuple) else [given]
    dimensions = {call.wrapped(dimension, len(before)) for dimension in chosen}
    return layout.at(layout.dim - sum(dim < layout.dim and before[dim] == 1 for dim in dimensions))


def _expanded(call: OpCall) -> RowLayout | None:
    layout = call.of("self")
    after = call.output_shape
    if layout is not None:
        return layout.at(layout.dim + len(after) - len(call.shape(call.arguments["self"])))
    return _new_rows(call, after)


def _new_rows(call: OpCall, shape: Shape) -> RowLayout | None:
    """A tensor whose elements do not depend on the row; None: it has no rows."""
    found = [dim for dim, size in enumerate(shape) if call.rows in size.free_symbols]
    if not found:
        return None
    inner = _quotient(shape[found[0]], call.rows) if len(found) == 1 else None
    if inner is None or call.rows in inner.free_symbols:
        raise RowsMix(f"a new tensor of shape {list(shape)} does not have one dimension that counts the rows")
    return RowLayout(found[0], inner=inner)


def _repeated(call: OpCall) -> RowLayout | None:
    """A repeated dimension begins again after its last element."""
    layout, repeats = call.of("self"), call.arguments["repeats"]
    if layout is None:
        return _new_rows(call, call.output_shape)
    if any(map(call.counts_rows, repeats)):
        raise RowsMix("it repeats the rows as often as there are rows")
    dim = layout.dim + len(repeats) - len(call.shape(call.arguments["self"]))
    return RowLayout(dim, layout.outer * expression(repeats[dim]), layout.inner)


def _filled(call: OpCall) -> RowLayout | None:
    """A new tensor of one value."""
    if call.layout(call.arguments.get("fill_value")) is not None:
        raise RowsMix("its value depends on the rows")
    return _new_rows(call, call.output_shape)


def _ranged(call: OpCall) -> RowLayout | None:
    """Consecutive numbers: one or more for each row."""
    layout = _new_rows(call, call.output_shape)
    if layout is None:
        return None
    start, step = (expression(call.arguments.get(name, default)) for name, default in (("start", 0), ("step", 1)))
    is_exact = call.node.meta["val"].dtype in (torch.int32, torch.int64)  # others have no number for every row
    is_multiple = is_exact and (start, layout.inner) == (0, 1)
    return RowLayout(layout.dim, layout.outer, layout.inner, step if is_multiple else None)


def _sliced(call: OpCall) -> RowLayout:
    layout = call.only("self")
    dimension, end = call.dimension("dim"), call.arguments.get("end")
    if dimension != layout.dim:
        if call.counts_rows(end):
            raise RowsMix("it computes with the number of rows")
        return layout
    to_end = end is None or (isinstance(end, int) and end >= NO_END)
    to_end = to_end or expression(end) == call.shape(call.arguments["self"])[dimension]
    if not to_end or call.arguments.get("start") not in (None, 0) or call.arguments.get("step", 1) != 1:
        raise RowsMix("it takes rows by their position")
    return layout


def _selected(call: OpCall) -> RowLayout:
    layout = call.only("self")
    dimension = call.dimension("dim")
    if dimension == layout.dim:
        raise RowsMix("it takes one row by its position")
    return layout.at(layout.dim - (dimension < layout.dim))


def _diagonal(call: OpCall) -> RowLayout:
    """Two dimensions become one, the last."""
    layout = call.only("self")
    taken = {call.dimension("dim1"), call.dimension("dim2")}
    if layout.dim in taken:
        raise RowsMix("it takes rows by their position")
    return layout.at(layout.dim - sum(dim < layout.dim for dim in taken))


def _unfolded(call: OpCall) -> RowLayout:
    """Windows of one dimension; their elements are a new dimension, the last."""
    layout = call.only("self")
    if call.dimension("dimension") == layout.dim:
        raise RowsMix("it takes rows by their position")
    return layout


def _divided(call: OpCall) -> RowLayout:
    """split, chunk, unbind: several results."""
    layout = call.only("self")
    dimension = call.dimension("dim")
    if dimension == layout.dim:
        raise RowsMix("it divides the rows")
    return layout.at(layout.dim - (str(call.node.target).startswith("aten.unbind") and dimension < layout.dim))


def _concatenated(call: OpCall) -> RowLayout:
    layouts = [layout for _, layout in call.with_rows]
    if any(not layout.same_rows(layouts[0]) for layout in layouts):
        raise RowsMix("it joins tensors that have their rows in different places")
    if call.wrapped(call.arguments["dim"], len(call.output_shape)) == layouts[0].dim:
        raise RowsMix("it appends rows to rows")
    return layouts[0].computed()


def _bagged(call: OpCall) -> Any:
    """embedding_bag, whose indices are one after the other: a bag must be one row, as where indices are a matrix."""
    indices, offsets, weights = (call.of(name) for name in ("indices", "offsets", "per_sample_weights"))
    if indices is None or offsets is None or indices.outer != 1 or offsets.step != indices.inner:
        raise RowsMix("its bags are not the rows")
    if call.of("weight") is not None or (weights is not None and not weights.same_rows(indices)):
        raise RowsMix("it combines tensors that have their rows in different places")
    return tuple(_new_rows(call, shape_of(value)) for value in call.node.meta["val"])


def _index_selected(call: OpCall) -> RowLayout:
    dimension, chosen = call.dimension("dim"), call.of("index")
    if (layout := call.of("self")) is None:
        assert chosen is not None
        return chosen.computed(dimension)
    if chosen is not None or dimension == layout.dim:
        raise RowsMix("it takes rows by an index")
    return layout.computed()


def _gathered(call: OpCall) -> RowLayout:
    """gather, scatter: elements along one dimension, other dimensions in step."""
    dimension = call.dimension("dim")
    indices = call.of("index")
    if call.of("self") is None and indices is not None and dimension == indices.dim:
        if len(call.shape(call.arguments["index"])) == 1 and "src" not in call.arguments:
            return indices.computed()
        raise RowsMix("its index has rows and its tensor has none")
    layout = call.only("self", "index", "src")
    if call.of("self") is None or indices is None or dimension == layout.dim:
        raise RowsMix("it takes rows by an index")
    return layout.computed()


def _scattered(call: OpCall) -> RowLayout:
    """slice_scatter, select_scatter, index_copy, index_add, index_fill: a part along one dimension is replaced."""
    dimension, layout = call.dimension("dim"), call.of("self")
    if layout is None or dimension == layout.dim or call.layout(call.arguments.get("index")) is not None:
        raise RowsMix("it replaces rows by their position")
    source = call.arguments.get("src", call.arguments.get("source"))
    if (rows_of_source := call.layout(source)) is not None:
        removed = len(call.shape(call.arguments["self"])) - len(call.shape(source))
        shift = removed if dimension < layout.dim else 0
        if not rows_of_source.same_rows(layout.at(layout.dim - shift)):
            raise RowsMix("it combines tensors that have their rows in different places")
    return layout.computed()


def _indexed(call: OpCall) -> RowLayout:
    """tensor[indices], where some indices may be missing (a full slice)."""
    return _index_result(call).computed()


def _index_result(call: OpCall) -> RowLayout:
    indices = list(call.arguments["indices"])
    tensor = call.arguments["self"]
    layout, rank = call.of("self"), len(call.shape(tensor))
    indices += [None] * (rank - len(indices))
    given = [dim for dim, index in enumerate(indices) if index is not None]
    width = max(len(call.shape(indices[dim])) for dim in given)
    begin = given[0] if given == list(range(given[0], given[-1] + 1)) else 0  # separated indices come first
    with_rows = [
        rows.at(rows.dim + width - len(call.shape(indices[dim])))
        for dim in given
        if (rows := call.layout(indices[dim])) is not None
    ]
    if any(not rows.same_rows(with_rows[0]) for rows in with_rows):
        raise RowsMix("its indices have their rows in different places")
    if layout is None:
        return with_rows[0].at(begin + with_rows[0].dim)
    if layout.dim in given:
        row_index = call.layout(indices[layout.dim])
        if row_index is None or row_index.step != 1 or (layout.outer, layout.inner) != (1, 1):
            raise RowsMix("it takes rows by an index")
        return with_rows[0].at(begin + with_rows[0].dim)
    if with_rows:
        raise RowsMix("its index has rows, and so has another dimension of its tensor")
    kept = [dim for dim in range(rank) if dim not in given]
    place = kept.index(layout.dim)
    return layout.at(place + (width if layout.dim > begin or begin == 0 else 0))


def _index_written(call: OpCall) -> RowLayout:
    """index_put: values go where an index says."""
    layout = call.of("self")
    if layout is None:
        raise RowsMix("it writes rows into a tensor that has none")
    place = _index_result(call)
    values = call.arguments["values"]
    indices = [index for index in call.arguments["indices"] if index is not None]
    width = max(len(call.shape(index)) for index in indices)
    rank = len(call.shape(call.arguments["self"])) - len(indices) + width
    rows_of_values = call.layout(values)
    if rows_of_values is not None and not rows_of_values.at(
        rows_of_values.dim + rank - len(call.shape(values))
    ).same_rows(place):
        raise RowsMix("it writes rows into other rows")
    return layout.computed()


VIEW_RULES: Mapping[str, Rule] = {
    **{f"aten.{name}": _viewed for name in ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "view_copy")},
    "aten.as_strided": _strided,
    "aten.permute": _permuted,
    **{f"aten.{name}": _transposed for name in ("transpose", "t", "swapaxes")},
    "aten.unsqueeze": _unsqueezed,
    "aten.squeeze": _squeezed,
    "aten.expand": _expanded,
    "aten.repeat": _repeated,
    **{f"aten.{name}": _filled for name in ("full", "zeros", "ones", "empty", "new_full", "new_zeros", "new_ones")},
    "aten.new_empty": _filled,
    "aten.arange": _ranged,
    "prims.iota": _ranged,
    "aten.slice": _sliced,
    "aten.select": _selected,
    "aten.diagonal": _diagonal,
    "aten.unfold": _unfolded,
    **{f"aten.{name}": _divided for name in ("split", "split_with_sizes", "chunk", "unbind")},
    "aten.cat": _concatenated,
    **{f"aten.{name}": _bagged for name in ("_embedding_bag", "_embedding_bag_forward_only")},
    "aten.index_select": _index_selected,
    **{f"aten.{name}": _gathered for name in ("gather", "scatter", "scatter_add", "scatter_reduce")},
    **{f"aten.{name}": _scattered for name in ("slice_scatter", "select_scatter", "index_copy", "index_add")},
    "aten.index_fill": _scattered,
    **{f"aten.{name}": _indexed for name in ("index", "_unsafe_index")},
    **{f"aten.{name}": _index_written for name in ("index_put", "_unsafe_index_put")},
}
