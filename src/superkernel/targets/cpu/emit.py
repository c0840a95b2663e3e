"""targets.cpu.emit: a plan -> the C++ source of its entry: one function per lane, one comment per step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ...model.argument_layout import Role, Slot
from ...model.op import Place
from ...model.options import Options
from ...model.params import DTYPES, Kind
from ...model.subkernel import SubKernel
from ...model.tiling import CompiledTiling
from ...plan import Lane, Plan, steps
from ...plan.steps import Call, Cores, Select, Signal, Step, Wait, spell
from ..native.c_names import c_identifiers
from .emit_steps import print_step, ranges
from .numbering import Numbering

INDENT = "    "
_OnOneCore = steps.AwaitEvent | steps.Notify | steps.ResetEvent | steps.Request | Select | steps.Record
_INCLUDE = "#include <superkernel/entry.h>"
_PARAMETERS = "sk::Core& core, const uint64_t* slot, [[maybe_unused]] const int64_t* bytes"
_PARAMETERS_UNUSED = "sk::Core&, const uint64_t*, const int64_t*"


@dataclass(frozen=True)
class LinkedKernel:
    """The symbols of a sub-kernel in the merged object: per tiling key, one per copy."""

    variants: tuple[tuple[int, tuple[str, ...]], ...]
    code_bytes: int


@dataclass(frozen=True)
class Emitter:
    plan: Plan
    numbers: Numbering
    linked: Mapping[SubKernel, LinkedKernel]
    entry: str
    options: Options  # as resolved for this target
    tilings: Mapping[CompiledTiling, str] = field(default_factory=dict)  # -> symbol in the merged object
    identifiers: dict[str, str] = field(default_factory=dict)

    def source(self) -> str:
        parts = [self._head(), self._declarations(), self._slots()]
        parts += [self._lane(lane) for lane in self.plan.lanes]
        parts += [self._whole_plan(), self._entry()]
        return "\n".join(parts)

    def _head(self) -> str:
        plan = self.plan
        options = f", options {plan.options}" if str(plan.options) else ""
        return (
            f"// Super kernel {_comment(plan.graph.label)}: "
            f"{len(plan.graph.nodes)} ops on {plan.cores} cores{options}.\n"
            "// Each lane function is what its cores do, in order; stamps count signals and barriers along the plan.\n"
            f"{_INCLUDE}\n"
        )

    def _declarations(self) -> str:
        lines = ["// the sub-kernels"]
        for kernel, linked in self.linked.items():
            named = zip(kernel.params, c_identifiers([p.name for p in kernel.params]), strict=True)
            types = ", ".join(f"{_ctype(p.dtype) if p.kind is Kind.SCALAR else 'uint64_t'} {name}" for p, name in named)
            for _, copies in linked.variants:
                lines += [f'extern "C" void {symbol}({types});' for symbol in copies]
                if len(copies) > 1:
                    lines.append(f"static void (*const {copies[0]}_copies[])({types}) = {{{', '.join(copies)}}};")
        used = dict.fromkeys(node.compiled_tiling for node in self.plan.graph.nodes if node.compiled_tiling)
        if used:
            lines.append("// the tiling functions")
        for tiling in used:
            lines.append(f'extern "C" int {self.tilings[tiling]}(const sk_tiling_args* in, sk_tiling_result* out);')
        return "\n".join(lines) + "\n"

    def _slots(self) -> str:
        names = self.numbers.layout.names
        self.identifiers.update(zip(names, c_identifiers(names), strict=True))
        lines = ["// the argument block: one slot per op parameter, in op order", "namespace at {", "enum : int {"]
        for slot in self.numbers.layout:
            source = "a literal" if slot.role is Role.PARAM else "run time"
            if slot.source is not None:
                source = str(Place(slot.source, slot.addend))
            lines.append(f"{INDENT}{self.identifiers[slot.name]},  // {slot.index}: {_comment(source)}")
        lines += ["};", "}  // namespace at"]
        for op, copies in self.plan.copies.items():
            if self._copy_index(op) != "core.id()":
                copy_of = {core: number for number, copy in enumerate(copies) for core in copy.readers}
                table = ", ".join(str(copy_of.get(core, 0)) for core in range(self.plan.cores))
                lines.append(
                    f"static const int copy_of_{op}[] = {{{table}}};  // which copy of its outputs a core uses"
                )
        return "\n".join([*lines, ""])

    def _lane(self, lane: Lane) -> str:
        lines = [f"// lane {lane.name}: cores {spell(lane.cores)}", f"static void {lane.name}_lane({_PARAMETERS}) {{"]
        lines += self._choices(lane.steps)
        for i, step in enumerate(self.plan.steps):
            here = tuple(core for core in step.cores if core in lane.cores)
            if here:
                lines += self._step(i, step, here, lane.cores)
        return "\n".join([*lines, "}", ""])

    def _choices(self, steps: tuple[Step, ...]) -> list[str]:
        chosen = [step.op for step in steps if isinstance(step, Select)]
        return [f"{INDENT}sk::Choice choice_{op}{{}};" for op in chosen]

    def _step(self, i: int, step: Step, here: Cores, lane: Cores) -> list[str]:
        lines = [f"{INDENT}// [{spell(here)}] {_comment(self.plan.describe(step))}"]
        body = list(print_step(self, i, step))
        if here == lane:
            return lines + [INDENT + line for line in body]
        guard = " || ".join(f"core.in({first}, {last})" for first, last in ranges(here))
        return [*lines, f"{INDENT}if ({guard}) {{", *(INDENT * 2 + line for line in body), f"{INDENT}}}"]

    def _whole_plan(self) -> str:
        """The plan from top to bottom for a core that is alone: no waits, no signals, all blocks."""
        title = "// the whole plan on one core, for a launch that was given no team"
        if self.numbers.rendezvous:
            return f"{title}\nstatic void whole_plan({_PARAMETERS_UNUSED}) {{}}  // never: sync_all needs a team\n"
        lines = [title, f"static void whole_plan({_PARAMETERS}) {{", *self._choices(self.plan.steps)]
        for i, step in enumerate(self.plan.steps):
            if isinstance(step, Call | _OnOneCore):
                lines.append(f"{INDENT}// {_comment(self.plan.describe(step))}")
                body = self.blocks(i, step, "0", 1) if isinstance(step, Call) else print_step(self, i, step)
                lines += [INDENT + line for line in body]
        return "\n".join([*lines, "}", ""])

    def _entry(self) -> str:
        align = self.options.func_align
        aligned = f", aligned({align})" if align else ""
        lines = [
            "// the entry: every core of the launch calls it once; id -1 runs the whole plan",
            f'extern "C" __attribute__((visibility("default"){aligned}))',
            f"void {self.entry}(sk::Launch* launch, int id) {{",
            f"{INDENT}sk::Core core(*launch, id < 0 ? 0 : id);",
            f"{INDENT}sk::current = &core;",
            f"{INDENT}if (id < 0) {{",
            f"{INDENT * 2}whole_plan(core, launch->slots, launch->bytes);",
        ]
        for lane in self.plan.lanes:
            guard = " || ".join(f"core.in({first}, {last})" for first, last in ranges(lane.cores))
            lines += [
                f"{INDENT}}} else if ({guard}) {{",
                f"{INDENT * 2}{lane.name}_lane(core, launch->slots, launch->bytes);",
            ]
        return "\n".join([*lines, f"{INDENT}}}", f"{INDENT}sk::current = nullptr;", "}", ""])

    # what the printers of single steps share

    @cached_property
    def early_signals(self) -> dict[int, Signal]:
        """Op -> the signal that its call may give by itself."""
        return {s.mark.op: s for s in self.plan.steps if isinstance(s, Signal) and s.inside}

    def published(self, signal: Signal) -> str:
        """The stamp of a signal, and its counter if it has one."""
        counter = self.numbers.counters.get((signal.mark, signal.cores))
        stamp = str(self.numbers.stamps[signal.mark])
        return stamp if counter is None else f"{stamp}, {counter}"

    @cached_property
    def waiting_inside(self) -> frozenset[int]:
        """Ops that wait at a point of their own."""
        return frozenset(s.op for s in self.plan.steps if isinstance(s, Wait) and s.inside)

    def slot(self, slot: Slot) -> str:
        return f"slot[at::{self.identifiers[slot.name]}]"

    def slots_of(self, op: int) -> tuple[Slot, ...]:
        return self.numbers.layout.of_op.get(self.plan.graph.nodes[op].name, ())

    def address(self, slot: Slot) -> str:
        """An argument; of a buffer that is replicated, the copy of the running core."""
        area = self.numbers.copies.get(slot.source or "")
        if area is None:
            return self.slot(slot)
        return f"core.copy({self.slot(slot)}, {self._copy_index(area.op)}, {area.offset + slot.addend}, {area.stride})"

    def _copy_index(self, op: int) -> str:
        readers = [copy.readers for copy in self.plan.copies[op]]
        return "core.id()" if readers == [(core,) for core in range(len(readers))] else f"copy_of_{op}[core.id()]"

    def event_slot(self, op: int, event: str, role: Role) -> str:
        return next(self.slot(s) for s in self.slots_of(op) if s.role is role and s.source == event)

    def call(self, op: int, symbols: tuple[str, ...]) -> str:
        """The call of one block."""
        kernel = self.plan.graph.nodes[op].kernel
        slots = [s for s in self.slots_of(op) if s.role is Role.PARAM]
        args = [
            f"sk::as<{_ctype(p.dtype)}>({self.slot(s)})" if p.kind is Kind.SCALAR else self.address(s)
            for p, s in zip(kernel.params, slots, strict=True)
        ]
        symbol = symbols[0] if len(symbols) == 1 else f"{symbols[0]}_copies[core.id() % {len(symbols)}]"
        return f"{symbol}({', '.join(args)});"

    def blocks(self, i: int, step: Call, rank: str, width: int) -> Iterator[str]:
        """All blocks of the op that one core runs."""
        node = self.plan.graph.nodes[step.op]
        linked = self.linked[node.kernel]
        stop = ["if (!core.alive()) return;"] if node.kernel.may_fail else []
        if not node.dynamic and step.blocks <= width:
            yield f"core.begin({i}, {rank}, {step.blocks});"
            yield self.call(step.op, linked.variants[0][1])
            yield from stop
            return
        total = f"choice_{step.op}.blocks" if node.dynamic else str(step.blocks)
        yield f"for (int block = {rank}; block < {total}; block += {width}) {{"
        yield f"{INDENT}core.begin({i}, block, {total}, block + {width} >= {total});"
        if not node.dynamic:
            yield f"{INDENT}{self.call(step.op, linked.variants[0][1])}"
        else:
            yield f"{INDENT}switch (choice_{step.op}.key) {{"
            for key, symbols in linked.variants:
                yield f"{INDENT * 2}case {key}: {self.call(step.op, symbols)} break;"
            yield f"{INDENT}}}"
        yield from (INDENT + line for line in stop)
        yield "}"


def _ctype(dtype: str | None) -> str:
    return DTYPES[dtype or "int64"][1]


def _comment(text: str) -> str:
    """User names may hold anything; a comment must stay one line."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("\\", "/")


def side_by_side(sources: Sequence[str]) -> str:
    """Several entries in one file. They call their lanes and slots alike, so each stands in a namespace of its own."""
    if len(sources) == 1:
        return sources[0]
    parts = [_INCLUDE]
    for i, source in enumerate(sources):
        body = source.replace(f"{_INCLUDE}\n", "", 1)
        parts += [f"namespace entry_{i} {{", "", body + f"}}  // namespace entry_{i}"]
    return "\n".join(parts) + "\n"
