"""targets.cpu.kernels.collectives: a collective of a group of ranks -> the ops that start and finish it.

A rank publishes its contribution in its slot of a window in shared memory, and reads the slots of all ranks when all
have arrived. Every element is reduced in the order of the ranks, so that all ranks have the same bits. A large
all_reduce has two windows: each rank reduces a part of the elements, and publishes the reduced part for the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from ....errors import GraphError, UnsupportedError, nearest, shown
from ....model.op import Argument, Op
from ....model.ranks import RankGroup, RankSync
from ...collectives import CollectiveKind, CollectiveOps, CollectiveTerms
from .shipping import Tensor, parameters, place, shipped

_ELEMENTS = {
    "float32": "float", "bfloat16": "Bfloat16", "float16": "Float16", "int32": "int32_t", "int64": "int64_t",
    "uint8": "uint8_t", "bool": "Bool",
}  # fmt: skip
_BYTES_PER_BLOCK = 16 << 10  # least work of a block
_TWO_WINDOWS = 128 << 10  # bytes: an all_reduce of at least so many has two windows
_PAST_CACHES = 4 << 20  # bytes: stores of results and slots that are as large go past the caches
_LINE = 64


class Reduction(StrEnum):
    """What becomes of the elements that the ranks have at the same place."""

    SUM = "sum"
    AVG = "avg"
    MAX = "max"
    MIN = "min"
    PRODUCT = "product"


@dataclass(frozen=True)
class _Call:
    """A collective whose arguments have been checked."""

    tensor_in: Tensor
    tensor_out: Tensor
    group: RankGroup
    name: str
    cores: int
    reduction: Reduction
    terms: str

    @property
    def ranks(self) -> tuple[int, int]:
        """The place of this rank in the group, and how many there are."""
        return self.group.rank, self.group.size

    @property
    def bytes_in(self) -> int:
        return self.tensor_in.numel * self.tensor_in.itemsize

    @property
    def bytes_out(self) -> int:
        return self.tensor_out.numel * self.tensor_out.itemsize

    def op(
        self,
        symbol: str,
        params: str,
        arguments: Sequence[Argument],
        nbytes: int,
        *,
        sends: str = "",
        awaits: str = "",
        defines: tuple[str, ...] = (),
        source: str = "collective_copies.cpp",
    ) -> Op:
        """An op whose blocks divide `nbytes`; it sends one window and awaits one, by name."""
        blocks = max(1, min(self.cores, nbytes // _BYTES_PER_BLOCK))
        kernel = shipped(source, symbol, parameters(params), blocks=blocks, op_type=symbol, defines=defines, pure=False)
        syncs = [RankSync(window, self.group, window, True, self.terms) for window in (sends,) if window]
        syncs += [RankSync(window, self.group, window, False, self.terms) for window in (awaits,) if window]
        return Op(kernel, arguments, f"{self.name}_{symbol}", ranks=syncs)


def collective_ops(
    terms: CollectiveTerms, tensor_in: Tensor, tensor_out: Tensor, group: RankGroup, name: str, cores: int
) -> CollectiveOps:
    """The ops of one collective, whose windows get names that begin with `name`.

    The tensors may be the same memory where an element is read before its place is written.
    """
    call = _checked(terms, tensor_in, tensor_out, group, name, cores)
    if call.bytes_out == 0 and call.bytes_in == 0 and not terms.sent:  # then it is so on every rank
        return CollectiveOps((), ())
    if group.size == 1:
        return CollectiveOps((), _copied(call))
    if terms.kind is CollectiveKind.ALL_REDUCE:
        return _all_reduce_large(call) if _has_two_windows(call) else _all_reduce(call)
    if terms.kind is CollectiveKind.ALL_GATHER:
        return _all_gather(call)
    if terms.kind is CollectiveKind.REDUCE_SCATTER:
        return _reduce_scatter(call)
    if terms.kind is CollectiveKind.BROADCAST:
        return _broadcast(call, terms.root)
    return _all_to_all(call, terms if terms.sent else _even(call, terms))


def _copied(call: _Call) -> tuple[Op, ...]:
    if place(call.tensor_in) == place(call.tensor_out):
        return ()
    params = "in:x out:y bytes"
    arguments: list[Argument] = [place(call.tensor_in), place(call.tensor_out), call.bytes_in]
    return (call.op("copy_tensor", params, arguments, call.bytes_in),)


def _publish(call: _Call, window: str, skipped: tuple[int, int]) -> Op:
    """Puts the input, without a range of bytes that no other rank reads, into this rank's slot."""
    nbytes = call.bytes_in
    params = "in:x out:window bytes skipped skipped_end rank ranks past_caches"
    arguments: list[Argument] = [place(call.tensor_in), window, nbytes, *skipped, *call.ranks, _past_caches(nbytes)]
    return call.op("publish", params, arguments, nbytes, sends=window)


def _reduce(call: _Call, window: str, first: int) -> Op:
    """Reduces as many elements as the output has, from the element `first` of every contribution on."""
    params = "in:x in:window out:y first count rank ranks past_caches"
    count = call.tensor_out.numel
    arguments: list[Argument] = [place(call.tensor_in), window, place(call.tensor_out), first, count, *call.ranks]
    arguments.append(_past_caches(call.bytes_out))
    return call.op(
        "reduce", params, arguments, call.bytes_out, awaits=window, defines=_defines(call), source="collective_sums.cpp"
    )


def _defines(call: _Call) -> tuple[str, ...]:
    return f"SK_ELEMENT={_ELEMENTS[call.tensor_in.dtype]}", f"SK_{call.reduction.upper()}"


def _all_reduce(call: _Call) -> CollectiveOps:
    window = call.name
    nowhere = (call.bytes_in, call.bytes_in)
    return CollectiveOps((_publish(call, window, nowhere),), (_reduce(call, window, 0),), {window: call.bytes_in})


def _has_two_windows(call: _Call) -> bool:
    """All ranks decide alike: by the size of the tensor and of the group."""
    return call.bytes_in >= _TWO_WINDOWS


def _all_reduce_large(call: _Call) -> CollectiveOps:
    rank, ranks = call.ranks
    itemsize, nbytes = call.tensor_in.itemsize, call.bytes_in
    part_bytes = -(-nbytes // (ranks * _LINE)) * _LINE  # the last parts may be smaller, or empty
    begin, end = min(rank * part_bytes, nbytes), min((rank + 1) * part_bytes, nbytes)
    parts, sums = f"{call.name}_parts", f"{call.name}_sums"
    past_caches = _past_caches(nbytes)
    reduce_part = call.op(
        "reduce_part",
        "in:x in:window out:y out:sums first count rank ranks past_caches",
        [
            place(call.tensor_in), parts, place(call.tensor_out), sums, begin // itemsize, (end - begin) // itemsize,
            rank, ranks, past_caches,
        ],
        part_bytes,
        sends=sums,
        awaits=parts,
        defines=_defines(call),
        source="collective_sums.cpp",
    )  # fmt: skip
    gather_others = call.op(
        "gather_others",
        "in:window inout:y bytes part_bytes rank ranks past_caches",
        [sums, place(call.tensor_out), nbytes, part_bytes, rank, ranks, past_caches],
        nbytes - (end - begin),
        awaits=sums,
    )
    start = (_publish(call, parts, (begin, end)),)
    return CollectiveOps(start, (reduce_part, gather_others), {parts: nbytes, sums: part_bytes})


def _all_gather(call: _Call) -> CollectiveOps:
    window, nbytes = call.name, call.bytes_in
    params = "in:x in:window out:y part_bytes rank ranks past_caches"
    arguments: list[Argument] = [place(call.tensor_in), window, place(call.tensor_out), nbytes, *call.ranks]
    gather = call.op("gather", params, [*arguments, _past_caches(call.bytes_out)], call.bytes_out, awaits=window)
    return CollectiveOps((_publish(call, window, (nbytes, nbytes)),), (gather,), {window: nbytes})


def _reduce_scatter(call: _Call) -> CollectiveOps:
    window, first = call.name, call.group.rank * call.bytes_out
    start = _publish(call, window, (first, first + call.bytes_out))
    finish = _reduce(call, window, call.group.rank * call.tensor_out.numel)
    return CollectiveOps((start,), (finish,), {window: call.bytes_in})


def _broadcast(call: _Call, source: int) -> CollectiveOps:
    """Ranks other than the source publish nothing, but arrive: the next round may then overwrite what they read."""
    window, nbytes = call.name, call.bytes_in
    skipped = (nbytes, nbytes) if call.group.rank == source else (0, nbytes)
    params = "in:x in:window out:y bytes source rank ranks past_caches"
    arguments: list[Argument] = [place(call.tensor_in), window, place(call.tensor_out), nbytes, source, *call.ranks]
    take = call.op("take", params, [*arguments, _past_caches(nbytes)], nbytes, awaits=window)
    return CollectiveOps((_publish(call, window, skipped),), (take,), {window: nbytes})


def _all_to_all(call: _Call, splits: CollectiveTerms) -> CollectiveOps:
    window = call.name
    row_bytes = math.prod(call.tensor_in.shape[1:]) * call.tensor_in.itemsize
    table_bytes = -(-16 * call.group.size // _LINE) * _LINE
    defines = (f"SK_SPLITS={_listed(splits.sent)}", f"SK_OUT_SPLITS={_listed(splits.received)}")
    sizes: list[Argument] = [row_bytes, table_bytes, *call.ranks, _past_caches(max(call.bytes_in, call.bytes_out))]
    publish = call.op(
        "publish_splits",
        "in:x out:window bytes row_bytes table_bytes rank ranks past_caches",
        [place(call.tensor_in), window, call.bytes_in, *sizes],
        call.bytes_in,
        sends=window,
        defines=defines,
    )
    gather = call.op(
        "gather_splits",
        "in:x in:window out:y bytes row_bytes table_bytes rank ranks past_caches",
        [place(call.tensor_in), window, place(call.tensor_out), call.bytes_out, *sizes],
        call.bytes_out,
        awaits=window,
        defines=defines,
    )
    return CollectiveOps((publish,), (gather,), {window: table_bytes + call.bytes_in})


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _past_caches(nbytes: int) -> int:
    return int(nbytes >= _PAST_CACHES)


def _even(call: _Call, terms: CollectiveTerms) -> CollectiveTerms:
    tensor_in, tensor_out, ranks = call.tensor_in, call.tensor_out, call.group.size
    if not tensor_in.shape or tensor_in.shape[0] % ranks or tensor_out.shape != tensor_in.shape:
        raise GraphError(
            f"all_to_all from {_described(tensor_in)} to {_described(tensor_out)} without splits: the first dimension "
            f"must divide into {ranks} equal parts, and the shapes must be equal"
        )
    each = (tensor_in.shape[0] // ranks,) * ranks
    return replace(terms, sent=each, received=each)


def _described(tensor: Tensor) -> str:
    return f"{tensor.name} {tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


def _checked(
    terms: CollectiveTerms, tensor_in: Tensor, tensor_out: Tensor, group: RankGroup, name: str, cores: int
) -> _Call:
    where = f"{terms.kind} {name} of {_described(tensor_in)} to {_described(tensor_out)}: "
    known = [reduction.value for reduction in Reduction]
    if terms.reduction not in known:
        raise UnsupportedError(
            f"{where}reduction {shown(terms.reduction)}{nearest(terms.reduction, known)}; there are {', '.join(known)}"
        )
    for tensor in (tensor_in, tensor_out):
        if tensor.dtype not in _ELEMENTS:
            raise UnsupportedError(f"{where}there are kernels for {', '.join(_ELEMENTS)}")
        if not tensor.contiguous and not _is_permuted(terms.kind, tensor_in, tensor_out):
            raise UnsupportedError(f"{where}{tensor.name} is not contiguous; copy it first")
    if tensor_in.dtype != tensor_out.dtype:
        raise GraphError(f"{where}the dtypes differ")
    if terms.kind.reduces and terms.reduction == Reduction.AVG and tensor_in.dtype == "bool":
        raise UnsupportedError(f"{where}bool has no average; use max, min, sum or product")
    _check_sizes(terms, tensor_in, tensor_out, group, where)
    _check_memory(terms.kind, tensor_in, tensor_out, group, where)
    reduction = Reduction(terms.reduction)
    return _Call(tensor_in, tensor_out, group, name, cores, reduction, _stated(terms, tensor_in))


def _is_permuted(kind: CollectiveKind, tensor_in: Tensor, tensor_out: Tensor) -> bool:
    """Whether each element stays at its place in memory: any order will do that all ranks have."""
    stays = kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST)
    same = (tensor_in.shape, tensor_in.strides) == (tensor_out.shape, tensor_out.strides)
    return stays and same and tensor_in.dense


def _stated(terms: CollectiveTerms, tensor: Tensor) -> str:
    """What all ranks must agree on. The sizes of an all_to_all with splits differ; each rank checks what it gets."""
    count = "" if terms.sent else f"[{tensor.numel}]"
    if not tensor.contiguous:
        strides = [stride for size, stride in zip(tensor.shape, tensor.strides, strict=True) if size > 1]
        count += f" with strides {strides}"
    more = f" {terms.reduction}" if terms.kind.reduces else ""
    more += f" from place {terms.root}" if terms.kind is CollectiveKind.BROADCAST else ""
    return f"{terms.kind}{more} of {tensor.dtype}{count}"


def _check_sizes(terms: CollectiveTerms, tensor_in: Tensor, tensor_out: Tensor, group: RankGroup, where: str) -> None:
    kind, given, result, ranks = terms.kind, tensor_in.numel, tensor_out.numel, group.size
    if kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST) and given != result:
        raise GraphError(f"{where}both must have as many elements")
    if kind is CollectiveKind.ALL_GATHER and given * ranks != result:
        raise GraphError(f"{where}the result of {ranks} ranks has {given * ranks} elements")
    if kind is CollectiveKind.REDUCE_SCATTER and result * ranks != given:
        raise GraphError(f"{where}{given} elements do not divide into {ranks} parts of {result}")
    if kind is CollectiveKind.BROADCAST and not 0 <= terms.root < ranks:
        raise GraphError(f"{where}root is {shown(terms.root)}; it is a place in the group, from 0 to {ranks - 1}")
    if not terms.sent and not terms.received:
        return
    if kind is not CollectiveKind.ALL_TO_ALL:
        raise GraphError(f"{where}splits belong to all_to_all")
    for rows, tensor in ((terms.sent, tensor_in), (terms.received, tensor_out)):
        if len(rows) != ranks or min(rows) < 0 or not tensor.shape or sum(rows) != tensor.shape[0]:
            raise GraphError(
                f"{where}splits {shown(rows)}: there must be {ranks} of them, from 0, and their sum must be the first "
                f"dimension of {_described(tensor)}"
            )
    if tensor_in.shape[1:] != tensor_out.shape[1:]:
        raise GraphError(f"{where}the dimensions behind the first must be equal")


def _check_memory(kind: CollectiveKind, tensor_in: Tensor, tensor_out: Tensor, group: RankGroup, where: str) -> None:
    """In one buffer the tensors may lie where the kernels read an element before they write to its place."""
    if tensor_in.name != tensor_out.name:
        return
    itemsize = tensor_in.itemsize
    given = range(tensor_in.offset, tensor_in.offset + tensor_in.numel * itemsize)
    result = range(tensor_out.offset, tensor_out.offset + tensor_out.numel * itemsize)
    if not given or not result or given[-1] < result[0] or result[-1] < given[0]:
        return
    apart = {
        CollectiveKind.ALL_GATHER: result[0] + group.rank * len(given) - given[0],
        CollectiveKind.REDUCE_SCATTER: given[0] + group.rank * len(result) - result[0],
        CollectiveKind.ALL_TO_ALL: 1 if group.size > 1 else given[0] - result[0],
    }.get(kind, given[0] - result[0])
    if apart:
        raise UnsupportedError(
            f"{where}input and result overlap in {tensor_in.name}; use another buffer for the result"
        )
