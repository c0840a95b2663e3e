"""targets.ascend.operators.model_support: what the torch front end needs of this target; models run on the emulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from ....errors import UnsupportedError
from ....model.op import Op
from ....model.subkernel import SubKernel
from ....model.tensor_arg import KernelFunction, ScratchBuffers
from ...operator_library import GraphDump, HostProgram, KnownOp, OperandLayout
from ...protocol import AddressWriter, Allocator, GeneratedText
from ...tensor_spans import OverlapCheck, TensorSpan, overlap_check
from ..chips import Chip
from .describe_op import OperatorDescriber, is_described
from .graph_dump import read_graphs
from .kernel_meta import KernelMeta
from .op_types import BY_OPERATOR

NO_FOLDER = "no folder of metadata was named: give the back end option kernel_meta"


@dataclass(frozen=True)
class AscendOperators:
    """CANN's operators: which there are, and what they take."""

    chip: Chip

    def operand_layout(self, operator: str) -> OperandLayout:
        found = BY_OPERATOR.get(operator)
        return found[1].layout if found is not None else OperandLayout.ANY

    def find_kernels(self, ops: Sequence[Op], folder: Path | None, scratch: ScratchBuffers) -> list[KnownOp]:
        """A kernel that the user registered stays."""
        if folder is None:
            return [KnownOp(op, missing=NO_FOLDER if is_described(op.kernel) else "") for op in ops]
        kernel_meta = KernelMeta(folder, self.chip)
        return [kernel_meta.find(op, scratch) if is_described(op.kernel) else KnownOp(op) for op in ops]

    def read_graphs(self, path: Path) -> list[GraphDump]:
        return read_graphs(path, self.chip)

    def has_code(self, op: Op) -> bool:
        return not is_described(op.kernel)

    def host_op(self, op: Op, program: HostProgram) -> Op:
        from .host_kernels import host_op

        return host_op(op, program)


@dataclass(frozen=True)
class AscendModelSupport:
    """Tensors are in the host's memory: there is no NPU that could hold them."""

    chip: Chip
    device: str = "cpu"
    kernel_language: str = "op_list"
    collectives: None = None
    march: str = "native"  # of the host, on which kernels are emulated

    @cached_property
    def operators(self) -> AscendOperators:
        return AscendOperators(self.chip)

    @cached_property
    def _kernels(self) -> Mapping[str, KernelFunction]:
        return {name: OperatorDescriber(row, operator, self.chip) for name, (row, operator) in BY_OPERATOR.items()}

    def shipped_kernels(self) -> Mapping[str, str | KernelFunction]:
        return self._kernels

    def why_no_kernel(self, operator: str) -> str:
        return "not fusible on ascend: the table of CANN's op types has no entry for it"

    def machine_key(self) -> str:
        return self.chip.name

    def warm_up(self) -> None:
        """Nothing is compiled before a model is called."""

    def compile_generated(self, texts: Sequence[GeneratedText], flags: Sequence[str]) -> Sequence[Path]:
        raise UnsupportedError("the ascend target takes compiled operators, not generated kernels")

    def compile_kernels(self, kernels: Sequence[SubKernel]) -> Sequence[tuple[Path, str]]:
        raise UnsupportedError("the ascend target has no kernels for the host")

    def allocator(self) -> Allocator:
        import torch

        allocate: Allocator = torch._C._dynamo.guards._empty_strided_cpu
        return allocate

    def address_writer(self, inputs: Sequence[tuple[int, int]], address_function: int) -> AddressWriter:
        def write(tensors: tuple[Any, ...], values: Any) -> None:
            for place, index in inputs:
                values[place] = tensors[index].data_ptr()

        return write

    def overlap_check(self, spans: Sequence[TensorSpan], address_function: int | None) -> OverlapCheck:
        return overlap_check(spans)

    def settle(self, spans: Sequence[tuple[int, int]]) -> int:
        return 0

    clock = staticmethod(perf_counter_ns)  # an emulated launch returns when it has completed
