"""frontend.export.trace_entry: a module and its program of torch.export -> a graph of plain operators, its inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ...errors import UnsupportedError
from ...package.manifest import PackagedTensor, PlaceKind
from ...package.return_structure import ReturnStructure
from ..aot import captured_graph
from ..capture.recurrent import unroll_recurrent
from ..input_overlap import share_memory
from .entry_requests import OWNER
from .exported_program import TracedCall, torch_failures_as_refusals
from .held_values import tensor_paths
from .joined_buffers import check_joined_buffers
from .refusals import (
    check_described,
    check_weight,
    refuse_random,
    written_input,
)
from .returned_values import ReturnedValues, returned_values

_HELD = (InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_LIFTED = (InputKind.PARAMETER, *_HELD)


@dataclass(frozen=True)
class GraphInput:
    """What a placeholder of a traced graph stands for: an input by its index, a weight or a state by its name."""

    kind: PlaceKind
    index: int = 0
    name: str = ""


@dataclass(frozen=True)
class TracedEntry:
    """An entry for one set of shapes as a graph. It writes its states in place; its outputs are new tensors."""

    module: GraphModule
    sources: tuple[GraphInput, ...]  # by placeholder
    inputs: tuple[PackagedTensor, ...]
    output_names: tuple[str, ...]
    returns: ReturnStructure
    tensors: Mapping[str, torch.Tensor]  # weights, and states before the first call
    memory: Mapping[str, torch.Tensor]  # the same tensors where they lie in the model
    states: tuple[PackagedTensor, ...]
    call: TracedCall


def trace_entry(
    module: torch.nn.Module, program: ExportedProgram, call: TracedCall, kept: Collection[str]
) -> TracedEntry:
    """`program`: of the call, for fixed shapes; it is changed. `kept` operators are not decomposed."""
    entry = call.entry
    returned = returned_values(program, entry)
    graph_module = program.graph_module
    specs = _with_paths(input_specs(graph_module.graph, program, entry), program, module)
    unroll_recurrent(graph_module)
    graph_module.recompile()
    examples = placeholder_examples(graph_module, specs, program)
    fake_mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    with fake_mode:
        fakes = [torch.empty_strided(value.shape, _strides(value), dtype=value.dtype) for value in examples]
    keep_gradients(fakes, specs, program)
    with torch_failures_as_refusals(entry, has_buckets=False):
        traced, metadata = captured_graph(graph_module, fakes, fake_mode, kept)
    refuse_random(traced.graph, entry)
    _check_mutations(metadata, specs, program, entry)
    _keep_outputs(traced.graph, metadata, returned.places)
    memory = {_name(spec): model_tensor(spec, program) for spec in specs if not is_user_input(spec)}
    return _described(traced, specs, examples, metadata, returned, memory, call)


def share_states(shapes: Sequence[Any]) -> list[Any]:
    """What one entry writes is a state in all entries, also in those that only read it."""
    states = {state.name: state for shape in shapes for state in shape.traced.states}
    check_joined_buffers([(shape.entry, shape.traced.call.buffers) for shape in shapes])
    memory = {name: (shape.entry, tensor) for shape in shapes for name, tensor in shape.traced.memory.items()}
    for state in states:
        _, written = memory[state]
        if any(_lies_elsewhere(written, shape.traced.memory.get(state)) for shape in shapes):
            raise UnsupportedError(
                f"entries {', '.join(dict.fromkeys(repr(shape.entry) for shape in shapes))}: the model writes into a "
                f"tensor that is no buffer, and torch.export calls others {state!r} as well: register it with "
                "register_buffer"
            )
        for name, (entry, tensor) in memory.items():
            if name != state and share_memory(written, tensor):
                raise UnsupportedError(
                    f"entry {entry!r}: {state!r}, which the model writes, shares memory with {name!r}: "
                    "give one of them a copy"
                )
    return [replace(shape, traced=_with_states(shape.traced, states)) for shape in shapes]


def _lies_elsewhere(written: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is not None and written.data_ptr() != other.data_ptr()


def _with_states(traced: TracedEntry, states: Mapping[str, PackagedTensor]) -> TracedEntry:
    sources = [
        GraphInput(PlaceKind.STATE, name=source.name) if source.kind.is_named and source.name in states else source
        for source in traced.sources
    ]
    used = tuple(states[source.name] for source in sources if source.kind is PlaceKind.STATE)
    return replace(traced, sources=tuple(sources), states=used)


def input_specs(graph: Graph, program: ExportedProgram, entry: str) -> list[InputSpec]:
    """The tensors that the graph takes. Numbers, texts and None were fixed by the export: their inputs are removed.

    So are buffers and constants that are another one: of a module with two names, or of a cache of transformers, whose
    tensors are buffers as well. What the model writes into one, it reads from the other.
    """
    kept: list[InputSpec] = []
    held: dict[tuple[Any, ...], Node] = {}
    specs = program.graph_signature.input_specs
    for node, spec in zip(graph.find_nodes(op="placeholder"), specs, strict=True):
        if isinstance(spec.arg, ConstantArgument):
            value = spec.arg.value
            for user in list(node.users):
                known = {node: value}
                user.args, user.kwargs = torch.fx.map_arg(
                    (user.args, user.kwargs), lambda used, known=known: known.get(used, used)
                )
            graph.erase_node(node)
        elif (
            spec.kind in _HELD
            and (same := held.setdefault(_memory_of(model_tensor(spec, program), spec.target), node)) is not node
        ):
            node.replace_all_uses_with(same)
            graph.erase_node(node)
        elif spec.kind in _LIFTED or spec.kind is InputKind.USER_INPUT:
            kept.append(spec)
        else:
            raise UnsupportedError(f"entry {entry!r}: input {spec.arg.name!r} is a {spec.kind.name}, no plain tensor")
    return kept


def _with_paths(specs: Sequence[InputSpec], program: ExportedProgram, module: torch.nn.Module) -> Sequence[InputSpec]:
    """Constants that an object of the model holds are named as the user reaches them, in every entry the same."""
    taken = {name.removeprefix(f"{OWNER}.") for name in (*program.state_dict, *program.constants)}
    paths = {_memory_of(tensor, path): path for path, tensor in tensor_paths(module) if path not in taken}
    return [_with_path(spec, program, paths) for spec in specs]


def _with_path(spec: InputSpec, program: ExportedProgram, paths: Mapping[tuple[Any, ...], str]) -> InputSpec:
    if spec.kind is not InputKind.CONSTANT_TENSOR:
        return spec
    tensor = model_tensor(spec, program)
    if (path := paths.get(_memory_of(tensor, spec.target))) is None:
        return spec
    program.constants[path] = tensor
    return replace(spec, target=path)


def _memory_of(tensor: torch.Tensor, name: str | None) -> tuple[Any, ...]:
    """Where a tensor lies, and how; one without elements lies nowhere, and is told by its name."""
    place = tensor.data_ptr() if tensor.numel() else name
    return place, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.is_conj(), tensor.is_neg()


def is_user_input(spec: InputSpec) -> bool:
    return spec.kind is InputKind.USER_INPUT


def _name(spec: InputSpec) -> str:
    """The name of a weight or buffer in the user's model."""
    assert isinstance(spec.target, str)
    return spec.target.removeprefix(f"{OWNER}.")


def placeholder_examples(
    graph_module: GraphModule, specs: Sequence[InputSpec], program: ExportedProgram
) -> list[torch.Tensor]:
    """The tensor of each placeholder: weights as they are, buffers in C order, inputs as the graph describes them."""
    nodes = graph_module.graph.find_nodes(op="placeholder")
    found: list[torch.Tensor] = []
    for node, spec in zip(nodes, specs, strict=True):
        if is_user_input(spec):
            found.append(node.meta["val"])
        else:
            value = model_tensor(spec, program)
            found.append(value.contiguous() if spec.kind is InputKind.BUFFER else value)
    return found


def keep_gradients(examples: Sequence[torch.Tensor], specs: Sequence[InputSpec], program: ExportedProgram) -> None:
    """Examples of parameters require gradients where these do, as in a compiled model.

    torch decomposes a product with such a parameter in another way: with fewer operators, and other bits.
    """
    for example, spec in zip(examples, specs, strict=True):
        if spec.kind is InputKind.PARAMETER and spec.target is not None:
            example.requires_grad_(program.state_dict[spec.target].requires_grad)


def model_tensor(spec: InputSpec, program: ExportedProgram) -> torch.Tensor:
    """The weight, buffer or constant of the model that a placeholder stands for."""
    assert spec.target is not None
    value = program.state_dict.get(spec.target)
    value = program.constants[spec.target] if value is None else value
    check_weight(_name(spec), value)
    return value.detach()


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Those of a tensor that fills its memory; others are stored and passed in C order."""
    return tuple(tensor.stride()) if is_dense(tensor) else contiguous_strides(tensor.shape)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, elements = [], 1
    for size in reversed(shape):
        strides.append(elements)
        elements *= max(int(size), 1)
    return tuple(reversed(strides))


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie in memory without gaps, each once, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _check_mutations(
    metadata: ViewAndMutationMeta, specs: Sequence[InputSpec], program: ExportedProgram, entry: str
) -> None:
    for spec, info in zip(specs, metadata.input_info, strict=True):
        if is_user_input(spec) and (info.mutates_data or info.mutates_metadata):
            raise written_input(program, spec.arg.name, entry)
        if info.mutates_metadata or info.mutates_storage_metadata:
            raise UnsupportedError(
                f"entry {entry!r}: the model changes the shape or strides of {_name(spec)!r}: a state keeps its shape; "
                "write into it with copy_"
            )


def _keep_outputs(graph: Graph, metadata: ViewAndMutationMeta, places: Sequence[int]) -> None:
    """The outputs of the model alone, each computed by the graph: what is an input, or a view of one, is copied."""
    output = graph.output_node()
    first = metadata.num_mutated_inp_runtime_indices
    results = [output.args[0][first + place] for place in places]
    for place, node in enumerate(results):
        base = node
        while getattr(base.target, "is_view", False):
            base = base.args[0]
        if base.op in ("placeholder", "get_attr"):
            with graph.inserting_after(node if node.op == "call_function" else _last_input(graph)):
                options = {"memory_format": torch.contiguous_format}
                copy = graph.call_function(torch.ops.aten.clone.default, (node,), options)
            copy.meta = dict(node.meta)
            copy.meta["val"] = node.meta["val"].clone(memory_format=torch.contiguous_format)
            results[place] = copy
    output.args = (tuple(results),)


def _last_input(graph: Graph) -> Node:
    return [node for node in graph.nodes if node.op in ("placeholder", "get_attr")][-1]


def _described(
    traced: GraphModule,
    specs: Sequence[InputSpec],
    examples: Sequence[torch.Tensor],
    metadata: ViewAndMutationMeta,
    returned: ReturnedValues,
    memory: Mapping[str, torch.Tensor],
    call: TracedCall,
) -> TracedEntry:
    entry = call.entry
    sources: list[GraphInput] = []
    inputs: list[PackagedTensor] = []
    states: list[PackagedTensor] = []
    tensors: dict[str, torch.Tensor] = {}
    for spec, example, info in zip(specs, examples, metadata.input_info, strict=True):
        if is_user_input(spec):
            sources.append(GraphInput(PlaceKind.INPUT, index=len(inputs)))
            inputs.append(packaged_tensor(spec.arg.name, example, f"entry {entry!r}: input"))
            continue
        name = _name(spec)
        kind = PlaceKind.STATE if info.mutates_data else PlaceKind.WEIGHT
        sources.append(GraphInput(kind, name=name))
        is_pairs = kind is PlaceKind.WEIGHT and example.is_complex()  # kernels read complex numbers as pairs
        tensors[name] = stored = torch.view_as_real(example.resolve_conj()) if is_pairs else example
        described = packaged_tensor(name, stored, f"entry {entry!r}: {kind.value}")
        if kind is PlaceKind.STATE:
            states.append(described)
    outputs = returned.names, returned.structure
    return TracedEntry(traced, tuple(sources), tuple(inputs), *outputs, tensors, memory, tuple(states), call)


def packaged_tensor(name: str, tensor: torch.Tensor, what: str) -> PackagedTensor:
    if tensor.layout is not torch.strided:
        raise UnsupportedError(f"{what} {name!r} is a {tensor.layout} tensor; packages take dense tensors: to_dense()")
    dtype = str(tensor.dtype).removeprefix("torch.")
    check_described(name, dtype, tensor.shape, what)
    return PackagedTensor(name, dtype, tuple(int(size) for size in tensor.shape))
