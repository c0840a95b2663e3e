"""targets.cpu.call_check: a call of the plan and its text -> nothing, or a Difference.

Compared are functions, arguments, blocks, ranks and private copies, whose places are learnt from the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...model.argument_layout import Role, Slot
from ...model.params import DTYPES, Kind
from ...model.subkernel import SubKernel
from ...model.tiling import CompiledTiling
from ...plan import Plan, steps
from ...plan.steps import Cores
from ..native.c_names import c_string
from .actions import LinkedKernel
from .emitted_text import (
    ArgumentText,
    CallText,
    CopyText,
    FunctionText,
    Operand,
    RankText,
    Statement,
    TilingArgument,
    TilingText,
)
from .numbering import COPY_ALIGNMENT
from .statement_cursor import Difference, unlike


class CallCheck:
    """`linked` and `tilings` say what the merged object calls functions."""

    def __init__(
        self, plan: Plan, linked: Mapping[SubKernel, LinkedKernel], tilings: Mapping[CompiledTiling, str]
    ) -> None:
        nodes = plan.graph.nodes
        self.plan, self.linked, self.tilings = plan, linked, tilings
        dynamic = [node.index for node in nodes if node.dynamic]
        self.tiling_of = {op: i for i, op in enumerate(dynamic)}
        self._writer = {
            name: op for op in plan.copies for param, name in nodes[op].arguments() if param.kind.writes
        }  # of replicated buffers
        self._copy_of = {
            op: {core: number for number, copy in enumerate(copies) for core in copy.readers}
            for op, copies in plan.copies.items()
        }
        self._areas: dict[str, tuple[int, int]] = {}  # buffer -> offset, stride
        self._ranks: set[tuple[RankText, Cores, int, frozenset[int]]] = set()  # that were found right
        self.params: dict[str, tuple[Slot, ...]] = {
            op: tuple(slot for slot in slots if slot.role is Role.PARAM) for op, slots in plan.layout.of_op.items()
        }

    def check(
        self,
        statement: Statement,
        call: CallText,
        i: int,
        step: steps.Call,
        callers: Cores,
        width: int,
        cores: frozenset[int],
    ) -> None:
        node = self.plan.graph.nodes[step.op]
        may_fail = bool(node.kernel.may_fail)
        blocks, tiling = (None, self.tiling_of[step.op]) if node.dynamic else (step.blocks, None)
        if (call.step, call.blocks, call.tiling, call.checked) != (i, blocks, tiling, may_fail):
            raise unlike(statement, f"of step {i}, {step.blocks} blocks, may fail: {may_fail}")
        if call.width != width and not (call.width is None and step.blocks <= width):
            raise unlike(statement, f"by every {width}th block")
        self.check_rank(statement, call.rank, callers, width, cores)
        variants = self.linked[node.kernel].variants
        wanted = [(key, symbols) for key, symbols in variants] if node.dynamic else [(None, variants[0][1])]
        found = [(function.key, function.symbols) for function in call.functions]
        if found != wanted:
            raise unlike(statement, f"of {wanted}, not {found}")
        slots = self.params.get(node.name, ())
        for function in call.functions:
            self._check_arguments(statement, function, node.kernel, slots, cores)

    def _check_arguments(
        self,
        statement: Statement,
        function: FunctionText,
        kernel: SubKernel,
        slots: Iterable[Slot],
        cores: frozenset[int],
    ) -> None:
        wanted = tuple(
            ArgumentText(slot.index, type_name(param.dtype) if param.kind is Kind.SCALAR else None)
            for param, slot in zip(kernel.params, slots, strict=True)
        )
        if function.arguments == wanted and not self._writer:
            return
        if tuple(argument._replace(copy=None) for argument in function.arguments) != wanted:
            raise unlike(statement, f"with the slots {[a.slot for a in wanted]}")
        for argument, slot in zip(function.arguments, slots, strict=True):
            source = slot.source if argument.scalar is None else None
            self._check_copy(statement, argument.copy, source, slot.addend, cores)

    def _check_copy(
        self, statement: Statement, copy: CopyText | None, source: str | None, addend: int, cores: frozenset[int]
    ) -> None:
        """A core reads and writes its copy of a replicated buffer, and of others the buffer itself."""
        writer = self._writer.get(source or "")
        if (copy is None) != (writer is None):
            raise unlike(statement, f"with {'no copy' if writer is None else 'a copy'} of {source}")
        if copy is None or writer is None or source is None:
            return
        place = (copy.offset - addend, copy.stride)
        if self._areas.setdefault(source, place) != place:
            raise unlike(statement, f"with the copies of {source} at {self._areas[source]}, not {place}")
        wanted = self._copy_of[writer]
        for core in cores:
            number = copy.copy_of[core] if copy.copy_of else core
            if number != wanted.get(core, 0):
                raise unlike(statement, f"with copy {wanted.get(core, 0)} of {source} on core {core}, not {number}")

    def check_rank(
        self, statement: Statement, rank: Operand, callers: Cores, width: int, cores: frozenset[int]
    ) -> None:
        assert isinstance(rank, RankText)
        known = (rank, callers, width, cores)
        if known in self._ranks:
            return
        if rank.width not in (0, width):
            raise unlike(statement, f"with ranks modulo {width}")
        for place, core in enumerate(callers):
            if core in cores and rank.of(core) != place % width:
                raise unlike(statement, f"with rank {place % width} on core {core}, not {rank.of(core)}")
        self._ranks.add(known)

    def tiling(self, i: int, step: steps.ComputeTiling) -> TilingText:
        node = self.plan.graph.nodes[step.op]
        assert node.compiled_tiling is not None
        arguments = []
        for param, slot in zip(node.kernel.params, self.params.get(node.name, ()), strict=True):
            address = size = scalar = None
            if param.kind is Kind.SCALAR:
                scalar = slot.index
            else:
                size = slot.index
                address = ArgumentText(slot.index) if param.kind.reads else None
            arguments.append(TilingArgument(c_string(param.name), address, size, scalar))
        symbol = self.tilings[node.compiled_tiling]
        return TilingText(i, self.tiling_of[step.op], symbol, node.blocks, tuple(arguments))

    def check_areas(self, copies_bytes: int) -> None:
        """Private copies of different buffers lie apart."""
        end = 0
        for (offset, stride), name in sorted((place, name) for name, place in self._areas.items()):
            size = self.plan.graph.buffers[name].nbytes or 0
            aligned = offset % COPY_ALIGNMENT == stride % COPY_ALIGNMENT == 0
            if offset < end or stride < size or not aligned:
                raise Difference(0, f"has copies of {name} from {offset} on, every {stride} bytes, over others")
            end = offset + stride * (len(self.plan.copies[self._writer[name]]) - 1)
        if end > copies_bytes:
            raise Difference(0, f"has copies up to {end}, in a memory of {copies_bytes} bytes")


def type_name(dtype: str | None) -> str:
    return DTYPES[dtype or "int64"][1]
