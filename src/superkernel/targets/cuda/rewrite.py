"""targets.cuda.rewrite: the entry of a PTX module -> the same code as a body inside of a super kernel.

A body runs one block of a sub-kernel on one slot: block and thread ids are virtual, its barriers are the slot's, its
shared memory begins at the slot's base, its arguments come from the task, and it ends by a branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ...errors import BuildError, UnsupportedError
from .basic_blocks import control_flow
from .bfloat_pairs import find_bfloat_pairs
from .body_variables import NAME, find_variables
from .liveness import places_to_clear
from .ptx import (
    TYPE_BYTES,
    Directive,
    Entry,
    Instruction,
    Label,
    Module,
    RegisterDeclaration,
    Scope,
    Statement,
    ThreadCount,
    Variable,
    address,
    walk,
    walk_statements,
)
from .task_layout import ARGUMENT_BYTES, MOST_MBARRIERS, SUM_BYTES, WORD, ArgumentWord, SharedOffset
from .virtual_ids import TABLE_LOAD, VirtualIds

_BULK_COPIES = ("cp.async.bulk", "cp.reduce.async.bulk")
_WARP_WIDE = (
    "shfl", "vote", "match", "redux", "activemask", "mma", "wmma", "wgmma", "ldmatrix", "stmatrix", "elect",
    "movmatrix",
)  # fmt: skip


@dataclass(frozen=True)
class BodyShape:
    """What decides the text of a body beside its PTX."""

    threads: ThreadCount
    dynamic_shared: int  # bytes
    flat_grid: bool  # the grid is (n, 1, 1)
    coherent: tuple[int, ...] = ()  # parameters whose buffers the launch writes: no read-only loads through them
    unknown_is_coherent: bool = False  # loads whose address has no known parameter
    wait_statement: int | None = None  # of the entry: in front of it the sub-kernel waits
    narrow: bool = False  # fewer threads than its slot: the others wait at the slot's barrier meanwhile
    parameters: int | None = None  # that tasks give; others are null pointers. None: all
    shares_table: bool = False  # the arguments lie ready in shared memory
    shared_base: int = 0  # bytes of the slot's shared memory before those of the sub-kernel: the ring of weights


@dataclass(frozen=True)
class KernelBody:
    """The rewritten code of one sub-kernel."""

    name: str  # an identifier, unique in the super kernel
    title: str  # for the comment above it
    shape: BodyShape
    lines: tuple[str, ...]
    declarations: tuple[str, ...]  # module variables that it uses
    shared_bytes: int  # of one slot
    repeats_need_barrier: bool  # two blocks on one slot must not overlap: they share memory or barriers
    proxy_fence: str  # in front of a block: what was stored before, its asynchronous copies must see; "": it has none
    after: tuple[str, ...]  # instructions behind the last of a block, by every thread
    mbarriers: int  # barrier objects to invalidate at its end
    constant_bytes: int = 0  # of the variables that it brings along in constant memory

    @property
    def threads(self) -> int:
        return prod(self.shape.threads)

    @property
    def barrier(self) -> str:
        return barrier_register(self.shape.narrow)


def barrier_register(narrow: bool) -> str:
    """The barrier of a body. Threads of a slot that do not run it wait at the slot's barrier, with another count."""
    return "%sk_narrow_barrier" if narrow else "%sk_barrier"


def copies_written_memory(entry: Entry, shape: BodyShape, sources: Mapping[int, frozenset[int] | None]) -> bool:
    """Whether an asynchronous copy may touch a buffer that the launch writes; `sources` as for `rewrite`."""
    found = [sources.get(i.line) for i in walk(entry.statements) if i.opcode.startswith(_BULK_COPIES)]
    return any(params is None or not params.isdisjoint(shape.coherent) for params in found)


def rewrite(
    entry: Entry,
    module: Module,
    shape: BodyShape,
    name: str,
    title: str,
    wait_lines: Sequence[str] = (),
    sources: Mapping[int, frozenset[int] | None] | None = None,
) -> KernelBody:
    """The body of an entry, called `name`.

    `wait_lines` stand at the wait point. `sources` gives, by line, the parameters that an access may go through; None,
    or a line that is not there: any.
    """
    return _Rewriter(entry, module, shape, name, tuple(wait_lines), sources or {}).body(title)


class _Rewriter:
    def __init__(
        self,
        entry: Entry,
        module: Module,
        shape: BodyShape,
        name: str,
        wait_lines: tuple[str, ...],
        sources: Mapping[int, frozenset[int] | None],
    ) -> None:
        self.entry, self.module, self.shape, self.name = entry, module, shape, name
        self.wait_lines, self.sources = wait_lines, sources
        self.mbarriers = 0
        self.instructions = tuple(walk(entry.statements))
        # such a kernel leaves no barrier object valid
        self.invalidates = any(i.name == "mbarrier" and "inval" in i.modifiers for i in self.instructions)
        self.params = {param.name: index for index, param in enumerate(entry.params)}
        self.variables = find_variables(entry, module, shape.dynamic_shared, name)
        self.shared = self.variables.shared
        self.ids = VirtualIds(self.instructions, shape.threads, shape.flat_grid)
        self.names = self.variables.names | self.ids.names
        sizes = {"%dynamic_smem_size": shape.dynamic_shared, "%total_smem_size": self.variables.shared_bytes}
        self.names |= {register: str(size) for register, size in sizes.items()}
        self.end = f"$sk_{name}_done"
        graph = control_flow(entry, module.origin)
        self.cleared_first, self.clears = places_to_clear(graph)
        self.pairs = find_bfloat_pairs(graph)
        self._name_labels()

    def _name_labels(self) -> None:
        prefix = f"$sk_{self.name}_"
        for statement in walk_statements(self.entry.statements):
            if isinstance(statement, Label):
                self.names[statement.name] = prefix + statement.name.lstrip("$%_")

    def _renamed(self, text: str) -> str:
        return NAME.sub(lambda found: self.names.get(found[0], found[0]), text)

    def _where(self, line: int) -> str:
        return f"{self.module.origin}:{line}: kernel {self.entry.name!r}: "

    # the body

    def body(self, title: str) -> KernelBody:
        if prod(self.shape.threads) % 32:
            self._check_partial_warps()
        lines = [*self._head(), *(f"\t{line}" for line in self._code())]
        uses_barriers = any(i.name in ("bar", "barrier", "mbarrier") for i in self.instructions)
        return KernelBody(
            self.name,
            title,
            self.shape,
            (*self._registers(), *lines),
            tuple(self.variables.declarations()),
            self.shape.shared_base + self.variables.shared_bytes,
            bool(self.shared) or uses_barriers,
            self._proxy_fence(),
            tuple(self._after()),
            self.mbarriers,
            sum(v.nbytes or 0 for v in self.variables.carried if v.space == "const"),
        )

    def _check_partial_warps(self) -> None:
        for i in self.instructions:
            if i.name in (*_WARP_WIDE, "bar", "barrier"):
                raise UnsupportedError(
                    f"{self._where(i.line)}{i.opcode} with {prod(self.shape.threads)} threads: the last warp is not "
                    "full, and its other lanes belong to the super kernel; use a multiple of 32 threads"
                )

    def _proxy_fence(self) -> str:
        copies = any(i.opcode.startswith(_BULK_COPIES) for i in self.instructions)
        if not copies and not any(i.name == "wgmma" for i in self.instructions):
            return ""
        written = copies_written_memory(self.entry, self.shape, self.sources)
        return "fence.proxy.async;" if written else "fence.proxy.async.shared::cta;"

    def _after(self) -> Iterator[str]:
        """What must be over before another task may use the memory: copies in flight belong to the thread."""
        plain = [i for i in self.instructions if i.opcode.startswith("cp.async") and not _is_bulk(i)]
        if plain:
            yield "cp.async.wait_all;"
        if any("bulk_group" in i.opcode for i in self.instructions):
            yield "cp.async.bulk.wait_group 0;"
            yield "fence.proxy.async;"

    def _registers(self) -> Iterator[str]:
        yield ".reg .b32 %sk_index, %sk_stride, %sk_value32;"
        yield ".reg .b64 %sk_arguments, %sk_place, %sk_addend, %sk_value, %sk_shared_address;"
        if self.shared:
            yield f".reg .b32 %sk_shared_<{len(self.shared)}>;"
        if self.ids.registers:
            yield f".reg .b32 {', '.join(self.ids.registers)}, %sk_quotient;"

    def _head(self) -> Iterator[str]:
        """The task's arguments, the addresses of variables in shared memory, and the ids that the code reads."""
        yield "cvt.u64.u32 %sk_arguments, %sk_argument;"
        yield "add.u64 %sk_arguments, %sk_arguments, %sk_table;"
        for name, offset in self.shared.items():
            yield f"add.u32 {self.names[name]}, %sk_shared, {self.shape.shared_base + offset};"
        yield from self.ids.lines

    def _cleared(self, names: Iterable[str]) -> Iterator[str]:
        """Registers that the code may read unwritten: without a value they would be kept from task to task."""
        for name in names:
            kind = self._register_type(name)
            if kind in TYPE_BYTES and TYPE_BYTES[kind] in (2, 4, 8):
                yield f"mov.b{8 * TYPE_BYTES[kind]} {name}, 0;"

    # statements

    def _code(self) -> Iterator[str]:
        """The statements, with the wait in front of the one at which the sub-kernel waits."""
        declared = (RegisterDeclaration, Variable, Directive)
        begin = next((n for n, s in enumerate(self.entry.statements) if not isinstance(s, declared)), 0)
        for number, statement in enumerate(self.entry.statements):
            if number == begin:
                yield from self._cleared(name for name in self.cleared_first if "$scope" not in name)
            if number == self.shape.wait_statement:
                yield from self.wait_lines
            yield from self._statement(statement)
        if self.shape.wait_statement is not None and self.shape.wait_statement >= len(self.entry.statements):
            yield from self.wait_lines

    def _statement(self, statement: Statement) -> Iterator[str]:
        match statement:
            case Label():
                yield f"{self.names[statement.name]}:"
            case Scope():
                yield "{"
                for inner in statement.statements:
                    yield from self._statement(inner)
                yield "}"
            case Variable(space="shared"):
                pass
            case Directive():
                if statement.name in ("branchtargets", "calltargets", "pragma"):
                    yield self._renamed(statement.text) if statement.name != "pragma" else statement.text
            case Instruction():
                yield from self._instruction(statement)
            case _:
                yield str(statement)

    def _instruction(self, i: Instruction) -> Iterator[str]:
        yield from self._cleared(self.clears.get(i, ()))
        match i.name:
            case "cvt" if i in self.pairs.conversions:
                yield self.pairs.conversions[i]
            case "mov" if i in self.pairs.unpacked:
                pass
            case "ret" | "exit":
                yield self._text(i, "bra", (self.end,))
            case "griddepcontrol":
                yield f"// {i.opcode}"
            case "bar" | "barrier" if i.modifiers[0] != "cluster" and "warp" not in i.modifiers:
                yield self._barrier(i)
            case "ld" if "param" in i.modifiers:
                yield from self._parameter(i)
            case "ld" | "ldu" if i.name == "ldu" or "nc" in i.modifiers or _l1_hint(i):
                yield self._load(i)
            case "mov" | "cvta" if self.shared and len(i.operands) > 1 and self._is_shared(i.operands[1]):
                yield from self._shared_address(i)
            case "mbarrier" if "init" in i.modifiers and not self.invalidates:
                yield self._plain(i)
                yield from self._noted_mbarrier(i)
            case _:
                yield self._plain(i)

    def _plain(self, i: Instruction) -> str:
        return self._text(i, i.opcode, i.operands)

    def _text(self, i: Instruction, opcode: str, operands: Iterable[str]) -> str:
        guard = f"@{i.guard} " if i.guard else ""
        written = ", ".join(map(self._renamed, operands))
        return f"{guard}{opcode}{' ' if written else ''}{written};"

    def _barrier(self, i: Instruction) -> str:
        """Barrier 0 of a block becomes the slot's barrier, with the threads of the sub-kernel."""
        reduces = "red" in i.modifiers
        operands = list(i.operands)
        at = 1 if reduces else 0
        rest = operands[at + 1 :]
        has_count = len(rest) > (1 if reduces else 0)
        if not operands or operands[at] not in ("0", "0x0"):
            where = operands[at] if operands else "without a number"
            raise UnsupportedError(f"{self._where(i.line)}{i.opcode} {where}: only barrier 0 of a block can be renamed")
        count = [] if has_count else [str(prod(self.shape.threads))]
        return self._text(i, i.opcode, (*operands[:at], barrier_register(self.shape.narrow), *count, *rest))

    def _parameter(self, i: Instruction) -> Iterator[str]:
        where = address(i.operands[1])
        if where.base not in self.params or where.offset or i.operands[0].startswith("{"):
            raise UnsupportedError(
                f"{self._where(i.line)}{i}: parameters are scalars and pointers that are read one by one; pass the "
                "fields of a structure separately"
            )
        index = self.params[where.base]
        kind = i.modifiers[-1]
        if self.shape.parameters is not None and index >= self.shape.parameters:
            yield self._text(i, f"mov.b{8 * TYPE_BYTES[kind]}", (i.operands[0], "0"))
            return
        at = (SUM_BYTES if self.shape.shares_table else ARGUMENT_BYTES) * index
        yield f"// {i.operands[0]} = parameter {index}"
        if self.shape.shares_table:
            # volatile: the assembler would put the load off until the argument is used
            yield f"ld.volatile.shared.u64 %sk_value, [%sk_arguments+{at}];"
        else:
            yield f"{TABLE_LOAD}.v2.u32 {{%sk_index, %sk_stride}}, [%sk_arguments+{at + WORD * ArgumentWord.SOURCE}];"
            yield f"{TABLE_LOAD}.u64 %sk_addend, [%sk_arguments+{at + WORD * ArgumentWord.ADDEND}];"
            yield "cvt.u64.u32 %sk_place, %sk_index;"
            yield "add.u64 %sk_place, %sk_place, %sk_values;"
            yield "ld.param.u64 %sk_value, [%sk_place];"
            yield "add.u64 %sk_value, %sk_value, %sk_addend;"
            yield "mad.wide.u32 %sk_value, %sk_sm, %sk_stride, %sk_value;"
        if TYPE_BYTES[kind] == 8:
            yield self._text(i, "mov.b64", (i.operands[0], "%sk_value"))
            return
        yield "cvt.u32.u64 %sk_value32, %sk_value;"
        width = self._width(i.operands[0])
        if TYPE_BYTES[kind] == 4 and width == 32:
            yield self._text(i, "mov.b32", (i.operands[0], "%sk_value32"))
            return
        sign = "s" if kind.startswith("s") else "u"
        source = f"{sign}{8 * TYPE_BYTES[kind]}"
        yield self._text(i, f"cvt.{sign}{width}.{source}", (i.operands[0], "%sk_value32"))

    def _width(self, register: str) -> int:
        """The bits of a register."""
        return 8 * TYPE_BYTES[self._register_type(register)]

    def _register_type(self, register: str) -> str:
        for statement in walk_statements(self.entry.statements):
            if isinstance(statement, RegisterDeclaration):
                stem = register[: len(statement.name)]
                number = register[len(statement.name) :]
                if stem == statement.name and (not number if statement.count is None else number.isdigit()):
                    return statement.type
        raise BuildError(f"{self._where(self.entry.line)}register {register} is not declared")

    def _load(self, i: Instruction) -> str:
        """A load from a buffer that the launch writes: not through the read-only path, without hints for L1."""
        if not self._may_touch_written(i):
            return self._plain(i)
        kept = [m for m in i.modifiers if m != "nc" and not m.startswith("L1::")]
        return self._text(i, ".".join(("ld", *kept)), i.operands)

    def _may_touch_written(self, i: Instruction) -> bool:
        known = self.sources.get(i.line)
        if known is None:
            return bool(self.shape.coherent) or self.shape.unknown_is_coherent
        return not known.isdisjoint(self.shape.coherent)

    def _is_shared(self, operand: str) -> bool:
        return operand.strip() in self.shared

    def _shared_address(self, i: Instruction) -> Iterator[str]:
        """The address of a variable in shared memory, in 32 or 64 bits, in its window or generic."""
        register = self.names[i.operands[1].strip()]
        if i.name == "mov" and i.modifiers[-1] in ("u32", "b32", "s32"):
            yield self._text(i, "mov.b32", (i.operands[0], register))
            return
        yield f"cvt.u64.u32 %sk_shared_address, {register};"
        opcode = "mov.b64" if i.name == "mov" else i.opcode
        yield self._text(i, opcode, (i.operands[0], "%sk_shared_address"))

    def _noted_mbarrier(self, i: Instruction) -> Iterator[str]:
        """Keeps the address of a barrier object, which is invalidated when the block ends."""
        if self.mbarriers == MOST_MBARRIERS:
            raise UnsupportedError(f"{self._where(i.line)}more than {MOST_MBARRIERS} mbarrier.init in one kernel")
        where = address(i.operands[0])
        offset = SharedOffset.MBARRIERS + WORD * self.mbarriers
        self.mbarriers += 1
        base = self._renamed(where.base)
        if where.base not in self.shared and self._width(where.base) == 64:
            generic = not any(modifier.startswith("shared") for modifier in i.modifiers)
            yield f"{'cvta.to.shared.u64' if generic else 'mov.b64'} %sk_shared_address, {base};"
            yield "cvt.u32.u64 %sk_value32, %sk_shared_address;"
            base = "%sk_value32"
        yield f"add.u32 %sk_value32, {base}, {where.offset};"
        yield self._text(i, "st.shared.u32", (f"[%sk_slot_words+{offset}]", "%sk_value32"))


def _is_bulk(i: Instruction) -> bool:
    return i.opcode.startswith(_BULK_COPIES)


def _l1_hint(i: Instruction) -> bool:
    return any(modifier.startswith("L1::") for modifier in i.modifiers)
