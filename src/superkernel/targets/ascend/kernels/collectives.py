"""targets.ascend.kernels.collectives: a collective of a group of ranks -> ops for emulated chips.

One op starts the collective, the other finishes it. Their kernels are written for the emulator. For a chip, give ops
with the same RankSync the compiled kernels that publish and read a window there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ....errors import GraphError, UnsupportedError, nearest, shown
from ....model.op import Argument, Op
from ....model.ranks import RankGroup, RankSync
from ....model.subkernel import SubKernel
from ....model.tensor_arg import TensorArg
from ...collectives import CollectiveKind, CollectiveOps, CollectiveTerms

SOURCE = Path(__file__).with_name("collectives.cpp")
# CANN's names of the collectives that can be ops of a super kernel
OP_TYPES = {
    "AllReduce": CollectiveKind.ALL_REDUCE,
    "AllGather": CollectiveKind.ALL_GATHER,
    "ReduceScatter": CollectiveKind.REDUCE_SCATTER,
    "AlltoAll": CollectiveKind.ALL_TO_ALL,
    "Broadcast": CollectiveKind.BROADCAST,
}
REDUCTIONS = ("sum", "avg", "max", "min", "product")
_NAMES = {kind: name for name, kind in OP_TYPES.items()}
_ELEMENTS = {
    "float32": "float", "bfloat16": "Bfloat16", "int32": "int32_t", "int64": "int64_t", "int8": "int8_t",
    "uint8": "uint8_t",
}  # fmt: skip
_LINE = 512  # bytes: the largest cache line of a chip; slots share none
_BYTES_PER_BLOCK = 1024
Splits = tuple[tuple[int, ...], ...]  # by sender, then by receiver: elements


@dataclass(frozen=True)
class _Call:
    """A collective whose arguments have been checked."""

    kind: CollectiveKind
    reduction: str
    source: TensorArg
    result: TensorArg
    group: RankGroup
    name: str
    cores: int
    root: int
    splits: Splits  # of an all_to_all; empty: equal parts

    @property
    def slot_bytes(self) -> int:
        """Of the rank that stores most: the slots of all ranks are alike."""
        most = max(map(sum, self.splits), default=self.source.numel)
        return most * self.source.itemsize

    @property
    def stride(self) -> int:
        return -(-self.slot_bytes // _LINE) * _LINE

    @property
    def terms(self) -> str:
        if self.splits:
            return f"{self.kind} of {self.source.dtype}, splits {list(map(list, self.splits))}"
        reduction = f" {self.reduction}" if self.kind.reduces else ""
        root = f" from place {self.root}" if self.kind is CollectiveKind.BROADCAST else ""
        return f"{self.kind}{reduction}{root} of {self.source.dtype}[{self.source.numel}]"

    def op(self, symbol: str, tensor: TensorArg, numbers: dict[str, int], *, sends: bool, flags: tuple[str, ...]) -> Op:
        """One that stores into the window, or reads it. Its blocks divide the tensor."""
        nbytes = tensor.numel * tensor.itemsize
        window = f"{'out' if sends else 'in'}:window:uint8[{self.group.size * self.stride}]"
        memory = [f"in:x:{_typed(tensor)}", window] if sends else [window, f"out:y:{_typed(tensor)}"]
        kernel = SubKernel.from_source(
            SOURCE, symbol, block_dim=max(1, min(self.cores, -(-nbytes // _BYTES_PER_BLOCK))),
            params=[*memory, *(f"scalar:{name}:int64" for name in numbers)], core="vector",
            op_type=_NAMES[self.kind], sync_all=False, early_start=False, flags=flags,
        )  # fmt: skip
        arguments: list[Argument] = [tensor.name, self.name] if sends else [self.name, tensor.name]
        sync = RankSync(self.name, self.group, self.name, sends, self.terms)
        return Op(kernel, [*arguments, *numbers.values()], f"{self.name}_{symbol}", ranks=(sync,))


def collective_ops(
    terms: CollectiveTerms,
    source: TensorArg,
    result: TensorArg,
    group: RankGroup,
    name: str,
    cores: int,
    splits: Splits = (),
) -> CollectiveOps:
    """The ops of one collective, whose window is called `name`; see CollectiveSupport.

    `splits`: of an all_to_all whose parts differ; all ranks give those of all ranks.
    """
    call = _checked(terms, source, result, group, name, cores, splits)
    rank, stride = group.rank, call.stride
    stored = source.numel * source.itemsize
    if call.kind is CollectiveKind.BROADCAST and rank != call.root:
        stored = 0  # it arrives, and has nothing to say
    publish = call.op("publish", source, {"bytes": stored, "stride": stride, "rank": rank}, sends=True, flags=())
    shared = {"stride": stride, "ranks": group.size}
    if call.kind.reduces:
        first = rank * result.numel if call.kind is CollectiveKind.REDUCE_SCATTER else 0
        flags = (f"-DSK_ELEMENT={_ELEMENTS[source.dtype]}", f"-DSK_{call.reduction.upper()}")
        finish = call.op("reduce", result, {"count": result.numel, "first": first, **shared}, sends=False, flags=flags)
    elif call.splits:
        finish = call.op("gather_parts", result, {**shared, **_parts(call)}, sends=False, flags=())
    elif call.kind is CollectiveKind.BROADCAST:
        one_slot = {"bytes": call.slot_bytes, "first": call.root * stride, "stride": stride, "ranks": 1}
        finish = call.op("gather", result, one_slot, sends=False, flags=())
    else:
        part = result.numel * result.itemsize // group.size
        first = rank * part if call.kind is CollectiveKind.ALL_TO_ALL else 0
        finish = call.op("gather", result, {"bytes": part, "first": first, **shared}, sends=False, flags=())
    return CollectiveOps((publish,), (finish,), {name: call.slot_bytes})


def _parts(call: _Call) -> dict[str, int]:
    """By rank: where its part for this rank begins in its slot, and its bytes."""
    item, rank = call.source.itemsize, call.group.rank
    found = {}
    for sender, sent in enumerate(call.splits):
        found[f"first{sender}"], found[f"bytes{sender}"] = sum(sent[:rank]) * item, sent[rank] * item
    return found


def is_for_emulator(kernel: SubKernel) -> bool:
    """Whether it is one of these, which have no code for a chip."""
    return kernel.binary.path == SOURCE


def _typed(tensor: TensorArg) -> str:
    return f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"


def _checked(
    terms: CollectiveTerms,
    source: TensorArg,
    result: TensorArg,
    group: RankGroup,
    name: str,
    cores: int,
    splits: Splits,
) -> _Call:
    where = f"{terms.kind} {name} of {_typed(source)} to {_typed(result)}: "
    if terms.sent or terms.received:
        raise UnsupportedError(f"{where}on the ascend target an all_to_all takes the splits of all ranks")
    if terms.reduction not in REDUCTIONS:
        hint = nearest(terms.reduction, REDUCTIONS)
        raise UnsupportedError(f"{where}reduction {shown(terms.reduction)}{hint}; there are {', '.join(REDUCTIONS)}")
    for tensor in (source, result):
        if tensor.dtype not in _ELEMENTS:
            raise UnsupportedError(f"{where}there are kernels for {', '.join(_ELEMENTS)}")
        if not tensor.contiguous or tensor.offset:
            raise UnsupportedError(f"{where}{tensor.name} must be a whole buffer, contiguous; copy it first")
        if tensor.numel == 0:
            raise UnsupportedError(f"{where}{tensor.name} has no elements")
    if source.dtype != result.dtype or source.name == result.name:
        raise GraphError(f"{where}source and result are different buffers of one dtype")
    if splits:
        _check_splits(terms.kind, splits, source, result, group, where)
        return _Call(terms.kind, terms.reduction, source, result, group, name, cores, 0, splits)
    if not 0 <= terms.root < group.size:
        raise GraphError(f"{where}root is {terms.root}; it is a place in the group, from 0 to {group.size - 1}")
    factor = {CollectiveKind.ALL_GATHER: (group.size, 1), CollectiveKind.REDUCE_SCATTER: (1, group.size)}
    larger, smaller = factor.get(terms.kind, (1, 1))
    if source.numel * larger != result.numel * smaller:
        raise GraphError(f"{where}the numbers of elements do not fit for {group.size} ranks")
    if terms.kind is CollectiveKind.ALL_TO_ALL and source.numel % group.size:
        raise GraphError(f"{where}{source.numel} elements do not divide into {group.size} equal parts")
    return _Call(terms.kind, terms.reduction, source, result, group, name, cores, terms.root, ())


def _check_splits(
    kind: CollectiveKind, splits: Splits, source: TensorArg, result: TensorArg, group: RankGroup, where: str
) -> None:
    if kind is not CollectiveKind.ALL_TO_ALL:
        raise GraphError(f"{where}only {_NAMES[CollectiveKind.ALL_TO_ALL]} has splits")
    if len(splits) != group.size or any(len(sent) != group.size for sent in splits):
        raise GraphError(f"{where}splits are a list of {group.size} numbers for each of the {group.size} ranks")
    if any(count < 0 for sent in splits for count in sent):
        raise GraphError(f"{where}splits are numbers of elements, from 0")
    sent, received = sum(splits[group.rank]), sum(row[group.rank] for row in splits)
    if (sent, received) != (source.numel, result.numel):
        raise GraphError(f"{where}by the splits this rank sends {sent} elements and receives {received}")
