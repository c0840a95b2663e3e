"""Properties of spec/sync.md that one chosen case, or two texts, show better than random ones do."""

from __future__ import annotations

import ctypes
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import pytest
from targets.ascend.conformance.cases import Case, Shape, Use, random_case
from targets.ascend.conformance.checks import Ready, check, launch, prepare
from targets.ascend.sampling import first_of

from superkernel.errors import LaunchError
from superkernel.model.tiling import Tiling
from superkernel.targets.ascend.core_types import CUBE, VECTOR, CoreClass, KernelType, LaunchType, OpClass
from superkernel.targets.ascend.emulator import emulate
from superkernel.targets.ascend.emulator.trace import TracePoint
from superkernel.targets.ascend.kernel_areas import core_name
from superkernel.targets.protocol import LaunchInputs

AIV, AIC = KernelType.AIV_ONLY, KernelType.AIC_ONLY
MIX_1_1, MIX_1_2 = KernelType.MIX_AIC_1_1, KernelType.MIX_AIC_1_2
QUIET = "split-mode=1:preload-code=none"
known_case = cache(random_case)  # the tests look at the same ones


def use(kind: KernelType, names: str, function: str = "plain", blocks: int = 3, **more: object) -> Use:
    """An op from the first name to the second."""
    source, target = names.split()
    return replace(Use(Shape(function, kind, blocks, 1, 1, 0), 5, (source, target)), **more)


def ready(case: Case) -> Ready:
    return prepare([(case, *case.emitted())])[0]


def flag_steps(found: Ready, seed: int = 0) -> dict[CoreClass, Counter[TracePoint]]:
    """Per class: signals and waits of its cores, which all make the same ones."""
    emulation, _ = launch(found, seed)
    per_core: dict[int, Counter[TracePoint]] = {}
    for step in emulation.steps:
        if step.what in (TracePoint.SIGNAL, TracePoint.WAIT_END):
            per_core.setdefault(step.core, Counter())[step.what] += 1
    counts: dict[CoreClass, Counter[TracePoint]] = {}
    for core in range(found.emitted.launch.cubes + found.emitted.launch.vectors):
        kind, mine = core_name(found.emitted.launch, core).kind, per_core.get(core, Counter())
        assert counts.setdefault(kind, mine) == mine
    return counts


@pytest.mark.parametrize("seed", first_of(range(60), 10))
def test_p8_slots_are_disjoint_and_each_op_gets_its_own(seed: int) -> None:
    _, emitted, _ = known_case(seed)
    slots = emitted.layout.slots
    assert [slot.index for slot in slots] == list(range(len(slots)))
    special = [event.slot for event in emitted.events]
    special += [n for t in emitted.tilings for n in (t.key_slot, t.blocks_slot, t.lock_slot)]
    special += [n for p in emitted.prefetches for n in (p.go_slot,)]
    special += [n for n in (emitted.workspace_slot, emitted.profiling_slot, emitted.task_id_slot) if n is not None]
    assert len(set(special)) == len(special)
    for op in emitted.ops:
        own = range(op.first_slot, op.first_slot + len(op.kernel.params))
        assert not set(own) & {0, *special}
        assert [slots[n].op for n in own] == [op.name] * len(own)


@pytest.mark.parametrize("seed", first_of(range(60), 10))
def test_p9_the_launch_is_the_smallest_that_serves_every_op(seed: int) -> None:
    case, emitted, _ = known_case(seed)
    cubes = max(u.shape.type.cores(u.shape.blocks)[0] for u in case.uses)
    vectors = max(u.shape.type.cores(u.shape.blocks)[1] for u in case.uses)
    classes = {u.shape.type.op_class for u in case.uses}
    if classes == {OpClass.AIV}:
        wanted = (LaunchType.MIX_AIV_1_0, vectors)
    elif classes == {OpClass.AIC}:
        wanted = (LaunchType.MIX_AIC_1_0, cubes)
    elif vectors > cubes or any(u.shape.type is MIX_1_2 for u in case.uses):
        wanted = (LaunchType.MIX_AIC_1_2, max(cubes, -(-vectors // 2)))
    else:
        wanted = (LaunchType.MIX_AIC_1_1, cubes)
    assert (emitted.launch.type, emitted.launch.blocks) == wanted


def test_p11_a_sync_of_vector_cores_leaves_cube_cores_alone() -> None:
    uses = (use(AIC, "b3 b4"), use(AIV, "b0 b1", blocks=4), use(AIV, "b1 b2", blocks=4))
    counts = flag_steps(ready(Case("p11", uses, f"early-start=1:{QUIET}")))
    assert counts == {CUBE: Counter(), VECTOR: Counter({TracePoint.SIGNAL: 1, TracePoint.WAIT_END: 1})}


def statements(source: str) -> list[str]:
    """What is done, without the braces and conditions around it."""
    lines = (line.strip() for line in source.splitlines())
    return [line for line in lines if line.endswith(";") and not line.startswith("//")]


def of_class(source: str, core_class: str) -> str:
    """The lines that cores of the class run: what stands under a test of the other class is left out."""
    kept: list[str] = []
    other = {"cube": "vector", "vector": "cube"}[core_class]
    left_out: int | None = None  # indentation of the test whose block is left out
    for line in source.splitlines():
        indentation = len(line) - len(line.lstrip())
        if left_out is None and line.strip() == f"if constexpr (on_{other}) {{":
            left_out = indentation
        elif left_out is not None and indentation == left_out and line.strip() in ("}", "} else {"):
            left_out = None
        elif left_out is None:
            kept.append(line)
    return "\n".join(kept)


def is_within(few: Iterable[str], many: Iterable[str]) -> bool:
    """Whether `few` is `many` with some left out."""
    rest = iter(many)
    return all(one in rest for one in few)


@pytest.mark.parametrize("option", ["debug-sync-all=1", "debug-dcci-all=1"])
@pytest.mark.parametrize("seed", first_of(range(30), 10))
def test_p12_debug_options_only_add_steps(seed: int, option: str) -> None:
    case, _, _ = known_case(seed)
    pieces = [piece for piece in case.options.split(":") if not piece.startswith("debug-")]
    plain, _ = replace(case, options=":".join(pieces)).emitted()
    debugged, _ = replace(case, options=":".join([*pieces, option])).emitted()
    for core_class in ("cube", "vector"):
        few, many = (statements(of_class(emitted.source, core_class)) for emitted in (plain, debugged))
        assert is_within(few, many)
    assert len(statements(debugged.source)) > len(statements(plain.source))


def test_p14_idle_cores_join_as_many_barriers_as_the_working_ones_make() -> None:
    uses = (use(AIV, "b0 b1", blocks=6), use(AIV, "b1 b2", "meets", 3), use(MIX_1_2, "b2 b3", "meets", 2))
    found = ready(Case("p14", uses, f"feed-sync-all=1:{QUIET}"))
    for seed in range(8):
        check(found, seed)
        flag_steps(found, seed)  # all cores of a class make as many


@pytest.mark.parametrize("seed", first_of(range(40), 10))
def test_p15_same_input_same_text(seed: int) -> None:
    case, emitted, _ = known_case(seed)
    assert case.emitted()[0].source == emitted.source


def test_p16_an_unknown_tiling_key_traps_and_calls_nothing() -> None:
    uses = (use(AIC, "b0 b1"), use(AIV, "b1 b2", "tiled"))
    case = Case("p16", uses, QUIET)
    emitted, graph = case.emitted()
    for answer, problem in ((Tiling(99, 2), "trap"), (Tiling(1, 4), "wants 4 blocks"), ("x", "return")):
        launch_inputs = LaunchInputs({}, {"op1": lambda inputs, answer=answer: answer})
        with pytest.raises(LaunchError, match=problem):
            emulate(emitted, graph, case.buffers(0), launch_inputs)


def test_p16_a_trap_ends_a_launch_that_a_destructor_began() -> None:
    """An exception is on its way through the thread that launches: the cores must not take it for theirs."""
    globals_of_thread = ctypes.CDLL("libstdc++.so.6")["__cxa_get_globals"]
    globals_of_thread.restype = ctypes.POINTER(ctypes.c_uint)
    uncaught = ctypes.sizeof(ctypes.c_void_p) // ctypes.sizeof(ctypes.c_uint)  # behind the pointer to those caught
    globals_of_thread()[uncaught] += 1
    try:
        test_p16_an_unknown_tiling_key_traps_and_calls_nothing()
    finally:
        globals_of_thread()[uncaught] -= 1


@pytest.mark.parametrize("seed", first_of(range(60), 10))
def test_p17_other_names_ids_and_stream_numbers_give_the_same_text(seed: int) -> None:
    case, emitted, _ = known_case(seed)
    streams = [2, 0, 1]
    random.Random(seed).shuffle(streams)
    uses = tuple(
        replace(
            one,
            stream=streams[one.stream],
            send=tuple(label.replace("e", "f") for label in one.send),
            recv=tuple(label.replace("e", "f") for label in one.recv),
        )
        for one in case.uses
    )
    other, _ = replace(case, uses=uses, prefix="step").emitted()
    plain = [line.replace("_f", "_e") for line in statements(other.source)]
    assert plain == [line.replace("_f", "_e") for line in statements(emitted.source)]


def test_p18_independent_ops_are_not_ordered() -> None:
    uses = tuple(use(kind, f"b0 b{n + 1}") for n, kind in enumerate((AIV, AIC, AIV, AIC)))
    counts = flag_steps(ready(Case("p18a", uses, f"early-start=1:{QUIET}")))
    assert counts == {CUBE: Counter(), VECTOR: Counter()}


def test_p18_a_chain_has_one_sync_per_link() -> None:
    uses = tuple(use(AIV, f"b{n} b{n + 1}") for n in range(5))
    counts = flag_steps(ready(Case("p18b", uses, f"early-start=1:{QUIET}")))
    assert counts == {VECTOR: Counter({TracePoint.SIGNAL: 4, TracePoint.WAIT_END: 4})}


def test_p18_one_sync_serves_all_that_came_before_it() -> None:
    """op2 needs op0 and op1; op3 needs op0 alone, which the sync before op2 has seen to."""
    uses = (
        use(AIV, "b0 b1"),
        use(AIV, "b0 b2"),
        Use(Shape("plain", AIV, 3, 2, 1, 0), 5, ("b1", "b2", "b3")),
        use(AIV, "b1 b4"),
    )
    counts = flag_steps(ready(Case("p18c", uses, f"early-start=1:{QUIET}")))
    assert counts == {VECTOR: Counter({TracePoint.SIGNAL: 1, TracePoint.WAIT_END: 1})}


@pytest.mark.parametrize("kind", [MIX_1_1, MIX_1_2])
def test_a_mixed_op_runs_on_as_many_vectors_as_its_type_says(kind: KernelType) -> None:
    uses = (use(MIX_1_2, "b0 b1"), use(kind, "b1 b2", blocks=2))
    emulation = check(ready(Case("mixed", uses, QUIET)), 1)
    ran = [
        core
        for step in emulation.steps
        if step.what is TracePoint.OP_BEGIN and step.op == "op1"
        for core in [step.core]
    ]
    assert len(ran) == 2 * (1 + kind.vectors_per_cube)
