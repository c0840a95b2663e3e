"""targets.ascend.oplist_collectives: an entry of an op list that is a collective -> the ops that start and finish it.

Such an entry has no files: {"op_type": "AllReduce", "args": [source, result], "type": "float32[1024]", "group": ...}.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...model.json_value import FieldPlace, JsonValue, located
from ...model.op import EventId, Op
from ...model.params import Param
from ...model.ranks import group_from_json
from ...model.tensor_arg import TensorArg
from ..collectives import CollectiveKind, CollectiveTerms
from .chips import Chip
from .kernels.collectives import OP_TYPES, REDUCTIONS, collective_ops

NO_STREAM = -1
_REQUIRED = ("op_type", "args", "type", "group")
_FIELDS = (*_REQUIRED, "reduction", "root", "splits", "name", "stream_id")


@dataclass(frozen=True)
class CollectiveEntry:
    """The ops of a collective; what comes before it orders the first, what comes after it is ordered by the last."""

    place: JsonValue
    ignored: tuple[FieldPlace, ...]
    ops: tuple[Op, ...]
    stream: int

    def placed(self, stream: int, send: list[EventId], recv: list[EventId]) -> list[Op]:
        """In a stream, with more events."""
        ops = [replace(op, stream=stream) for op in self.ops]
        with located(self.place):
            ops[0] = replace(ops[0], recv=(*ops[0].recv, *recv))
            ops[-1] = replace(ops[-1], send=(*ops[-1].send, *send))
        return ops


def is_collective(entry: JsonValue) -> bool:
    """An op type without the files of a compiled kernel."""
    found = entry.value
    return isinstance(found, dict) and "op_type" in found and "json_path" not in found and "bin_path" not in found


def read_collective(entry: JsonValue, number: int, chip: Chip) -> CollectiveEntry:
    fields, ignored = entry.foreign_fields(_FIELDS, _REQUIRED)
    kind = OP_TYPES[fields["op_type"].one_of(list(OP_TYPES), "collective")]
    group = group_from_json(fields["group"])
    args = [item.text() for item in fields["args"].items()]
    if len(args) != 2:
        raise fields["args"].error(f"{len(args)} arguments; a collective has two: what is read, and the result")
    source = _tensor(args[0], fields["type"])
    reduction = fields["reduction"].one_of(REDUCTIONS, "reduction") if "reduction" in fields else "sum"
    name = fields["name"].text() if "name" in fields else f"{fields['op_type'].text()}_{number}"
    stream = fields["stream_id"].whole() if "stream_id" in fields else NO_STREAM
    if stream < NO_STREAM:
        raise fields["stream_id"].error(f"{stream} is out of range; streams count from 0, and -1 is none")
    root = _only_of(fields, "root", kind, CollectiveKind.BROADCAST)
    splits = _only_of(fields, "splits", kind, CollectiveKind.ALL_TO_ALL)
    given = () if splits is None else tuple(tuple(item.whole() for item in row.items()) for row in splits.items())
    count = source.numel
    if given and all(len(row) == group.size for row in given):
        count = sum(row[group.rank] for row in given)
    elif kind is CollectiveKind.ALL_GATHER:
        count *= group.size
    elif kind is CollectiveKind.REDUCE_SCATTER:
        count //= group.size
    result = TensorArg(args[1], 0, source.dtype, (count,), (1,))
    with located(entry):
        terms = CollectiveTerms(kind, reduction, 0 if root is None else root.whole())
        made = collective_ops(terms, source, result, group, name, chip.vector_cores, given)
    return CollectiveEntry(entry, ignored, (*made.start, *made.finish), stream)


def _only_of(
    fields: Mapping[str, JsonValue], name: str, kind: CollectiveKind, wanted: CollectiveKind
) -> JsonValue | None:
    """A field that one kind of collective has; None: it is not there."""
    if name not in fields:
        return None
    if kind is not wanted:
        op_type = next(text for text, found in OP_TYPES.items() if found is wanted)
        raise fields[name].error(f"only {op_type} has the field {name!r}: leave it out")
    return fields[name]


def _tensor(name: str, field: JsonValue) -> TensorArg:
    """The elements in one dimension: collectives do not look at shapes."""
    text = field.text()
    with located(field):
        param = Param.parse(f"in:x:{text}")
    if param.dtype is None or param.shape is None:
        raise field.error(f"{text!r} has no shape; a type such as float32[1024] is needed")
    return TensorArg(name, 0, param.dtype, (math.prod(param.shape),), (1,))
