"""frontend.capture.bucketed_dims: a Dynamo graph and the option `buckets` -> the symbols of its bucketed dimensions.

Dynamo traces static shapes by default. Where a bucketed dimension is static, it is marked on the example tensor, and
Dynamo is asked to trace the frame again; the mark is removed before Dynamo builds its guards.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._dynamo.exc import TensorifyScalarRestartAnalysis, UnspecializeRestartAnalysis
from torch.fx import GraphModule, Node

from ...errors import OptionError, UnsupportedError, nearest
from ...model.dim import Dim
from ..settings import BucketedDimension
from .row_layouts import expression
from .scope_detection import call_arguments
from .static_shapes import user_name

_WEAK_MARK, _ANY_MARK = "_dynamo_weak_dynamic_indices", "_has_dynamo_dim_marking"


@dataclass(frozen=True)
class SymbolicDim:
    """A bucketed dimension that is symbolic in a graph."""

    dim: Dim
    symbol: sympy.Symbol
    inputs: dict[int, int]  # index of an input -> the dimension of it that has this size
    what: str  # for messages


class _TraceAgain(TensorifyScalarRestartAnalysis, UnspecializeRestartAnalysis):
    """Asks Dynamo to trace the frame again: the first base passes through Dynamo's call of a back end, the second
    makes Dynamo forget where the trace branched, which may depend on the sizes that become symbolic."""


class _Marks(threading.local):
    """The tensors that this thread has marked for the attempt of Dynamo that follows."""

    def __init__(self) -> None:
        self.tensors: list[tuple[weakref.ref[torch.Tensor], int, bool]] = []

    def add(self, tensor: torch.Tensor, dimension: int) -> None:
        self.tensors.append((weakref.ref(tensor), dimension, hasattr(tensor, _ANY_MARK)))
        torch._dynamo.maybe_mark_dynamic(tensor, dimension)

    def take(self) -> set[tuple[int, int]]:
        """Removes all marks; returns the ids of the tensors and the dimensions that had them."""
        marked = set()
        for reference, dimension, had_others in self.tensors:
            tensor = reference()
            if tensor is None:
                continue
            marked.add((id(tensor), dimension))
            dimensions: set[int] = getattr(tensor, _WEAK_MARK, set())
            dimensions.discard(dimension)
            if not dimensions and hasattr(tensor, _WEAK_MARK):
                delattr(tensor, _WEAK_MARK)
            if not had_others and hasattr(tensor, _ANY_MARK):
                delattr(tensor, _ANY_MARK)
        self.tensors.clear()
        return marked


_marks = _Marks()


def find_symbolic_dims(
    module: GraphModule,
    inputs: Sequence[Any],
    buckets: Sequence[BucketedDimension],
    root: object,
    warn: Callable[[str], None],
) -> list[SymbolicDim]:
    """The bucketed dimensions of this graph. Sizes 0 and 1 are always static in Dynamo; they are left out."""
    marked = _marks.take()
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    parameters = _parameters(root)
    indices = {user_name(node): index for index, node in enumerate(placeholders)}
    indices |= _arguments_by_name(parameters, inputs)
    _check_names(buckets, parameters, indices)
    present = [bucketed for bucketed in buckets if bucketed.argument in indices]
    for name in dict.fromkeys(bucketed.argument for bucketed in buckets if bucketed.argument not in indices):
        warn(
            f"super_kernel_scope: buckets of argument {name!r} have no effect on a graph that does not take it as a "
            f"tensor: it takes {', '.join(taken for taken in indices if not taken.startswith('self.')) or 'none'}. "
            "After a graph break (fullgraph=True finds it) each new size compiles anew"
        )
    for bucketed in present:
        _check_dimension(bucketed, placeholders[indices[bucketed.argument]])
    dims: list[SymbolicDim] = []
    to_mark: list[tuple[torch.Tensor, int]] = []
    for dim in dict.fromkeys(bucketed.dim for bucketed in present):
        members = [(indices[bucketed.argument], bucketed) for bucketed in present if bucketed.dim == dim]
        if _common_size(members, inputs) in (0, 1):
            continue
        chosen = {index: bucketed.dimension for index, bucketed in members}
        for index, bucketed in members:
            size = _example(placeholders[index]).shape[bucketed.dimension]
            was_marked = (id(inputs[index]), bucketed.dimension) in marked or _is_marked(
                inputs[index], bucketed.dimension
            )
            is_fixed = not expression(size).free_symbols  # static, or equal to a static size by the symbol it shares
            if not was_marked and (is_fixed or _is_shared(placeholders, size, chosen)):
                to_mark.append((inputs[index], bucketed.dimension))
            elif isinstance(size, int):
                raise UnsupportedError(
                    f"super_kernel_scope: {bucketed} cannot have buckets: its size stays {size} for torch.compile, as "
                    "that of a parameter or of a tensor marked by mark_static does; leave it out of buckets"
                )
        if not to_mark:
            dims.append(_symbolic_dim(dim, chosen, members, placeholders))
    if to_mark:
        for tensor, dimension in to_mark:
            _marks.add(tensor, dimension)
        raise _TraceAgain(restart_reason="superkernel: dimensions with buckets become symbolic")
    return dims


def _parameters(root: object) -> inspect.Signature | None:
    """The parameters of the model; None: they are not known."""
    called = root.forward if isinstance(root, torch.nn.Module) else root
    try:
        return inspect.signature(called) if callable(called) else None
    except (TypeError, ValueError):
        return None


def _arguments_by_name(parameters: inspect.Signature | None, inputs: Sequence[Any]) -> dict[str, int]:
    """The arguments of the call that are inputs of the graph; decorators give them other names on the way."""
    args, keywords = call_arguments()
    try:
        bound = parameters.bind(*args, **keywords).arguments if parameters is not None else {}
    except TypeError:
        return {}
    given = {**bound, **keywords}
    found = {name: [index for index, value in enumerate(inputs) if value is given[name]] for name in given}
    return {name: indices[0] for name, indices in found.items() if indices}


def _check_names(
    buckets: Sequence[BucketedDimension], signature: inspect.Signature | None, inputs: Iterable[str]
) -> None:
    if signature is None:
        return
    parameters = signature.parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for bucketed in buckets:
        name = bucketed.argument
        known = name in inputs or name.partition("[")[0].partition(".")[0] in parameters
        if not known and not takes_any:
            raise OptionError(
                f"backend option 'buckets': the model has no argument {name!r}{nearest(name, parameters)}; "
                f"its arguments: {', '.join(parameters)}"
            )


def _check_dimension(bucketed: BucketedDimension, node: Node) -> None:
    example = node.meta.get("example_value")
    if not isinstance(example, torch.Tensor) or example.layout is not torch.strided:
        raise OptionError(f"backend option 'buckets': argument {bucketed.argument!r} is no plain tensor")
    if bucketed.dimension >= example.dim():
        raise OptionError(
            f"backend option 'buckets': argument {bucketed.argument!r} has no dimension {bucketed.dimension}: "
            f"it has {example.dim()} dimensions"
        )


def _common_size(members: Sequence[tuple[int, BucketedDimension]], inputs: Sequence[Any]) -> int:
    sizes = [(inputs[index].shape[bucketed.dimension], bucketed) for index, bucketed in members]
    (first, named), *others = sizes
    for size, bucketed in others:
        if size != first:
            raise OptionError(
                f"backend option 'buckets': {named} has size {first} and {bucketed} has size {size}; dimensions with "
                "one name have one size: pass equal sizes, or give two Dims"
            )
    return int(first)


def _example(node: Node) -> torch.Tensor:
    return node.meta["example_value"]


def _is_marked(tensor: torch.Tensor, dimension: int) -> bool:
    return dimension in getattr(tensor, "_dynamo_dynamic_indices", ())


def _is_shared(placeholders: Sequence[Node], size: torch.SymInt, chosen: Mapping[int, int]) -> bool:
    """Whether other dimensions have the same symbol: Dynamo may give one to sizes that happen to be equal."""
    symbols = expression(size).free_symbols
    for index, node in enumerate(placeholders):
        example = node.meta.get("example_value")
        for dimension, other in enumerate(example.shape if isinstance(example, torch.Tensor) else ()):
            if chosen.get(index) != dimension and expression(other).free_symbols & symbols:
                return True
    return False


def _symbolic_dim(
    dim: Dim, chosen: dict[int, int], members: Sequence[tuple[int, BucketedDimension]], placeholders: Sequence[Node]
) -> SymbolicDim:
    sizes = [_example(placeholders[index]).shape[dimension] for index, dimension in chosen.items()]
    for size in sizes[1:]:
        assert bool(sizes[0] == size)  # Dynamo guards that they stay equal, and gives them one symbol
    what = str(members[0][1])
    symbol = expression(sizes[0])
    if not isinstance(symbol, sympy.Symbol):
        raise UnsupportedError(_fixed(sizes[0], what))
    for index, node in enumerate(placeholders):
        example = node.meta.get("example_value")
        if not isinstance(example, torch.Tensor):
            continue
        found = [dimension for dimension, size in enumerate(example.shape) if symbol in expression(size).free_symbols]
        if not found:
            continue
        if len(found) > 1 or expression(example.shape[found[0]]) != symbol:
            raise UnsupportedError(
                f"super_kernel_scope: {what} cannot have buckets: the model ties it to other sizes of input "
                f"{user_name(node)!r}, whose shape becomes {[str(size) for size in example.shape]}"
            )
        chosen = {**chosen, index: found[0]}
    return SymbolicDim(dim, symbol, chosen, what)


def _fixed(size: Any, what: str) -> str:
    environment = size.node.shape_env
    places = getattr(environment, "replacements_slocs", {})
    place = places.get(size.node._expr)
    line = f" ({place})" if place is not None else ""
    return (
        f"super_kernel_scope: {what} cannot have buckets: the model works only where this size is "
        f"{expression(size)}{line}. If it is combined with another argument, give that argument the same Dim; "
        "otherwise leave it out of buckets"
    )
