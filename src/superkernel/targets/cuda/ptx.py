"""targets.cuda.ptx: PTX text as data: modules, entries, statements, operands; str() of each is PTX text again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ...errors import BuildError

ThreadCount = tuple[int, int, int]  # x, y, z

# type -> bytes
TYPE_BYTES = {
    "b8": 1, "s8": 1, "u8": 1, "b16": 2, "s16": 2, "u16": 2, "f16": 2, "bf16": 2, "f16x2": 4, "bf16x2": 4, "b32": 4,
    "s32": 4, "u32": 4, "f32": 4, "b64": 8, "s64": 8, "u64": 8, "f64": 8, "b128": 16, "texref": 8, "samplerref": 8,
    "surfref": 8,
}  # fmt: skip

_WORD = re.compile(r"(?<![\w$%.])%?[A-Za-z_$][\w$]*", re.ASCII)
_SPECIAL = re.compile(
    r"%(?:tid|ntid|laneid|warpid|nwarpid|ctaid|nctaid|smid|nsmid|gridid|clusterid|nclusterid|cluster_ctaid|"
    r"cluster_nctaid|cluster_ctarank|cluster_nctarank|is_explicit_cluster|lanemask_(?:eq|le|lt|ge|gt)|clock|clock_hi|"
    r"clock64|pm\d+|pm\d+_64|envreg\d+|globaltimer|globaltimer_lo|globaltimer_hi|reserved_smem_offset_\w+|"
    r"total_smem_size|aggr_smem_size|dynamic_smem_size|current_graph_exec)",
    re.ASCII,
)
_SPECIAL_USE = re.compile(rf"{_SPECIAL.pattern}(?![\w$])(?:\.[xyzw]\b)?", re.ASCII)
_ADDRESS = re.compile(r"\[\s*(%?[\w$]+)\s*(?:\+\s*(-?\w+)|(-\s*\w+))?\s*\]", re.ASCII)

# Instructions without a destination; others write their first operand.
_NO_DESTINATION = frozenset(
    {
        "st", "red", "bar", "barrier", "bra", "brx", "ret", "exit", "trap", "brkpt", "pmevent", "membar", "fence",
        "prefetch", "prefetchu", "discard", "applypriority", "cp", "stmatrix", "sust", "sured", "nanosleep",
        "griddepcontrol", "setmaxnreg", "tensormap", "stackrestore", "wmma", "clusterlaunchcontrol", "multimem",
    }
)  # fmt: skip
# Instructions of those families that do write their first operand.
_DESTINATION_FORMS = (
    "bar.red", "bar.cta.red", "barrier.red", "barrier.cta.red", "wmma.load", "wmma.mma", "multimem.ld_reduce",
    "clusterlaunchcontrol.query_cancel",
)  # fmt: skip
_NO_DESTINATION_FORMS = (
    "bar.warp", "mbarrier.init", "mbarrier.inval", "mbarrier.expect_tx", "mbarrier.complete_tx", "wgmma.fence",
    "wgmma.commit_group", "wgmma.wait_group", "tcgen05.alloc", "tcgen05.dealloc", "tcgen05.relinquish_alloc_permit",
    "tcgen05.st", "tcgen05.cp", "tcgen05.mma", "tcgen05.commit", "tcgen05.fence", "tcgen05.wait", "tcgen05.shift",
)  # fmt: skip


@dataclass(frozen=True)
class Instruction:
    """One PTX instruction."""

    opcode: str  # as written, such as "ld.global.v4.b32"
    operands: tuple[str, ...]  # split at top-level commas
    guard: str | None  # "%p1" or "!%p1"
    line: int  # in the file

    @cached_property
    def name(self) -> str:
        return self.opcode.partition(".")[0]

    @cached_property
    def modifiers(self) -> tuple[str, ...]:
        return tuple(self.opcode.split(".")[1:])

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        return f"{guard}{self.opcode}{' ' if self.operands else ''}{', '.join(self.operands)};"


@dataclass(frozen=True)
class Label:
    name: str
    line: int

    def __str__(self) -> str:
        return f"{self.name}:"


@dataclass(frozen=True)
class RegisterDeclaration:
    """Registers `name0` to `name<count - 1>`, or the register `name` where there is no count."""

    type: str  # "b32", "pred", "v4.b32"
    name: str  # "%r", or a plain name of inline assembly
    count: int | None
    line: int

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,) if self.count is None else tuple(f"{self.name}{number}" for number in range(self.count))

    def __str__(self) -> str:
        return f".reg .{self.type} {self.name}{'' if self.count is None else f'<{self.count}>'};"


@dataclass(frozen=True)
class Variable:
    """A variable in memory. Only a variable of the module is visible to all of its entries."""

    space: str  # "shared", "global", "const", "local"; "param": an argument of a call
    name: str
    type: str
    align: int
    nbytes: int | None  # None: its size is decided at launch (.extern .shared x[])
    initializer: str  # the text behind "=", or ""
    line: int
    array: bool = True
    linkage: str = ""  # "extern", "visible", "weak", "common"

    def __str__(self) -> str:
        size = TYPE_BYTES.get(self.type, 1)
        extent = "" if not self.array else "[]" if self.nbytes is None else f"[{self.nbytes // size}]"
        value = f" = {self.initializer}" if self.initializer else ""
        linkage = f".{self.linkage} " if self.linkage else ""
        align = "" if self.type.endswith("ref") else f".align {self.align} "
        return f"{linkage}.{self.space} {align}.{self.type} {self.name}{extent}{value};"


@dataclass(frozen=True)
class Scope:
    """{ ... } inside a body, with registers and labels that are visible only there."""

    statements: tuple[Statement, ...]
    line: int

    def __str__(self) -> str:
        return "\n".join(("{", *(f"\t{statement}" for statement in self.statements), "}"))


@dataclass(frozen=True)
class Directive:
    """.pragma, .branchtargets, .callprototype, .minnctapersm ...; debug directives are left out by the reader."""

    text: str
    line: int

    @property
    def name(self) -> str:
        return self.text[1:].split(maxsplit=1)[0].rstrip(";")

    def __str__(self) -> str:
        return self.text


Statement = Instruction | Label | RegisterDeclaration | Variable | Scope | Directive


@dataclass(frozen=True)
class PtxParam:
    """A parameter of an entry."""

    name: str
    type: str  # "u64", "b8"
    align: int
    nbytes: int
    pointer: bool | None  # True: declared with .ptr; None: 64 bits that may be an address; False: neither
    array: bool = False
    line: int = 0

    def __str__(self) -> str:
        extent = f"[{self.nbytes // TYPE_BYTES[self.type]}]" if self.array else ""
        return f".param .align {self.align} .{self.type} {self.name}{extent}"


@dataclass(frozen=True)
class Entry:
    """A kernel."""

    name: str
    params: tuple[PtxParam, ...]
    statements: tuple[Statement, ...]
    required_threads: ThreadCount | None  # .reqntid
    most_threads: ThreadCount | None  # .maxntid
    directives: tuple[Directive, ...]  # between parameters and body: .reqntid, .minnctapersm, .explicitcluster ...
    line: int

    def __str__(self) -> str:
        params = ",\n".join(f"\t{param}" for param in self.params)
        head = [f".visible .entry {self.name}(", params, ")", *map(str, self.directives), "{"]
        return "\n".join((*filter(None, head), *(f"\t{statement}" for statement in self.statements), "}"))


@dataclass(frozen=True)
class PtxFunction:
    """A .func: declared, or defined with a body."""

    name: str
    head: str  # the text before its body
    statements: tuple[Statement, ...] | None  # None: it is only declared
    line: int

    def __str__(self) -> str:
        if self.statements is None:
            return f"{self.head};"
        return "\n".join((f"{self.head}\n{{", *(f"\t{statement}" for statement in self.statements), "}"))


@dataclass(frozen=True)
class Module:
    """A PTX file."""

    version: tuple[int, int]
    target: str  # "sm_90a"
    address_size: int
    variables: tuple[Variable, ...]
    entries: tuple[Entry, ...]
    functions: tuple[PtxFunction, ...]
    text: str
    origin: str = ""  # the file, for errors

    def entry(self, name: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.name == name), None)

    def __str__(self) -> str:
        major, minor = self.version
        head = (f".version {major}.{minor}", f".target {self.target}", f".address_size {self.address_size}")
        declared = [str(function) for function in self.functions if function.statements is None]
        defined = [str(function) for function in self.functions if function.statements is not None]
        return "\n".join((*head, *declared, *map(str, self.variables), *defined, *map(str, self.entries), ""))


@dataclass(frozen=True)
class Address:
    """A memory operand: `[base+offset]`."""

    base: str  # a register, a variable, a parameter, or a number
    offset: int


def walk(statements: Iterable[Statement]) -> Iterator[Instruction]:
    """All instructions in order; scopes are entered."""
    for statement in statements:
        if isinstance(statement, Instruction):
            yield statement
        elif isinstance(statement, Scope):
            yield from walk(statement.statements)


def walk_statements(statements: Iterable[Statement]) -> Iterator[Statement]:
    """All statements but scopes, in order; scopes are entered."""
    for statement in statements:
        if isinstance(statement, Scope):
            yield from walk_statements(statement.statements)
        else:
            yield statement


def address(operand: str) -> Address:
    """`[%rd1+16]` -> its base and offset."""
    found = _ADDRESS.fullmatch(operand)
    if found is None:
        raise BuildError(f"PTX operand {operand} is not an address such as [%rd1+16]")
    offset = found[2] or (found[3] or "0").replace(" ", "")
    return Address(found[1], int(offset.rstrip("U"), 0))


def is_address(operand: str) -> bool:
    return _ADDRESS.fullmatch(operand) is not None


def vector_elements(operand: str) -> tuple[str, ...]:
    """`{%r1, %r2}` -> its registers; any other operand -> the operand."""
    if not operand.startswith("{"):
        return (operand,)
    return tuple(piece.strip() for piece in operand.strip("{} \t").split(","))


def registers_in(operand: str) -> tuple[str, ...]:
    """The names in an operand that may be registers: every name that is no special register.

    Inline assembly declares registers without %, so that names of variables, labels and functions are among them.
    """
    return tuple(
        name for name in _WORD.findall(operand) if name not in ("_", "WARP_SZ") and not _SPECIAL.fullmatch(name)
    )


def has_destination(instruction: Instruction) -> bool:
    """Whether the first operand is written."""
    opcode, name = instruction.opcode, instruction.name
    if name in _NO_DESTINATION:
        return opcode.startswith(_DESTINATION_FORMS)
    if opcode.startswith(_NO_DESTINATION_FORMS) or not instruction.operands:
        return False
    first = instruction.operands[0]
    if name == "call":
        return first.startswith("(") and len(instruction.operands) > 1
    return not first.startswith("[")


def written_registers(instruction: Instruction) -> tuple[str, ...]:
    if not has_destination(instruction):
        return ()
    return registers_in(instruction.operands[0])


def read_registers(instruction: Instruction) -> tuple[str, ...]:
    """Registers that an instruction reads, its guard included; names of variables and labels are among them."""
    guard = () if instruction.guard is None else (instruction.guard.lstrip("! "),)
    first = 1 if has_destination(instruction) and instruction.name != "wgmma" else 0
    return (*guard, *(name for operand in instruction.operands[first:] for name in registers_in(operand)))


def special_registers(instruction: Instruction) -> tuple[str, ...]:
    """The special registers that an instruction reads, as written: "%tid.x", "%envreg1"."""
    return tuple(
        match[0] for operand in instruction.operands if "%" in operand for match in _SPECIAL_USE.finditer(operand)
    )
