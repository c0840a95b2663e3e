"""targets.operator_library: what a target offers whose operators come compiled: kernels, dumped graphs, host code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from ..model.op import Op
from ..model.params import Number
from ..model.subkernel import SubKernel
from ..model.tensor_arg import ScratchBuffers


class OperandLayout(Enum):
    """Which tensors an operator reads where they are; others are copied first."""

    CONTIGUOUS = "contiguous"
    TRANSPOSED = "contiguous, or with its last two dimensions exchanged"
    ANY = "any"


@dataclass(frozen=True)
class KnownOp:
    """An op of a model, and the files of its compiled kernel where they are known."""

    op: Op
    metadata: Path | None = None
    binary: Path | None = None
    missing: str = ""  # why there are no files


@dataclass(frozen=True)
class HostPlace:
    """An address in one of the buffers of a HostProgram."""

    buffer: int
    offset: int = 0


@dataclass(frozen=True)
class HostTransfer:
    """Bytes between a parameter of an op and a buffer of its HostProgram."""

    parameter: int
    place: HostPlace
    nbytes: int


@dataclass(frozen=True)
class HostCall:
    """All blocks of a kernel for the host, called one after the other."""

    kernel: SubKernel
    object: Path
    symbol: str
    arguments: tuple[HostPlace | Number, ...]


@dataclass(frozen=True)
class HostProgram:
    """How the host computes an op: buffers of so many bytes; what is read; kernels that are called; what is written."""

    buffers: tuple[int, ...]
    reads: tuple[HostTransfer, ...]
    calls: tuple[HostCall, ...]
    writes: tuple[HostTransfer, ...]


@dataclass(frozen=True)
class DumpedOp:
    """An op of a graph that the target's own tools dumped."""

    name: str
    op_type: str
    scope: str | None
    options: str  # of the scope, as this op gives them
    op: Op | None  # None: it cannot be fused
    reason: str = ""  # why it cannot
    collective: bool = False


@dataclass(frozen=True)
class GraphDump:
    """A graph in order."""

    name: str
    ops: tuple[DumpedOp, ...]


class OperatorLibrary(Protocol):
    """The operators of a target that come compiled: a model becomes a list of them."""

    def operand_layout(self, operator: str) -> OperandLayout: ...  # by the name of a torch operator
    def find_kernels(self, ops: Sequence[Op], folder: Path | None, scratch: ScratchBuffers) -> Sequence[KnownOp]:
        """Ops with the compiled kernels whose metadata lie in the folder; None: no folder was named."""

    def read_graphs(self, path: Path) -> Sequence[GraphDump]: ...  # from a file of the target's own tools
    def has_code(self, op: Op) -> bool: ...  # whether its sub-kernel is more than a description
    def host_op(self, op: Op, program: HostProgram) -> Op:
        """The op with a sub-kernel that computes it on the target's emulator."""
