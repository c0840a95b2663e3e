"""frontend.lowering.protocol: what the front end asks of a lowering, which knows one kind of kernel text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch.fx import GraphModule

from ...cache import Cache
from ...model.op import Op
from ...model.tensor_arg import ScratchBuffers
from ...targets.protocol import ModelSupport
from .inductor import GeneratedProgram
from .program_trace import KernelCall, ProgramTrace

KernelOps = Callable[[KernelCall], list[Op]]  # a call of a generated kernel -> the ops of its compiled sub-kernels


class GeneratedKernels(Protocol):
    """The generated kernels of a part, cut into sub-kernels that are not compiled yet."""

    def compile(self, target: ModelSupport, scratch: ScratchBuffers, cache: Cache) -> KernelOps: ...


@dataclass(frozen=True)
class LoweredProgram:
    """What Inductor generated for a part: the program, the calls that it makes, and the kernels that they call."""

    generated: GeneratedProgram
    trace: ProgramTrace
    kernels: GeneratedKernels


class Lowering(Protocol):
    """A kind of kernel text: what Inductor is asked for, and how its kernels become sub-kernels."""

    @property
    def kernel_prefix(self) -> str: ...  # of the names of generated kernels in Inductor's programs
    @property
    def attention_operators(self) -> Sequence[Any]: ...  # that take fewer key and value heads than query heads

    @property
    def has_int8_weights(self) -> bool: ...  # a matmul may read int8 weights: aten::_weight_int8pack_mm

    def kept_operators(self, target: ModelSupport) -> Collection[str]: ...  # that AOTAutograd must not decompose

    def for_inductor(self, module: GraphModule, inputs: Sequence[Any]) -> GraphModule:
        """A part that Inductor compiles as it is, with every operator that Inductor wants decomposed."""

    def lower(
        self, module: GraphModule, inputs: Sequence[Any], cores: int, cache: Cache, target: ModelSupport
    ) -> LoweredProgram | None:
        """Kernels for so many cores; nothing is compiled. None: there is nothing to run."""
