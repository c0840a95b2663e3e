"""targets.cpu.emit: a plan -> the C++ source of its entry: one function per lane, one comment per step.

A small plan is printed as lines of C++, a large one as tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ...errors import counted
from ...model.argument_layout import Role
from ...model.op import Place
from ...model.options import Options
from ...model.subkernel import SubKernel
from ...model.tiling import CompiledTiling
from ...plan import Lane, Plan
from ...plan.steps import Cores, Select, Step, spell
from ..native.c_names import c_identifiers
from .actions import ALONE, Actions, LinkedKernel
from .emit_lines import INDENT, LinePrinter, parameter_types
from .emit_table import TablePrinter, runs
from .numbering import Numbering, ranges

# A plan whose lanes have so many steps in all becomes tables. Measured on chains: 300 steps take the compiler 1.1 s as
# lines and 0.6 s as tables, 6000 take 23 s and 0.7 s; a row costs a core some nanoseconds more than a line.
TABLES_FROM = 400
_INCLUDE = "#include <superkernel/entry.h>"
_PARAMETERS = "sk::Core& core, const uint64_t* slot, [[maybe_unused]] const int64_t* bytes"
_PARAMETERS_UNUSED = "sk::Core&, const uint64_t*, const int64_t*"


@dataclass(frozen=True)
class Emitter:
    plan: Plan
    numbers: Numbering
    linked: Mapping[SubKernel, LinkedKernel]
    entry: str
    options: Options  # as resolved for this target
    tilings: Mapping[CompiledTiling, str] = field(default_factory=dict)  # -> symbol in the merged object

    def source(self) -> str:
        lanes = [self._lane(lane) for lane in self.plan.lanes]
        whole_plan = self._whole_plan()
        parts = [self._head(), self._declarations(), self._slots()]
        if self._as_tables:
            parts += [self._table.head(), self._table.area_table()]
        return "\n".join([*parts, *lanes, whole_plan, self._entry()])

    @cached_property
    def _as_tables(self) -> bool:
        return sum(len(lane.steps) for lane in self.plan.lanes) >= TABLES_FROM

    @cached_property
    def _actions(self) -> Actions:
        return Actions(self.plan, self.numbers, self.linked, self.tilings)

    @cached_property
    def _identifiers(self) -> dict[str, str]:
        """Slot -> its enumerator."""
        names = self.numbers.layout.names
        return dict(zip(names, c_identifiers(names), strict=True))

    @cached_property
    def _lines(self) -> LinePrinter:
        return LinePrinter(self._actions, self._identifiers)

    @cached_property
    def _table(self) -> TablePrinter:
        return TablePrinter(self._actions, self._identifiers)

    def _head(self) -> str:
        plan = self.plan
        options = f", options {plan.options}" if str(plan.options) else ""
        return (
            f"// Super kernel {_comment(plan.graph.label)}: "
            f"{counted(len(plan.graph.nodes), 'op')} on {counted(plan.cores, 'core')}{options}.\n"
            "// Each lane function is what its cores do, in order; stamps count signals and barriers along the plan.\n"
            f"{_INCLUDE}\n"
        )

    def _declarations(self) -> str:
        lines, declared = ["// the sub-kernels"], set[str]()
        for kernel, linked in self.linked.items():
            named = zip(parameter_types(kernel), c_identifiers([p.name for p in kernel.params]), strict=True)
            types = ", ".join(f"{type_name} {name}" for type_name, name in named)
            for _, copies in linked.variants:
                if copies[0] in declared:  # one function under two descriptions, or two tiling keys
                    continue
                declared.add(copies[0])
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
        lines = ["// the argument block: one slot per op parameter, in op order", "namespace at {", "enum : int {"]
        for slot in self.numbers.layout:
            source = "a literal" if slot.role is Role.PARAM else "run time"
            if slot.source is not None:
                source = str(Place(slot.source, slot.addend))
            lines.append(f"{INDENT}{self._identifiers[slot.name]},  // {slot.index}: {_comment(source)}")
        lines += ["};", "}  // namespace at"]
        for op in self.plan.copies:
            if copy_of := self._actions.copy_index(op):
                table = ", ".join(map(str, copy_of))
                lines.append(
                    f"static const int copy_of_{op}[] = {{{table}}};  // which copy of its outputs a core uses"
                )
        return "\n".join([*lines, ""])

    def _lane(self, lane: Lane) -> str:
        lines = [f"// lane {lane.name}: cores {spell(lane.cores)}", f"static void {lane.name}_lane({_PARAMETERS}) {{"]
        members = frozenset(lane.cores)
        here = [
            (i, step, cores)
            for i, step in enumerate(self.plan.steps)
            if (cores := tuple(core for core in step.cores if core in members))
        ]
        if self._as_tables:
            lines += self._table.body([row for place in here for row in self._rows(*place)])
        else:
            lines += self._choices(lane.steps)
            lines += [line for place in here for line in self._step(*place, lane.cores)]
        return "\n".join([*lines, "}", ""])

    def _choices(self, steps: tuple[Step, ...]) -> list[str]:
        chosen = [step.op for step in steps if isinstance(step, Select)]
        return [f"{INDENT}sk::Choice choice_{op}{{}};" for op in chosen]

    def _step(self, i: int, step: Step, here: Cores, lane: Cores) -> list[str]:
        lines = [f"{INDENT}// [{spell(here)}] {_comment(self.plan.describe(step))}"]
        body = [line for action in self._actions.of_step(i, step) for line in self._lines.lines(action)]
        if here == lane:
            return lines + [INDENT + line for line in body]
        guard = " || ".join(f"core.in({first}, {last})" for first, last in ranges(here))
        return [*lines, f"{INDENT}if ({guard}) {{", *(INDENT * 2 + line for line in body), f"{INDENT}}}"]

    def _rows(self, i: int, step: Step, here: Cores) -> list[str]:
        actions = list(self._actions.of_step(i, step))
        comment = f"[{spell(here)}] {_comment(self.plan.describe(step))}"
        return [
            row for first, last in runs(here, step.cores) for row in self._table.rows(actions, first, last, comment)
        ]

    def _whole_plan(self) -> str:
        """The plan from top to bottom for a core that is alone: no waits, no signals, all blocks."""
        title = "// the whole plan on one core, for a launch that was given no team"
        if self.numbers.rendezvous:
            return f"{title}\nstatic void whole_plan({_PARAMETERS_UNUSED}) {{}}  // never: sync_all needs a team\n"
        lines = [title, f"static void whole_plan({_PARAMETERS}) {{"]
        alone = [(step, list(self._actions.of_step_alone(i, step))) for i, step in enumerate(self.plan.steps)]
        taken = [(_comment(self.plan.describe(step)), actions) for step, actions in alone if actions]
        if self._as_tables:
            (first, last), *_ = ranges(ALONE)
            lines += self._table.body(
                [row for text, does in taken for row in self._table.rows(does, first, last, text)]
            )
        else:
            lines += self._choices(self.plan.steps)
            for text, actions in taken:
                lines.append(f"{INDENT}// {text}")
                lines += [INDENT + line for action in actions for line in self._lines.lines(action)]
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
