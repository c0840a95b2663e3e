"""targets.cuda.provenance: the instructions of an entry -> from which parameters the address of every access comes.

A data-flow analysis over registers: origins are propagated to a fixpoint over the control-flow graph. A value that was
loaded from memory, or multiplied, is no address of a parameter; added to such an address it is an offset. Addresses
that pass through shared memory (Triton exchanges them between threads) keep their origin, and so do those in TMA
descriptors that the kernel makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from .basic_blocks import ControlFlowGraph
from .memory_operands import AccessKind, access_bytes, element_bytes, global_operands, is_shared
from .ptx import (
    Entry,
    Instruction,
    Module,
    Variable,
    has_destination,
    registers_in,
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
    DESCRIPTOR = "descriptor"  # the address of a TMA descriptor that was made at this instruction


Origin = tuple[OriginKind, int | str]
Origins = frozenset[Origin]
_NONE: Origins = frozenset()
_NUMBER: Origin = (OriginKind.NUMBER, 0)
_OFFSETS = (OriginKind.NUMBER, OriginKind.SCALAR)  # added to an address they are offsets
# Keys of a state beside registers: the origins of what shared memory holds by width, and of the descriptor made there.
_SHARED_CONTENT = {4: "shared memory: 4 bytes", 8: "shared memory: 8 bytes"}
_DESCRIPTOR = "shared memory: descriptor"
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
        self.described: dict[int, Origins] = {}  # by the place where a TMA descriptor is made: what it describes
        self.at_begin: list[dict[str, Origins] | None] = [None] * len(graph.blocks)
        self._solve()

    def _solve(self) -> None:
        self.at_begin[0] = {}
        ahead = [0]
        while ahead:
            number = ahead.pop()
            state = dict(self.at_begin[number] or {})
            block = self.graph.blocks[number]
            for index in range(block.begin, block.end):
                self._step(index, state)
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

    def _step(self, index: int, state: dict[str, Origins]) -> None:
        instruction = self.graph.instructions[index].instruction
        if instruction.name == "tensormap":
            self._make_descriptor(index, instruction, state)
        elif instruction.name == "st" and is_shared(instruction.modifiers):
            content = _SHARED_CONTENT.get(element_bytes(instruction))
            if content is not None and (value := self._value(instruction.operands[1], state)):
                state[content] = state.get(content, _NONE) | value
        if not has_destination(instruction):
            return
        value = self._result(instruction, state)
        for register in written_registers(instruction):
            before = state.get(register, _NONE) if instruction.guard else _NONE
            if value or before:
                state[register] = value | before
            else:
                state.pop(register, None)

    def _make_descriptor(self, index: int, instruction: Instruction, state: dict[str, Origins]) -> None:
        """A descriptor is filled in shared memory, then copied to global memory: its address there carries a mark."""
        if "global_address" in instruction.modifiers:
            state[_DESCRIPTOR] = self._value(instruction.operands[-1], state)
        elif instruction.modifiers[:1] == ("cp_fenceproxy",):
            # The next descriptor is filled anew, by a thread that branches do not let the analysis follow.
            self.described[index] = self.described.get(index, _NONE) | state.pop(_DESCRIPTOR, _NONE)
            for register in registers_in(instruction.operands[0]):
                kept = {origin for origin in state.get(register, _NONE) if origin[0] is not OriginKind.DESCRIPTOR}
                state[register] = frozenset({*kept, (OriginKind.DESCRIPTOR, index)})

    def _result(self, instruction: Instruction, state: Mapping[str, Origins]) -> Origins:
        name, modifiers, operands = instruction.name, instruction.modifiers, instruction.operands
        if name == "ld":
            if "param" in modifiers:
                return self._value(operands[1], state)
            content = _SHARED_CONTENT.get(element_bytes(instruction)) if is_shared(modifiers) else None
            return (state.get(content, _NONE) if content else _NONE) or frozenset({_NUMBER})
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
                for kind, operand, bulk in global_operands(instruction):
                    found = self._access(instruction, index, kind, operand, bulk, state, floats)
                    if found is not None:
                        yield found
                self._step(index, state)

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
            origins = self._described(self._value(operand.strip("[] ").split(",")[0], state))
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
        """The origins of the memory that a TMA descriptor describes; it lies at an address of the given origins."""
        makers = [int(of) for kind, of in descriptor if kind is OriginKind.DESCRIPTOR] or list(self.described)
        return frozenset().union(*(self.described[maker] for maker in makers)) or frozenset({_NUMBER})


_NO_SCALARS: frozenset[int] = frozenset()


def _number(origins: Origins) -> Origins:
    """Of a product: whatever its factors are, it is no address."""
    return frozenset({_NUMBER}) if origins else _NONE


def _sum(first: Origins, second: Origins) -> Origins:
    """Of an address and an offset the address counts; of two addresses both."""
    first, second = _without_marks(first), _without_marks(second)
    first_located = any(kind not in _OFFSETS for kind, _ in first)
    second_located = any(kind not in _OFFSETS for kind, _ in second)
    if first_located and not second_located:
        return first
    if second_located and not first_located:
        return second
    return first | second


def _without_marks(origins: Origins) -> Origins:
    """Of an address beside that of a descriptor."""
    return frozenset(origin for origin in origins if origin[0] is not OriginKind.DESCRIPTOR)


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
