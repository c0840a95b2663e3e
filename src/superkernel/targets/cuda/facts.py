"""targets.cuda.facts: a PTX module and what a user says of a kernel in it -> KernelFacts, or what contradicts them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from ...cache import digest
from ...errors import BuildError, GraphError, UnsupportedError, nearest, shown
from ...model.binary import Form
from ...model.params import Kind
from ...model.subkernel import ShownFacts, SubKernel
from .basic_blocks import ControlFlowGraph, control_flow
from .check_params import ParameterLayout, check_params
from .memory_operands import AccessKind
from .provenance import ParameterAccesses, find_accesses
from .ptx import (
    Entry,
    Instruction,
    Module,
    ThreadCount,
    Variable,
    registers_in,
    special_registers,
    walk,
    walk_statements,
)
from .reader import read_ptx_file
from .refusals import refuse_unsupported
from .spin_loops import Spin, find_spin_loops
from .wait_point import EarlyRead, EarlyReads, WaitKind, WaitPoint, find_early_reads, find_wait

MOST_THREADS = 1024
_ONE_THREAD: ThreadCount = (1, 1, 1)
_STATIC_SHARED = 48 * 1024
_MOST_SHARED = 227 * 1024
# architecture -> bytes of shared memory that a block can have
_SHARED_OF = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}
_ARCHITECTURE = re.compile(r"sm_(\d+)[af]?")


class Atomics(Enum):
    """Updates of global memory; the sum of floats depends on the order of the blocks in its last bits."""

    NONE = "none"
    INTEGER = "integer"
    FLOAT = "float"


@dataclass(frozen=True)
class KernelFacts(ShownFacts):
    """What is known of a kernel from its PTX. Numbers of parameters are those of SubKernel.params."""

    symbol: str
    text_digest: str
    version: tuple[int, int]
    target: str
    threads: ThreadCount
    layout: ParameterLayout
    static_shared: int
    dynamic_shared: int
    atomics: Atomics
    async_proxy: bool  # TMA, cp.async.bulk or wgmma
    wait_point: WaitPoint | None  # where the kernel itself waits
    early_reads: EarlyReads  # over which a wait may sink
    spin: Spin
    dimensions: int  # of the grid that the code asks for: 2 if it reads %ctaid.y or %nctaid.y, 3 if it reads z
    params: tuple[str, ...]
    scratch: int = 0  # bytes per block of Triton's global scratch memory
    registers: int | None = None  # of a thread when the kernel is assembled alone; found by the assembler
    remarks: tuple[str, ...] = ()

    @property
    def thread_count(self) -> int:
        return math.prod(self.threads)

    def __str__(self) -> str:
        shape = " x ".join(str(extent) for extent in self.threads if extent > 1) or "1"
        parts = [f"{shape} threads"]
        if self.registers is not None:
            parts.append(f"{self.registers} registers alone")
        parts.append(f"{self.static_shared + self.dynamic_shared} bytes of shared memory")
        if self.scratch:
            parts.append(f"{self.scratch} bytes of scratch memory per block")
        if self.atomics is Atomics.FLOAT:
            parts.append("float atomics (not bit-reproducible)")
        elif self.atomics is Atomics.INTEGER:
            parts.append("integer atomics")
        if self.async_proxy:
            parts.append("uses the async proxy")
        if self.wait_point is not None:
            parts.append(f"waits inside at line {self.wait_point.line}{self._before(self.wait_point)}")
        if self.spin is not Spin.NONE:
            parts.append(f"its blocks wait for {self.spin.value}")
        return ", ".join((*parts, *self.remarks))

    def _before(self, point: WaitPoint) -> str:
        names = ", ".join(self.params[param] for param in point.reads_before if param < len(self.params))
        return f", after it has read {names}" if names else ""

    def sunk_wait(self, produced: tuple[str, ...]) -> WaitPoint:
        """The last place for the wait of an op of which the launch produces these parameters."""
        return self.early_reads.sunk_wait([self.params.index(name) for name in produced])


def complete(kernel: SubKernel, module: Module | None = None) -> SubKernel:
    """The sub-kernel with all that plan and emitter ask for filled in; refuses what this target cannot take."""
    if kernel.binary.form is not Form.PTX:
        raise UnsupportedError(
            f"sub-kernel {shown(kernel.name)}: the cuda target takes PTX, and this is a {kernel.binary.form.value} "
            f"file; compile it to PTX (nvcc -ptx) and use SubKernel.from_ptx"
        )
    facts = find_facts(kernel, module or read_ptx_file(kernel.binary.path))
    point = facts.wait_point if kernel.early_start is not False else None
    early: tuple[str, ...] | bool | None = False
    if point is not None:
        early = tuple(facts.params[param] for param in point.reads_before) or True
    return replace(
        kernel,
        target_facts=facts,
        threads=facts.threads,
        sync_all=facts.spin is Spin.ALL_BLOCKS if kernel.sync_all is None else kernel.sync_all,
        early_start=early,
        waits_inside=point is not None,
        signals_inside=False,
        may_fail=False,
        code_bytes=len(module.text) if module else kernel.binary.path.stat().st_size,
    )


def find_facts(kernel: SubKernel, module: Module) -> KernelFacts:
    where = f"sub-kernel {shown(kernel.name)}: "
    entry = _entry(kernel, module)
    threads = _threads(kernel, entry, module, where)
    layout = check_params(kernel, entry, module.origin, where)
    refuse_unsupported(module, entry, math.prod(threads), where)
    graph = control_flow(entry, module.origin)
    scalars = [index for index, param in enumerate(kernel.params) if param.kind is Kind.SCALAR]
    accesses = find_accesses(module, entry, graph, scalars)
    remarks = _check_accesses(kernel, layout, accesses, module.origin, where)
    static, dynamic = _shared(kernel, module, entry, where)
    found = find_wait(graph, accesses)
    _check_early_start(kernel, found.point, found.remark, module.origin, where)
    if found.remark:
        remarks.append(found.remark)
    spins = find_spin_loops(graph)
    updates = [access for access in accesses.accesses if access.kind is AccessKind.UPDATE]
    floats = any(access.floating for access in updates)
    return KernelFacts(
        entry.name,
        digest(str(entry).encode()),
        module.version,
        module.target,
        threads,
        layout,
        static,
        dynamic,
        Atomics.FLOAT if floats else Atomics.INTEGER if updates else Atomics.NONE,
        any(access.bulk for access in accesses.accesses) or _uses_async_proxy(entry),
        found.point,
        find_early_reads(graph, accesses),
        max((loop.spin for loop in spins), key=list(Spin).index, default=Spin.NONE),
        _dimensions(graph),
        tuple(param.name for param in kernel.params),
        kernel.scratch,
        remarks=tuple(remarks),
    )


def _entry(kernel: SubKernel, module: Module) -> Entry:
    entry = module.entry(kernel.name)
    if entry is None:
        names = [entry.name for entry in module.entries]
        known = f"its entries are {', '.join(names)}" if names else "it has no entry"
        raise BuildError(
            f"sub-kernel {shown(kernel.name)}: {module.origin} has no entry of that name"
            f"{nearest(kernel.name, names)}; {known}"
        )
    return entry


def _threads(kernel: SubKernel, entry: Entry, module: Module, where: str) -> ThreadCount:
    given, required, most = kernel.threads, entry.required_threads, entry.most_threads
    place = f"{where}{module.origin}:{entry.line}: "
    if given == _ONE_THREAD and required is not None:
        return required
    if given == _ONE_THREAD and (most is None or math.prod(most) > 1):
        raise GraphError(
            f"{place}threads is missing: the PTX does not say how many threads a block has (.reqntid); "
            f"give threads=(x, y, z), the block size of its launches"
        )
    if required is not None and given != required:
        raise GraphError(f"{place}threads={given}, but the kernel was compiled for blocks of {required} (.reqntid)")
    if most is not None and math.prod(given) > math.prod(most):
        raise GraphError(f"{place}threads={given}, but the kernel was compiled for at most {most} threads (.maxntid)")
    if math.prod(given) > MOST_THREADS:
        raise GraphError(f"{place}threads={given}: a block has at most {MOST_THREADS} threads")
    return given


def _shared(kernel: SubKernel, module: Module, entry: Entry, where: str) -> tuple[int, int]:
    """Bytes of static and of dynamic shared memory."""
    used: dict[str, Instruction] = {}
    for instruction in walk(entry.statements):
        for operand in instruction.operands:
            for name in registers_in(operand):
                used.setdefault(name, instruction)
    local = [statement for statement in walk_statements(entry.statements) if isinstance(statement, Variable)]
    shared = [v for v in (*module.variables, *local) if v.space == "shared" and v.name in used]
    static = 0
    for variable in shared:
        if variable.nbytes is not None:
            static = -(-static // variable.align) * variable.align + variable.nbytes
    dynamic = next((variable for variable in shared if variable.nbytes is None), None)
    if dynamic is not None and not kernel.shared:
        raise GraphError(
            f"{where}{module.origin}:{used[dynamic.name].line}: the kernel uses dynamic shared memory "
            f"({dynamic.name}), but shared is 0; give shared=, the bytes of its launches (Triton: metadata.shared)"
        )
    found = _ARCHITECTURE.fullmatch(module.target)
    most = _SHARED_OF[int(found[1])] * 1024 if found and int(found[1]) in _SHARED_OF else _MOST_SHARED
    if static > _STATIC_SHARED:
        raise UnsupportedError(f"{where}{static} bytes of static shared memory; the limit is {_STATIC_SHARED}")
    if static + kernel.shared > most:
        raise UnsupportedError(
            f"{where}{static + kernel.shared} bytes of shared memory; a block has at most {most} on {module.target}"
        )
    return static, kernel.shared


def _check_accesses(
    kernel: SubKernel, layout: ParameterLayout, accesses: ParameterAccesses, origin: str, where: str
) -> list[str]:
    """Refuses declarations that the code contradicts; returns what could not be decided."""
    remarks = []
    for access in accesses.unknown:
        if access.variables and access.writes:
            raise UnsupportedError(
                f"{where}{origin}:{access.line}: {access.opcode} {access.kind.value} the variable "
                f"{access.variables[0]} of its module; pass its memory as a parameter"
            )
        for scalar in sorted(access.scalars):
            raise GraphError(
                f"{where}{origin}:{access.line}: {access.opcode} uses parameter {kernel.params[scalar].name!r} as an "
                f"address, but it is declared as a scalar; declare it as in, out or inout"
            )
    if accesses.unknown:
        lines = ", ".join(map(str, sorted({access.line for access in accesses.unknown})[:5]))
        remarks.append(f"accesses memory that no parameter points to (line {lines}), which nothing orders")
    for index, param in enumerate(kernel.params):
        if param.kind is Kind.IN and (write := accesses.certain(index, AccessKind.WRITE)) is not None:
            raise GraphError(
                f"{where}{origin}:{write.line}: {write.opcode} {write.kind.value} parameter {param.name!r}, which is "
                f"declared as in; declare it as out or inout"
            )
        if param.kind is Kind.IN and index in accesses.written:
            remarks.append(f"may write {param.name}, which is declared as in (its stores cannot be told apart)")
        if param.kind is Kind.OUT and index in accesses.updated:
            remarks.append(f"updates {param.name} atomically: what it held before the op counts")
    if layout.scratch is not None:
        area, profile = layout.scratch
        if area in accesses.first and not kernel.scratch:
            raise GraphError(
                f"{where}{origin}:{accesses.first[area].line}: the kernel uses Triton's global scratch memory, but "
                f"scratch is 0; give scratch=, its bytes per block (metadata.global_scratch_size)"
            )
        if profile in accesses.first:
            raise UnsupportedError(
                f"{where}{origin}:{accesses.first[profile].line}: the kernel records a profile of itself; compile it "
                f"without Triton's instrumentation"
            )
    elif kernel.scratch:
        raise GraphError(f"{where}scratch={kernel.scratch}, but the kernel has no scratch parameters behind its own")
    return remarks


def _check_early_start(kernel: SubKernel, point: WaitPoint | None, remark: str, origin: str, where: str) -> None:
    """A promise to wait inside must be what the code does."""
    promised = kernel.early_start
    if promised is None or promised is False:
        return
    if point is None:
        why = remark or "the PTX has no griddepcontrol.wait"
        raise GraphError(f"{where}early_start={promised!r}, but {why}; leave early_start out")
    names = set(kernel.read_before_wait)
    for param in point.reads_before:
        name = kernel.params[param].name
        if promised is not True and name not in names:
            raise GraphError(
                f"{where}early_start={promised!r}, but the kernel reads {name!r} before its wait "
                f"({origin}:{point.line}); name it there, or leave early_start out"
            )


def _uses_async_proxy(entry: Entry) -> bool:
    return any(
        instruction.name == "wgmma" or (instruction.name == "cp" and "bulk" in instruction.modifiers)
        for instruction in walk(entry.statements)
    )


def _dimensions(graph: ControlFlowGraph) -> int:
    read = {register for placed in graph.instructions for register in special_registers(placed.instruction)}
    axes = [register[-1] for register in read if register.startswith(("%ctaid.", "%nctaid."))]
    return max((" xyz".index(axis) for axis in axes if axis in "xyz"), default=1)


def facts_of(kernel: SubKernel) -> KernelFacts:
    facts = kernel.target_facts
    if not isinstance(facts, KernelFacts):
        raise BuildError(f"sub-kernel {shown(kernel.name)}: its PTX has not been read yet")
    return facts


def facts_to_json(kernel: SubKernel) -> Any:
    """As a saved super kernel keeps them."""
    facts = facts_of(kernel)
    fields = {name: getattr(facts, name) for name in facts.__dataclass_fields__}
    point = facts.wait_point
    reads = [[read.statement, read.line, read.params, read.nbytes] for read in facts.early_reads.reads]
    return fields | {
        "layout": facts.layout.to_json(),
        "atomics": facts.atomics.value,
        "spin": facts.spin.value,
        "wait_point": point and [point.kind.value, point.statement, point.line, point.reads_before, point.bytes_before],
        "early_reads": [reads, facts.early_reads.limit, facts.early_reads.limit_line],
    }


def facts_from_json(fields: Any) -> KernelFacts:
    reads, limit, limit_line = fields["early_reads"]
    point = fields["wait_point"]
    early = tuple(EarlyRead(statement, line, tuple(params), nbytes) for statement, line, params, nbytes in reads)
    kept = {name: tuple(fields[name]) for name in ("version", "threads", "params", "remarks")}
    typed = {
        "layout": ParameterLayout.from_json(fields["layout"]),
        "atomics": Atomics(fields["atomics"]),
        "spin": Spin(fields["spin"]),
        "wait_point": point and WaitPoint(WaitKind(point[0]), point[1], point[2], tuple(point[3]), point[4]),
        "early_reads": EarlyReads(early, limit, limit_line),
    }
    return KernelFacts(**(fields | kept | typed))
