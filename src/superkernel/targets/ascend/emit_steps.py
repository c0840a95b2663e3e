"""targets.ascend.emit_steps: prints one step of a plan, for the classes that follow it; decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from ...model.argument_layout import Role
from ...model.subkernel import SubKernel
from ...plan.steps import (
    AwaitEvent,
    Fence,
    Notify,
    Preload,
    Record,
    Request,
    ResetEvent,
    Select,
    SpanKind,
    Step,
)
from .argument_layout import SYNC_BASE
from .calling_convention import SyncProtocol
from .core_types import CUBE, VECTOR, CoreClass, KernelType, LaunchType, OpClass
from .facts import facts_of
from .kernel_description import MarkPoint
from .names import KernelFunctions
from .pairs import Action
from .plan import AscendPlan, cores_of
from .steps import (
    Arrive,
    ClassCall,
    Classes,
    ClearFeed,
    DebugBarrier,
    Drain,
    InitDump,
    LeaderRecord,
    Meet,
    PrefetchGo,
    PreloadEntry,
    ResetLock,
    WholeBarrier,
)
from .workspace_layout import mark_of

_CACHE_OUT = "dcci((__gm__ void*)0, cache_line_t::ENTIRE_DATA_CACHE, dcci_dst_t::CACHELINE_OUT);"
_DRAIN = "pipe_barrier(PIPE_ALL);"
_ARRIVE = {
    CUBE: "ffts_cross_core_sync(PIPE_FIX, arrive_cubes);",
    VECTOR: "ffts_cross_core_sync(PIPE_MTE3, arrive_vectors);",
}
_ACTIONS: Mapping[CoreClass, Mapping[Action, str]] = {
    CUBE: {
        Action.ARRIVE: _ARRIVE[CUBE],
        Action.WAIT_ALL: "wait_flag_dev(cube_flag);",
        Action.SIGNAL: "ffts_cross_core_sync(PIPE_FIX, cube_to_vectors);",
        Action.WAIT_BLOCK: "wait_flag_dev(vectors_to_cube_flag);",
    },
    VECTOR: {
        Action.ARRIVE: _ARRIVE[VECTOR],
        Action.WAIT_ALL: "wait_flag_dev(vector_flag);",
        Action.SIGNAL: "ffts_cross_core_sync(PIPE_MTE3, vectors_to_cube);",
        Action.WAIT_BLOCK: "wait_flag_dev(cube_to_vectors_flag);",
    },
}
_FIRST = {CUBE: "block == 0", VECTOR: "vector == 0"}
_OTHER = {CUBE: VECTOR, VECTOR: CUBE}
_MOST_LINES = {CUBE: 8, VECTOR: 7}  # of one preload: less than the instruction cache of the core holds


def indented(lines: Iterable[str], depth: int = 1) -> list[str]:
    return [line if line.startswith("#") else "    " * depth + line for line in lines]


def _class_tests(apart: Mapping[CoreClass, Sequence[str]]) -> Iterable[str]:
    for core_class in CoreClass:
        if lines := apart.get(core_class):
            yield from (f"if constexpr (on_{core_class.value}) {{", *indented(lines), "}")


class StepPrinter:
    def __init__(self, plan: AscendPlan, named: Mapping[SubKernel, KernelFunctions], entry: str) -> None:
        self.plan, self.named, self.entry = plan, named, entry
        self.nodes, self.slots, self.launch = plan.graph.nodes, plan.slots, plan.launch
        # per op: looking a sub-kernel up means hashing all that is known of it
        self._named = [named[node.kernel] for node in self.nodes]
        self._chosen_at_run_time = [self.is_dynamic(node.kernel) for node in self.nodes]
        self._chosen = [self.has_caller(node.kernel) for node in self.nodes]

    def comment(self, text: str) -> str:
        """A line of comment must not end in a backslash: it would swallow the next."""
        return text.replace("\\", "|")

    @cached_property
    def _dynamic(self) -> set[SubKernel]:
        return {node.kernel for node in self.nodes if node.dynamic}

    def is_dynamic(self, kernel: SubKernel) -> bool:
        return kernel in self._dynamic

    def has_caller(self, kernel: SubKernel) -> bool:
        """Whether a call has more than one function to choose from."""
        named = self.named[kernel]
        return named.copies > 1 or len(named.variants) > 1 or self.is_dynamic(kernel)

    def lines_of(self, kernel: SubKernel, core_class: CoreClass) -> int:
        """Lines of code to preload; as much as is worth it where the size is not known."""
        line = self.plan.chip.preload_line
        return min(-(-kernel.code_bytes // line) or self.most_lines(core_class), self.most_lines(core_class))

    def most_lines(self, core_class: CoreClass) -> int:
        chip = self.plan.chip
        return min(chip.preload_bytes // chip.preload_line, _MOST_LINES[core_class])

    def passed(self, named: KernelFunctions, first_slot: int | str) -> str:
        """The arguments of a call: the index of the op's first slot, or what its slots hold."""
        if named.pointers is None:
            return str(first_slot)
        places = range(named.pointers)
        if isinstance(first_slot, int):
            return ", ".join(f"pointer({first_slot + place})" for place in places)
        return ", ".join(f"pointer({first_slot} + {place})" for place in places)

    # before and after the steps

    def opening(self, classes: Classes, steps: Sequence[Step], body: str) -> list[str]:
        """Variables that the steps name; only those that `body` uses."""
        plan = self.plan
        lines = [
            "__gm__ uint64_t* const slots = (__gm__ uint64_t*)get_para_base();",
            f"set_ffts_base_addr(sk_load(slots + {SYNC_BASE}));",
        ]
        numbered = plan.workspace.profiling is not None or plan.workspace.dump is not None
        if self.launch.type is LaunchType.MIX_AIV_1_0:
            lines.append("[[maybe_unused]] const uint64_t vector = get_block_idx();")
        else:
            lines.append("[[maybe_unused]] const uint64_t block = get_block_idx();")
            if VECTOR in classes:
                numbers = "block * get_subblockdim() + get_subblockid()"
                lines.append(f"[[maybe_unused]] const uint64_t vector = {numbers};")
        if "(core" in body:
            lines.append("const uint64_t core = get_coreid();")
        if plan.workspace.bytes:
            workspace = self.slots.find(Role.WORKSPACE)
            lines.append(f"[[maybe_unused]] const uint64_t workspace = sk_load(slots + {workspace});")
        if numbered:
            number = {CUBE: "block", VECTOR: f"{self.launch.cubes} + vector" if self.launch.cubes else "vector"}
            text = number[classes[0]] if len(classes) == 1 else f"on_cube ? {number[CUBE]} : {number[VECTOR]}"
            lines.append(f"const uint64_t place = {text};  // of this core in areas that have a part for each")
        if plan.workspace.profiling is not None:
            where, task = self.slots.find(Role.PROFILING), self.slots.find(Role.TASK_ID)
            words = plan.workspace.profiling.bytes_per_core // 8
            lines.append(f"__gm__ uint64_t* const area = word(slots, {where}) + {words} * place;")
            lines.append(f"const uint64_t task = sk_load(slots + {task}) << 32;")
            lines.append("uint64_t records = 0;")
        for step in steps:
            if isinstance(step, Select):
                lines.append(f"int64_t key_{step.op} = 0;  // of {self._name(step.op)}")
                lines.append(f"uint64_t blocks_{step.op} = 0;")
        return lines

    def closing(self) -> list[str]:
        if self.plan.workspace.profiling is None:
            return []
        return ["sk_store(area, records);", _CACHE_OUT]

    # steps

    def printed(self, steps: Sequence[Step], classes: Classes) -> list[str]:
        """Each step's comment and code. Between two steps of all classes, what one class does stands together: the
        order of steps matters inside a class only."""
        text: list[str] = []
        apart: dict[CoreClass, list[str]] = {}  # of each class, since the last step of all
        for step in steps:
            for core_class, lines in self._printed_step(step, classes):
                if core_class is not None:
                    apart.setdefault(core_class, []).extend(lines)
                    continue
                text += [*_class_tests(apart), *lines]
                apart = {}
        return [*text, *_class_tests(apart)]

    def _printed_step(self, step: Step, classes: Classes) -> list[tuple[CoreClass | None, list[str]]]:
        """Its lines, for all classes that follow the list, or class by class where they differ."""
        here = tuple(core_class for core_class in step.cores if core_class in classes)
        texts = {core_class: self._code(step, core_class) for core_class in here}
        comment = f"// {self.comment(self.plan.describe(step))}"
        if here == classes and len({tuple(text) for text in texts.values()}) == 1:
            return [(None, [comment, *texts[here[0]]])]
        if len(here) == 1:
            return [(here[0], [comment, *texts[here[0]]])]
        return [(core_class, [comment, *text]) for core_class, text in texts.items() if text]

    def _code(self, step: Step, core_class: CoreClass) -> list[str]:
        match step:
            case PreloadEntry():
                return [f"preload((const void*){self.entry}, {self.most_lines(core_class)});"]
            case Preload():
                return [self._preload(op, core_class) for op in step.ops]
            case Arrive():
                return [_ARRIVE[core_class]]
            case Meet():
                return [_ACTIONS[core_class][action] for action in step.actions]
            case WholeBarrier():
                return [_ACTIONS[core_class][action] for action in step.actions(core_class)]
            case Drain():
                return [_DRAIN]
            case AwaitEvent():
                return self._first(core_class, f"sk_await({self._event(Role.RECV, step.event)}, 1);")
            case Notify():
                return self._first(core_class, f"sk_publish({self._event(Role.SEND, step.event)}, 1);")
            case ResetEvent():
                return self._first(core_class, f"sk_publish({self._event(Role.RECV, step.event)}, 0);")
            case Request():
                return self._first(core_class, f"sk_publish({self._word(step.op, Role.LOCK)}, 2);")
            case ResetLock():
                return self._first(core_class, f"sk_publish({self._word(step.op, Role.LOCK)}, 0);")
            case Select():
                return self._select(step.op)
            case PrefetchGo():
                return self._first(core_class, f"sk_publish({self._word(step.op, Role.PREFETCH)}, 1);")
            case ClassCall():
                return self._call(step, core_class)
            case Fence():
                return [*([_DRAIN] if step.debug else []), _CACHE_OUT]
            case DebugBarrier():
                return [_DRAIN, *self._debug_barrier(step, core_class)]
            case Record():
                return self._record(step, core_class)
            case ClearFeed():
                return self._clear_feed(core_class)
            case InitDump():
                return self._init_dump()
        raise AssertionError(f"no text for {step}")

    def _name(self, op: int) -> str:
        return self.comment(self.nodes[op].name)

    def _event(self, role: Role, label: str) -> str:
        return f"word(slots, {self.slots.event(role, label)})"

    def _word(self, op: int, role: Role) -> str:
        return f"word(slots, {self.slots.slot(self.nodes[op].name, role)})"

    def _first(self, core_class: CoreClass, *statements: str) -> list[str]:
        if len(statements) == 1:
            return [f"if ({_FIRST[core_class]}) {statements[0]}"]
        return [f"if ({_FIRST[core_class]}) {{", *indented(statements), "}"]

    def _preload(self, op: int, core_class: CoreClass) -> str:
        """On the cores that have a block of it."""
        named, guard = self._named[op], self._guard(op, core_class)
        only = f"if ({guard}) " if guard else ""
        if not self._chosen[op]:
            lines = self.lines_of(self.nodes[op].kernel, core_class)
            return f"{only}preload((const void*){named.function}, {lines});"
        key = f", key_{op}" if self._chosen_at_run_time[op] else ""
        return f"{only}preload_{named.label}(core{key});"

    def _select(self, op: int) -> list[str]:
        node = self.nodes[op]
        return [
            f"sk_await({self._word(op, Role.LOCK)}, 1);",
            f"key_{op} = (int64_t)sk_fetch({self._word(op, Role.TILING_KEY)});",
            f"blocks_{op} = sk_fetch({self._word(op, Role.BLOCK_COUNT)});",
            f"check_{self._named[op].label}(key_{op});",
            f"if (blocks_{op} > {node.blocks}) trap();",
        ]

    def _guard(self, op: int, core_class: CoreClass) -> str:
        """Which cores of a class have a block; empty: all of them."""
        node = self.nodes[op]
        kind = facts_of(node.kernel).type
        count = f"blocks_{op}" if node.dynamic else str(node.blocks)
        if not node.dynamic and cores_of(node, core_class) == self.launch.cores(core_class):
            return ""
        if kind.op_class is OpClass.AIV:
            return f"vector < {count}"
        halved = core_class is VECTOR and kind is KernelType.MIX_AIC_1_1 and self.launch.type is LaunchType.MIX_AIC_1_2
        whole = not node.dynamic and node.blocks == self.launch.blocks
        tests = [*([] if whole else [f"block < {count}"]), *(["get_subblockid() == 0"] if halved else [])]
        return " && ".join(tests)

    def _call(self, step: ClassCall, core_class: CoreClass) -> list[str]:
        node, guard = self.nodes[step.op], self._guard(step.op, core_class)
        working = [*self._context(step, core_class), f"{self._called(step.op)};"]
        fed = core_class in step.fed
        if fed:
            working += self._first(core_class, f"sk_end_barriers(sk_control(workspace, {step.op}));")
        inside = step.inside_of(core_class)
        idle = [_ACTIONS[core_class][action] for action in inside.actions]
        idle += [_ARRIVE[core_class]] if inside.arrives else []
        if fed:
            mixed = facts_of(node.kernel).op_class is OpClass.MIX
            join = f"sk_join_barriers<{'true' if mixed else 'false'}>(sk_control(workspace, {step.op}));"
            # an op without a block has no core that would end them
            idle.append(f"if (blocks_{step.op} > 0) {join}" if node.dynamic else join)
        if not guard:
            return working
        lines = [f"if ({guard}) {{", *indented(working)]
        lines += ["} else {", *indented(idle)] if idle else []
        return [*lines, "}"]

    def _called(self, op: int) -> str:
        named, slot = self._named[op], self.slots.first[op]
        if not self._chosen[op]:
            return f"{named.function}({self.passed(named, slot)})"
        key = f", key_{op}" if self._chosen_at_run_time[op] else ""
        return f"call_{named.label}(core{key}, {slot})"

    def _context(self, step: ClassCall, core_class: CoreClass) -> list[str]:
        """What the sub-kernel cannot know of itself; nothing for those that do not ask."""
        node = self.nodes[step.op]
        if not (node.dynamic or node.kernel.sync_all or step.inside):
            return []
        inside = step.inside_of(core_class)
        pair = -1 if inside.pair is None else inside.pair.code
        blocks = f"(uint32_t)blocks_{step.op}" if node.dynamic else str(node.blocks)
        feed = f"{_FIRST[core_class]} ? sk_control(workspace, {step.op}) : 0" if core_class in step.fed else "0"
        cann = facts_of(node.kernel).protocol is SyncProtocol.CANN
        return [f"sk_{'cann' if cann else 'call'}_context({blocks}, {pair}, {int(inside.arrives)}, {feed});"]

    def _debug_barrier(self, step: DebugBarrier, core_class: CoreClass) -> list[str]:
        """Signals under way are taken before those of the barrier are given, so that none is given again too early."""
        arrivals, signals = dict(step.pending_arrivals), dict(step.pending_signals)
        lines = [_ACTIONS[core_class][Action.WAIT_ALL]] * arrivals[core_class]
        lines += [_ACTIONS[core_class][Action.WAIT_BLOCK]] * signals.get(_OTHER[core_class], 0)
        lines += [_ACTIONS[core_class][action] for action in step.actions(core_class)]
        lines += [_ARRIVE[core_class]] * arrivals[core_class]
        return lines + [_ACTIONS[core_class][Action.SIGNAL]] * signals[core_class]

    @cached_property
    def _marks(self) -> dict[MarkPoint, int]:
        area = self.plan.workspace.profiling
        return {mark: place for place, mark in enumerate(area.marks if area else ())}

    def _record(self, step: Record, core_class: CoreClass) -> list[str]:
        taken = f"sk_record(area, records, task | {self._marks[mark_of(self.plan.graph, step)]});"
        if isinstance(step, LeaderRecord):
            return self._first(core_class, taken)
        guard = self._guard(step.op, core_class) if step.what is SpanKind.OP and step.op is not None else ""
        return [f"if ({guard}) {taken}" if guard else taken]

    def _clear_feed(self, core_class: CoreClass) -> list[str]:
        index = "block" if core_class is CUBE else "vector"
        return [
            f"for (uint64_t op = {index}; op < {len(self.nodes)}; op += {self.launch.cores(core_class)}) {{",
            "    sk_publish((__gm__ uint64_t*)sk_control(workspace, op), 0);",
            "}",
            "sk_arrive_and_wait<false>();",
        ]

    def _init_dump(self) -> list[str]:
        dump = self.plan.workspace.dump
        assert dump is not None
        return [f"sk_dump_begin(workspace + {dump.offset} + {dump.bytes_per_core} * place, {dump.bytes_per_core});"]
