"""The emitted code of hand-picked scenarios: golden/*.expected.

The scenarios of WHOLE keep plan and source; the others keep the head of the plan and the source from the functions of
its lanes on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from targets.golden import compare, starting_at

from superkernel.model.binary import Binary, Form
from superkernel.model.graph import build_graph
from superkernel.model.op import Op, Place
from superkernel.model.options import Options
from superkernel.model.params import Param
from superkernel.model.ranks import RankGroup, RankSync
from superkernel.model.subkernel import SubKernel
from superkernel.plan import Plan, make_plan
from superkernel.plan.verify.validate import validate
from superkernel.targets.cpu import emit
from superkernel.targets.cpu.actions import LinkedKernel
from superkernel.targets.cpu.build import entry_name
from superkernel.targets.cpu.emit import Emitter, side_by_side
from superkernel.targets.cpu.numbering import number

GOLDEN = Path(__file__).parent / "golden"
VECTOR = "float32[1024]"


def kernel(name: str, block_dim: int, *params: str, **more: object) -> SubKernel:
    """A sub-kernel as the target would know it, without a file."""
    facts = {"sync_all": False, "waits_inside": False, "signals_inside": False, "code_bytes": 256, **more}
    binary = Binary(Form.SOURCE, Path(f"{name}.cpp"))
    return SubKernel(name, binary, block_dim, tuple(map(Param.parse, params)), **facts)  # type: ignore[arg-type]


def planned(name: str, ops: list[Op], options: str = "", cores: int = 2) -> Plan:
    parsed = Options.parse(options)
    plan = make_plan(build_graph(ops, name, parsed.stream_fusion), parsed, cores)
    report = validate(plan)
    assert report.ok, str(report)
    return plan


def emitted(plan: Plan) -> str:
    """What the target prints, with symbols that do not depend on a compiler."""
    options = plan.options.for_target("cpu")
    linked = {node.kernel: _linked(node.kernel, options.split_mode or 1) for node in plan.graph.nodes}
    return Emitter(plan, number(plan), linked, entry_name(plan.graph.name), options).source()


def _linked(one: SubKernel, copies: int) -> LinkedKernel:
    variants = [
        (key, (f"{symbol}_0123abcd", *(f"{symbol}_0123abcd_copy{i}" for i in range(1, copies))))
        for key, symbol in one.tiling_variants
    ]
    return LinkedKernel(tuple(variants), one.code_bytes)


ADD = kernel("add", 2, f"in:x:{VECTOR}", f"in:y:{VECTOR}", f"out:z:{VECTOR}")
PART = kernel("part", 2, f"in:x:{VECTOR}@block", "scalar:factor:float32", f"out:z:{VECTOR}@block")
SUM = kernel("sum", 1, f"in:x:{VECTOR}", "out:total:float32[1]")
EARLY = kernel(
    "early",
    2,
    *(f"in:x:{VECTOR}", f"in:w:{VECTOR}", f"out:y:{VECTOR}"),
    early_start=("w",),
    waits_inside=True,
    signals_inside=True,
)


def chain() -> list[Op]:
    return [Op(ADD, ["a", "b", "t"], "first"), Op(ADD, ["t", "b", "u"], "second"), Op(ADD, ["u", "t", "c"], "third")]


def early_chain() -> list[Op]:
    return [Op(EARLY, ["x", "w1", "t"], "first"), Op(EARLY, ["t", "w2", "y"], "second")]


def chain_with_barrier() -> Plan:
    return planned("chain", chain(), "early-start=0")


def block_local() -> Plan:
    """A literal, a scalar by name, more blocks than cores: nobody waits."""
    wide = kernel("wide", 5, "in:x:float32[1000]@block", "scalar:n", "out:z:float32[1000]@block")
    ops = [
        Op(PART, ["x", 2.0, "t"]),
        Op(PART, ["t", "f", "y"], "again"),
        Op(wide, ["p", 7, "q"]),
        Op(wide, ["q", "n", "r"]),
    ]
    return planned("local", ops)


def flags_to_one_core() -> Plan:
    ops = [
        Op(ADD, ["a", "b", "t"]),
        Op(SUM, ["t", "s"]),
        Op(SUM, ["t", "s2"], "again"),
        Op(ADD, ["t", "t", "u"], "next"),
    ]
    return planned("to_one", ops, cores=4)


def early_start_0() -> Plan:
    return planned("early0", early_chain(), "early-start=0")


def early_start_1() -> Plan:
    return planned("early1", early_chain(), "early-start=1")


def early_start_2() -> Plan:
    return planned("early2", early_chain(), "early-start=2")


def sync_all_with_feed() -> Plan:
    meeting = kernel("meeting", 2, f"in:x:{VECTOR}", f"out:y:{VECTOR}", "workspace:sums:float32[2]", sync_all=True)
    wide = kernel("wide", 4, f"inout:y:{VECTOR}@block")
    return planned("meetings", [Op(meeting, ["x", "y", "sums"]), Op(wide, ["y"])], "feed-sync-all=1", cores=4)


def stream_fusion_lanes() -> Plan:
    """Two chains side by side, joined at the end."""
    big = "float32[1000000]"
    step = kernel("step", 1, f"in:x:{big}", f"out:y:{big}")
    join = kernel("join", 2, f"in:x:{big}", f"in:y:{big}", f"out:z:{big}")
    ops = [Op(step, ["a", "b"], "left1"), Op(step, ["p", "q"], "right1", stream=1)]
    ops += [Op(step, ["b", "c"], "left2"), Op(step, ["q", "r"], "right2", stream=1, send=5)]
    return planned("lanes", [*ops, Op(join, ["c", "r", "out"], "join", recv=5)], "stream-fusion=1")


def dynamic_with_variants() -> Plan:
    roots = kernel("roots", 4, f"in:x:{VECTOR}", "in:n:int64[1]", f"out:y:{VECTOR}", variants=((1, "few"), (7, "many")))
    count = kernel("count", 1, f"in:x:{VECTOR}", "out:n:int64[1]")
    ops = [Op(count, ["x", "n"]), Op(ADD, ["x", "x", "d"]), Op(roots, ["d", "n", "y"], task="dynamic")]
    return planned("dynamic", ops, cores=4)


def external_events() -> Plan:
    ops = [Op(ADD, ["a", "b", "t"], send="half"), Op(ADD, ["t", "b", "c"], "second", recv="go", send="done")]
    return planned("events", ops)


def profiling() -> Plan:
    return planned("timed", [*chain()[:2], Op(SUM, ["u", "s"], send="ready")], "profiling=1")


def every_debug_option() -> Plan:
    options = (
        "split-mode=2:func-align=128:prefetch-weights=8M:preload-code=max:debug-sync-all=1:debug-dcci-all=1:"
        "dcci-before-kernel-start=add:dcci-after-kernel-end=add,sum:dcci-disable-on-kernel=sum"
    )
    return planned("debugged", [*chain()[:2], Op(SUM, ["u", "s"])], options)


def places_and_failures() -> Plan:
    """Parts of one buffer, and kernels after whose calls somebody must look whether the launch goes on."""
    pick = kernel("pick", 5, f"in:x:{VECTOR}", f"out:z:{VECTOR}", may_fail=True)
    one = kernel("one", 1, "in:x", "out:z", may_fail=True)
    ops = [Op(pick, [Place("x", 64), "t"]), Op(PART, ["t", 2.0, Place("x", 4096)]), Op(one, [Place("x", 4096), "y"])]
    return planned("parts", ops)


def collectives() -> Plan:
    """Two collectives of two groups; an op runs while ranks arrive, and one waits for one and sends another."""
    pair, all_ranks = RankGroup("tp", (4, 6), 1), RankGroup("world", (4, 5, 6, 7), 2)
    small, large = "uint8[4096]", "uint8[8192]"
    ops = [
        Op(kernel("publish", 2, f"in:x:{VECTOR}", f"out:w:{small}"), ["x", "sums"], ranks=[_sends("sums", pair)]),
        Op(kernel("scale", 2, f"in:x:{VECTOR}@block", f"out:y:{VECTOR}@block"), ["x", "y"]),
        Op(
            kernel("pass_on", 2, f"in:w:{small}", f"out:v:{large}"),
            ["sums", "parts"],
            ranks=[RankSync("sums", pair, "sums", False), _sends("parts", all_ranks)],
        ),
        Op(
            kernel("gather", 2, f"in:v:{large}", f"in:y:{VECTOR}", f"out:z:{VECTOR}"),
            ["parts", "y", "z"],
            ranks=[RankSync("parts", all_ranks, "parts", False)],
        ),
    ]
    return planned("collectives", ops)


def _sends(collective: str, group: RankGroup) -> RankSync:
    return RankSync(collective, group, collective, True)


SCENARIOS: tuple[Callable[[], Plan], ...] = (
    chain_with_barrier,
    block_local,
    flags_to_one_core,
    early_start_0,
    early_start_1,
    early_start_2,
    sync_all_with_feed,
    stream_fusion_lanes,
    dynamic_with_variants,
    external_events,
    profiling,
    every_debug_option,
    collectives,
    places_and_failures,
)


WHOLE = (block_local, dynamic_with_variants, profiling, collectives)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_emitted_code_is_the_expected_one(scenario: Callable[[], Plan]) -> None:
    plan = scenario()
    if scenario in WHOLE:
        found = f"{plan}\n\n{emitted(plan)}"
    else:
        found = "\n".join(str(plan).splitlines()[:2]) + "\n\n" + starting_at(emitted(plan), "// lane ")
    compare(GOLDEN / f"{scenario.__name__}.expected", found)


AS_TABLES = (dynamic_with_variants, sync_all_with_feed, stream_fusion_lanes, collectives)


@pytest.mark.parametrize("scenario", AS_TABLES, ids=lambda scenario: scenario.__name__)
def test_the_emitted_tables_are_the_expected_ones(
    scenario: Callable[[], Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emit, "TABLES_FROM", 0)
    plan = scenario()
    found = f"{plan}\n\n" + starting_at(emitted(plan), "// the sub-kernels by number")
    compare(GOLDEN / f"{scenario.__name__}_as_tables.expected", found)


def test_no_golden_file_is_left_over() -> None:
    expected = {scenario.__name__ for scenario in SCENARIOS} | {
        f"{scenario.__name__}_as_tables" for scenario in AS_TABLES
    }
    assert {path.stem for path in GOLDEN.iterdir()} == expected


def test_every_step_of_a_plan_is_printed_with_its_comment() -> None:
    for scenario in SCENARIOS:
        plan = scenario()
        text = emitted(plan)
        for step in plan.steps:
            assert f"] {plan.describe(step)}\n" in text


def test_entries_in_one_file_stand_in_namespaces_of_their_own() -> None:
    include = "#include <superkernel/entry.h>\n"
    assert side_by_side([f"// one\n{include}int a;\n"]) == f"// one\n{include}int a;\n"
    expected = include + (
        "namespace entry_0 {\n\n// one\nint a;\n}  // namespace entry_0\n"
        "namespace entry_1 {\n\n// two\nint a;\n}  // namespace entry_1\n"
    )
    assert side_by_side([f"// one\n{include}int a;\n", f"// two\n{include}int a;\n"]) == expected
