"""frontend.bucketed_graph: a graph with bucketed dimensions -> a function that is compiled once for each bucket.

Before anything is compiled, the graph is traced for a symbolic number of rows, and every op is shown to keep rows
apart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from ..errors import UnsupportedError
from .aot import captured_graph
from .bucketed_calls import BucketedCalls, InputSpec, OutputSpec, RowsOfOutput, SizeFunction
from .capture.bucketed_dims import SymbolicDim
from .capture.row_layouts import RowLayout, expression
from .capture.row_proof import prove_rows_independent
from .capture.row_rules import find_rule
from .capture.static_shapes import user_name
from .report import current_report

# Numbers of rows that the graph is traced with: primes, so that no size of a model equals or divides one by chance.
_TRACED_ROWS = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049)

CompileStatic = Callable[[GraphModule, list[Any]], Callable[..., Any]]


def compile_with_buckets(
    module: GraphModule,
    inputs: Sequence[Any],
    dims: Sequence[SymbolicDim],
    kept_operators: Collection[str],
    compile_static: CompileStatic,
) -> Callable[..., Any]:
    """The function that Dynamo calls. The bucket of the example inputs is compiled now, others when they are met."""
    if len(dims) > len(_TRACED_ROWS):
        raise UnsupportedError(f"super_kernel_scope: {len(dims)} dimensions have buckets; at most {len(_TRACED_ROWS)}")
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    bucketed = sorted({index for dim in dims for index in dim.inputs})
    layouts, limited, written = _prove(module, placeholders, inputs, dims, bucketed, kept_operators)
    symbols = [dim.symbol for dim in dims]
    numbers = {
        index: expression(node.meta["example_value"])
        for index, node in enumerate(placeholders)
        if isinstance(node.meta.get("example_value"), torch.SymInt)
    }
    tensors = [index for index in range(len(placeholders)) if index not in numbers]
    specs = {index: _input_spec(index, placeholders[index], inputs[index], dims) for index in bucketed}
    relaid = any(not _is_dense(inputs[index]) for index in bucketed)
    outputs = _output_specs(module, placeholders, dims, specs, layouts, relaid)

    def compile_bucket(args: Sequence[Any], buckets: tuple[int, ...]) -> Callable[..., Any]:
        values = dict(zip(symbols, buckets, strict=True))
        static = _with_numbers(module, {index: int(size.subs(values)) for index, size in numbers.items()})
        fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
        examples = [_static_example(args[index], specs.get(index), buckets, fake_mode) for index in tensors]
        with torch._guards.tracing(torch._guards.TracingContext(fake_mode)):
            return compile_static(static, examples)

    calls = BucketedCalls(
        module, [dim.dim for dim in dims], limited, tensors, list(specs.values()), outputs, written, compile_bucket
    )
    calls.prepare(inputs)
    notes = current_report().notes
    found = [f"buckets {dim.dim.buckets} for {dim.what}: no row depends on another" for dim in dims]
    notes += [note for note in found if note not in notes]
    return calls


def _prove(
    module: GraphModule,
    placeholders: Sequence[Node],
    inputs: Sequence[Any],
    dims: Sequence[SymbolicDim],
    bucketed: Sequence[int],
    kept_operators: Collection[str],
) -> tuple[list[list[RowLayout | None]], list[bool], list[int]]:
    """For each Dim the layouts of the outputs, and whether padding may fail above its largest bucket; and the inputs
    that the graph writes."""
    fake_mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    rows = [_symbolic_number(count, dim.dim.name, fake_mode) for count, dim in zip(_TRACED_ROWS, dims, strict=False)]
    values = {dim.symbol: number for dim, number in zip(dims, rows, strict=True)}
    examples = [
        _symbolic_example(node.meta.get("example_value"), value, values, fake_mode)
        for node, value in zip(placeholders, inputs, strict=True)
    ]
    what = dims[0].what
    try:
        traced, metadata = captured_graph(module, examples, fake_mode, kept_operators)
    except (RuntimeError, ValueError, TypeError, LookupError) as reason:
        raise UnsupportedError(
            f"super_kernel_scope: {what} cannot have buckets: torch cannot trace the model for any size of it: "
            f"{str(reason).strip().splitlines()[0]}: leave this dimension out of buckets"
        ) from reason
    for index in bucketed:
        if metadata.input_info[index].mutates_data or metadata.input_info[index].mutates_metadata:
            raise UnsupportedError(
                f"super_kernel_scope: {what} cannot have buckets: the model writes into input "
                f"{user_name(placeholders[index])!r}, and only its padded copy would change: write into a new tensor"
            )
    first = metadata.num_mutated_inp_runtime_indices
    last = first + len(_results(module))
    names = {number.node.expr: dim.symbol for dim, number in zip(dims, rows, strict=True)}
    largest = {number.node.expr: dim.dim.buckets[-1] for dim, number in zip(dims, rows, strict=True)}
    layouts, limited = [], []
    for dim, number in zip(dims, rows, strict=True):
        what = f"super_kernel_scope: {dim.what}"
        proven = prove_rows_independent(traced, number.node.expr, dim.inputs, find_rule, largest, what)
        layouts.append([layout and layout.renamed(names) for layout in proven.outputs[first:last]])
        limited.append(proven.is_limited)
    return layouts, limited, [index for index, info in enumerate(metadata.input_info) if info.mutates_data]


def _symbolic_number(hint: int, name: str, fake_mode: FakeTensorMode) -> torch.SymInt:
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    fake = fake_mode.from_tensor(torch.empty(hint), symbolic_context=context, source=ConstantSource(name))
    return fake.size(0)


def _symbolic_example(
    example: Any, value: Any, rows: Mapping[sympy.Symbol, torch.SymInt], fake_mode: FakeTensorMode
) -> Any:
    if isinstance(example, torch.SymInt):
        return _evaluated(expression(example), rows)
    if not isinstance(example, torch.Tensor) or not isinstance(value, torch.Tensor):
        return value
    sizes = [_evaluated(expression(size), rows) for size in example.shape]
    strides = [_evaluated(expression(stride), rows) for stride in example.stride()]
    with fake_mode:
        return torch.empty_strided(sizes, strides, dtype=example.dtype, device=example.device)


def _evaluated(size: sympy.Expr, values: Mapping[sympy.Symbol, Any]) -> Any:
    """With the arithmetic of Python, whose quotients and remainders are functions of torch in expressions."""
    return sympy_interp(PythonReferenceAnalysis, dict(values), size)


def _fake_copy(value: torch.Tensor, fake_mode: FakeTensorMode) -> torch.Tensor:
    if not isinstance(value, FakeTensor):
        return fake_mode.from_tensor(value, static_shapes=True)
    with fake_mode:
        copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy.requires_grad_(value.requires_grad)


def _results(module: GraphModule) -> Sequence[Any]:
    (results,) = module.graph.output_node().args
    return results if isinstance(results, list | tuple) else (results,)


def _with_numbers(module: GraphModule, numbers: Mapping[int, int]) -> GraphModule:
    """The graph with numbers in the place of the inputs that are sizes."""
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    graph.output(graph.graph_copy(module.graph, copies))
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for index, number in numbers.items():
        size = copies[placeholders[index]]
        for user in list(size.users):
            known = {size: number}
            user.args, user.kwargs = torch.fx.map_arg(
                (user.args, user.kwargs), lambda used, known=known: known.get(used, used)
            )
        graph.erase_node(size)
    return GraphModule(module, graph)


def _static_example(value: Any, spec: InputSpec | None, buckets: tuple[int, ...], fake_mode: FakeTensorMode) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if spec is None:
        return _fake_copy(value, fake_mode)
    with fake_mode:
        example = torch.empty_strided(
            spec.shape(*buckets), spec.strides(*buckets), dtype=value.dtype, device=value.device
        )
    return example.requires_grad_(value.requires_grad)


def _input_spec(index: int, node: Node, value: torch.Tensor, dims: Sequence[SymbolicDim]) -> InputSpec:
    example: torch.Tensor = node.meta["example_value"]
    shape = [expression(size) for size in example.shape]
    strides = [expression(stride) for stride in example.stride()]
    if not _is_dense(value):
        strides = [sympy.Mul(*shape[dimension + 1 :]) for dimension in range(len(shape))]
    dimensions = tuple(dim.inputs.get(index) for dim in dims)
    return InputSpec(index, dimensions, _function(shape, dims), _function(strides, dims))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie in memory without gaps, each once, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _function(sizes: Sequence[sympy.Expr], dims: Sequence[SymbolicDim]) -> SizeFunction:
    """A function of the size of every Dim."""
    symbols = [dim.symbol for dim in dims]

    def compute(*values: int) -> tuple[Any, ...]:
        known = dict(zip(symbols, values, strict=True))
        return tuple(_evaluated(size, known) for size in sizes)

    return compute


def _output_specs(
    module: GraphModule,
    placeholders: Sequence[Node],
    dims: Sequence[SymbolicDim],
    inputs: Mapping[int, InputSpec],
    layouts: Sequence[Sequence[RowLayout | None]],
    relaid: bool,
) -> list[OutputSpec]:
    """`relaid`: an input is passed on with other strides than the caller's."""
    results = _results(module)
    examples = [result.meta.get("example_value") if isinstance(result, Node) else result for result in results]
    storages = {index: _storage(placeholders[index].meta["example_value"]) for index in inputs}
    specs: list[OutputSpec] = []
    for place, example in enumerate(examples):
        if isinstance(example, torch.SymInt | torch.SymFloat | torch.SymBool):
            specs.append(OutputSpec(number=_function([expression(example)], dims)))
            continue
        if not isinstance(example, torch.Tensor):
            specs.append(OutputSpec())
            continue
        shape, strides = ([expression(size) for size in sizes] for sizes in (example.shape, example.stride()))
        rows = tuple(_rows(of_dim[place], dims) for of_dim in layouts)
        base = next((index for index, storage in storages.items() if storage == _storage(example)), None)
        offset = None
        if base is not None:
            base_example: torch.Tensor = placeholders[base].meta["example_value"]
            if base_example.dtype != example.dtype:
                raise UnsupportedError(
                    f"super_kernel_scope: {dims[0].what} cannot have buckets: output {place} is a view of input "
                    f"{user_name(placeholders[base])!r} with another element type: return a copy"
                )
            begins = [expression(tensor.storage_offset()) for tensor in (example, base_example)]
            offset = _function([begins[0] - begins[1]], dims)
        elif any(row is not None for row in rows) and (relaid or _changes_layout(strides, dims)):
            _check_separate(place, examples, dims)
        specs.append(OutputSpec(rows, _function(shape, dims), _function(strides, dims), None, base, offset, relaid))
    return specs


def _rows(layout: RowLayout | None, dims: Sequence[SymbolicDim]) -> RowsOfOutput | None:
    if layout is None:
        return None
    return RowsOfOutput(layout.dim, _function([layout.outer], dims), _function([layout.inner], dims))


def _changes_layout(strides: Sequence[sympy.Expr], dims: Sequence[SymbolicDim]) -> bool:
    symbols = {dim.symbol for dim in dims}
    return any(stride.free_symbols & symbols for stride in strides)


def _check_separate(place: int, examples: Sequence[Any], dims: Sequence[SymbolicDim]) -> None:
    """Rows that are not contiguous are copied out of the padded result; a view of it would not follow."""
    storage = _storage(examples[place])
    for other, example in enumerate(examples):
        if other != place and isinstance(example, torch.Tensor) and _storage(example) == storage:
            raise UnsupportedError(
                f"super_kernel_scope: {dims[0].what} cannot have buckets: outputs {min(place, other)} and "
                f"{max(place, other)} are views of one tensor whose rows are not contiguous: return copies"
            )


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
