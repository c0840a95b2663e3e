"""targets.cpu.emit_table: the actions of the cores of a lane -> rows of a table that table.h walks: large plans.

A compiler reads a row in microseconds and a line of code in milliseconds, so the compile time of a large entry depends
on its distinct kernels. A row is for a range of cores; every operand is a number, or a name for one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ...model.params import Kind
from ...model.subkernel import SubKernel
from ...plan.steps import Cores
from .actions import (
    Action,
    Actions,
    Argument,
    CallAction,
    Choice,
    Code,
    Meeting,
    Operand,
    Rank,
    TilingFunction,
    Value,
    Word,
)
from .emit_lines import INDENT, function_text, scalar_type, tiling_argument

_Columns = tuple[str, list[str]]  # a word, its operands
_CACHE_LINE = 64  # as kLine in state.h
_NO_COUNTER = "sk::kNoCounter"
_COPIED = "sk::kCopiedArguments"


@dataclass(frozen=True)
class TablePrinter:
    actions: Actions
    identifiers: Mapping[str, str]  # slot -> its enumerator
    areas: dict[tuple[int, int, int], int] = field(default_factory=dict)  # op, offset, stride -> index

    def head(self) -> str:
        """The sub-kernels, as tables refer to them."""
        functions, enumerators, kernels, keys = list[str](), list[str](), list[str](), list[str]()
        for kernel, linked in self.actions.linked.items():
            values = (
                f"sk::as<{scalar_type(p.dtype)}>(slot[{i}])" if p.kind is Kind.SCALAR else f"slot[{i}]"
                for i, p in enumerate(kernel.params)
            )
            arguments = ", ".join(values)
            for variant, (key, symbols) in enumerate(linked.variants):
                name = self.kernel_names[Code(kernel, variant)]
                addresses = ", ".join(f"reinterpret_cast<const void*>({symbol})" for symbol in symbols)
                functions += [
                    f"static void {name}_call(const sk::Core&{' core' if len(symbols) > 1 else ''}, "
                    f"[[maybe_unused]] const uint64_t* slot) {{ {function_text(linked, variant)}({arguments}); }}",
                    f"static const void* const {name}_code[] = {{{addresses}}};",
                ]
                enumerators.append(f"{INDENT}{name},")
                may_fail = "true" if kernel.may_fail else "false"
                kernels.append(
                    f"{INDENT}{{{name}_call, {name}_code, {len(symbols)}, {linked.code_bytes}, {may_fail}}},  // {name}"
                )
                keys.append(str(key))
        tilings = [line for op in self.tiling_functions.values() for line in self._tiling_function(op)]
        numbered = [f"{INDENT}{self._tiling_name(op)}," for op in self.tiling_functions.values()]
        return "\n".join(
            [
                "// the sub-kernels by number: how each is called with the slots of an op",
                "// a row of a lane: what is done, by which cores (first, and behind the last), operands as in table.h",
                "using sk::Do;",
                *functions,
                *("namespace kernel {", "enum : int {", *enumerators, "};", "}  // namespace kernel"),
                *("static const sk::Kernel kernels[] = {", *kernels, "};"),
                f"static const int64_t keys[] = {{{', '.join(keys)}}};  // the tiling key of each",
                *tilings,
                *("static const sk::TilingCall tilings[] = {", *numbered, f"{INDENT}nullptr,", "};"),
                "",
            ]
        )

    @cached_property
    def tiling_functions(self) -> dict[tuple[str, SubKernel], int]:
        """Tiling function and sub-kernel -> the first op that has both."""
        found: dict[tuple[str, SubKernel], int] = {}
        for node in self.actions.plan.graph.nodes:
            if node.compiled_tiling is not None:
                found.setdefault((self.actions.tiling_symbol(node.index), node.kernel), node.index)
        return found

    def _tiling_name(self, op: int) -> str:
        key = (self.actions.tiling_symbol(op), self.actions.plan.graph.nodes[op].kernel)
        return f"compute_tiling_{self.tiling_functions[key]}"

    def _tiling_function(self, op: int) -> Iterator[str]:
        params = self.actions.plan.graph.nodes[op].kernel.params
        yield (
            f"static bool {self._tiling_name(op)}(sk::Core& core, uint32_t step, int tiling, int64_t most_blocks, "
            "[[maybe_unused]] const uint64_t* slot, [[maybe_unused]] const int64_t* bytes) {"
        )
        yield f"{INDENT}const sk_tiling_argument arguments[] = {{"
        for i, param in enumerate(params):
            yield f"{INDENT * 2}{{{tiling_argument(param, f'slot[{i}]', f'bytes[{i}]')}}},"
        yield f"{INDENT * 2}{{}},"
        yield f"{INDENT}}};"
        given = f"{{{len(params)}, arguments, most_blocks}}"
        yield f"{INDENT}return core.compute_tiling(step, tiling, {self.actions.tiling_symbol(op)}, {given});"
        yield "}"

    def area_table(self) -> str:
        """Where the copies of replicated buffers lie; known when all lanes are printed."""
        if not self.areas:
            return "static const sk::Area* const areas = nullptr;\n"
        rows = [
            f"{INDENT}{{{self._copy_table(op)}, {offset}, {stride}}},  // {index}"
            for (op, offset, stride), index in self.areas.items()
        ]
        return "\n".join(["// copies of replicated buffers", "static const sk::Area areas[] = {", *rows, "};", ""])

    def _copy_table(self, op: int) -> str:
        return "nullptr" if self.actions.copy_index(op) is None else f"copy_of_{op}"

    def body(self, rows: list[str]) -> list[str]:
        """The body of the function of a lane."""
        if not rows:
            return []
        dynamic = max(1, len(self.actions.numbers.tilings))
        most = max((len(node.kernel.params) for node in self.actions.plan.graph.nodes), default=0)
        return [
            f"{INDENT}static const sk::Row rows[] = {{",
            *rows,
            f"{INDENT}}};",
            f"{INDENT}sk::Choice choices[{dynamic}]{{}};",
            f"{INDENT}int variants[{dynamic}]{{}};",
            f"{INDENT}uint64_t arguments[{max(1, most)}];",
            f"{INDENT}sk::walk(core, rows, sizeof rows / sizeof *rows, "
            "{kernels, keys, tilings, areas, slot, bytes, choices, variants, arguments});",
        ]

    def rows(self, actions: Iterable[Action], first: int, last: int, comment: str) -> Iterator[str]:
        """The rows of one step for the cores first <= core < last; the first of them has the comment."""
        comment = f"  // {comment}"
        for action in actions:
            for word, operands in self._rows_of(action, first):
                yield f"{INDENT * 2}{{Do::{', '.join([word, str(first), str(last), *operands])}}},{comment}"
                comment = ""

    def _rows_of(self, action: Action, first: int) -> Generator[_Columns, None, None]:
        match action:
            case CallAction():
                yield from self._call(action, first)
            case Action(Word.PREFETCH, (Value() as value, Rank() as rank, int(width), int(budget))):
                lines = -(-budget // _CACHE_LINE)
                yield action.word, [self._slot(value), str(_base(rank, first)), str(width), str(lines)]
            case Action(Word.SELECT, (int(step), int(tiling), Choice(), Code() as code, int(most))):
                variants = len(self.actions.linked[code.kernel].variants)
                yield action.word, [*map(str, (step, tiling)), self._kernel(code), *map(str, (variants, most))]
            case Action(Word.COMPUTE_TILING, (int(step), int(tiling), TilingFunction(op), int(most))):
                key = (self.actions.tiling_symbol(op), self.actions.plan.graph.nodes[op].kernel)
                function = list(self.tiling_functions).index(key)
                slot = yield from self._arguments(op)
                yield action.word, [*map(str, (step, tiling, function)), slot, self._first_slot(op), str(most)]
            case Action(Word.FEED_IDLE, (int(step), Meeting(index), int(members), Rank() as rank, Choice(op))):
                tiling = self.actions.numbers.tilings[op]
                yield action.word, [*map(str, (step, index, members, *_place(rank, first), tiling))]
            case Action(Word.MEETING_OVER, (Rank() as rank,)):
                yield action.word, [*map(str, _place(rank, first))]
            case Action(Word.SIGNAL | Word.SIGNAL_EARLY, (stamp, None)):
                yield action.word, [self._operand(stamp), _NO_COUNTER]
            case _:
                yield action.word, [*map(self._operand, action.operands)]

    def _call(self, action: CallAction, first: int) -> Generator[_Columns, None, None]:
        node = self.actions.plan.graph.nodes[action.op]
        slot = yield from self._arguments(action.op)
        word, blocks = "call", action.blocks
        if node.dynamic:
            word, blocks = "call_chosen", self.actions.numbers.tilings[action.op]
        base = _base(action.rank, first)
        yield word, [*map(str, (action.step, blocks, action.width, base)), self._kernel(Code(node.kernel, 0)), slot]

    def _arguments(self, op: int) -> Generator[_Columns, None, str]:
        """Rows that gather the arguments of an op if some are replicated; where its arguments are."""
        arguments = self.actions.arguments(op)
        if not any(argument.area for argument in arguments):
            return self._first_slot(op)
        yield "arguments", [self._first_slot(op), str(len(arguments))]
        for position, argument in enumerate(arguments):
            if argument.area is not None:
                yield "replicated", [str(position), str(self._area(argument))]
        return _COPIED

    def _first_slot(self, op: int) -> str:
        slots = self.actions.slots_of(op)
        return f"at::{self.identifiers[slots[0].name]}" if slots else "0"

    def _area(self, argument: Argument) -> int:
        assert argument.area is not None
        place = (argument.area.op, argument.area.offset + argument.slot.addend, argument.area.stride)
        return self.areas.setdefault(place, len(self.areas))

    def _operand(self, operand: Operand) -> str:
        match operand:
            case int():
                return str(int(operand))
            case Value():
                return self._slot(operand)
            case Code():
                return self._kernel(operand)
            case Meeting(index):
                return str(index)
            case _:
                raise AssertionError(f"an operand that has no number: {operand}")

    def _slot(self, value: Value) -> str:
        return f"at::{self.identifiers[value.slot.name]}"

    def _kernel(self, code: Code) -> str:
        return f"kernel::{self.kernel_names[code]}"

    @cached_property
    def kernel_names(self) -> dict[Code, str]:
        """By symbol; a function that has two descriptions has two names."""
        names: dict[Code, str] = {}
        taken: set[str] = set()
        for kernel, linked in self.actions.linked.items():
            for variant, (_, symbols) in enumerate(linked.variants):
                name = symbols[0]
                while name in taken:
                    name += "_again"
                taken.add(name)
                names[Code(kernel, variant)] = name
        return names


def runs(here: Cores, cores: Cores) -> list[tuple[int, int]]:
    """The cores `here` in ranges whose ranks among `cores` rise by one from core to core."""
    place = {core: rank for rank, core in enumerate(cores)}
    found: list[tuple[int, int]] = []
    for core in here:
        if found and found[-1][1] == core and place[core] == place[core - 1] + 1:
            found[-1] = (found[-1][0], core + 1)
        else:
            found.append((core, core + 1))
    return found


def _base(rank: Rank, first: int) -> int:
    """What a core of the range that starts at `first` subtracts from its number to get its place."""
    return first - rank.cores.index(first)


def _place(rank: Rank, first: int) -> tuple[int, int]:
    return _base(rank, first), rank.width or len(rank.cores)
