"""targets.cpu.emit_lines: the actions of a core -> lines of C++: the form of small plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...model.params import DTYPES, Kind, Param
from ...model.subkernel import SubKernel
from ..native.c_names import c_string
from .actions import (
    Action,
    Actions,
    Argument,
    CallAction,
    Choice,
    Code,
    LinkedKernel,
    Meeting,
    Operand,
    Rank,
    TilingFunction,
    Value,
    Word,
)
from .numbering import ranges

INDENT = "    "
# false: the launch was stopped, the core goes home
_MAY_STOP = frozenset(
    {
        *(Word.AWAIT_EVENT, Word.WAIT, Word.WAIT_ALL, Word.WAIT_INSIDE, Word.WAIT_INSIDE_ALL, Word.BARRIER),
        *(Word.AWAIT_RANKS, Word.FEED, Word.END_CALL),
    }
)


@dataclass(frozen=True)
class LinePrinter:
    actions: Actions
    identifiers: Mapping[str, str]  # slot -> its enumerator

    def lines(self, action: Action) -> Iterator[str]:
        match action:
            case CallAction():
                yield from self._call(action)
            case Action(Word.SELECT, (int(step), int(tiling), Choice(op), Code(kernel, _), int(most))):
                keys = [str(key) for key, _ in self.actions.linked[kernel].variants]
                yield f"static const int64_t keys_{op}[] = {{{', '.join(keys)}}};"
                yield f"choice_{op} = core.select({step}, {tiling}, keys_{op}, {len(keys)}, {most});"
                yield f"if (!choice_{op}.ok) return;"
            case Action(Word.COMPUTE_TILING, (int(step), int(tiling), TilingFunction(op), int(most))):
                arguments = self.actions.arguments(op)
                yield f"const sk_tiling_argument arguments_{op}[] = {{"
                for argument in arguments:
                    size = f"bytes[at::{self.identifiers[argument.slot.name]}]"
                    yield f"{INDENT}{{{tiling_argument(argument.param, self._argument(argument), size)}}},"
                yield f"{INDENT}{{}},"  # an array of C++ is not empty
                yield "};"
                given = f"{{{len(arguments)}, arguments_{op}, {most}}}"
                yield f"if (!core.compute_tiling({step}, {tiling}, {self.actions.tiling_symbol(op)}, {given})) return;"
            case Action(Word.FEED_IDLE, (step, meeting, members, Rank() as rank, Choice(op))):
                feed = f"core.feed({self._operand(step)}, {self._operand(meeting)}, {self._operand(members)})"
                yield f"if ({rank_text(rank)} >= choice_{op}.blocks && choice_{op}.blocks > 0 &&"
                yield f"{INDENT}!{feed}) return;"
            case Action(Word.PRELOAD, (Code() as code,)):
                linked = self.actions.linked[code.kernel]
                address = f"reinterpret_cast<const void*>({function_text(linked, code.variant)})"
                yield f"core.preload({address}, {linked.code_bytes});"
            case Action(Word.PREFETCH, (Value() as value, rank, width, budget)):
                size = f"bytes[at::{self.identifiers[value.slot.name]}]"
                operands = ", ".join(map(self._operand, (rank, width, budget)))
                yield f"core.prefetch({self._operand(value)}, {size}, {operands});"
            case _:
                operands = ", ".join(self._operand(operand) for operand in action.operands if operand is not None)
                call = f"core.{action.word}({operands})"
                yield f"if (!{call}) return;" if action.word in _MAY_STOP else f"{call};"

    def _operand(self, operand: Operand) -> str:
        match operand:
            case bool():
                return "true" if operand else "false"
            case int():
                return str(operand)
            case Value(slot):
                return f"slot[at::{self.identifiers[slot.name]}]"
            case Rank():
                return rank_text(operand)
            case Meeting(index):
                return f"core.rendezvous({index})"
            case _:
                raise AssertionError(f"an operand that has no text: {operand}")

    def _call(self, action: CallAction) -> Iterator[str]:
        node = self.actions.plan.graph.nodes[action.op]
        linked = self.actions.linked[node.kernel]
        stop = ["if (!core.alive()) return;"] if node.kernel.may_fail else []
        step, width, rank = action.step, action.width, rank_text(action.rank)
        arguments = f"({', '.join(map(self._passed, self.actions.arguments(action.op)))});"
        if not node.dynamic and action.blocks <= width:
            yield f"core.begin({step}, {rank}, {action.blocks});"
            yield function_text(linked, 0) + arguments
            yield from stop
            return
        total = f"choice_{action.op}.blocks" if node.dynamic else str(action.blocks)
        yield f"for (int block = {rank}; block < {total}; block += {width}) {{"
        yield f"{INDENT}core.begin({step}, block, {total}, block + {width} >= {total});"
        if not node.dynamic:
            yield f"{INDENT}{function_text(linked, 0)}{arguments}"
        else:
            yield f"{INDENT}switch (choice_{action.op}.key) {{"
            for variant, (key, _) in enumerate(linked.variants):
                yield f"{INDENT * 2}case {key}: {function_text(linked, variant)}{arguments} break;"
            yield f"{INDENT}}}"
        yield from (INDENT + line for line in stop)
        yield "}"

    def _passed(self, argument: Argument) -> str:
        value = self._argument(argument)
        return value if argument.scalar is None else f"sk::as<{scalar_type(argument.scalar)}>({value})"

    def _argument(self, argument: Argument) -> str:
        """Of a buffer that is replicated, the copy of the running core."""
        value = self._operand(Value(argument.slot))
        if (area := argument.area) is None:
            return value
        index = "core.id()" if self.actions.copy_index(area.op) is None else f"copy_of_{area.op}[core.id()]"
        return f"core.copy({value}, {index}, {area.offset + argument.slot.addend}, {area.stride})"


def tiling_argument(param: Param, value: str, size: str) -> str:
    """Name, address, bytes, scalar. What an op only writes has no address: other ops may be using it."""
    if param.kind is Kind.SCALAR:
        return f"{c_string(param.name)}, nullptr, 0, {value}"
    address = f"reinterpret_cast<const void*>({value})" if param.kind.reads else "nullptr"
    return f"{c_string(param.name)}, {address}, {size}, 0"


def parameter_types(kernel: SubKernel) -> list[str]:
    """The C types of its parameters, as the emitted code declares them."""
    return [scalar_type(param.dtype) if param.kind is Kind.SCALAR else "uint64_t" for param in kernel.params]


def scalar_type(dtype: str | None) -> str:
    return DTYPES[dtype or "int64"][1]


def function_text(linked: LinkedKernel, variant: int) -> str:
    """The function of a variant; of several copies, that of the running core."""
    symbols = linked.variants[variant][1]
    return symbols[0] if len(symbols) == 1 else f"{symbols[0]}_copies[core.id() % {len(symbols)}]"


def rank_text(rank: Rank) -> str:
    if rank.width == 1 or len(rank.cores) == 1:
        return "0"
    first = rank.cores[0]
    if len(ranges(rank.cores)) > 1:
        place = f"sk::rank(core.id(), {{{', '.join(map(str, rank.cores))}}})"
    else:
        place = "core.id()" if first == 0 else f"core.id() - {first}"
    return f"({place}) % {rank.width}" if rank.width else place
