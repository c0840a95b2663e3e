"""targets.cuda.kernels.collectives: a collective of a group of ranks -> the two ops that start and finish it.

    group = RankGroup("world", (0, 1), rank)                          # `rank`: the place of this process
    total = Collective("all_reduce", count=4096, group=group)         # float32, sum
    ops = [..., *total.ops("x", "y", name="total"), ...]              # y[4096] is the sum of x[4096] of all ranks

The first op stores x into the slot of this rank in a window, symmetric memory that all ranks see. The second one begins
when all ranks have done so, and reads their slots. Ops between them run while the other ranks arrive. Elements are
reduced in the order of the ranks, those of 16 bits in float32: all ranks have the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ....cache import Cache, digest
from ....errors import GraphError, nearest, shown
from ....model.op import Op
from ....model.plain_values import whole_number
from ....model.ranks import RankGroup, RankSync
from ....model.subkernel import SubKernel
from ....model.window_layout import ARRIVED, RANK_LINE, WindowLayout
from ...collectives import CollectiveKind

THREADS = 256
_MOST_ELEMENTS = 2**31 - 1
_MOST_BLOCKS = 2**16 - 1
_ENOUGH_BLOCKS = 132  # one for each SM of an H200
REDUCTIONS = ("sum", "avg", "max", "min", "product")


@dataclass(frozen=True)
class _Element:
    """A dtype: in memory, and in the register that sums it."""

    nbytes: int
    memory: str  # type of loads and stores
    register: str  # in which an element is loaded
    accumulator: str  # type of the arithmetic
    total: str  # register of the sum

    def widened(self) -> list[str]:
        """A bfloat16 is the upper half of a float32."""
        return {"bf16": ["mov.b32 %f2, {%h0, %h1};"], "f16": ["cvt.f32.f16 %f2, %h1;"]}.get(self.memory, [])

    def narrowed(self) -> list[str]:
        return [f"cvt.rn.{self.memory}.f32 %h1, %f1;"] if self.nbytes == 2 else []

    @property
    def load(self) -> str:
        """16-bit floats are loaded as bits."""
        return "b16" if self.nbytes == 2 else self.memory


ELEMENTS = {
    "float32": _Element(4, "f32", "%f2", "f32", "%f1"),
    "bfloat16": _Element(2, "bf16", "%h1", "f32", "%f1"),
    "float16": _Element(2, "f16", "%h1", "f32", "%f1"),
    "int32": _Element(4, "s32", "%r21", "s32", "%r20"),
    "int64": _Element(8, "s64", "%rd21", "s64", "%rd20"),
}
# by arithmetic: a reduction as an instruction
_INSTRUCTIONS = {
    "f32": {
        "sum": "add.rn.f32", "avg": "add.rn.f32", "max": "max.NaN.f32", "min": "min.NaN.f32", "product": "mul.rn.f32",
    },
    "s32": {"sum": "add.s32", "max": "max.s32", "min": "min.s32", "product": "mul.lo.s32"},
    "s64": {"sum": "add.s64", "max": "max.s64", "min": "min.s64", "product": "mul.lo.s64"},
}  # fmt: skip


@dataclass(frozen=True)
class Collective:
    """all_reduce, all_gather, reduce_scatter, all_to_all (equal parts) or broadcast, of `count` elements per rank."""

    kind: CollectiveKind | str
    count: int  # elements of x
    group: RankGroup
    dtype: str = "float32"
    reduction: str = "sum"  # of all_reduce and reduce_scatter
    root: int = 0  # of a broadcast: a place in the group
    blocks: int = 0  # of each op; 0: as many as there are elements for, up to _ENOUGH_BLOCKS

    def __post_init__(self) -> None:
        for field, known in (
            ("kind", tuple(kind.value for kind in CollectiveKind)),
            ("dtype", ELEMENTS),
            ("reduction", REDUCTIONS),
        ):
            given = getattr(self, field)
            if given not in known:
                names = ", ".join(known)
                raise GraphError(f"collective: {field}={shown(given)}{nearest(given, known)}; it can be {names}")
        object.__setattr__(self, "kind", CollectiveKind(self.kind))
        if not isinstance(self.group, RankGroup) or self.group.size < 2:
            raise GraphError(f"collective: group={shown(self.group)}; a RankGroup of two or more ranks is needed")
        limits = {"count": (1, _MOST_ELEMENTS), "root": (0, self.group.size - 1), "blocks": (0, _MOST_BLOCKS)}
        for field, (least, most) in limits.items():
            number = whole_number(getattr(self, field))
            if number is None or not least <= number <= most:
                given = shown(getattr(self, field))
                raise GraphError(f"collective: {field}={given}; a whole number from {least} to {most} is needed")
            object.__setattr__(self, field, number)
        if self.is_divided and self.count % self.group.size:
            raise GraphError(f"collective: {self.count} elements do not divide into {self.group.size} equal parts")
        if self.reduction not in _INSTRUCTIONS[self._element.accumulator]:
            raise GraphError(f"collective: {self.dtype} has no {self.reduction}")

    @property
    def is_divided(self) -> bool:
        """Whether x has a part for each rank."""
        return self.kind in (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL)

    @property
    def result_count(self) -> int:
        """Elements of y."""
        if self.kind is CollectiveKind.ALL_GATHER:
            return self.count * self.group.size
        return self.count // self.group.size if self.kind is CollectiveKind.REDUCE_SCATTER else self.count

    @property
    def terms(self) -> str:
        """What all ranks must agree on."""
        reduction = f" {self.reduction}" if CollectiveKind(self.kind).reduces else ""
        root = f" from place {self.root}" if self.kind is CollectiveKind.BROADCAST else ""
        return f"{self.kind}{reduction}{root} of {self.dtype}[{self.count}]"

    def ops(self, x: str, y: str, name: str) -> tuple[Op, Op]:
        """The op that starts the collective and the one that finishes it; `name` is that of its window."""
        if x == y:
            raise GraphError(f"collective {shown(name)}: x and y are both {shown(x)}; they must be different buffers")
        publish, finish = self._publish(), self._finish()
        syncs = [RankSync(name, self.group, name, sends, self.terms) for sends in (True, False)]
        return (
            Op(publish.kernel, [x, name, *publish.numbers], f"{name}_publish", ranks=syncs[:1]),
            Op(finish.kernel, [name, y, *finish.numbers], f"{name}_{finish.kernel.type_name}", ranks=syncs[1:]),
        )

    @property
    def _element(self) -> _Element:
        return ELEMENTS[self.dtype]

    @property
    def _layout(self) -> WindowLayout:
        return WindowLayout(self.group.size, self.count * self._element.nbytes)

    @property
    def _shared(self) -> dict[str, int]:
        """What every kernel must know of the window."""
        layout = self._layout
        return {"rank": self.group.rank, "ranks": self.group.size, "slots": layout.slots, "stride": layout.stride}

    def _publish(self) -> _Part:
        is_silent = self.kind is CollectiveKind.BROADCAST and self.group.rank != self.root  # it only arrives
        numbers = self._shared | {"count": 0 if is_silent else self.count}
        return self._part("publish", f"in:x:{self.dtype}[{self.count}]", True, numbers, self.count)

    def _finish(self) -> _Part:
        rank, size, count = self.group.rank, self.group.size, self.result_count
        y = f"out:y:{self.dtype}[{count}]"
        if CollectiveKind(self.kind).reduces:
            first = rank * count if self.is_divided else 0
            return self._part("reduce", y, False, self._shared | {"count": count, "first": first}, count)
        if self.kind is CollectiveKind.BROADCAST:
            taken = {"part": count, "sender": self.root, "first": 0}
        else:
            taken = {"part": count // size, "sender": 0, "first": rank * (count // size) if self.is_divided else 0}
        return self._part("gather", y, False, self._shared | {"count": count, **taken}, count)

    def _part(self, symbol: str, tensor: str, is_first: bool, numbers: Mapping[str, int], count: int) -> _Part:
        window = f"{'out' if is_first else 'in'}:window:uint8[{self._layout.nbytes}]"
        memory = [tensor, window] if is_first else [window, tensor]
        blocks = self.blocks or min(_ENOUGH_BLOCKS, -(-count // THREADS))
        text = ptx_text(symbol, self.dtype, self.reduction, tuple(numbers))
        kernel = SubKernel.from_ptx(
            Cache().make(digest("collective ptx", text), ".ptx", lambda path: path.write_text(text)),
            symbol,
            params=[*memory, *(f"scalar:{name}:int32" for name in numbers)],
            grid=(blocks, 1, 1),
            threads=(THREADS, 1, 1),
            op_type=symbol,
        )
        return _Part(kernel, tuple(numbers.values()))


@dataclass(frozen=True)
class _Part:
    """A kernel, and the values of its scalars."""

    kernel: SubKernel
    numbers: tuple[int, ...]


def ptx_text(symbol: str, dtype: str, reduction: str, scalars: tuple[str, ...]) -> str:
    """A kernel of one dtype: publish, reduce or gather. Threads take elements in turns."""
    memory = ("x", "window") if symbol == "publish" else ("window", "y")
    params = [f".param .u64 {symbol}_{name}" for name in memory] + [f".param .u32 {symbol}_{name}" for name in scalars]
    body = "\n".join(_lines(symbol, ELEMENTS[dtype], reduction, scalars))
    return f"""\
.version 8.0
.target sm_80
.address_size 64
.visible .entry {symbol}({", ".join(params)})
.maxntid {THREADS}, 1, 1
{{
.reg .b16 %h<2>; .reg .b32 %r<24>; .reg .b64 %rd<24>; .reg .f32 %f<3>; .reg .pred %p<3>;
{body}
}}
"""


def _lines(symbol: str, element: _Element, reduction: str, scalars: tuple[str, ...]) -> Iterator[str]:
    """%rd1: the window, %rd2: x or y, %rd9: the slots of this round, %r10: the element of a thread."""
    place = {name: f"%r{number}" for number, name in enumerate(scalars, 11)}
    yield f"ld.param.u64 %rd1, [{symbol}_window];"
    yield f"ld.param.u64 %rd2, [{symbol}_{'x' if symbol == 'publish' else 'y'}];"
    yield from (f"ld.param.u32 {register}, [{symbol}_{name}];" for name, register in place.items())
    # the word of this rank has the round in which it has arrived: the one before this, until publish is done
    yield f"mul.wide.u32 %rd3, {place['rank']}, {RANK_LINE};"
    yield "add.s64 %rd3, %rd1, %rd3;"
    yield f"ld.global.u32 %r1, [%rd3+{ARRIVED}];"
    if symbol == "publish":
        yield "add.u32 %r1, %r1, 1;"
    yield "and.b32 %r1, %r1, 1;"
    yield f"mul.lo.u32 %r2, %r1, {place['ranks']};"
    if symbol == "publish":
        yield f"add.u32 %r2, %r2, {place['rank']};"
    yield f"mul.wide.u32 %rd9, %r2, {place['stride']};"
    yield f"cvt.u64.u32 %rd4, {place['slots']};"
    yield "add.s64 %rd9, %rd9, %rd4;"
    yield "add.s64 %rd9, %rd9, %rd1;"
    yield "mov.u32 %r3, %ctaid.x;"
    yield "mov.u32 %r4, %ntid.x;"
    yield "mov.u32 %r5, %tid.x;"
    yield "mad.lo.u32 %r10, %r3, %r4, %r5;"
    yield "mov.u32 %r6, %nctaid.x;"
    yield "mul.lo.u32 %r6, %r6, %r4;"
    yield "$L_next:"
    yield f"setp.ge.u32 %p1, %r10, {place['count']};"
    yield "@%p1 bra $L_end;"
    yield f"mul.wide.u32 %rd5, %r10, {element.nbytes};"
    yield "add.s64 %rd6, %rd2, %rd5;"
    yield from _BODIES[symbol](element, reduction, place)
    yield "add.u32 %r10, %r10, %r6;"
    yield "bra $L_next;"
    yield "$L_end:"
    yield "ret;"


def _publish_lines(element: _Element, reduction: str, place: Mapping[str, str]) -> Iterator[str]:
    bits = f"b{8 * element.nbytes}"
    copied = {2: "%h1", 4: "%r7", 8: "%rd8"}[element.nbytes]
    yield "add.s64 %rd7, %rd9, %rd5;"
    yield f"ld.global.{bits} {copied}, [%rd6];"
    yield f"st.global.{bits} [%rd7], {copied};"


def _gather_lines(element: _Element, reduction: str, place: Mapping[str, str]) -> Iterator[str]:
    """From the slot of the sender, `part` elements of which come behind each other in y."""
    bits = f"b{8 * element.nbytes}"
    copied = {2: "%h1", 4: "%r7", 8: "%rd8"}[element.nbytes]
    yield f"div.u32 %r8, %r10, {place['part']};"
    yield f"mul.lo.u32 %r9, %r8, {place['part']};"
    yield "sub.u32 %r9, %r10, %r9;"
    yield f"add.u32 %r9, %r9, {place['first']};"
    yield f"add.u32 %r8, %r8, {place['sender']};"
    yield f"mul.wide.u32 %rd7, %r8, {place['stride']};"
    yield f"mul.wide.u32 %rd10, %r9, {element.nbytes};"
    yield "add.s64 %rd7, %rd7, %rd10;"
    yield "add.s64 %rd7, %rd7, %rd9;"
    yield f"ld.global.{bits} {copied}, [%rd7];"
    yield f"st.global.{bits} [%rd6], {copied};"


def _reduce_lines(element: _Element, reduction: str, place: Mapping[str, str]) -> Iterator[str]:
    loaded, total, kind = element.register, element.total, element.accumulator
    added = "%f2" if kind == "f32" else loaded
    yield f"mul.wide.u32 %rd10, {place['first']}, {element.nbytes};"
    yield "add.s64 %rd7, %rd9, %rd5;"
    yield "add.s64 %rd7, %rd7, %rd10;"
    yield f"cvt.u64.u32 %rd11, {place['stride']};"
    yield f"mov.u32 %r7, {place['ranks']};"
    yield "mov.u16 %h0, 0;"
    yield f"ld.global.{element.load} {loaded}, [%rd7];"
    yield from element.widened()
    yield f"mov.{'f32' if kind == 'f32' else kind.replace('s', 'b')} {total}, {added};"
    yield "$L_rank:"
    yield "add.s64 %rd7, %rd7, %rd11;"
    yield f"ld.global.{element.load} {loaded}, [%rd7];"
    yield from element.widened()
    yield f"{_INSTRUCTIONS[kind][reduction]} {total}, {total}, {added};"
    yield "sub.u32 %r7, %r7, 1;"
    yield "setp.gt.u32 %p2, %r7, 1;"
    yield "@%p2 bra $L_rank;"
    if reduction == "avg":
        yield f"cvt.rn.f32.u32 %f2, {place['ranks']};"
        yield "div.rn.f32 %f1, %f1, %f2;"
    yield from element.narrowed()
    yield f"st.global.{element.load} [%rd6], {total if kind != 'f32' or element.nbytes == 4 else '%h1'};"


_BODIES = {"publish": _publish_lines, "gather": _gather_lines, "reduce": _reduce_lines}
