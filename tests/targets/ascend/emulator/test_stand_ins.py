"""Stand-ins for sub-kernels whose code is for the device: what they find, and what they leave alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from targets.ascend.conftest import archive, host_object
from targets.ascend.device_lists import DeviceKernel, Entry, archive_of, device_object, write_list
from targets.ascend.random_lists import kernel

import superkernel as sk
from superkernel.errors import BuildError, LaunchError
from superkernel.model.graph import build_graph
from superkernel.model.op import Op, Place
from superkernel.model.options import Options
from superkernel.model.tiling import Tiling
from superkernel.plan.steps import SpanKind
from superkernel.targets.ascend import TARGET
from superkernel.targets.ascend.archive import foreign_member
from superkernel.targets.ascend.core_types import KernelType
from superkernel.targets.ascend.describe_kernel import emit
from superkernel.targets.ascend.emulator import Emulation, Outside, emulate
from superkernel.targets.ascend.emulator.trace import TracePoint
from superkernel.targets.ascend.executable import AscendExecutable
from superkernel.targets.ascend.plan import AscendPlan
from superkernel.targets.protocol import LaunchInputs

AIV, AIC, MIX = KernelType.AIV_ONLY, KernelType.AIC_ONLY, KernelType.MIX_AIC_1_2
VEC = DeviceKernel("vec", AIV, 6, ("in:x", "out:y"))
CUBE = DeviceKernel("cube", AIC, 4, ("in:x", "out:y"))
MEETS = DeviceKernel("meets", MIX, 3, ("in:x", "out:y"), sync_all=True)
EARLY = DeviceKernel("early", AIV, 6, ("in:x", "out:y"), waits=True, sets=True)
TILED = DeviceKernel("tiled", AIV, 6, ("in:x", "out:y"), keys=(1, 7))
BARE = DeviceKernel("bare", MIX, 3, ("x", "y"))
NO_INPUTS = LaunchInputs({}, {})

Compiled = Callable[..., sk.SuperKernel]


@pytest.fixture
def compiled(tmp_path: Path) -> Iterator[Compiled]:
    """A list of ops -> the super kernel made of it."""
    kernels: list[sk.SuperKernel] = []

    def compile_list(*entries: Entry, options: str = "") -> sk.SuperKernel:
        described = TARGET.read_ops(write_list(tmp_path, entries, options))
        kernels.append(sk.compile(described.ops, described.name, described.options, "ascend"))
        return kernels[-1]

    yield compile_list
    for made in kernels:
        made.close()


def changed(super_kernel: sk.SuperKernel, seed: int, change: Callable[[str], str], races: bool = False) -> Emulation:
    """A launch of the same kernel with another text; without `races` only values can tell."""
    executable = super_kernel.executable
    assert isinstance(executable, AscendExecutable)
    text = change(executable.source)
    assert text != executable.source
    emitted = replace(executable.emitted, source=text)
    graph, options = executable.plan.graph, executable.plan.options
    return emulate(emitted, graph, {}, NO_INPUTS, seed=seed, races=races, stand_ins=True, options=options)


def found(super_kernel: sk.SuperKernel, change: Callable[[str], str], races: bool = False) -> str:
    """What the first seed that finds something says."""
    for seed in range(12):
        try:
            changed(super_kernel, seed, change, races)
        except LaunchError as error:
            return str(error)
    return "nothing"


def late(line: str) -> Callable[[str], str]:
    """The first such line of the entry stands at its end: flags come out even, order does not."""

    def change(text: str) -> str:
        head, entry, body = text.partition("__global__")
        assert line in body
        lines = (head + entry + body.replace(line, "", 1)).splitlines()
        end = max(place for place, found in enumerate(lines) if found == "}")
        on = "on_cube" if "cube_flag" in line else "on_vector"
        guard = f"if constexpr ({on}) " if f"constexpr bool {on}" in head else ""
        return "\n".join([*lines[:end], f"{guard}{line}", *lines[end:]])

    return change


def test_device_objects_have_stand_ins_and_the_launch_says_so(compiled: Compiled) -> None:
    k = compiled(Entry(VEC, ("a", "b")), Entry(CUBE, ("b", "c")))
    outputs = k.emulate({}, seed=3)
    assert k.emulated is not None and "stand-ins took the place" in k.emulated.notes[0]
    assert list(outputs) == ["c"] and outputs["c"].any()


def test_device_objects_without_stand_ins_are_refused(compiled: Compiled) -> None:
    k = compiled(Entry(VEC, ("a", "b")))
    with pytest.raises(
        LaunchError, match=r"sub-kernel 'vec' is compiled for another processor \(.*vec\.a\): leave it out"
    ):
        k.emulate({}, stand_ins=False)


def test_stand_ins_for_sources_must_be_asked_for(tmp_path: Path) -> None:
    source = tmp_path / "unfit.cpp"
    source.write_text('extern "C" __aicore__ void unfit(uint64_t first_slot) { asm("no such instruction"); }\n')
    unfit = sk.SubKernel.from_source(source, "unfit", block_dim=2, params=["in:x", "out:y"], core="vector")
    with sk.compile([sk.Op(unfit, ["a", "b"])], name="asked", target="ascend") as k:
        with pytest.raises(BuildError, match="no such instruction"):
            k.emulate({})
        assert k.emulate({}, stand_ins=True)["b"].size
        with pytest.raises(LaunchError, match="stand_ins is 'yes'"):
            k.emulate({}, stand_ins="yes")


def test_objects_of_this_machine_have_code_of_their_own(tmp_path: Path) -> None:
    own = archive(tmp_path, "own.a", host_object(tmp_path, "own", "own_func"))
    assert foreign_member(own) is None
    mixed = tmp_path / "mixed.a"
    mixed.write_bytes(archive_of({"own.o": (tmp_path / "own.o").read_bytes(), "other.o": device_object(["other"])}))
    assert foreign_member(mixed) == "other.o"


def test_passed_buffers_are_used_and_only_outputs_change(compiled: Compiled) -> None:
    k = compiled(Entry(VEC, ("a", "b")), Entry(CUBE, ("b", "c")))
    a, c = np.arange(100, dtype=np.float32), np.zeros(3000, np.uint8)
    before = a.copy()
    k.emulate({"a": a, "c": c}, seed=1)
    assert (a == before).all() and c[:1024].any() and not c[1024:].any()
    other = c.copy()
    a[7] += 1
    k.emulate({"a": a, "c": other}, seed=1)
    assert (c[:1024] != other[:1024]).any()
    with pytest.raises(LaunchError, match="no op uses the name 'd'"):
        k.emulate({"d": c})


def test_replay_leaves_the_comparison_to_the_reference(compiled: Compiled) -> None:
    k = compiled(Entry(VEC, ("a", "b")), Entry(CUBE, ("b", "c")), options="debug-replay=1")
    assert k.emulate({}, seed=2)["c"].any()


@pytest.mark.parametrize("flag", ["vector_flag", "vectors_to_cube_flag"])
def test_a_late_wait_shows_in_the_values_alone(compiled: Compiled, flag: str) -> None:
    k = compiled(Entry(VEC, ("a", "b")), Entry(CUBE, ("b", "c")), Entry(VEC, ("c", "d")))
    assert "read something else than it reads when the ops run one after the other" in found(
        k, late(f"wait_flag_dev({flag});")
    )


def test_ops_with_private_names_are_ordered_by_their_stream(compiled: Compiled) -> None:
    """No data flows between them: footprints tell."""
    k = compiled(Entry(VEC), Entry(BARE), Entry(VEC))
    k.emulate({}, seed=5)
    assert "op 'vec_2': block" in found(k, late("wait_flag_dev(cube_to_vectors_flag);"))


def test_an_early_request_for_a_tiling_shows_in_the_values_alone(compiled: Compiled) -> None:
    k = compiled(Entry(VEC, ("a", "b")), Entry(TILED, ("b", "c")))
    assert {_key(k, seed) for seed in range(8)} == {1, 7}
    assert "op 'tiled_1'" in found(k, late("wait_flag_dev(vector_flag);"))


def _key(k: sk.SuperKernel, seed: int) -> int:
    k.emulate({}, seed=seed)
    emulation = k.emulated
    assert isinstance(emulation, Emulation)
    return next(value for name, value in emulation.words.items() if name.endswith("tiling_key"))


def test_a_tiling_function_of_the_caller_decides(compiled: Compiled) -> None:
    k = compiled(Entry(VEC, ("a", "b")), Entry(TILED, ("b", "c"), name="tiled"))
    k.emulate({}, seed=1, tiling={"tiled": lambda inputs: Tiling(7, 2)})
    emulation = k.emulated
    assert isinstance(emulation, Emulation)
    ran = [step for step in emulation.steps if step.what is TracePoint.OP_BEGIN and step.op == "tiled"]
    assert len(ran) == 2


def test_events_are_set_from_outside_at_any_time(compiled: Compiled) -> None:
    k = compiled(Entry(VEC, ("a", "b"), send=(5,)), Entry(CUBE, ("b", "c"), recv=(6,)))
    for seed in range(4):
        k.emulate({}, seed=seed)
        emulation = k.emulated
        assert isinstance(emulation, Emulation)
        assert sorted(emulation.words.values()) == [0, 1]


def test_a_wait_for_the_outside_is_a_wait_of_one_core(compiled: Compiled) -> None:
    """All others are held back at flags."""
    k = compiled(Entry(VEC, ("a", "b")), Entry(CUBE, ("b", "c"), recv=(6,)))
    k.emulate({}, seed=0, outside=[Outside("6", delay=2000)])
    emulation = k.emulated
    assert isinstance(emulation, Emulation)
    polls = [step for step in emulation.steps if step.what in (TracePoint.POLL_BEGIN, TracePoint.POLL_END)]
    assert [step.what for step in polls] == [TracePoint.POLL_BEGIN, TracePoint.POLL_END]
    assert emulation.addresses[polls[0].value] == "cube_1_recv_6" and polls[0].core == polls[1].core == 0
    begin, end = (step.time for step in polls)
    assert any((s.core, s.what, s.begin_ns, s.end_ns) == (0, SpanKind.WAIT, begin, end) for s in emulation.spans)


def test_the_seed_decides_how_often_cores_meet(compiled: Compiled) -> None:
    k = compiled(Entry(MEETS, ("a", "b")), Entry(VEC, ("b", "c")), options="feed-sync-all=1")
    counts = set()
    for seed in range(12):
        k.emulate({}, seed=seed)
        emulation = k.emulated
        assert isinstance(emulation, Emulation)
        [met] = {step.value for step in emulation.steps if step.what is TracePoint.OP_END and step.op == "meets_0"}
        counts.add(met)
    assert counts == {1, 2, 3}


def test_early_start_happens_inside_the_stand_in(compiled: Compiled) -> None:
    k = compiled(Entry(VEC, ("a", "b")), Entry(EARLY, ("b", "c")), Entry(VEC, ("c", "d")))
    k.emulate({}, seed=1)
    emulation = k.emulated
    assert isinstance(emulation, Emulation)
    assert sum(step.what is TracePoint.OP_WAITED for step in emulation.steps) == EARLY.blocks
    assert sum(step.what is TracePoint.OP_SET for step in emulation.steps) == EARLY.blocks


def test_objects_that_cann_built_arrive_whatever_the_entry_says(compiled: Compiled) -> None:
    """An arrival that no op needs is waited for as well; without that wait a flag is left set."""
    k = compiled(Entry(EARLY, ("a", "b")), Entry(VEC, ("c", "d")))
    k.emulate({}, seed=1)
    assert "flags are left set" in found(k, without("wait_flag_dev(vector_flag);"))
    ours = replace(EARLY, more={"superkernel_protocol": "subkernel.h"})
    k = compiled(Entry(ours, ("a", "b")), Entry(VEC, ("c", "d")))
    k.emulate({}, seed=1)
    assert "wait_flag_dev" not in k.source


def without(line: str) -> Callable[[str], str]:
    """The first such line of the entry is left out."""

    def change(text: str) -> str:
        head, entry, body = text.partition("__global__")
        return head + entry + body.replace(line, "", 1)

    return change


def planned(ops: list[Op], options: str = "") -> tuple[AscendPlan, Callable[..., Emulation]]:
    parsed = Options.parse(options)
    plan = TARGET.planner.plan(build_graph(ops, "listed", parsed.stream_fusion), parsed, 0)
    emitted = emit(plan)

    def run(seed: int, **more: object) -> Emulation:
        return emulate(emitted, plan.graph, {}, NO_INPUTS, seed=seed, stand_ins=True, options=plan.options, **more)  # type: ignore[arg-type]

    return plan, run


def test_parts_blocks_offsets_and_repeated_names() -> None:
    """What workers of one op may touch without order: all of these must neither race nor differ."""
    whole = kernel("whole", AIC, 5, "in:x", "inout:y", "workspace:w")
    parts = kernel("parts", AIV, 5, "in:x:float32[640]@block", "out:y:float32[640]@block")
    mixed = kernel("mixed", MIX, 3, "in:x", "scalar:s:float32", "out:y", "out:z")
    ops = [
        Op(parts, ["a", "b"], "split"),
        Op(parts, ["b", "c"], "split_again"),
        Op(whole, ["c", "d", "ws"], "gather"),
        Op(mixed, [Place("d", 64), 2.5, Place("e", 2050), "e"], "at_offsets"),
        Op(mixed, ["e", "scale", "e", "e"], "in_place"),
        Op(whole, ["e", "e", "f"], "onto_itself"),
    ]
    plan, run = planned(ops)
    assert plan.sync_counts.get("local") == 1
    for seed in range(5):
        run(seed)


def test_cache_maintenance_is_needed_by_stand_ins() -> None:
    cached = kernel("cached", AIV, 6, "in:x", "out:y", fence_before=True, fence_after=True)
    plain = kernel("plain", AIV, 4, "in:x", "out:y")
    ops = [Op(plain, ["a", "b"], "first"), Op(cached, ["b", "c"], "through"), Op(plain, ["c", "d"], "last")]
    plan, run = planned(ops)
    for seed in range(5):
        run(seed)
    text = emit(plan).source
    line = next(line for line in text.splitlines() if "ENTIRE_DATA_CACHE" in line)
    emitted = replace(emit(plan), source=text.replace(line, "", 2))
    with pytest.raises(LaunchError, match=r"data cache|cached line"):
        for seed in range(12):
            emulate(emitted, plan.graph, {}, NO_INPUTS, seed=seed, stand_ins=True, options=plan.options)


def test_sub_kernels_that_take_pointers(compiled: Compiled) -> None:
    plain = DeviceKernel("plain", AIV, 6, ("in:x", "in:w", "out:y"), more={"superkernel_call": "pointers"})
    k = compiled(Entry(VEC, ("a", "b")), Entry(plain, ("b", "w", "c")), Entry(plain, ("c", "w", "d")))
    assert "plain(" in k.source and k.emulate({}, seed=2)["d"].any()
    exchanged = found(k, lambda text: text.replace("pointer(first_slot + 0)", "pointer(first_slot + 1)"))
    assert "with pointers that are those of no op" in exchanged


def test_a_saved_list_is_emulated_where_its_files_are(compiled: Compiled, tmp_path: Path) -> None:
    compiled(Entry(VEC, ("a", "b")), Entry(MEETS, ("b", "c")), options="feed-sync-all=1").save(tmp_path / "saved")
    with sk.load(tmp_path / "saved") as k:
        assert k.emulate({}, seed=1)["c"].any()
