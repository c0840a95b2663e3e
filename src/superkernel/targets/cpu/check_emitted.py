"""targets.cpu.check_emitted: an emitted entry and its plan -> nothing, or an error that names step and line (P22).

Stamps, counters and meetings are learnt from the text: a signal says which stamp its mark has, so every wait for that
mark must name it, and stamps must rise along the plan. Nothing is taken from the emitter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ...errors import BuildError
from ...model.argument_layout import Role
from ...model.gc_pause import without_collection
from ...model.params import Kind
from ...model.subkernel import SubKernel
from ...model.tiling import CompiledTiling
from ...plan import Plan, steps
from ...plan.steps import Cores, Mark, Signal, Step, Wait, spell
from .actions import LinkedKernel
from .call_check import CallCheck, type_name
from .emitted_text import CallText, EntryText, Ranges, Statement
from .read_back import read_back
from .statement_cursor import Difference, StatementCursor, unlike

_CACHE_LINE = 64
_ALONE = frozenset({0})
_ON_ONE_CORE = (
    *(steps.AwaitEvent, steps.Notify, steps.ResetEvent, steps.NotifyRanks, steps.AwaitRanks),
    *(steps.Request, steps.Select, steps.Record),
)
_Counted = tuple[Mark, Cores]
_Key = Mark | int | _Counted  # a mark, a barrier by its step; of counters, who raises them


class _Claim(NamedTuple):
    """A number in the text that must be the one of a signal; known when all lanes are read."""

    line: int
    step: int
    key: _Key
    number: int


@without_collection
def check_emitted(
    plan: Plan,
    source: str,
    linked: Mapping[SubKernel, LinkedKernel],
    tilings: Mapping[CompiledTiling, str],
    copies_bytes: int,
) -> None:
    """Compare the text of an entry with its plan.

    `linked` and `tilings` say what the merged object calls functions; `copies_bytes` is the memory of private copies.
    """
    entry = read_back(source)
    checker = _Checker(plan, entry, linked, tilings, copies_bytes)
    try:
        checker.check()
    except Difference as found:
        where = "the emitted code is not the plan (P22)"
        if checker.step is not None:
            step = plan.steps[checker.step]
            where += f": step {checker.step}, [{spell(step.cores)}] {plan.describe(step)}"
        raise BuildError(f"{where}: line {found.line} of the source {found.reason}") from found


@dataclass
class _Checker:
    plan: Plan
    entry: EntryText
    linked: Mapping[SubKernel, LinkedKernel]
    tilings: Mapping[CompiledTiling, str]
    copies_bytes: int
    step: int | None = None  # that is compared
    stamps: dict[_Key, int] = field(default_factory=dict)
    counters: dict[_Key, int] = field(default_factory=dict)
    meetings: dict[int, int] = field(default_factory=dict)  # by op
    stamp_claims: list[_Claim] = field(default_factory=list)
    counter_claims: list[_Claim] = field(default_factory=list)
    # calls that may not signal early, because a core that does not count at the counter would raise it: line, step
    uncounted: list[tuple[int, int, Signal]] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan = self.plan
        self._layout = plan.layout
        self._early = {step.mark.op: step for step in plan.steps if isinstance(step, Signal) and step.inside}
        self._waiting_inside = {step.op for step in plan.steps if isinstance(step, Wait) and step.inside}
        self._at = StatementCursor(())
        self._calls = CallCheck(plan, self.linked, self.tilings)

    def check(self) -> None:
        self._check_declarations()
        seen: set[int] = set()
        for ranges, statements in self.entry.lanes:
            lane = _cores(ranges)
            if seen & lane or not lane <= set(range(self.plan.cores)):
                raise Difference(0, f"has a lane of cores {ranges}, which the plan does not have")
            seen |= lane
            self._check_lane(lane, statements)
        if len(seen) != self.plan.cores:
            raise Difference(0, f"has lanes for {len(seen)} of {self.plan.cores} cores")
        self._check_alone()
        self._check_claims()
        self._calls.check_areas(self.copies_bytes)

    # what stands before the lanes

    def _check_declarations(self) -> None:
        declared = self.entry.declared
        if len(declared.slots) != len(self._layout):
            raise Difference(0, f"has {len(declared.slots)} slots, the layout {len(self._layout)}")
        for kernel, linked in self.linked.items():
            types = tuple(type_name(p.dtype) if p.kind is Kind.SCALAR else "uint64_t" for p in kernel.params)
            for symbol in (symbol for _, symbols in linked.variants for symbol in symbols):
                if declared.types.get(symbol) != types:
                    raise Difference(0, f"declares {symbol} as {declared.types.get(symbol)}, not {types}")
        known = {symbols for linked in self.linked.values() for _, symbols in linked.variants}
        for name, symbols in declared.copies.items():
            if symbols not in known:
                raise Difference(0, f"has {name} = {symbols}, which are not the copies of one function")

    # lanes

    def _check_lane(self, lane: frozenset[int], statements: tuple[Statement, ...]) -> None:
        self._at = StatementCursor(statements)
        here_of: dict[Cores, frozenset[int]] = {}
        guards: dict[Ranges, frozenset[int]] = {(): lane}
        for i, step in enumerate(self.plan.steps):
            here = here_of.get(step.cores)
            if here is None:
                here = here_of[step.cores] = lane.intersection(step.cores)
            if here:
                self.step = i
                self._check_step(i, step, here, guards)
        self.step = None
        self._at.check_end()

    def _check_step(self, i: int, step: Step, here: frozenset[int], guards: dict[Ranges, frozenset[int]]) -> None:
        """The statements of a step, for all cores at once or for one range of them after the other."""
        remaining = here
        while remaining:
            statement = self._at.peek()
            guard = statement.guard
            cores = guards.get(guard)
            if cores is None:
                cores = guards[guard] = _cores(guard)
            if not cores or not cores <= remaining:
                raise unlike(statement, f"for cores {spell(tuple(sorted(remaining)))}")
            self._compare(i, step, guard, cores)
            remaining -= cores

    def _check_alone(self) -> None:
        """The whole plan on one core: its calls with all blocks, and what one core does for all."""
        self._at = StatementCursor(self.entry.alone)
        if not any(isinstance(step, steps.Call) and step.team for step in self.plan.steps):
            for i, step in enumerate(self.plan.steps):
                self.step = i
                if isinstance(step, steps.Call):
                    statement = self._at.take("call", self._at.peek().guard)
                    call = statement.operands[0]
                    assert isinstance(call, CallText)
                    self._calls.check(statement, call, i, step, (0,), 1, _ALONE)
                elif isinstance(step, _ON_ONE_CORE):
                    self._compare(i, step, self._at.peek().guard, _ALONE)
        if any(statement.guard not in ((), ((0, 1),)) for statement in self.entry.alone):
            raise Difference(self.entry.alone[0].line, "is not for the core that is alone")
        self.step = None
        self._at.check_end()

    def _compare(self, i: int, step: Step, guard: Ranges, cores: frozenset[int]) -> None:
        match step:
            case steps.Call():
                self._compare_call(i, step, guard, cores)
            case steps.Wait():
                self._compare_wait(i, step, guard)
            case steps.Signal():
                statement = self._at.take("signal", guard)
                stamp, counter = statement.operands
                self._at.learn(self.stamps, step.mark, stamp, statement)
                if counter != -1:
                    self._at.learn(self.counters, (step.mark, step.cores), counter, statement)
            case steps.Preload():
                for linked in (self.linked[self.plan.graph.nodes[op].kernel] for op in step.ops):
                    for _, symbols in linked.variants:
                        self._at.expect("preload", guard, symbols, linked.code_bytes)
            case steps.PrefetchWeights():
                self._compare_prefetch(step, guard, cores)
            case steps.AwaitEvent():
                self._at.expect("await_event", guard, i, self._event(step.op, step.event, Role.RECV))
            case steps.Notify():
                self._at.expect("notify", guard, self._event(step.op, step.event, Role.SEND))
            case steps.NotifyRanks():
                self._at.expect("notify_ranks", guard, self._window(step), step.group.rank)
            case steps.AwaitRanks():
                self._at.expect("await_ranks", guard, i, self._window(step), step.group.rank, step.group.size)
            case steps.ResetEvent():
                statement = self._at.take("reset_event", guard)
                (slot,) = statement.operands
                words = [s.index for s in self._layout if s.role is Role.RECV and s.source == step.event]
                if slot not in words:
                    raise unlike(statement, f"of the word of event {step.event}: slot {words[0]}")
            case steps.ComputeTiling():
                self._at.expect("compute_tiling", guard, self._calls.tiling(i, step))
            case steps.Request():
                self._at.expect("request", guard, self._calls.tiling_of[step.op])
            case steps.Select():
                node = self.plan.graph.nodes[step.op]
                keys = tuple(key for key, _ in self.linked[node.kernel].variants)
                self._at.expect("select", guard, i, self._calls.tiling_of[step.op], keys, node.blocks)
            case steps.Barrier():
                self._compare_ranges("barrier", guard, i, i, step.cores)
            case steps.Feed():
                statement = self._at.take("feed", guard)
                meeting = statement.operands[1]
                self._at.learn(self.meetings, step.op, meeting, statement)
                self._at.same(statement, (i, meeting, len(step.team)))
            case steps.Fence():
                self._at.expect("fence", guard)
            case steps.Record():
                self._at.expect("record", guard, i)
            case _:
                raise AssertionError(f"a step that the cpu target does not have: {step}")

    def _compare_wait(self, i: int, step: Wait, guard: Ranges) -> None:
        word = "wait_inside" if step.inside else "wait"
        for need in step.needs:
            if self._at.peek().word == f"{word}_all":
                statement = self._at.take(f"{word}_all", guard)
                counter = statement.operands[1]
                self._at.same(statement, (i, counter, len(need.cores)))
                assert isinstance(counter, int)
                self.counter_claims.append(_Claim(statement.line, i, (need.mark, need.cores), counter))
            else:
                self._compare_ranges(word, guard, i, need.mark, need.cores)

    def _compare_ranges(self, word: str, guard: Ranges, i: int, key: _Key, cores: Cores) -> None:
        """Waits for a stamp, which together name all `cores`; of a barrier the first also signals."""
        remaining = set(cores)
        while remaining:
            statement = self._at.take(word, guard)
            step, stamp, first, last = statement.operands
            assert isinstance(first, int) and isinstance(last, int) and isinstance(stamp, int)
            if step != i or first >= last or not remaining.issuperset(range(first, last)):
                raise unlike(statement, f"for cores {spell(tuple(sorted(remaining)))} at step {i}")
            remaining.difference_update(range(first, last))
            if word == "barrier":
                self._at.learn(self.stamps, key, stamp, statement)
            self.stamp_claims.append(_Claim(statement.line, i, key, stamp))
            word = "wait" if word == "barrier" else word

    def _compare_prefetch(self, step: steps.PrefetchWeights, guard: Ranges, cores: frozenset[int]) -> None:
        op = self.plan.graph.nodes[step.op].name
        for name in step.names:
            slot = next(slot.index for slot in self._calls.params[op] if slot.source == name)
            statement = self._at.take("prefetch", guard)
            rank = statement.operands[2]
            self._at.same(statement, (slot, slot, rank, len(step.cores), -(-step.budget // _CACHE_LINE)))
            self._calls.check_rank(statement, rank, step.cores, len(step.cores), cores)

    def _compare_call(self, i: int, step: steps.Call, guard: Ranges, cores: frozenset[int]) -> None:
        node = self.plan.graph.nodes[step.op]
        early = self._early.get(step.op)
        if early is not None and set(early.cores) != set(step.cores) and self._at.peek().word != "signal_early":
            self.uncounted.append((self._at.peek().line, i, early))
            early = None
        if early is not None:
            statement = self._at.take("signal_early", guard)
            stamp, counter = statement.operands
            assert isinstance(stamp, int) and isinstance(counter, int)
            if counter != -1 and set(early.cores) != set(step.cores):
                raise unlike(statement, f"a counter that only cores {spell(early.cores)} raise")
            self.stamp_claims.append(_Claim(statement.line, i, early.mark, stamp))
            self.counter_claims.append(_Claim(statement.line, i, (early.mark, early.cores), counter))
        members = len(step.team)
        if step.team:
            statement = self._at.take("meet_in", guard)
            self._at.learn(self.meetings, step.op, statement.operands[0], statement)
            self._at.same(statement, (statement.operands[0], members, int(members > step.width or node.dynamic)))
        statement = self._at.take("call", guard)
        call = statement.operands[0]
        assert isinstance(call, CallText)
        self._calls.check(statement, call, i, step, step.cores, step.width, cores)
        if step.team and node.dynamic:
            statement = self._at.take("feed_idle", guard)
            rank = statement.operands[3]
            self._at.same(statement, (i, self.meetings[step.op], members, rank, self._calls.tiling_of[step.op]))
            self._calls.check_rank(statement, rank, step.cores, step.width, cores)
        if step.team:
            statement = self._at.take("meeting_over", guard)
            self._calls.check_rank(statement, statement.operands[0], step.cores, step.width, cores)
        if early is not None or step.team or step.op in self._waiting_inside:
            self._at.expect("end_call", guard)

    def _window(self, step: steps.NotifyRanks | steps.AwaitRanks) -> int:
        """The slot of the op that holds the address of the collective's window."""
        window = next(each.window for each in self.plan.graph.collectives if each.name == step.collective)
        slots = self._layout.of_op[self.plan.graph.nodes[step.op].name]
        return next(slot.index for slot in slots if slot.role is Role.PARAM and slot.source == window)

    def _event(self, op: int, event: str, role: Role) -> int:
        slots = self._layout.of_op[self.plan.graph.nodes[op].name]
        return next(slot.index for slot in slots if slot.role is role and slot.source == event)

    # what all lanes together say

    def _check_claims(self) -> None:
        for claims, known in ((self.stamp_claims, self.stamps), (self.counter_claims, self.counters)):
            for claim in claims:
                number = known.get(claim.key, -1)
                if claim.number != number:
                    self.step = claim.step
                    raise Difference(claim.line, f"names {claim.number} where {number} is signalled")
        for line, i, signal in self.uncounted:
            if (signal.mark, signal.cores) not in self.counters:
                self.step = i
                raise Difference(line, "stands where signal_early is missing")
        before = 0
        for i, step in enumerate(self.plan.steps):
            if isinstance(step, Signal | steps.Barrier):
                self.step = i
                stamp = self.stamps[step.mark if isinstance(step, Signal) else i]
                if stamp != before + 1:
                    raise Difference(0, f"has stamp {stamp} where {before + 1} comes next: stamps count along the plan")
                before = stamp
        self.step = None
        for what, used in (("counters", self.counters.values()), ("meetings", self.meetings.values())):
            if sorted(used) != list(range(len(used))):
                raise Difference(0, f"has {what} {sorted(used)}, not numbers from 0 to {len(used) - 1}")


def _cores(ranges: Ranges) -> frozenset[int]:
    return frozenset(core for first, last in ranges for core in range(first, last))
