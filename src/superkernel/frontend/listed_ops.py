"""frontend.listed_ops: the ops of a segment -> entries of an op list: type, parameters, stream, events, files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.utils._pytree import tree_leaves

from ..model.op import Place, Task
from ..model.tensor_arg import TensorArg
from ..targets.operator_library import KnownOp
from .lowering.program_trace import LibraryCall, ProgramCall, TracedTensor
from .registry import named_arguments


@dataclass(frozen=True)
class ListedParam:
    """A parameter of an op, and the memory that it is given."""

    kind: str
    name: str
    buffer: str
    offset: int = 0  # bytes
    dtype: str = ""  # empty: not known
    shape: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"kind": self.kind, "name": self.name, "buffer": self.buffer}
        fields |= {"offset": self.offset} if self.offset else {}
        return fields | ({"dtype": self.dtype, "shape": list(self.shape)} if self.dtype else {})

    def __str__(self) -> str:
        layout = f" {self.dtype}[{','.join(map(str, self.shape))}]" if self.dtype else ""
        return f"{self.kind}:{self.name}={Place(self.buffer, self.offset)}{layout}"

    @property
    def argument(self) -> Any:
        """As an op list says it."""
        return {"name": self.buffer, "offset": self.offset} if self.offset else self.buffer


@dataclass(frozen=True)
class ListedOp:
    """One entry of an op list."""

    op_type: str
    core: str
    params: tuple[ListedParam, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    stream: int = 0
    send: tuple[str, ...] = ()
    recv: tuple[str, ...] = ()
    task: str = Task.NORMAL.value
    metadata: Path | None = None
    binary: Path | None = None
    missing: str = ""  # why there is no metadata

    def to_dict(self) -> dict[str, Any]:
        return {
            "op_type": self.op_type,
            "core": self.core,
            "params": [param.to_dict() for param in self.params],
            "attributes": {name: _plain(value) for name, value in self.attributes.items()},
            "stream_id": self.stream,
            "task_type": self.task,
            "send_event_list": list(self.send),
            "recv_event_list": list(self.recv),
            "json_path": str(self.metadata) if self.metadata is not None else None,
            "bin_path": str(self.binary) if self.binary is not None else None,
            "missing": self.missing,
        }

    def file_entry(self, name: str) -> dict[str, Any]:
        """As `superkernel compile` reads it."""
        fields = self.to_dict()
        kept = ("op_type", "stream_id", "task_type", "send_event_list", "recv_event_list")
        files = {"json_path": self.metadata, "bin_path": self.binary}
        paths = {key: str(path.resolve()) if path is not None else None for key, path in files.items()}
        arguments = [param.argument for param in self.params]
        return paths | {key: fields[key] for key in kept} | {"name": name, "args": arguments}

    def __str__(self) -> str:
        return ", ".join(map(str, self.params))


def listed_op(known: KnownOp, call: ProgramCall | None = None) -> ListedOp:
    op = known.op
    pairs = zip(op.kernel.params, op.args, strict=True)
    params = tuple(_listed_param(param.kind.value, param.name, argument) for param, argument in pairs)
    return ListedOp(
        op.kernel.type_name, op.kernel.core.value, params, _attributes(call), op.stream,
        tuple(map(str, op.send)), tuple(map(str, op.recv)), Task(op.task).value,
        known.metadata, known.binary, known.missing,
    )  # fmt: skip


def op_list(name: str, options: str, ops: Sequence[tuple[str, ListedOp]]) -> dict[str, Any]:
    """The content of an op list file."""
    return {"name": name, "options": options, "op_list": [listed.file_entry(op) for op, listed in ops]}


def _listed_param(kind: str, name: str, argument: Any) -> ListedParam:
    if isinstance(argument, TensorArg):
        return ListedParam(kind, name, argument.name, argument.offset, argument.dtype, argument.shape)
    return ListedParam(kind, name, argument.name if isinstance(argument, Place) else str(argument))


def _attributes(call: ProgramCall | None) -> dict[str, Any]:
    """The arguments of an operator that are no tensors; those that are None are left out."""
    if not isinstance(call, LibraryCall):
        return {}
    named, _ = named_arguments(call.op, call.args, call.kwargs)
    return {name: value for name, value in named.items() if value is not None and not _holds_tensor(value)}


def _holds_tensor(value: Any) -> bool:
    leaves = tree_leaves(value, is_leaf=lambda leaf: isinstance(leaf, TracedTensor))
    return any(isinstance(leaf, TracedTensor) for leaf in leaves)


def _plain(value: Any) -> Any:
    """As JSON can say it."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value).removeprefix("torch.")
