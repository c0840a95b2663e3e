"""targets.cuda.emit: the text of a small super kernel (golden/), and what it depends on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from targets.cuda.written_kernels import PtxFolder, graph_of, plan_of, small_gpu
from targets.golden import compare

import superkernel as sk
from superkernel.errors import BuildError
from superkernel.plan.steps import Wait
from superkernel.targets.cuda import build as building
from superkernel.targets.cuda import super_kernel_text
from superkernel.targets.cuda.build import build
from superkernel.targets.cuda.emit import MOST_CONSTANT_TABLE, table_room, value_room
from superkernel.targets.cuda.plan import waiting_kernels
from superkernel.targets.cuda.reader import read_ptx
from superkernel.targets.cuda.super_kernel_text import DELAYS, make_text
from superkernel.targets.cuda.task_layout import CodeSection

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def files(tmp_path: Path) -> PtxFolder:
    return PtxFolder(tmp_path)


@pytest.fixture
def unassembled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "find_assemblers", lambda: ())


def two_ops(files: PtxFolder) -> list[sk.Op]:
    add, total = files.add(grid=(8, 1, 1)), files.total()
    return [sk.Op(add, ["a", "b", "c", 512], name="sum"), sk.Op(total, ["c", "t"], name="total")]


@pytest.mark.usefixtures("unassembled")
def test_the_source_of_a_small_super_kernel(files: PtxFolder) -> None:
    built = build(plan_of(two_ops(files), cores=8), small_gpu())
    compare(GOLDEN / "two_ops.expected", built.source)


def test_the_text_does_not_depend_on_the_order_the_arguments_or_the_grids_of_ops(files: PtxFolder) -> None:
    first, second = two_ops(files)
    later = sk.Op(files.add(grid=(3, 1, 1)), ["c", "b", "d", 7])
    texts = {
        make_text(graph_of(ops), 2, small_gpu()).text
        for ops in ([first, second, later], [second, sk.Op(first.kernel, ["t2", "u", "c", 1]), later])
    }
    assert len(texts) == 1


def test_each_body_stands_there_once(files: PtxFolder) -> None:
    ops = two_ops(files)
    made = make_text(graph_of([*ops, sk.Op(ops[0].kernel, ["c", "c", "d", 512])]), 4, small_gpu())
    assert [body.name for body in made.bodies] == ["add", "total"]
    assert made.text.count("$sk_add_block:") == 1
    assert {made.sections[kernel] for kernel in made.sections} == {len(CodeSection), len(CodeSection) + 1}


def test_a_kernel_with_two_shapes_has_two_bodies(files: PtxFolder) -> None:
    flat, deep = files.total(grid=(4, 1, 1)), files.total(grid=(2, 2, 1))
    made = make_text(graph_of([sk.Op(flat, ["a", "t"]), sk.Op(deep, ["a", "u"])]), 1, small_gpu())
    assert sorted(body.name for body in made.bodies) == ["total", "total_2"]


def test_names_of_a_super_kernel_are_unique(files: PtxFolder) -> None:
    """No label is defined twice, and every branch has its label."""
    made = make_text(graph_of(two_ops(files)), 4, small_gpu())
    labels = re.findall(r"^\s*(\$\w+):", made.text, re.MULTILINE)
    assert len(labels) == len(set(labels))
    branches = set(re.findall(r"bra (\$\w+);", made.text))
    listed = next(line for line in made.text.splitlines() if ".branchtargets" in line)
    assert branches | set(re.findall(r"\$\w+", listed)) <= set(labels)
    assert read_ptx(made.text).entries[0].name == "sk_main"


def test_threads_without_work_go_to_the_barrier_of_the_slot(files: PtxFolder) -> None:
    narrow = files.kernel("narrow", "bar.sync 0; ret;", ["in:x"], threads=(64, 1, 1))
    made = make_text(graph_of([sk.Op(files.total(), ["a", "t"]), sk.Op(narrow, ["a"])]), 2, small_gpu())
    section = made.text.partition("$sk_narrow:")[2].partition("$sk_narrow_block:")[0]
    assert "setp.ge.u32 %sk_p, %sk_thread, 64;" in section and "@%sk_p bra $sk_meet;" in section
    assert "bar.sync %sk_narrow_barrier, 64;" in made.text and "bar.sync %sk_barrier, 128;" in made.text
    assert "add.u32 %sk_narrow_barrier, %sk_barrier, 2;" in made.text


def test_lanes_meet_before_a_barrier_of_the_slot(files: PtxFolder) -> None:
    """The barriers of a kernel without barriers of its own."""
    ops = [sk.Op(files.add(), ["a", "b", "c", 512])]
    lines = [line.strip() for line in make_text(graph_of(ops), 2, small_gpu()).text.splitlines()]
    barriers = [place for place, line in enumerate(lines) if line.startswith(("bar.sync", "bar.red"))]
    assert len(barriers) == 4, "at the entry, behind a wait, behind an event, behind a task"
    assert all(lines[place - 1].startswith("bar.warp.sync") for place in barriers)


def test_the_wait_point_of_a_kernel_polls_inside(files: PtxFolder) -> None:
    code = (
        "ld.param.u64 %rd1, [late_w]; ld.param.u64 %rd2, [late_x]; ld.param.u64 %rd3, [late_y];\n"
        "ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];\nld.global.b32 %r5, [%rd2];\nst.global.b32 [%rd3], %r5;\nret;"
    )
    late = files.kernel("late", code, ["in:w", "in:x", "out:y"])
    graph = plan_of([sk.Op(files.add(), ["a", "b", "c", 512]), sk.Op(late, ["w", "c", "d"])]).graph
    assert graph.nodes[1].kernel.waits_inside and graph.nodes[1].kernel.read_before_wait == ("w",)
    body = make_text(graph, 2, small_gpu()).text.partition("$sk_late_block:")[2]
    weights, wait = body.index("ld.global.v4.b32"), body.index("$sk_late_wait_poll:")
    assert weights < wait < body.index("ld.global.b32 %r5") < body.index("st.global.b32")


def test_griddepcontrol_wait_is_the_wait_point(files: PtxFolder) -> None:
    code = (
        "ld.param.u64 %rd1, [pdl_w]; ld.param.u64 %rd2, [pdl_x]; ld.param.u64 %rd3, [pdl_y];\n"
        "ld.global.b32 %r1, [%rd1];\ngriddepcontrol.wait;\nld.global.b32 %r2, [%rd2];\n"
        "griddepcontrol.launch_dependents;\nst.global.b32 [%rd3], %r2;\nret;"
    )
    kernel = files.kernel("pdl", code, ["in:w", "in:x", "out:y"])
    producers = [sk.Op(files.add(), ["a", "b", "w", 512]), sk.Op(files.add(), ["a", "b", "c", 512])]
    plan = plan_of([*producers, sk.Op(kernel, ["w", "c", "d"], name="pdl")])
    waits = [step for step in plan.steps if isinstance(step, Wait) and step.op == 2]
    assert [wait.inside for wait in waits] == [False, True], "it reads w before its wait point, and c behind it"
    text = make_text(plan.graph, 2, small_gpu()).text.partition("$sk_pdl_block:")[2]
    assert text.index("ld.global.b32 %r1") < text.index("$sk_pdl_wait_poll:") < text.index("ld.global.b32 %r2")
    outside = plan_of([*producers, sk.Op(kernel, ["w", "c", "d"], name="pdl")], "early-start=2")
    assert not any(isinstance(step, Wait) and step.inside for step in outside.steps)
    alone = plan_of([sk.Op(kernel, ["w", "c", "d"], name="pdl")])
    text = make_text(alone.graph, 2, small_gpu(), waiting=waiting_kernels(alone)).text
    assert "$sk_pdl_wait" not in text, "nothing that it waits for is in the launch"


def test_proxies_are_fenced_and_barrier_objects_invalidated(files: PtxFolder) -> None:
    code = (
        "ld.param.u64 %rd1, [bulk_x]; mov.u32 %r1, dynamic;\nmbarrier.init.shared::cta.b64 [%r1], 1;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+16], [%rd1], 16, [%r1];\nret;"
    )
    kernel = files.kernel("bulk", code, ["in:x"], shared=64)
    text = make_text(graph_of([sk.Op(kernel, ["a"]), sk.Op(files.total(), ["a", "t"])]), 2, small_gpu()).text
    section = text.partition("$sk_bulk:")[2].partition("// ==== ")[0]
    before, _, after = section.partition("$sk_bulk_block:")
    assert "fence.proxy.async.shared::cta;" in before  # the launch does not write what is copied
    assert "mbarrier.inval.shared.b64 [%sk_a];" in after.partition("$sk_bulk_done:")[2]
    assert "fence.proxy.async" not in text.partition("$sk_total:")[2]


def test_a_wait_does_not_sink_for_nothing_or_where_it_may_not(files: PtxFolder) -> None:
    ops = [sk.Op(files.add(), ["a", "b", "c", 512]), sk.Op(files.total(), ["c", "t"])]
    plan = plan_of(ops)
    assert not plan.graph.nodes[1].kernel.waits_inside
    assert "early start: total has nothing in flight before it needs what other ops store" in plan.notes
    assert not any("early start" in note for note in plan_of(ops, "early-start=2").notes)


def test_delays_are_emitted_only_for_tests(files: PtxFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = make_text(graph_of(two_ops(files)), 2, small_gpu()).text
    monkeypatch.setenv(DELAYS, "1")
    delayed = make_text(graph_of(two_ops(files)), 2, small_gpu()).text
    assert "nanosleep.u32 %sk_c;" in delayed and "nanosleep.u32 %sk_c;" not in plain


def test_a_table_is_copied_to_shared_memory_or_lies_in_constant_or_global_memory(files: PtxFolder) -> None:
    graph = graph_of(two_ops(files))
    shared = make_text(graph, 2, small_gpu()).text
    assert ".visible .global .align 64 .b8 sk_tasks[61440]" in shared and "ld.shared.u32 %sk_kind" in shared
    sizes = (1, MOST_CONSTANT_TABLE + 1)
    small, large = (make_text(graph, 2, small_gpu(), size, shares_table=False).text for size in sizes)
    assert "cp.async" in shared and "cp.async" not in small + large
    assert ".visible .const .align 64 .b8 sk_tasks[61440]" in small and "ld.const" in small
    assert ".visible .global .align 64 .b8 sk_tasks[122880]" in large and "ld.const" not in large


def test_rooms_are_few() -> None:
    assert {table_room(size) for size in range(0, 200_000, 1000)} == {61440, 122880, 245760}
    assert len({value_room(count) for count in range(1, 4000)}) <= 6


@pytest.mark.usefixtures("unassembled")
def test_too_many_kernels_or_too_much_text_is_refused(files: PtxFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [files.kernel(f"k{number}", "ret;", ["inout:x"]) for number in range(33)]
    graph = graph_of([sk.Op(kernel, ["x"]) for kernel in kernels])
    with pytest.raises(BuildError, match="33 different sub-kernels; a super kernel holds at most 32: split the list"):
        make_text(graph, 1, small_gpu())
    monkeypatch.setattr(super_kernel_text, "MOST_TEXT", 1024)
    with pytest.raises(BuildError, match="KB of PTX; a super kernel holds at most 1 KB: split the list"):
        make_text(graph_of(two_ops(files)), 1, small_gpu())
