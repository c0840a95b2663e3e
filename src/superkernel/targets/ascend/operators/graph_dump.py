"""targets.ascend.operators.graph_dump: a graph that GE or torchair dumped -> its ops in order, with their scopes.

Read are `ge_proto*.txt`, what `atc --mode=5` makes of them (JSON), and torchair's `txt` dumps. All have the fields of
GE's public graph format: `graph` with `op`, or `op` alone; an op has `name`, `type`, `input` ("name:index", -1 for
order alone), `attr`, `input_desc`, `output_desc`, `stream_id`. A scope stands in the attributes `_super_kernel_scope`
and `_super_kernel_options`. Other fields are left alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ....errors import GraphError
from ....model.op import Op
from ....model.params import Kind, Param
from ....model.tensor_arg import TensorArg
from ...operator_library import DumpedOp, GraphDump
from ..chips import Chip
from .describe_op import described_kernel
from .op_types import find_op_type
from .text_format import Message, read_message

SCOPE, OPTIONS = "_super_kernel_scope", "_super_kernel_options"
_DTYPES = {
    "DT_FLOAT": "float32", "DT_FLOAT16": "float16", "DT_BF16": "bfloat16", "DT_DOUBLE": "float64", "DT_BOOL": "bool",
    **{f"DT_{sign}INT{bits}": f"{sign.lower()}int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_SOURCES = ("Data", "RefData", "Const", "Constant", "ConstPlaceHolder", "FileConstant", "Variable")  # memory, no task
_RESULTS = ("NetOutput",)
# they give their input another shape, and have no task
_ALIASES = ("Reshape", "Identity", "Squeeze", "SqueezeV2", "SqueezeV3", "Unsqueeze", "UnsqueezeV2", "UnsqueezeV3",
            "ExpandDims", "FlattenV2")  # fmt: skip
_SEND, _RECEIVE, _EVENT = "Send", "Recv", "event_id"
_ORDER_ONLY = "-1"
_COLLECTIVE = re.compile(r"Hcom|AllReduce$|AllGather$|ReduceScatter$|AllToAll")
_NO_ENTRY = "not fusible on ascend: the table of CANN's op types has no entry for it"


def read_graphs(path: Path, chip: Chip) -> list[GraphDump]:
    top = read_message(path)
    graphs = top.messages("graph") or ([top] if "op" in top.fields else [])
    if not graphs:
        raise GraphError(f"{path}: has neither graph nor op: it is no graph that GE or torchair dumped")
    return [GraphDump(graph.text("name", "graph"), tuple(_Graph.of(graph).dumped(chip))) for graph in graphs]


@dataclass(frozen=True)
class _Graph:
    """The ops of a graph by name, in order, and the events around each."""

    ops: Mapping[str, Message]
    send: Mapping[str, list[int]] = field(default_factory=dict)
    receive: Mapping[str, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Message) -> _Graph:
        ops: dict[str, Message] = {}
        for op in graph.messages("op"):
            name = op.text("name")
            if name in ops:
                raise op.error(f"two ops are called {name!r}")
            ops[name] = op
        if all("id" in op.fields for op in ops.values()):
            ops = dict(sorted(ops.items(), key=lambda item: item[1].whole("id")))
        send: dict[str, list[int]] = {}
        receive: dict[str, list[int]] = {}
        for name, op in ops.items():
            for source, _ in _inputs(op):
                if op.text("type") == _SEND:
                    send.setdefault(source, []).append(_event(op))
                if source in ops and ops[source].text("type") == _RECEIVE:
                    receive.setdefault(name, []).append(_event(ops[source]))
        return cls(ops, send, receive)

    def dumped(self, chip: Chip) -> Iterator[DumpedOp]:
        silent = (*_SOURCES, *_RESULTS, *_ALIASES, _SEND, _RECEIVE)
        for name, op in self.ops.items():
            kind = op.text("type")
            if kind in silent:
                continue
            attributes = _attributes(op)
            scope, options = (attributes[key].text("s", "") if key in attributes else "" for key in (SCOPE, OPTIONS))
            found, reason, collective = None, "", _COLLECTIVE.search(kind) is not None
            try:
                found = self._described(name, op, kind, chip)
            except _NotFusible as why:
                reason = "collective" if collective else str(why)
            yield DumpedOp(name, kind, scope or None, options, found, reason, collective and found is None)

    def _described(self, name: str, op: Message, kind: str, chip: Chip) -> Op:
        row = find_op_type(kind)
        if row is None:
            raise _NotFusible(_NO_ENTRY)
        inputs = [self._memory(*source, op) for source in _inputs(op) if source[1] != _ORDER_ONLY]
        outputs = op.messages("output_desc")
        given = op.messages("input_desc")
        present = [desc for desc in given if desc.text("dtype", "DT_UNDEFINED") != "DT_UNDEFINED"]
        if len(present) != len(inputs):
            raise op.error(f"op {name!r} has {len(inputs)} inputs and {len(present)} descriptions of inputs")
        memory = [*inputs, *(f"{name}:{index}" for index in range(len(outputs)))]
        names = [*_names(op, present, "input_name", "x"), *_names(op, outputs, "output_name", "y")]
        kinds = [Kind.IN] * len(inputs) + [Kind.OUT] * len(outputs)
        params = [Param(kind, parameter) for kind, parameter in zip(kinds, names, strict=True)]
        descriptions = zip(memory, [*present, *outputs], names, strict=True)
        tensors = [_tensor(buffer, description, parameter) for buffer, description, parameter in descriptions]
        details = {key: value.fields for key, value in _attributes(op).items() if not key.startswith("_")}
        kernel = described_kernel(row, params, tensors, f"{kind} {sorted(details.items())}", chip)
        stream = max(op.whole("stream_id", 0), 0)
        events = self.send.get(name, ()), self.receive.get(name, ())
        return Op(kernel, tensors, _plain(name), stream, *events)

    def _memory(self, name: str, index: str, reader: Message) -> str:
        """The buffer behind an output of an op; an alias has the buffer of its input."""
        for _ in self.ops:
            if name not in self.ops:
                raise reader.error(f"op {reader.text('name')!r} reads {name!r}, which is no op of the graph")
            op = self.ops[name]
            sources = [source for source in _inputs(op) if source[1] != _ORDER_ONLY]
            if op.text("type") not in _ALIASES or not sources:
                return f"{name}:{index}"
            name, index = sources[0]
        raise reader.error(f"op {reader.text('name')!r} reads itself")


class _NotFusible(Exception):
    """Why an op does not become part of a super kernel."""


def _inputs(op: Message) -> list[tuple[str, str]]:
    """Name and output of each op that this op reads or follows; an input that is not there is an empty text."""
    found = []
    for text in op.texts("input"):
        if text:
            name, _, index = text.removeprefix("^").rpartition(":")
            plain = (name, index) if name and re.fullmatch(r"-?\d+", index) else (text.removeprefix("^"), "0")
            found.append((plain[0], _ORDER_ONLY) if text.startswith("^") else plain)
    return found


def _attributes(op: Message) -> dict[str, Message]:
    """`attr { key: ... value { ... } }`; in JSON also an object by key."""
    found: dict[str, Message] = {}
    for entry in op.messages("attr"):
        if "key" in entry.fields:
            values = entry.messages("value")
            found[entry.text("key")] = values[0] if values else Message(entry.where)
        else:
            found |= {
                key: values[0] for key, values in entry.fields.items() if values and isinstance(values[0], Message)
            }
    return found


def _event(op: Message) -> int:
    attributes = _attributes(op)
    if _EVENT not in attributes:
        raise op.error(f"op {op.text('name')!r} has no attribute {_EVENT}")
    return attributes[_EVENT].whole("i")


def _names(op: Message, descriptions: Sequence[Message], listed: str, prefix: str) -> list[str]:
    """The names of parameters, as the op lists them or as they are described; numbered where there are none."""
    names = op.texts(listed)
    if len(names) != len(descriptions):
        names = [description.text("name", "") for description in descriptions]
    plain = [_plain(name) for name in names]
    if all(plain) and len(set(plain)) == len(plain):
        return plain
    return [prefix] if len(names) == 1 else [f"{prefix}{number}" for number in range(len(names))]


def _tensor(buffer: str, description: Message, parameter: str) -> TensorArg:
    dtype = description.text("dtype", "DT_UNDEFINED")
    if dtype not in _DTYPES:
        raise _NotFusible(f"its parameter {parameter} has the element type {dtype}")
    shapes = description.messages("shape")
    shape = tuple(shapes[0].wholes("dim")) if shapes else ()
    if any(size < 0 for size in shape):
        raise _NotFusible(f"the size of its parameter {parameter} is not known before it runs")
    strides = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
    return TensorArg(_plain(buffer.removesuffix(":0")), 0, _DTYPES[dtype], shape, strides)


def _plain(name: str) -> str:
    return re.sub(r"[^\w.]+", "_", name)
