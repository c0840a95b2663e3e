"""targets.cuda.provenance: the instructions of an entry -> from which parameters the address of every access comes.

A data-flow analysis over registers: origins are propagated to a fixpoint over the control-flow graph. A value that was
loaded from memory, or multiplied, is no address of a parameter; added to such an address it is an offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from .basic_blocks import ControlFlowGraph
from .ptx import (
    TYPE_BYTES,
    Entry,
    Instruction,
    Module,
    Variable,
    has_destination,
    registers_in,
    vector_elements,
    walk_statements,
    written_registers,
)


class OriginKind(Enum):
    PARAMETER = "parameter"  # an address that a parameter holds; Origin.of is its index
    SCALAR = "scalar"  # the value of a parameter that is no address
    NUMBER = "number"  # loaded, or computed from something else than addresses
    VARIABLE = "variable"  # the address of a variable in global memory
    CONSTANT = "constant"  # ... in constant memory
    SHARED = "shared"
    LOCAL = "local"


Origin = tuple[OriginKind, int | str]
Origins = frozenset[Origin]
_NONE: Origins = frozenset()
_NUMBER: Origin = (OriginKind.NUMBER, 0)
_OFFSETS = (OriginKind.NUMBER, OriginKind.SCALAR)  # added to an address they are offsets
_OF_SPACE = {
    "global": OriginKind.VARIABLE,
    "const": OriginKind.CONSTANT,
    "shared": OriginKind.SHARED,
    "local": OriginKind.LOCAL,
    "param": OriginKind.LOCAL,  # an argument of a call
}
_FLOAT_TYPES = ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64", "f32x2", "tf32", "e4m3x2", "e5m2x2")
_PREDICATES = ("setp", "isspacep", "elect", "testp", "vote", "activemask", "match", "mbarrier")
_PRODUCTS = ("mul", "mul24", "shl", "div", "rem", "popc", "clz", "bfind", "dp4a", "dp2a")
_SMALL_MASK = 4096


class AccessKind(Enum):
    READ = "reads"
    WRITE = "writes"
    UPDATE = "updates"  # atomically


@dataclass(frozen=True)
class MemoryAccess:
    """An instruction that accesses global memory, and where its address comes from."""

    kind: AccessKind
    index: int  # of the instruction in the control-flow graph
    line: int
    opcode: str
    params: frozenset[int]  # the parameters that its address may come from
    unknown: bool  # it may also come from elsewhere
    variables: tuple[str, ...]  # of the module
    scalars: frozenset[int]  # parameters declared as scalars that its address is computed from, if there is no other
    nbytes: int  # of one thread
    bulk: bool = False  # by the async proxy: TMA, cp.async.bulk
    floating: bool = False  # an update whose result depends on the order of the updates in its last bits

    @property
    def reads(self) -> bool:
        return self.kind is not AccessKind.WRITE

    @property
    def writes(self) -> bool:
        return self.kind is not AccessKind.READ

    @property
    def decided(self) -> bool:
        """Whether its address comes from exactly one parameter."""
        return len(self.params) == 1 and not self.unknown and not self.variables


@dataclass(frozen=True)
class ParameterAccesses:
    """What an entry does with the memory behind its parameters. Numbers are indices of parameters."""

    accesses: tuple[MemoryAccess, ...]  # in the order of the text

    def _params(self, chosen: Iterable[MemoryAccess]) -> frozenset[int]:
        return frozenset(param for access in chosen for param in access.params)

    @cached_property
    def read(self) -> frozenset[int]:
        return self._params(access for access in self.accesses if access.reads)

    @cached_property
    def written(self) -> frozenset[int]:
        """Stores and atomic updates."""
        return self._params(access for access in self.accesses if access.writes)

    @cached_property
    def updated(self) -> frozenset[int]:
        """Atomic updates."""
        return self._params(access for access in self.accesses if access.kind is AccessKind.UPDATE)

    @cached_property
    def unknown(self) -> tuple[MemoryAccess, ...]:
        """Accesses whose address does not come from parameters alone, or from a table of the module that is read."""
        return tuple(access for access in self.accesses if access.unknown or (access.variables and access.writes))

    @cached_property
    def undecided(self) -> frozenset[int]:
        """Parameters of accesses whose address may come from several of them."""
        return self._params(access for access in self.accesses if not access.decided)

    @cached_property
    def first(self) -> Mapping[int, MemoryAccess]:
        """The first access of every parameter, in the order of the text."""
        found: dict[int, MemoryAccess] = {}
        for access in self.accesses:
            for param in sorted(access.params):
                found.setdefault(param, access)
        return found

    def kind_of(self, param: int) -> str:
        """in, out or inout, as a sub-kernel declares it; what cannot be decided counts as inout."""
        if any(access.unknown for access in self.accesses) or param in self.undecided:
            return "inout"
        read, written = param in self.read, param in self.written
        return ("inout" if read else "out") if written else "in"

    def certain(self, param: int, kind: AccessKind) -> MemoryAccess | None:
        """The first access of a kind that can only be to this parameter."""
        of_kind = (access for access in self.accesses if access.kind is kind or kind is AccessKind.WRITE)
        return next((a for a in of_kind if a.decided and param in a.params and (a.writes or kind is a.kind)), None)


def find_accesses(
    module: Module, entry: Entry, graph: ControlFlowGraph, scalars: Iterable[int] = ()
) -> ParameterAccesses:
    """The accesses of an entry to global memory. `scalars`: the indices of parameters that hold no address."""
    analysis = _Analysis(module, entry, graph, frozenset(scalars))
    return ParameterAccesses(tuple(analysis.accesses()))


class _Analysis:
    def __init__(self, module: Module, entry: Entry, graph: ControlFlowGraph, scalars: frozenset[int]) -> None:
        self.graph = graph
        self.symbols: dict[str, Origins] = {}
        local = (statement for statement in walk_statements(entry.statements) if isinstance(statement, Variable))
        for variable in (*module.variables, *local):
            self.symbols[variable.name] = frozenset({(_OF_SPACE[variable.space], variable.name)})
        for index, param in enumerate(entry.params):
            number = index in scalars or (param.pointer is False and not param.array)
            kind = OriginKind.SCALAR if number else OriginKind.PARAMETER
            self.symbols[param.name] = frozenset({(kind, index)})
        self.descriptors: set[Origin] = set()  # whose addresses device-made TMA descriptors hold
        self.at_begin: list[dict[str, Origins] | None] = [None] * len(graph.blocks)
        self._solve()

    def _solve(self) -> None:
        self.at_begin[0] = {}
        ahead = [0]
        while ahead:
            number = ahead.pop()
            state = dict(self.at_begin[number] or {})
            block = self.graph.blocks[number]
            for placed in self.graph.instructions[block.begin : block.end]:
                self._step(placed.instruction, state)
            for successor in block.successors:
                if self._merge(successor, state):
                    ahead.append(successor)

    def _merge(self, number: int, state: Mapping[str, Origins]) -> bool:
        """Join the state into that at the beginning of a block; whether that changed."""
        known = self.at_begin[number]
        if known is None:
            self.at_begin[number] = dict(state)
            return True
        changed = False
        for register, origins in state.items():
            before = known.get(register, _NONE)
            if not origins <= before:
                known[register] = before | origins
                changed = True
        return changed

    def _value(self, operand: str, state: Mapping[str, Origins]) -> Origins:
        found = _NONE
        for name in registers_in(operand):
            found |= state.get(name) or self.symbols.get(name, _NONE)
        return found

    def _step(self, instruction: Instruction, state: dict[str, Origins]) -> None:
        if instruction.name == "tensormap" and "global_address" in instruction.modifiers:
            self.descriptors |= self._value(instruction.operands[-1], state)
        if not has_destination(instruction):
            return
        value = self._result(instruction, state)
        for register in written_registers(instruction):
            before = state.get(register, _NONE) if instruction.guard else _NONE
            if value or before:
                state[register] = value | before
            else:
                state.pop(register, None)

    def _result(self, instruction: Instruction, state: Mapping[str, Origins]) -> Origins:
        name, modifiers, operands = instruction.name, instruction.modifiers, instruction.operands
        if name == "ld":
            return self._value(operands[1], state) if "param" in modifiers else frozenset({_NUMBER})
        if name in ("atom", "ldu", "tex", "ldmatrix"):
            return frozenset({_NUMBER})
        if name in _PREDICATES or (modifiers and modifiers[-1] in _FLOAT_TYPES):
            return _NONE
        values = [self._value(operand, state) for operand in operands[1:]]
        if name in ("add", "sub", "addc", "subc"):
            return _sum(values[0], values[1])
        if name in ("mad", "madc", "mad24"):
            return _sum(_number(values[0] | values[1]), values[2])
        if name in _PRODUCTS:
            return _number(frozenset().union(*values))
        if name == "and" and _small(operands[-1]):
            return _number(values[0])
        if name in ("shfl", "shr", "bfe", "cvt"):
            return values[0]
        if name == "selp":
            return values[0] | values[1]
        return frozenset().union(*values)

    def accesses(self) -> Iterable[MemoryAccess]:
        floats = _float_registers(self.graph)
        for number, block in enumerate(self.graph.blocks):
            begin = self.at_begin[number]
            if begin is None:
                continue  # no path leads there
            state = dict(begin)
            for index in range(block.begin, block.end):
                instruction = self.graph.instructions[index].instruction
                for kind, operand, bulk in _global_operands(instruction):
                    found = self._access(instruction, index, kind, operand, bulk, state, floats)
                    if found is not None:
                        yield found
                self._step(instruction, state)

    def _access(
        self,
        instruction: Instruction,
        index: int,
        kind: AccessKind,
        operand: str,
        bulk: bool,
        state: Mapping[str, Origins],
        floats: frozenset[str],
    ) -> MemoryAccess | None:
        if bulk and "tensor" in instruction.modifiers:
            base = operand.strip("[] ").split(",")[0]
            described = self._value(base, state)
            origins = self._described(described)
        else:
            origins = self._value(operand, state)
        kinds = {origin_kind for origin_kind, _ in origins}
        if kinds and kinds <= {OriginKind.SHARED, OriginKind.LOCAL, OriginKind.CONSTANT}:
            return None
        params = frozenset(int(of) for origin_kind, of in origins if origin_kind is OriginKind.PARAMETER)
        variables = tuple(sorted(str(of) for origin_kind, of in origins if origin_kind is OriginKind.VARIABLE))
        scalars = frozenset(int(of) for origin_kind, of in origins if origin_kind is OriginKind.SCALAR)
        located = bool(params or variables)
        unknown = OriginKind.NUMBER in kinds or not located
        new_value = instruction.operands[-1] if kind is AccessKind.UPDATE else ""
        floating = kind is AccessKind.UPDATE and (
            any(modifier in _FLOAT_TYPES for modifier in instruction.modifiers)
            or ("cas" in instruction.modifiers and any(name in floats for name in registers_in(new_value)))
        )
        return MemoryAccess(
            kind,
            index,
            instruction.line,
            instruction.opcode,
            params,
            unknown,
            variables,
            _NO_SCALARS if located else scalars,
            access_bytes(instruction),
            bulk,
            floating,
        )

    def _described(self, descriptor: Origins) -> Origins:
        """The origins of the memory that a TMA descriptor describes, which lies at an address of the given origins."""
        return frozenset(self.descriptors) or frozenset({*descriptor, _NUMBER})


_NO_SCALARS: frozenset[int] = frozenset()


def _number(origins: Origins) -> Origins:
    """Of a product: whatever its factors are, it is no address."""
    return frozenset({_NUMBER}) if origins else _NONE


def _sum(first: Origins, second: Origins) -> Origins:
    """Of an address and an offset the address counts; of two addresses both."""
    first_located = any(kind not in _OFFSETS for kind, _ in first)
    second_located = any(kind not in _OFFSETS for kind, _ in second)
    if first_located and not second_located:
        return first
    if second_located and not first_located:
        return second
    return first | second


def _small(operand: str) -> bool:
    try:
        return 0 <= int(operand, 0) < _SMALL_MASK
    except ValueError:
        return False


def _float_registers(graph: ControlFlowGraph) -> frozenset[str]:
    """Registers whose bits come from floating-point arithmetic; compare-and-swap loops write such values."""
    found: set[str] = set()
    moves = ("mov", "cvt", "prmt", "and", "or", "xor", "shl", "shr", "bfi", "bfe", "selp", "lop3")
    while True:
        before = len(found)
        for placed in graph.instructions:
            instruction = placed.instruction
            arithmetic = instruction.name in ("add", "fma", "mul", "sub") and instruction.modifiers[-1] in _FLOAT_TYPES
            moved = instruction.name in moves and any(
                name in found for operand in instruction.operands[1:] for name in registers_in(operand)
            )
            if arithmetic or moved:
                found.update(written_registers(instruction))
        if len(found) == before:
            return frozenset(found)


def access_bytes(instruction: Instruction) -> int:
    """The bytes that one thread accesses; 0: a number of bytes that is only known at run time."""
    modifiers = instruction.modifiers
    if instruction.name == "cp":
        size = instruction.operands[2] if "bulk" not in modifiers and len(instruction.operands) > 2 else ""
        return int(size, 0) if size[:1].isdigit() else 0
    width = next((TYPE_BYTES[modifier] for modifier in reversed(modifiers) if modifier in TYPE_BYTES), 0)
    vector = next((int(modifier[1:]) for modifier in modifiers if modifier in ("v2", "v4", "v8")), 1)
    if instruction.operands and vector == 1 and instruction.operands[0].startswith("{"):
        vector = len(vector_elements(instruction.operands[0]))
    return width * vector


def may_be_global(modifiers: tuple[str, ...]) -> bool:
    """Whether an access with these modifiers may be to global memory: it says so, or names no space."""
    spaces = {modifier.partition("::")[0] for modifier in modifiers}
    return "global" in spaces or not spaces & {"shared", "local", "const", "param"}


def _global_operands(instruction: Instruction) -> list[tuple[AccessKind, str, bool]]:
    """How an instruction accesses global memory, by which operand, and whether by the async proxy."""
    name, modifiers, operands = instruction.name, instruction.modifiers, instruction.operands
    read, write, update = AccessKind.READ, AccessKind.WRITE, AccessKind.UPDATE
    if name in ("ld", "ldu") and may_be_global(modifiers):
        return [(read, operands[1], False)]
    if name == "st" and may_be_global(modifiers):
        return [(write, operands[0], False)]
    if name == "discard":
        return [(write, operands[0], False)]
    if name == "atom" and may_be_global(modifiers):
        return [(update, operands[1], False)]
    if name == "red" and may_be_global(modifiers) and "async" not in modifiers:
        return [(update, operands[0], False)]
    if name == "cp" and "async" in modifiers:
        return _copy_operands(modifiers, operands)
    if name == "tensormap" and modifiers[:1] == ("cp_fenceproxy",):
        return [(write, operands[0], False)]
    if name == "multimem":
        return [(read if "ld_reduce" in modifiers else update, operands[1 if "ld_reduce" in modifiers else 0], False)]
    return []


def _copy_operands(modifiers: tuple[str, ...], operands: tuple[str, ...]) -> list[tuple[AccessKind, str, bool]]:
    spaces = [
        modifier.partition("::")[0] for modifier in modifiers if modifier.partition("::")[0] in ("shared", "global")
    ]
    bulk = "bulk" in modifiers
    if bulk and "prefetch" in modifiers:
        return []  # a hint: it brings memory into the L2 cache
    if spaces[:2] == ["shared", "global"]:
        return [(AccessKind.READ, operands[1], bulk)]
    if spaces[:2] == ["global", "shared"]:
        return [(AccessKind.UPDATE if "reduce" in modifiers else AccessKind.WRITE, operands[0], bulk)]
    return []  # commit_group, wait_group, mbarrier.arrive
