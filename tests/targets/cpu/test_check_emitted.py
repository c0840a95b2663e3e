"""targets.cpu: emitted code is read back and compared with its plan (P22); every line that is changed is noticed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise

import pytest
from plan.rank_strategies import rank_case
from plan.strategies import OPTIONS, layered_case, wide_case
from targets.cpu import test_emit_golden as golden
from targets.cpu.small import compile_ops, small

from superkernel import Op
from superkernel.errors import BuildError
from superkernel.plan import Plan
from superkernel.plan.steps import Call, Signal
from superkernel.targets.cpu import emit, numbering, target
from superkernel.targets.cpu.actions import Word
from superkernel.targets.cpu.build import INCLUDE
from superkernel.targets.cpu.check_emitted import check_emitted
from superkernel.targets.cpu.numbering import number

FORMS = ("lines", "tables")
# what a core does to order itself with others, in both forms
SYNC = re.compile(
    r"\b(?:core\.|Do::)(?:wait|wait_all|wait_inside|wait_inside_all|barrier|signal|signal_early|feed|feed_idle|meet_in|"
    r"meeting_over|end_call|await_event|notify|reset_event|notify_ranks|await_ranks|request|compute_tiling|select|fence|"
    r"in)\b"
)
NUMBER = re.compile(r"(?<![\w.:])\d+(?!\w)")


def replicated() -> Plan:
    """Narrow ops between wide ones: copies of their outputs, of one core each."""
    return next(plan for plan in (layered_case(seed).plan for seed in range(100)) if plan.copies and plan.cores < 5)


SCENARIOS = (*golden.SCENARIOS, replicated)


def check(plan: Plan, source: str) -> None:
    options = plan.options.for_target("cpu")
    linked = {node.kernel: golden._linked(node.kernel, options.split_mode or 1) for node in plan.graph.nodes}
    check_emitted(plan, source, linked, {}, number(plan).copies_bytes)


def printed(plan: Plan, form: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emit, "TABLES_FROM", 0 if form == "tables" else 10**9)
        return golden.emitted(plan)


@cache
def emitted(scenario: Callable[[], Plan], form: str) -> tuple[Plan, str]:
    plan = scenario()
    return plan, printed(plan, form)


def noticed(plan: Plan, lines: list[str]) -> bool:
    try:
        check(plan, "\n".join(lines))
    except BuildError as error:
        assert re.search(r"P22.* line \d+", str(error)), error
        return True
    return False


def code_lines(lines: list[str]) -> Iterator[tuple[int, str]]:
    """The lines that are more than comments, without their comments."""
    for at, line in enumerate(lines):
        code = line.partition("//")[0].rstrip()
        if code and not code.lstrip().startswith("#include"):
            yield at, code


scenarios = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
forms = pytest.mark.parametrize("form", FORMS)


@forms
@scenarios
def test_emitted_code_is_its_plan(scenario: Callable[[], Plan], form: str) -> None:
    plan, source = emitted(scenario, form)
    assert ("sk::Row rows[]" in source) == (form == "tables")
    check(plan, source)


@forms
@scenarios
def test_every_deleted_line_is_noticed(scenario: Callable[[], Plan], form: str) -> None:
    plan, source = emitted(scenario, form)
    lines = source.split("\n")
    unseen = [code for at, code in code_lines(lines) if not noticed(plan, lines[:at] + lines[at + 1 :])]
    assert unseen == []


@forms
@scenarios
def test_every_repeated_and_every_swapped_sync_line_is_noticed(scenario: Callable[[], Plan], form: str) -> None:
    plan, source = emitted(scenario, form)
    lines = source.split("\n")
    placed = list(code_lines(lines))
    unseen = []
    for (at, code), (after, following) in pairwise(placed):
        if SYNC.search(code):
            if not noticed(plan, [*lines[:at], lines[at], *lines[at:]]):
                unseen.append(f"repeated: {code}")
            swapped = [*lines]
            swapped[at], swapped[after] = lines[after], lines[at]
            if code.strip() != following.strip() and not noticed(plan, swapped):
                unseen.append(f"swapped: {code} {following}")
    assert unseen == []


@forms
@scenarios
def test_every_changed_number_of_a_sync_line_is_noticed(scenario: Callable[[], Plan], form: str) -> None:
    """Steps, stamps, counters, ranges of cores, guards, members, slots by number."""
    plan, source = emitted(scenario, form)
    lines = source.split("\n")
    unseen = []
    for at, code in code_lines(lines):
        if SYNC.search(code):
            for found in NUMBER.finditer(code):
                changed = f"{code[: found.start()]}{int(found[0]) + 1}{code[found.end() :]}"
                if not noticed(plan, [*lines[:at], changed, *lines[at + 1 :]]):
                    unseen.append(f"{code} -> {changed}")
    assert unseen == []


@forms
@scenarios
def test_every_changed_name_is_noticed(scenario: Callable[[], Plan], form: str) -> None:
    """A call of another kernel, another slot, a wait in the place of a signal."""
    plan, source = emitted(scenario, form)
    lines = source.split("\n")
    names = {
        "at::": sorted(set(re.findall(r"at::(\w+)", source))),
        "kernel::": sorted(set(re.findall(r"kernel::(\w+)", source))),
        "Do::": [word.value for word in Word],
        "core.": ["wait", "signal", "barrier", "fence"],
    }
    unseen = []
    for at, code in code_lines(lines):
        for found in re.finditer(r"(at::|kernel::|Do::|core\.)(\w+)", code):
            others = [name for name in names[found[1]] if name != found[2]][:2]
            for other in others:
                changed = f"{code[: found.start()]}{found[1]}{other}{code[found.end() :]}"
                if not noticed(plan, [*lines[:at], changed, *lines[at + 1 :]]):
                    unseen.append(f"{code} -> {changed}")
    assert unseen == []


@forms
@pytest.mark.parametrize("make", (wide_case, layered_case), ids=lambda make: make.__name__)
def test_random_plans(make: Callable[[int], object], form: str) -> None:
    """All are read back; in some every sync line is deleted, one at a time."""
    for seed in range(30):
        plan = make(seed).plan  # type: ignore[attr-defined]
        source = printed(plan, form)
        check(plan, source)
        lines = source.split("\n")
        if len(lines) < 150:
            for at, code in code_lines(lines):
                assert not SYNC.search(code) or noticed(plan, lines[:at] + lines[at + 1 :]), f"{seed}: {code}"


@forms
def test_random_plans_of_ranks(form: str) -> None:
    """Each plan of each rank is read back; every sync line of some is deleted, and every number of them changed."""
    rank_lines = 0
    for seed in range(4):
        for plan in rank_case(seed, 3, [0, 7, 2, 5], OPTIONS[7 * seed], least_ranks=2).plans[:1]:
            source = printed(plan, form)
            check(plan, source)
            lines = source.split("\n")
            for at, code in code_lines(lines):
                if not re.search(r"\b(?:notify_ranks|await_ranks)\b", code):
                    continue
                rank_lines += 1
                assert noticed(plan, lines[:at] + lines[at + 1 :]), f"{seed}: {code}"
                for found in NUMBER.finditer(code):
                    for other in {int(found[0]) + 1, max(0, int(found[0]) - 1), 0} - {int(found[0])}:
                        changed = f"{code[: found.start()]}{other}{code[found.end() :]}"
                        assert noticed(plan, [*lines[:at], changed, *lines[at + 1 :]]), f"{code} -> {changed}"
    assert rank_lines > 15


def test_a_counter_is_raised_by_the_cores_that_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call on more cores than signal its mark must not signal early at a counter: a wait would end too soon."""
    monkeypatch.setattr(numbering, "COUNTER_FROM", 2)
    early_at_a_counter = re.compile(r"( *)core\.signal_early\((\d+), (\d+)\);")
    partial_signals = 0
    for seed in range(40):
        plan = wide_case(seed).plan
        counters = number(plan).counters
        calls = {step.op: set(step.cores) for step in plan.steps if isinstance(step, Call)}
        signals = [step for step in plan.steps if isinstance(step, Signal) and step.inside]
        counted = {step.mark.op: step for step in signals if (step.mark, step.cores) in counters}
        few = [step for op, step in counted.items() if set(step.cores) != calls[op]]
        source = printed(plan, "lines")
        check(plan, source)
        for step in few:
            stamp, counter = number(plan).stamps[step.mark], counters[step.mark, step.cores]
            assert (str(stamp), str(counter)) not in [found[1:] for found in early_at_a_counter.findall(source)]
            called = [i for i, s in enumerate(plan.steps) if isinstance(s, Call) and s.op == step.mark.op]
            call = f"core.begin({called[0]},"
            faulty = source.replace(f"    {call}", f"    core.signal_early({stamp}, {counter});\n    {call}")
            if faulty != source:
                partial_signals += 1
                assert noticed(plan, faulty.split("\n"))
    assert partial_signals > 3


def test_the_message_names_step_and_line() -> None:
    plan, source = emitted(golden.flags_to_one_core, "lines")
    lines = source.split("\n")
    at = next(at for at, line in enumerate(lines) if "core.wait(" in line)
    with pytest.raises(BuildError) as raised:
        check(plan, "\n".join(lines[:at] + lines[at + 1 :]))
    assert re.search(
        r"step \d+, \[0\] wait before sum: add done on 1: line \d+ of the source says call\(", str(raised.value)
    )


def test_a_new_binary_is_checked_and_one_of_the_cache_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emitter that drops a wait gets no binary; the error names the scope."""
    ops = [Op(small("mix"), ["a", "b", "t"]), Op(small("fold"), ["t", "a"])]
    checked = []

    def note(plan: Plan, *rest: object) -> None:
        checked.append(plan.graph.name)
        check_emitted(plan, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(target, "check_emitted", note)
    for _ in range(2):
        compile_ops(ops, "checked_once", "debug-watchdog=41").close()
    assert checked in (["checked_once"], [])  # an earlier run may have left the binary in the cache
    source = emit.Emitter.source
    dropped = partial(re.sub, r" *if \(!core\.wait\(.*\n", "")
    monkeypatch.setattr(emit.Emitter, "source", lambda self: dropped(source(self)))
    for _ in range(2):
        with pytest.raises(BuildError, match=r"super_kernel_scope 'faulty': the emitted code is not the plan \(P22\)"):
            compile_ops(ops, "faulty")


def test_rows_have_the_words_of_the_vocabulary() -> None:
    text = (INCLUDE / "superkernel" / "table.h").read_text()
    declared = re.findall(r"^    (\w+),", text.partition("enum class Do")[2].partition("};")[0], re.MULTILINE)
    assert {word.value for word in Word} == {*declared} - {"arguments", "replicated", "call_chosen"}
    assert set(re.findall(r"case Do::(\w+)", text)) == set(declared)
