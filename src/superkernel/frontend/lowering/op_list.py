"""frontend.lowering.op_list: lowering for targets whose operators come compiled: each op of a graph becomes one call.

The graph runs once on fake tensors. Views are no ops: the next op reads the memory where it is. An op that cannot read
a view is preceded by one that copies it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.utils import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map

from ...cache import Cache
from ...errors import UnsupportedError
from ...model.op import Op
from ...model.tensor_arg import ScratchBuffers
from ...targets.operator_library import OperandLayout, OperatorLibrary
from ...targets.protocol import ModelSupport
from ..capture.partition import graph_attribute
from ..capture.source_lines import source_line
from .inductor import MATMULS, GeneratedProgram, inductor_decompositions
from .program_trace import KernelCall, ProgramTrace
from .protocol import KernelOps, LoweredProgram
from .trace_program import WAIT, OperatorTracer, ProgramTracer

_clone, _copy_strided = torch.ops.aten.clone.default, torch.ops.prims.copy_strided.default

_INPUT = re.compile(r"arg\d+")  # the names of inputs


@dataclass(frozen=True)
class OpListLowering:
    kernel_prefix: str = "cpp_"  # of what Inductor generates outside of scopes
    attention_operators: tuple[Any, ...] = ()
    has_int8_weights: bool = False

    def kept_operators(self, target: ModelSupport) -> Collection[str]:
        """An operator that the target has is not decomposed."""
        return target.shipped_kernels().keys()

    def for_inductor(self, module: GraphModule, inputs: Sequence[Any]) -> GraphModule:
        return decomposed(module, inputs)

    def lower(
        self, module: GraphModule, inputs: Sequence[Any], cores: int, cache: Cache, target: ModelSupport
    ) -> LoweredProgram | None:
        assert target.operators is not None
        trace = trace_graph(module, inputs, target.operators, target.device)
        return LoweredProgram(GeneratedProgram(str(module.graph), {}, {}), trace, NoKernels()) if trace.calls else None


def decomposed(function: Callable[..., Any], inputs: Sequence[Any]) -> GraphModule:
    """The graph of what a function does with fake tensors, in the operators that Inductor expects."""
    fake_mode = detect_fake_mode(inputs) or FakeTensorMode(allow_non_fake_inputs=True)
    with fake_mode, torch.no_grad():
        graph: GraphModule = make_fx(function, decomposition_table=inductor_decompositions(MATMULS))(*inputs)
    return graph


LOWERING = OpListLowering()


class NoKernels:
    """Nothing is generated: a trace of operators has no call of a generated kernel."""

    def compile(self, target: ModelSupport, scratch: ScratchBuffers, cache: Cache) -> KernelOps:
        def ops_of(call: KernelCall) -> list[Op]:
            raise UnsupportedError(f"{call.kernel} is a generated kernel; this target takes compiled operators")

        return ops_of


def trace_graph(module: GraphModule, inputs: Sequence[Any], library: OperatorLibrary, device: str) -> ProgramTrace:
    """The calls of operators that the graph makes, in order, and the memory they touch."""
    tracer = GraphTracer({}, {}, device)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        values = [tracer.input(index, value) for index, value in enumerate(inputs)]
        with OperandTracer(tracer, library):
            outputs = GraphRunner(module, tracer).run(*values)
    return tracer.trace(outputs)


@dataclass
class GraphTracer(ProgramTracer):
    """Records calls under the node that makes them."""

    node: Node | None = None
    names: set[str] = field(default_factory=set)

    def current_origins(self, types: Sequence[str] = ()) -> tuple[str, ...]:
        line = source_line(self.node) if self.node is not None else None
        return () if line is None else (line,)

    def name(self, tensor: Any, name: str) -> None:
        """A name for the memory of a tensor that has none yet."""
        storage = self.storages.get(tensor.untyped_storage()._cdata)
        if storage is not None and not storage.name:
            storage.name = self.unused(name)

    def unused(self, name: str) -> str:
        number = 2
        found = plain = re.sub(r"\W", "_", name)
        while found in self.names or _INPUT.fullmatch(found):
            found, number = f"{plain}_{number}", number + 1
        self.names.add(found)
        return found


class GraphRunner(Interpreter):
    """Runs the nodes of a graph; every new piece of memory is called like the node that makes it."""

    def __init__(self, module: GraphModule, tracer: GraphTracer) -> None:
        super().__init__(module)
        self._tracer = tracer

    def run_node(self, node: Node) -> Any:
        self._tracer.node = node
        if node.op == "get_attr":
            value = graph_attribute(self.module, node)
            return self._tracer.constant(self._tracer.unused(node.name), value)
        result = super().run_node(node)
        values = list(result) if isinstance(result, list | tuple) else [result]
        if node.op != "output":
            for number, value in enumerate(values):
                if isinstance(value, torch.Tensor):
                    self._tracer.name(value, node.name if len(values) == 1 else f"{node.name}_{number}")
        return result

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Every output has the strides that the graph states: later parts were compiled for them."""
        stated = self._tracer.node.args[0] if self._tracer.node is not None else ()
        return [self._restrided(value, node) for value, node in zip(args[0], stated, strict=True)]

    def _restrided(self, value: Any, node: Any) -> Any:
        expected = node.meta.get("val") if isinstance(node, Node) else None
        if not isinstance(value, torch.Tensor) or not isinstance(expected, torch.Tensor):
            return value
        strides = tuple(map(int, expected.stride()))
        if _significant(value.shape, value.stride()) == _significant(value.shape, strides):
            return value
        copy = _copy_strided(value, strides)
        self._tracer.name(copy, f"{node.name}_strided")
        return copy


def _significant(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    return [stride for size, stride in zip(shape, strides, strict=True) if size != 1]


class OperandTracer(OperatorTracer):
    """Records every operator; before one that cannot read the layout of a tensor, a copy of it."""

    def __init__(self, tracer: GraphTracer, library: OperatorLibrary) -> None:
        super().__init__(tracer)
        self._graph_tracer, self._library = tracer, library
        self._copies: dict[tuple[Any, ...], Any] = {}  # by storage and layout, until something is written

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        layout = self._library.operand_layout(func._schema.name)
        if layout is not OperandLayout.ANY:
            args, kwargs = tree_map(self._readable(layout), (args, kwargs or {}))
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func._schema.is_mutable:
            self._copies.clear()
        return result

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Some operators return their argument under another shape, and are no views for torch."""
        values = result if isinstance(result, list | tuple) else [result]
        known = [
            isinstance(v, torch.Tensor) and v.untyped_storage()._cdata in self._graph_tracer.storages for v in values
        ]
        if func._schema.is_mutable or func._schema.name == WAIT or not all(known):
            super()._record(func, args, kwargs, result)

    def _readable(self, layout: OperandLayout) -> Callable[[Any], Any]:
        def readable(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.is_contiguous():
                return value
            if layout is OperandLayout.TRANSPOSED and value.dim() > 1 and value.transpose(-1, -2).is_contiguous():
                return value
            key = (value.untyped_storage()._cdata, value.storage_offset(), value.shape, value.stride(), value.dtype)
            if key not in self._copies:
                storage = self._graph_tracer.storages[value.untyped_storage()._cdata]
                # inside of __torch_dispatch__ the mode is off: the copy is recorded by a call of its own
                copy = super(OperandTracer, self).__torch_dispatch__(
                    _clone, (), (value,), {"memory_format": torch.contiguous_format}
                )
                self._graph_tracer.name(copy, f"{storage.name}_copy")
                self._copies[key] = copy
            return self._copies[key]

        return readable
