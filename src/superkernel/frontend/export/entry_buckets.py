"""frontend.export.entry_buckets: an entry with a bucketed dimension -> the proof that its rows do not mix."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import TensorArgument
from torch.fx import GraphModule

from ...errors import OptionError, UnsupportedError
from ...package.manifest import PackagedBucket
from ..aot import captured_graph
from ..capture.recurrent import unroll_recurrent
from ..capture.row_layouts import RowLayout, expression
from ..capture.row_proof import prove_rows_independent
from ..capture.row_rules import find_rule
from ..settings import BucketedDimension
from .entry_requests import EntryRequest
from .exported_program import export_program, torch_failures_as_refusals
from .returned_values import returned_values
from .same_program import ProgramCall, first_difference, program_calls
from .trace_entry import input_specs, is_user_input, keep_gradients, placeholder_examples

_VARIABLE = inspect.Parameter.VAR_POSITIONAL
_EXAMPLE_ROWS = 1009  # a prime, so that no size of a model equals or divides it by chance


@dataclass(frozen=True)
class BucketedEntry:
    """Which dimensions of inputs and outputs count the rows: (index, axis)."""

    name: str  # of the dimension
    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]
    calls: Mapping[int, tuple[ProgramCall, ...]]  # of the program whose rows do not mix, for each size of a program
    what: str  # for messages

    def of_program(self, program: ExportedProgram, size: int) -> PackagedBucket:
        """The bucket that a program for one size is run for; refused if rows of that program may mix."""
        difference = first_difference(self.calls[size], program_calls(program, size))
        if difference is not None and size > 1:
            raise self._other_program(size, difference, "let it compute the same for all sizes")
        # calls of one row are not padded, and nothing is cut: that program may be another one
        return PackagedBucket(self.name, size, self.inputs, self.outputs if difference is None else ())

    def check_one_row(self, program: ExportedProgram) -> None:
        """Where no bucket is for one row alone, a call of one row is padded to a larger one."""
        difference = first_difference(self.calls[1], program_calls(program, 1))
        if difference is not None:
            raise self._other_program(1, difference, "give it a bucket of 1")

    def _other_program(self, size: int, call: ProgramCall, advice: str) -> UnsupportedError:
        rows = "1 row" if size == 1 else f"{size} rows"
        where = f" ({call.line})" if call.line else ""
        return UnsupportedError(
            f"{self.what} cannot have buckets: the model computes something else for {rows} than for other "
            f"numbers{where}: {advice}"
        )


def prove_buckets(request: EntryRequest, kept: Collection[str]) -> BucketedEntry:
    """Trace the entry for a symbolic number of rows and show that every op keeps rows apart; else UnsupportedError."""
    assert request.dim is not None
    size = torch.export.Dim(request.dim.name if request.dim.name.isidentifier() else "rows", min=2)
    args = with_rows(request, _EXAMPLE_ROWS)
    program = export_program(request.module, args, request.name, _dynamic_shapes(request, args, size))
    calls = {rows: program_calls(program, rows) for rows in {1, *request.dim.buckets}}
    module = program.graph_module
    specs = input_specs(module.graph, program, request.name)
    unroll_recurrent(module)
    module.recompile()
    examples = placeholder_examples(module, specs, program)
    symbol, axes = _row_axes(examples, request)
    fakes, fake_mode = _symbolic_fakes(examples)
    keep_gradients(fakes, specs, program)
    what = f"entry {request.name!r}: {request.buckets[0]}"
    with torch_failures_as_refusals(request.name, has_buckets=True):
        try:
            traced, metadata = captured_graph(module, fakes, fake_mode, kept)
        except KeyError as missing:  # AOTAutograd looks for an input with the number that a value was computed from
            if missing.args != (symbol,):
                raise
            raise UnsupportedError(
                f"{what} cannot have buckets: the model computes with the number of rows"
            ) from missing
    rows = _rows_symbol(traced, axes, symbol)
    largest = {rows: request.dim.buckets[-1]}
    layouts = prove_rows_independent(traced, rows, axes, find_rule, largest, what).outputs
    first = metadata.num_mutated_inp_runtime_indices
    returned = returned_values(program, request.name)
    names = list(returned.names)
    _check_tensors(program, returned.places, names, what)
    outputs = [layouts[first + place] for place in returned.places]
    user_inputs = [index for index, spec in enumerate(specs) if is_user_input(spec)]
    bucketed = BucketedEntry(
        request.dim.name,
        tuple((user_inputs.index(index), axis) for index, axis in axes.items()),
        tuple((place, _axis(layout, name, what)) for place, (layout, name) in _with_rows(outputs, names)),
        calls,
        what,
    )
    if 1 not in request.dim.buckets:
        try:
            one_row = export_program(request.module, with_rows(request, 1), request.name)
        except (
            UnsupportedError
        ):  # the model does not run with one row: there is no result that another could differ from
            return bucketed
        bucketed.check_one_row(one_row)
    return bucketed


def with_rows(request: EntryRequest, rows: int) -> tuple[Any, ...]:
    """The example inputs with so many rows."""
    sized = []
    for name, value in _named(request, request.calls[0]):
        bucketed = [bucket for bucket in request.buckets if bucket.argument == name]
        sized.append(_resized(value, bucketed[0], rows) if bucketed else value)
    return tuple(sized)


def _named(request: EntryRequest, args: tuple[Any, ...]) -> list[tuple[str, Any]]:
    """Each argument with the name of its parameter; those of *args have the same name."""
    named: list[tuple[str, Any]] = []
    for parameter, value in _bound(request, args):
        named += [(parameter.name, item) for item in (value if parameter.kind is _VARIABLE else [value])]
    return named


def _bound(request: EntryRequest, args: tuple[Any, ...]) -> list[tuple[inspect.Parameter, Any]]:
    """The parameters that have a value, which for *args is a tuple."""
    signature = inspect.signature(request.module.forward)
    try:
        bound = signature.bind(*args)
    except TypeError as reason:
        raise OptionError(f"entry {request.name!r}: the example inputs do not fit its parameters: {reason}") from reason
    return [(signature.parameters[name], value) for name, value in bound.arguments.items()]


def _resized(value: Any, bucket: BucketedDimension, rows: int) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise OptionError(f"buckets: argument {bucket.argument!r} is no tensor")
    if bucket.dimension >= value.dim():
        raise OptionError(
            f"buckets: argument {bucket.argument!r} has no dimension {bucket.dimension}: it has {value.dim()}"
        )
    shape = list(value.shape)
    shape[bucket.dimension] = rows
    return value.new_zeros(shape)


def _dynamic_shapes(request: EntryRequest, args: tuple[Any, ...], size: Any) -> tuple[Any, ...]:
    """What torch.export takes: a value for each parameter, a tuple of them for *args."""
    return tuple(
        tuple(_dynamic_axes(parameter.name, item, request, size) for item in value)
        if parameter.kind is _VARIABLE
        else _dynamic_axes(parameter.name, value, request, size)
        for parameter, value in _bound(request, args)
    )


def _dynamic_axes(name: str, value: Any, request: EntryRequest, size: Any) -> Any:
    """What torch.export takes for an argument: the dimensions whose size changes."""
    if isinstance(value, torch.Tensor):
        return {bucket.dimension: size for bucket in request.buckets if bucket.argument == name} or None
    return torch.utils._pytree.tree_map(lambda leaf: None, value)


def _row_axes(examples: list[Any], request: EntryRequest) -> tuple[sympy.Symbol, dict[int, int]]:
    """The symbol of the rows, and the dimension of each placeholder that has this size."""
    symbols = {
        symbol
        for example in examples
        for size in example.shape
        if isinstance(size, torch.SymInt)
        for symbol in expression(size).free_symbols
    }
    if len(symbols) != 1:
        raise UnsupportedError(
            f"entry {request.name!r}: {request.buckets[0]} cannot have buckets: the model works for one size of it only"
        )
    (symbol,) = symbols
    axes: dict[int, int] = {}
    for index, example in enumerate(examples):
        found = [axis for axis, size in enumerate(example.shape) if symbol in expression(size).free_symbols]
        if len(found) > 1 or (found and expression(example.shape[found[0]]) != symbol):
            raise UnsupportedError(
                f"entry {request.name!r}: {request.buckets[0]} cannot have buckets: the model ties it to other sizes, "
                f"such as {[str(size) for size in example.shape]}"
            )
        if found:
            axes[index] = found[0]
    return symbol, axes


def _symbolic_fakes(examples: list[Any]) -> tuple[list[Any], FakeTensorMode]:
    """Fake tensors of one mode, the one that knows the symbols."""
    modes = [example.fake_mode for example in examples if isinstance(example, torch._subclasses.FakeTensor)]
    mode = modes[0]
    fakes = []
    with mode:
        for example in examples:
            shape = tuple(example.shape)
            fakes.append(torch.empty(shape, dtype=example.dtype))
    return fakes, mode


def _rows_symbol(traced: GraphModule, axes: dict[int, int], symbol: sympy.Symbol) -> sympy.Symbol:
    """The symbol in the traced graph."""
    index, axis = next(iter(axes.items()))
    value = traced.graph.find_nodes(op="placeholder")[index].meta["val"]
    found = expression(value.shape[axis])
    return found if isinstance(found, sympy.Symbol) else symbol


def _check_tensors(program: ExportedProgram, places: Sequence[int], names: Sequence[str], what: str) -> None:
    for place, name in zip(places, names, strict=True):
        if not isinstance(program.graph_signature.output_specs[place].arg, TensorArgument):
            raise UnsupportedError(
                f"{what} cannot have buckets: output {name!r} is a number that is computed from the number of rows: "
                "leave it out, the caller knows that number"
            )


def _with_rows(layouts: list[RowLayout | None], names: list[str]) -> list[tuple[int, tuple[RowLayout, str]]]:
    pairs = enumerate(zip(layouts, names, strict=True))
    return [(place, (layout, name)) for place, (layout, name) in pairs if layout is not None]


def _axis(layout: RowLayout, name: str, what: str) -> int:
    if layout.outer != 1 or layout.inner != 1:
        raise UnsupportedError(
            f"{what} cannot have buckets: output {name!r} has its rows inside of dimension {layout.dim}, among others: "
            "return it with a dimension of its own for the rows"
        )
    return layout.dim
