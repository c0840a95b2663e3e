"""Planted faults: each statement of each row of the pair-code table, each cache operation, each reset must matter."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from targets.ascend.conformance.cases import Case, Shape, Use, plain_case
from targets.ascend.conformance.checks import launch, prepare
from targets.ascend.conformance.faults import (
    SYNC,
    Fault,
    entry_lines,
    one_signal_early,
    uncaught,
    with_calls_exchanged,
    with_other_flag,
    with_other_text,
    without_line,
    without_syncs,
)
from targets.ascend.conformance.trace_order import check_order
from targets.ascend.sampling import first_of, sampled

from superkernel.errors import LaunchError
from superkernel.targets.ascend.core_types import KernelType
from superkernel.targets.ascend.emulator import Outside

pytestmark = pytest.mark.slow

SEEDS = range(12)
CLASSES = {"cube": KernelType.AIC_ONLY, "vector": KernelType.AIV_ONLY, "mix": KernelType.MIX_AIC_1_2}


def use(kind: KernelType, names: tuple[str, ...], function: str = "plain", blocks: int = 3, salt: int = 5) -> Use:
    return Use(Shape(function, kind, blocks, 1, 1, 0), salt, names)


def faults_in(case: Case, wanted: str, flags: bool = False) -> list[Fault]:
    """One fault per line of the entry that contains `wanted` and can go without a syntax error."""
    emitted, graph = case.emitted()
    found = []
    for number, line in entry_lines(emitted.source):
        if wanted in line and line.rstrip().endswith(";"):
            found.append(without_line(case, emitted, graph, number))
            other = with_other_flag(case, emitted, graph, number) if flags else None
            found += [other] if other else []
    return found


PAIRS = tuple(product(CLASSES, CLASSES))
WAYS = ("early-start=0", "early-start=1", "stream-fusion=1")
SAMPLED_WAYS = [("mix", "mix", WAYS[1]), ("vector", "cube", WAYS[2])]


@pytest.mark.parametrize(
    ("producer", "consumer", "options"), sampled(((*pair, way) for pair in PAIRS for way in WAYS), SAMPLED_WAYS)
)
def test_each_statement_of_a_pair_code_row_matters(producer: str, consumer: str, options: str) -> None:
    """p -> i and back, so that stores that were not waited for meet reads, and reads meet stores."""
    kinds = (CLASSES[producer], CLASSES[consumer])
    uses = (use(kinds[0], ("b0", "b1")), use(kinds[1], ("b1", "b2")), use(kinds[0], ("b2", "b3")))
    case = Case(f"pair_{producer}_{consumer}", uses, f"{options}:split-mode=1:preload-code=none")
    emitted, graph = case.emitted()
    lines = [number for number, line in entry_lines(emitted.source) if SYNC.match(line)]
    assert lines
    faults = [without_line(case, emitted, graph, number) for number in lines]
    faults += [fault for number in lines if (fault := with_other_flag(case, emitted, graph, number))]
    assert not uncaught(faults, SEEDS)


@pytest.mark.parametrize(("producer", "consumer"), sampled(PAIRS, [("mix", "vector")]))
def test_each_wrong_promise_of_early_start_matters(producer: str, consumer: str) -> None:
    """What a sub-kernel is told to wait for and to signal, wrong in one place."""
    kinds = (CLASSES[producer], CLASSES[consumer])
    uses = (
        use(kinds[0], ("b0", "b1"), "early"),
        use(kinds[1], ("b1", "b2"), "early"),
        use(kinds[0], ("b2", "b3"), "early"),
    )
    case = Case(f"early_{producer}_{consumer}", uses, "early-start=1:split-mode=1:preload-code=none")
    faults = faults_in(case, "_context(")
    assert faults
    emitted, graph = case.emitted()
    lines = [number for number, line in entry_lines(emitted.source) if SYNC.match(line)]
    faults += [without_line(case, emitted, graph, number) for number in lines]
    assert not uncaught(faults, SEEDS)


def test_each_cache_operation_around_an_op_matters() -> None:
    kind = KernelType.AIV_ONLY
    uses = tuple(use(kind, (f"b{i}", f"b{i + 1}"), "cached", 4) for i in range(3))
    clean = "dcci-before-kernel-start=Cached:dcci-after-kernel-end=Cached"
    case = Case("caches", uses, f"{clean}:split-mode=1:preload-code=none")
    faults = faults_in(case, "dcci(")
    assert len(faults) == 6
    assert not uncaught(faults[1:], range(40))  # before the first op nothing of this launch can be old


EVENTS = Case(
    "events",
    (
        Use(Shape("plain", KernelType.AIV_ONLY, 3, 1, 1, 0), 3, ("b0", "b1"), 0, ("sent",), ()),
        Use(Shape("plain", KernelType.AIC_ONLY, 2, 1, 1, 0), 4, ("b1", "b2"), 0, (), ("received",)),
        Use(Shape("plain", KernelType.AIV_ONLY, 4, 1, 1, 0), 5, ("b2", "b3")),
    ),
    "split-mode=1:preload-code=none",
    (Outside("received", "sent", 500),),
)
TILED = Case(
    "tiled",
    (
        Use(Shape("plain", KernelType.AIC_ONLY, 3, 1, 1, 0), 3, ("b0", "b1")),
        Use(Shape("tiled", KernelType.AIV_ONLY, 4, 1, 1, 0), 4, ("b1", "b2")),
        Use(Shape("plain", KernelType.AIC_ONLY, 2, 1, 1, 0), 5, ("b2", "b3")),
    ),
    "split-mode=1:preload-code=none",
)
FED = Case(
    "fed",
    (
        Use(Shape("plain", KernelType.AIV_ONLY, 6, 1, 1, 0), 3, ("b0", "b1")),
        Use(Shape("meets", KernelType.AIV_ONLY, 3, 1, 1, 0), 4, ("b1", "b2")),
        Use(Shape("meets", KernelType.AIV_ONLY, 4, 1, 1, 0), 5, ("b2", "b3")),
    ),
    "feed-sync-all=1:split-mode=1:preload-code=none",
)


LOADS_AN_OLD_LINE = "    sk_line_out(word);\n    return sk_load(word);", "    return sk_load(word);"
STORES_INTO_THE_CACHE = "    sk_store(word, value);\n    sk_line_out(word);", "    sk_store(word, value);"


@pytest.mark.parametrize(
    ("case", "wanted"),
    sampled(
        [
            (EVENTS, "sk_publish"),
            (EVENTS, "sk_await"),
            (TILED, "sk_publish"),
            (TILED, "sk_await"),
            (TILED, "sk_fetch"),
            (FED, "sk_end_barriers"),
            (FED, "sk_join_barriers"),
            (FED, "_context("),
        ],
        [(EVENTS, "sk_publish"), (TILED, "sk_await"), (FED, "sk_join_barriers")],
    ),
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_each_word_that_is_awaited_or_set_matters(case: Case, wanted: str) -> None:
    faults = faults_in(case, wanted)
    assert faults
    assert not uncaught(faults, SEEDS)


@pytest.mark.parametrize(
    ("case", "old", "new"),
    sampled(
        [(case, *change) for case in (EVENTS, TILED, FED) for change in (LOADS_AN_OLD_LINE, STORES_INTO_THE_CACHE)],
        [(EVENTS, *STORES_INTO_THE_CACHE), (FED, *LOADS_AN_OLD_LINE)],
    ),
    ids=lambda value: getattr(value, "name", ""),
)
def test_each_cache_operation_on_words_matters(case: Case, old: str, new: str) -> None:
    emitted, graph = case.emitted()
    assert old in emitted.source
    line = emitted.source[: emitted.source.index(old)].count("\n")
    spread = [*emitted.source.splitlines()]
    spread[line] = new
    del spread[line + 1]
    broken = Fault(case.name, case, replace(emitted, source="\n".join(spread)), graph)
    assert not uncaught([broken], SEEDS)


PLAIN = Case(
    "plain",
    (
        use(KernelType.AIV_ONLY, ("b0", "b1"), blocks=4),
        use(KernelType.AIC_ONLY, ("b1", "b2"), blocks=2),
        use(KernelType.MIX_AIC_1_1, ("b2", "b3"), "prints", blocks=2),
        use(KernelType.MIX_AIC_1_2, ("b3", "b4"), blocks=2),
        use(KernelType.AIV_ONLY, ("b4", "b5"), "tiled", blocks=6),
    ),
    "split-mode=2:profiling=1",
)


OTHER_STATEMENTS = (
    ("P1: a call left out", r"^ *call_\w+\(.*\);$", ";"),
    ("P1: a call without its guard", r"^( *)if \((vector|block) < \w+.*\) \{$", r"\1{"),
    ("P1: a call under another guard", r"if \((vector|block) < (\w+)(.*)\) \{$", r"if (\1 + 1 < \2\3) {"),
    ("P1: both vectors of a 1:1 op", r"if \((.*) && get_subblockid\(\) == 0\) \{$", r"if (\1) {"),
    ("P8: an op with the slots of another", r"^( *call_\w+\(.*), (\d+)\);$", r"\1, \2 + 1);"),
    ("P10: a preload left out", r"^ *(if \(.*\) )?preload_\w+\(core\);$", ";"),
    ("P2: pipes not drained before the next op", r"^ *pipe_barrier\(PIPE_ALL\);$", ";"),
    ("P13: a mark left out", r"^( *)sk_record\(area.*\);$", ";"),
    ("P13: a mark for another", r"task \| (\d+)\)", r"task | (\1 ^ 1))"),
    ("P16: the key of another variant", r"key_4 = \(int64_t\)sk_fetch", "key_4 = 4 + (int64_t)sk_fetch"),
    ("P16: more blocks than there are", r"blocks_4 = sk_fetch", "blocks_4 = 9 + sk_fetch"),
    ("P6: a lock that nobody asks for", r"sk_publish\((word\(slots, \d+\)), 2\)", r"sk_publish(\1, 3)"),
    ("prints without a part of the dump area", r"^ *sk_dump_begin\(.*\);$", ";"),
)
SAMPLED_STATEMENTS = [row for row in OTHER_STATEMENTS if row[0].startswith(("P1: a call left", "P16: the key"))]


@pytest.mark.parametrize(("what", "old", "new"), sampled(OTHER_STATEMENTS, SAMPLED_STATEMENTS))
def test_each_other_statement_matters(what: str, old: str, new: str) -> None:
    faults = with_other_text(PLAIN, *PLAIN.emitted(), old, new)
    assert faults, f"{what}: nothing to break in\n{PLAIN.emitted()[0].source}"
    assert not uncaught(faults, SEEDS)


@pytest.mark.parametrize(("first", "count"), first_of([(0, 6), (0, 20), (20, 20), (40, 20)], 1))
def test_p18_syncs_are_needed_and_missed(first: int, count: int) -> None:
    """Left out as a whole, a sync leaves something unordered: it is caught, and it was not there for nothing.

    Now and then one is implied by a sync for a later op that happens to stand before this one: one in fifty may be.
    """
    cases = [plain_case(seed) for seed in range(first, first + count)]
    faults = [fault for case in cases for fault in without_syncs(case, *case.emitted())]
    assert len(faults) > 2 * count
    assert len(uncaught(faults, range(4))) <= len(faults) // 50


def test_p3_ops_of_a_stream_in_another_order_are_caught() -> None:
    """They are independent: nothing else is wrong."""
    kind = KernelType.AIV_ONLY
    case = Case("p3", (use(kind, ("b0", "b1")), use(kind, ("b0", "b2"), salt=6)), "split-mode=1")
    emitted, graph = case.emitted()
    [wrong] = prepare([(case, with_calls_exchanged(case, emitted, graph).emitted, graph)])
    for seed in SEEDS:
        with pytest.raises(LaunchError, match="runs op 'op0' after op 'op1', which follows it in its stream"):
            launch(wrong, seed)


@pytest.mark.parametrize("kind", first_of(["cube", "vector"], 1))
def test_p5_a_wait_that_takes_the_signal_of_another_is_caught(kind: str) -> None:
    """Ops that only events order: no value is wrong and no flag is left over, whoever takes whose signal."""
    of = CLASSES[kind]
    chain = [
        Use(Shape("plain", of, 3, 1, 1, 0), 5, (f"b{i}", f"b{i + 3}"), 0, (f"e{i}",), (f"e{i - 1}",) if i else ())
        for i in range(3)
    ]
    case = Case(f"p5_{kind}", tuple(chain), "early-start=1:split-mode=1:preload-code=none")
    emitted, graph = case.emitted()
    shifted = one_signal_early(case, emitted, graph, kind)
    right, wrong = prepare([(case, emitted, graph), (case, shifted.emitted, graph)])
    for seed in SEEDS:
        emulation, _ = launch(right, seed)
        check_order(right.emitted, graph, emulation)
        with pytest.raises(LaunchError, match="passes its wait point, and nothing orders it after op"):
            launch(wrong, seed)


def test_the_walk_over_a_trace_finds_what_the_clocks_of_the_emulator_find() -> None:
    """Both faults leave no flag set and hang nothing: without its clocks, the emulator lets them pass with seed 0."""
    chain = tuple(use(KernelType.AIV_ONLY, (f"b{i}", f"b{i + 1}")) for i in range(3))
    case = Case("walk", chain, "early-start=1:split-mode=1:preload-code=none")
    emitted, graph = case.emitted()
    overtaking = with_other_text(case, emitted, graph, "PIPE_MTE3, arrive_vectors", "PIPE_V, arrive_vectors")[0]
    broken = [one_signal_early(case, emitted, graph, "vector"), overtaking]
    right, *wrong = prepare([(case, emitted, graph), *((case, fault.emitted, graph) for fault in broken)])
    check_order(emitted, graph, launch(right, 0)[0])
    for ready in wrong:
        emulation, _ = launch(ready, 0, races=False)
        with pytest.raises(AssertionError, match=r"op1 passes its wait point, and nothing says that op0 has stored"):
            check_order(ready.emitted, graph, emulation)


def test_text_without_a_fault_passes() -> None:
    """What the tests above would also catch is nothing."""
    for case in (EVENTS, TILED, FED, PLAIN):
        emitted, graph = case.emitted()
        assert uncaught([Fault(case.name, case, emitted, graph)], range(4)) == [case.name]
