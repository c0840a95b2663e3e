"""The emitted code of hand-picked scenarios: golden/*.expected.

The scenarios of WHOLE keep plan, argument layout, source and descriptor; the others keep the head of the plan and the
source from the entry function on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from targets.ascend.random_lists import kernel
from targets.golden import compare, starting_at

from superkernel.model.graph import build_graph
from superkernel.model.op import Op
from superkernel.model.options import Options
from superkernel.targets.ascend.calling_convention import SyncProtocol
from superkernel.targets.ascend.chips import find_chip
from superkernel.targets.ascend.core_types import CUBE, VECTOR, KernelType
from superkernel.targets.ascend.describe_kernel import emit
from superkernel.targets.ascend.descriptor import describe
from superkernel.targets.ascend.facts import AscendFacts, Code
from superkernel.targets.ascend.plan import AscendPlan, make_ascend_plan
from superkernel.targets.ascend.validate import validate
from superkernel.targets.protocol import ChipChoice

GOLDEN = Path(__file__).parent / "golden"
AIV, AIC = KernelType.AIV_ONLY, KernelType.AIC_ONLY
ONE_TWO, ONE_ONE = KernelType.MIX_AIC_1_2, KernelType.MIX_AIC_1_1
PARAMS = ("in:x", "in:y", "out:z")
VECTOR_OP = kernel("vec", AIV, 8, *PARAMS)
CUBE_OP = kernel("cube", AIC, 4, *PARAMS)
MIX_OP = kernel("mixed", ONE_TWO, 4, *PARAMS)
OF = {"c": CUBE_OP, "v": VECTOR_OP, "m": MIX_OP}


def planned(name: str, ops: list[Op], options: str = "split-mode=1", chip: ChipChoice = "a3") -> AscendPlan:
    parsed = Options.parse(options)
    plan = make_ascend_plan(build_graph(ops, name, parsed.stream_fusion), parsed, find_chip(chip))
    report = validate(plan)
    assert report.ok, str(report)
    return plan


def pair(first: str, second: str) -> AscendPlan:
    """One op after another: one row of the pair table."""
    ops = [Op(OF[first], ["x", "y", "t"], "first"), Op(OF[second], ["t", "y", "z"], "second")]
    # a third op that needs nothing keeps the launch the same for all rows
    return planned(f"{first}_to_{second}", [*ops, Op(MIX_OP, ["p", "q", "r"], "other")], "split-mode=1")


def chain(kinds: str) -> list[Op]:
    return [Op(OF[kind], [f"t{i}", "w", f"t{i + 1}"], f"op{i}") for i, kind in enumerate(kinds)]


def four_adds() -> AscendPlan:
    """The seed's add_skp."""
    adds = [kernel(f"add_{i}00", AIV, 40, *PARAMS) for i in range(1, 5)]
    return planned("add_skp", [Op(add, [f"t{i}", "y", f"t{i + 1}"]) for i, add in enumerate(adds)])


def cubes_only() -> AscendPlan:
    return planned("cubes", chain("ccc"))


def cube_to_cube() -> AscendPlan:
    return pair("c", "c")


def cube_to_vector() -> AscendPlan:
    return pair("c", "v")


def cube_to_mix() -> AscendPlan:
    return pair("c", "m")


def vector_to_cube() -> AscendPlan:
    return pair("v", "c")


def vector_to_vector() -> AscendPlan:
    return pair("v", "v")


def vector_to_mix() -> AscendPlan:
    return pair("v", "m")


def mix_to_cube() -> AscendPlan:
    return pair("m", "c")


def mix_to_vector() -> AscendPlan:
    return pair("m", "v")


def mix_to_mix() -> AscendPlan:
    return pair("m", "m")


def early_start_0() -> AscendPlan:
    return planned("early0", chain("vcm"), "split-mode=1:early-start=0")


def early_start_1_apart() -> AscendPlan:
    """Arrive after the producer, wait before the consumer, an op that needs nothing between the two."""
    ops = [Op(VECTOR_OP, ["x", "y", "t"], "producer"), Op(VECTOR_OP, ["p", "q", "r"], "between")]
    return planned("apart", [*ops, Op(VECTOR_OP, ["t", "y", "z"], "consumer")])


def early_start_2() -> AscendPlan:
    """Ops with an early-start pair are told that there is nothing for them to do."""
    one = kernel("early", AIV, 8, *PARAMS, waits_inside=True, signals_inside=True)
    ops = [Op(one, ["x", "y", "t"], "first"), Op(one, ["t", "y", "z"], "second")]
    return planned("early2", ops, "split-mode=1:early-start=2")


def early_start_inside() -> AscendPlan:
    """Cores without a block wait and arrive in the entry."""
    wide = kernel("wide", AIV, 8, *PARAMS, waits_inside=True, signals_inside=True)
    narrow = kernel("narrow", AIV, 5, *PARAMS, waits_inside=True, signals_inside=True)
    ops = [Op(wide, ["x", "y", "t"], "a"), Op(narrow, ["t", "y", "u"], "b"), Op(wide, ["u", "y", "z"], "c")]
    return planned("inside", ops)


def early_start_of_cann() -> AscendPlan:
    """Objects that CANN built arrive in any case: what no op waits for is waited for at the end."""
    flagged = {"waits_inside": True, "signals_inside": True, "protocol": SyncProtocol.CANN}
    wide, narrow = kernel("wide", AIV, 8, *PARAMS, **flagged), kernel("narrow", AIV, 5, *PARAMS, **flagged)
    ops = [Op(wide, ["x", "y", "t"], "a"), Op(narrow, ["t", "y", "u"], "b"), Op(wide, ["x", "y", "v"], "c")]
    return planned("cann", ops)


def early_start_inside_mix() -> AscendPlan:
    early = kernel("mixed", ONE_TWO, 3, *PARAMS, waits_inside=True, signals_inside=True)
    ops = [Op(CUBE_OP, ["x", "y", "t"], "a"), Op(early, ["t", "y", "u"], "b"), Op(VECTOR_OP, ["u", "y", "z"], "c")]
    return planned("inside_mix", ops)


def one_to_one_in_one_to_two() -> AscendPlan:
    half = kernel("half", ONE_ONE, 4, *PARAMS)
    return planned("halves", [Op(half, ["x", "y", "t"], "a"), Op(VECTOR_OP, ["t", "y", "z"], "b")])


def launch_one_to_one() -> AscendPlan:
    half, small = kernel("half", ONE_ONE, 4, *PARAMS), kernel("small", AIV, 2, *PARAMS)
    return planned("ones", [Op(half, ["x", "y", "t"], "a"), Op(small, ["t", "y", "z"], "b")])


def split_copies() -> AscendPlan:
    return planned("copies", chain("vm"), "")


def split_ready_made() -> AscendPlan:
    code = Code("made", ("made.o",), (("made_1.o",),))
    facts = AscendFacts(AIV, ((VECTOR, 0, code),), split_mode=2, origin="made.json")
    made = replace(kernel("made", AIV, 8, *PARAMS), target_facts=facts)
    return planned("ready", [Op(made, ["x", "y", "z"])], "")


def preload_max() -> AscendPlan:
    return planned("all_at_once", chain("vv"), "split-mode=1:preload-code=max")


def preload_none() -> AscendPlan:
    return planned("no_preload", chain("vv"), "split-mode=1:preload-code=none")


def preload_ahead() -> AscendPlan:
    """Sizes of code: one line, eight lines, as many as are worth it."""
    sizes = {"tiny": 100, "some": 5000, "huge": 1 << 20}
    kernels = [kernel(name, AIV, 8, *PARAMS, code_bytes=size) for name, size in sizes.items()]
    return planned("sizes", [Op(one, [f"t{i}", "w", f"t{i + 1}"]) for i, one in enumerate(kernels)])


def feed_sync_all() -> AscendPlan:
    meeting = kernel("meeting", AIV, 5, *PARAMS, sync_all=True)
    ops = [Op(VECTOR_OP, ["x", "y", "t"], "a"), Op(meeting, ["t", "y", "u"], "b"), Op(VECTOR_OP, ["u", "y", "z"], "c")]
    return planned("fed", ops, "split-mode=1:feed-sync-all=1")


def feed_sync_all_split_dynamic() -> AscendPlan:
    meeting = kernel("meeting", AIV, 8, *PARAMS, sync_all=True, variants={1: "few", 7: "many"})
    ops = [Op(VECTOR_OP, ["x", "y", "t"], "a"), Op(meeting, ["t", "y", "u"], "b", task="dynamic")]
    return planned("fed_dynamic", ops, "split-mode=2:feed-sync-all=1")


def feed_sync_all_mix() -> AscendPlan:
    meeting = kernel("meeting", ONE_ONE, 3, *PARAMS, sync_all=True)
    return planned("fed_mix", [Op(meeting, ["x", "y", "t"], "a"), *chain("m")], "split-mode=1:feed-sync-all=1")


def notify_between() -> AscendPlan:
    ops = [Op(VECTOR_OP, ["x", "y", "t"], "p", send=["half"]), Op(VECTOR_OP, ["t", "y", "z"], "i")]
    return planned("notify", ops)


def wait_between() -> AscendPlan:
    ops = [Op(VECTOR_OP, ["x", "y", "t"], "p"), Op(CUBE_OP, ["t", "y", "z"], "i", recv=["go"])]
    return planned("wait", ops)


def notify_and_wait_between() -> AscendPlan:
    ops = [Op(VECTOR_OP, ["x", "y", "t"], "p", send=["half"]), Op(MIX_OP, ["t", "y", "z"], "i", recv=["go"])]
    return planned("both", ops)


def last_op_sends() -> AscendPlan:
    return planned("last", [Op(MIX_OP, ["x", "y", "t"], "only", send=["done"])])


def one_event_for_two_ops() -> AscendPlan:
    ops = [Op(VECTOR_OP, ["x", "y", "t"], "a"), Op(VECTOR_OP, ["p", "q", "r"], "b", recv=["go"])]
    return planned("shared", [*ops, Op(CUBE_OP, ["f", "g", "h"], "c", recv=["go"])])


def inner_events() -> AscendPlan:
    """Two streams, ordered by an event that nobody outside sees."""
    ops = [Op(VECTOR_OP, ["x", "y", "t"], "a", send=[7]), Op(CUBE_OP, ["p", "q", "r"], "b", stream=1, recv=[7])]
    return planned("inner", ops)


def lanes() -> list[Op]:
    ops = [Op(CUBE_OP, ["x", "w", "a"], "c0"), Op(VECTOR_OP, ["p", "q", "b"], "v0", stream=1)]
    ops += [Op(CUBE_OP, ["a", "w", "c"], "c1"), Op(VECTOR_OP, ["b", "q", "d"], "v1", stream=1, send=[1])]
    return [*ops, Op(MIX_OP, ["c", "d", "e"], "joined", recv=[1])]


def stream_fusion() -> AscendPlan:
    return planned("lanes", lanes(), "split-mode=1:stream-fusion=1")


def stream_fusion_preload_max() -> AscendPlan:
    return planned("lanes_at_once", lanes(), "split-mode=1:stream-fusion=1:preload-code=max")


def stream_fusion_receiver_first() -> AscendPlan:
    """In the list the receiver stands before its sender; in its lane it cannot."""
    ops = [Op(CUBE_OP, ["x", "w", "a"], "first"), Op(CUBE_OP, ["a", "w", "b"], "receives", recv=[3])]
    ops += [Op(VECTOR_OP, ["p", "q", "r"], "sends", stream=1, send=[3])]
    return planned("turned", ops, "split-mode=1:stream-fusion=1")


def stream_fusion_one_class() -> AscendPlan:
    ops = [Op(VECTOR_OP, ["x", "y", "t"], "a"), Op(VECTOR_OP, ["t", "y", "z"], "b", stream=1)]
    return planned("one_lane", ops, "split-mode=1:stream-fusion=1")


def dynamic() -> AscendPlan:
    chosen = kernel("chosen", AIV, 8, *PARAMS, variants={1: "few", 7: "many"})
    ops = [Op(VECTOR_OP, ["x", "y", "t"], "a"), Op(VECTOR_OP, ["p", "q", "r"], "b")]
    return planned("dynamic", [*ops, Op(chosen, ["t", "y", "z"], "c", task="dynamic")])


def dynamic_mix_after_event() -> AscendPlan:
    chosen = kernel("chosen", ONE_TWO, 4, *PARAMS, variants={0: "plain", -3: "odd"})
    ops = [Op(CUBE_OP, ["x", "y", "t"], "a"), Op(chosen, ["t", "y", "z"], "b", recv=["go"], task="dynamic")]
    return planned("dynamic_mix", ops)


def cache_maintenance() -> AscendPlan:
    options = "split-mode=1:dcci-before-kernel-start=vec:dcci-after-kernel-end=vec,cube:dcci-disable-on-kernel=cube"
    return planned("caches", chain("vcv"), options)


def cache_maintenance_from_metadata() -> AscendPlan:
    careful = kernel("careful", AIV, 8, *PARAMS, fence_before=True, fence_after=True)
    never = kernel("never", AIV, 8, *PARAMS, fence_before=True, fence_never=True)
    return planned("careful", [Op(careful, ["x", "y", "t"]), Op(never, ["t", "y", "z"])])


def debug_options() -> AscendPlan:
    """Barriers after every op, while signals of an earlier op are under way."""
    ops = [Op(CUBE_OP, ["x", "y", "t"], "a"), Op(CUBE_OP, ["p", "q", "r"], "b"), Op(VECTOR_OP, ["t", "y", "z"], "c")]
    return planned(
        "debugged", [*ops, Op(CUBE_OP, ["t", "z", "u"], "d")], "split-mode=1:debug-sync-all=1:debug-dcci-all=1"
    )


def profiling() -> AscendPlan:
    ops = [Op(VECTOR_OP, ["x", "y", "t"], "a", send=["half"]), Op(CUBE_OP, ["t", "y", "z"], "b", recv=["go"])]
    return planned("timed", ops, "split-mode=1:profiling=1")


def dump_area() -> AscendPlan:
    speaks = kernel("speaks", AIV, 8, *PARAMS, debug_options=("printf", "assert"), debug_bytes=8192)
    return planned("dumped", [Op(speaks, ["x", "y", "t"]), *chain("v")])


def dump_and_feed() -> AscendPlan:
    speaks = kernel("speaks", AIV, 5, *PARAMS, sync_all=True, debug_options=("timestamp",), debug_bytes=65536)
    return planned("both_areas", [Op(speaks, ["x", "y", "t"]), *chain("v")], "split-mode=1:feed-sync-all=1:profiling=1")


def prefetch_weights() -> AscendPlan:
    ops = [Op(CUBE_OP, ["x", "w1", "t"], "a", send=["half"]), Op(VECTOR_OP, ["t", "w2", "z"], "b")]
    return planned("weights", ops, "split-mode=1:prefetch-weights=8M")


def func_align_0() -> AscendPlan:
    return planned("unaligned", chain("v"), "split-mode=1:func-align=0")


def forced_cores() -> AscendPlan:
    return planned("forced", chain("vc"), "split-mode=1:debug-aic-num=10:debug-aiv-num=20")


def nothing_to_wait_for() -> AscendPlan:
    """Blocks that read what their own core wrote, and ops of one block."""
    part = kernel("part", AIV, 8, "in:x:float32[64]@block", "out:y:float32[64]@block")
    single = kernel("single", AIC, 1, "in:x", "out:y")
    ops = [
        Op(part, ["x", "t"], "a"),
        Op(part, ["t", "y"], "b"),
        Op(single, ["p", "q"], "c"),
        Op(single, ["q", "r"], "d"),
    ]
    return planned("local", ops)


def one_symbol_in_two_files() -> AscendPlan:
    first, second = (kernel("same", AIV, 8, *PARAMS, path=Path(f"{n}.cpp")) for n in "ab")
    return planned("same_names", [Op(first, ["x", "y", "t"]), Op(second, ["t", "y", "z"])])


def both_classes_for_themselves() -> AscendPlan:
    """After a mix op that both classes have seen the end of, each class waits for its own only."""
    ops = [*chain("m"), Op(VECTOR_OP, ["t1", "w", "v1"], "v"), Op(CUBE_OP, ["t1", "w", "c1"], "c")]
    return planned("themselves", [*ops, Op(MIX_OP, ["v1", "c1", "z"], "m")])


def mix_functions_per_class() -> AscendPlan:
    facts = AscendFacts(ONE_TWO, ((CUBE, 0, Code("g_cube")), (VECTOR, 0, Code("g_vector"))))
    two = replace(kernel("g", ONE_TWO, 4, *PARAMS), target_facts=facts)
    return planned("two_functions", [Op(two, ["x", "y", "z"], "a"), Op(two, ["z", "y", "u"], "b")])


SCENARIOS: tuple[Callable[[], AscendPlan], ...] = (
    four_adds,
    cubes_only,
    cube_to_cube,
    cube_to_vector,
    cube_to_mix,
    vector_to_cube,
    vector_to_vector,
    vector_to_mix,
    mix_to_cube,
    mix_to_vector,
    mix_to_mix,
    early_start_0,
    early_start_1_apart,
    early_start_2,
    early_start_inside,
    early_start_of_cann,
    early_start_inside_mix,
    one_to_one_in_one_to_two,
    launch_one_to_one,
    split_copies,
    split_ready_made,
    preload_max,
    preload_none,
    preload_ahead,
    feed_sync_all,
    feed_sync_all_split_dynamic,
    feed_sync_all_mix,
    notify_between,
    wait_between,
    notify_and_wait_between,
    last_op_sends,
    one_event_for_two_ops,
    inner_events,
    stream_fusion,
    stream_fusion_preload_max,
    stream_fusion_receiver_first,
    stream_fusion_one_class,
    dynamic,
    dynamic_mix_after_event,
    cache_maintenance,
    cache_maintenance_from_metadata,
    debug_options,
    profiling,
    dump_area,
    dump_and_feed,
    prefetch_weights,
    func_align_0,
    forced_cores,
    nothing_to_wait_for,
    one_symbol_in_two_files,
    both_classes_for_themselves,
    mix_functions_per_class,
)


WHOLE = (
    four_adds,
    split_copies,
    feed_sync_all_split_dynamic,
    dynamic_mix_after_event,
    profiling,
    dump_and_feed,
    prefetch_weights,
    mix_functions_per_class,
)
by_name = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)


def whole(plan: AscendPlan) -> str:
    emitted = emit(plan)
    fields = describe(plan, emitted, None)
    del fields["sha256"]
    kernels = fields.pop("SuperkernelInfo")["kernelList"]["aicore"]
    lines = [f"{name}: {json.dumps(value)}" for name, value in fields.items()]
    lines += ["kernelList:", *(f"  {json.dumps(fields)}" for fields in kernels)]
    return f"{plan}\n\n{plan.layout}\n\n{emitted.source}\n" + "\n".join(lines) + "\n"


def from_the_entry(plan: AscendPlan) -> str:
    head = str(plan).splitlines()[:3]
    return "\n".join(head) + "\n\n" + starting_at(emit(plan).source, "// the entry:")


@by_name
def test_the_emitted_code_is_the_expected_one(scenario: Callable[[], AscendPlan]) -> None:
    found = (whole if scenario in WHOLE else from_the_entry)(scenario())
    compare(GOLDEN / f"{scenario.__name__}.expected", found)


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {scenario.__name__ for scenario in SCENARIOS}


def test_every_step_of_a_plan_is_printed_with_its_comment() -> None:
    for scenario in SCENARIOS:
        plan = scenario()
        text = emit(plan).source
        for step in plan.steps:
            assert f"// {plan.describe(step)}\n" in text
