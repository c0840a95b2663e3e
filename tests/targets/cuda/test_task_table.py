"""targets.cuda.task_table and read_back: the table of a plan is the plan, and a change of any word is noticed (P22)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from targets.cuda.written_kernels import VECTOR, PtxFolder, plan_of, small_gpu

import superkernel as sk
from superkernel.errors import BuildError
from superkernel.targets.cuda.device import DeviceDescription
from superkernel.targets.cuda.numbering import CodeOfKernel, CudaNumbering, SlotGrid
from superkernel.targets.cuda.plan import CudaPlan
from superkernel.targets.cuda.read_back import check_table
from superkernel.targets.cuda.task_layout import (
    HEADER_BYTES,
    SECTION_MASK,
    TASK_BYTES,
    WORD,
    CodeSection,
    NeedKind,
    TaskFlag,
    TaskWord,
)
from superkernel.targets.cuda.task_table import TaskTable, encode

ROOM = 4096  # words of shared memory


@pytest.fixture
def files(tmp_path: Path) -> PtxFolder:
    return PtxFolder(tmp_path)


def numbered(plan: CudaPlan, room: int = ROOM) -> CudaNumbering:
    kernels = list(dict.fromkeys(node.kernel for node in plan.graph.nodes))
    codes = {
        kernel: CodeOfKernel(len(CodeSection) + number, len(kernel.params), waits_inside=bool(kernel.waits_inside))
        for number, kernel in enumerate(kernels)
    }
    return CudaNumbering(plan, plan.shape, codes, room)


def chain(files: PtxFolder, wide: int = 12) -> list[sk.Op]:
    """small -> wide -> wide -> small, with a constant that is prefetched, and events."""
    add, total = files.add(grid=(wide, 1, 1)), files.total()
    return [
        sk.Op(total, ["a", "s"], name="first"),
        sk.Op(add, ["a", "b", "c", 512], name="left"),
        sk.Op(add, ["c", "b", "d", 512], name="right", send=["done"]),
        sk.Op(total, ["d", "t"], name="last", recv=["go"]),
    ]


def task_words(table: TaskTable, core: int) -> list[Sequence[int]]:
    (offset,) = struct.unpack_from("<I", table.data, HEADER_BYTES + WORD * core)
    tasks: list[Sequence[int]] = []
    while not tasks or tasks[-1][TaskWord.KIND] & SECTION_MASK != CodeSection.END:
        tasks.append(struct.unpack_from(f"<{len(TaskWord)}I", table.data, offset + TASK_BYTES * len(tasks)))
    return tasks


SWEPT = ("early-start=0", "profiling=1", "debug-sync-all=1:debug-dcci-all=1", "stream-fusion=1", "prefetch-weights=1")
OPTIONS = ("", SWEPT[-1], *(pytest.param(options, marks=pytest.mark.conformance) for options in SWEPT[:-1]))


@pytest.mark.parametrize("copied", [True, False], ids=["in shared memory", "in device memory"])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_change_of_any_word_is_noticed(files: PtxFolder, options: str, copied: bool) -> None:
    numbers = numbered(plan_of(chain(files), options))
    data = encode(numbers, copied=copied).data
    check_table(data, numbers, copied=copied)
    for place in range(0, len(data), WORD):
        (word,) = struct.unpack_from("<I", data, place)
        for other in {word ^ 1, word + TASK_BYTES & 0xFFFFFFFF}:
            changed = bytearray(data)
            struct.pack_into("<I", changed, place, other)
            with pytest.raises(BuildError, match="the task table is not the validated plan"):
                check_table(bytes(changed), numbers, copied=copied)


def test_a_table_is_for_copies_or_for_device_memory(files: PtxFolder) -> None:
    numbers = numbered(plan_of(chain(files)))
    for copied in (True, False):
        with pytest.raises(BuildError, match="the task table is not the validated plan"):
            check_table(encode(numbers, copied=copied).data, numbers, copied=not copied)


def test_an_sm_copies_the_lists_of_its_own_cores(files: PtxFolder) -> None:
    """With one slot on an SM that is one list, whatever the number of lists; arguments take half of their size."""
    plan = plan_of(chain(files), "prefetch-weights=1", cores=12, device=replace(small_gpu(12), threads=160))
    assert (plan.shape.sms, plan.shape.slots) == (12, 1), plan.shape
    table = encode(numbered(plan))
    lists = {run.offset: TASK_BYTES * len(run.steps) for run in table.runs}
    assert len(lists) > 1
    for run in table.runs:
        for core in run.cores:
            part = table.parts[core]
            assert (part.lists, part.lists_end) == (run.offset, run.offset + lists[run.offset])
            assert table.place_in_copy(run.offset, core) == table.parts_place
    assert table.copy_bytes < len(table.data) - min(lists.values())


@pytest.mark.parametrize("options", ["", "early-start=0"])
def test_a_change_of_any_word_of_a_plan_in_clusters_is_noticed(files: PtxFolder, options: str) -> None:
    """Wide ops wait by counters, small ones by words of their cluster; every flag of a task is changed as well."""
    plan = plan_of(chain(files, 8)[1:3] + cluster_ops(files), options, device=clustered_gpu())
    assert plan.shape.cluster == 4 and plan.shape.sms == 8, str(plan)
    numbers = numbered(plan)
    table = encode(numbers)
    check_table(table.data, numbers)
    kinds = {numbers.need_kind(key, waiting[0]) for key, waiting in numbers.waiters.items()}
    assert kinds == {NeedKind.CLUSTER, NeedKind.FAR}
    first, last = (
        min(run.offset for run in table.runs),
        max(run.offset + TASK_BYTES * len(run.steps) for run in table.runs),
    )
    for place in range(0, len(table.data), WORD):
        (word,) = struct.unpack_from("<I", table.data, place)
        others = {word ^ 1, word + TASK_BYTES & 0xFFFFFFFF}
        if first <= place < last and (place - first) % TASK_BYTES == WORD * TaskWord.KIND:
            others |= {word ^ flag.value for flag in TaskFlag}
        if first <= place < last and (place - first) % TASK_BYTES == WORD * TaskWord.SIGNAL_SHARE:
            others |= {word ^ 1 << rank for rank in range(16)}
        for other in others:
            changed = bytearray(table.data)
            struct.pack_into("<I", changed, place, other)
            with pytest.raises(BuildError, match="the task table is not the validated plan"):
                check_table(bytes(changed), numbers)


def test_words_of_a_cluster_are_at_the_same_place_on_all_its_sms(files: PtxFolder) -> None:
    numbers = numbered(plan_of(chain(files, 8)[1:3] + cluster_ops(files), device=clustered_gpu()))
    words = [numbers.shared_words[key] for key in numbers.cluster_ranks]
    assert len(set(words)) == len(words) >= 3
    for key, ranks in numbers.cluster_ranks.items():
        sms = {numbers.shape.sm(core) for core in numbers.waiters[key]}
        assert {sm % 4 for sm in sms} == {rank for rank in range(16) if ranks >> rank & 1}
        assert len({sm // 4 for sm in (*sms, *map(numbers.shape.sm, key[1]))}) == 1


def cluster_ops(files: PtxFolder) -> list[sk.Op]:
    """Small ops behind the wide ones of `chain`."""
    add = files.add(grid=(4, 1, 1))
    names = ["d", *(f"e{number}" for number in range(6))]
    return [sk.Op(add, [names[number], "b", names[number + 1], 512], name=f"small{number}") for number in range(6)]


def clustered_gpu() -> DeviceDescription:
    """One slot on each of 16 SMs."""
    return small_gpu(16, architecture="sm_90a", largest_cluster=4, threads=128)


@pytest.mark.parametrize("options", SWEPT)
def test_the_table_of_a_plan_is_read_back(files: PtxFolder, options: str) -> None:
    numbers = numbered(plan_of(chain(files), options))
    check_table(encode(numbers).data, numbers)


def test_a_table_of_another_length_is_noticed(files: PtxFolder) -> None:
    numbers = numbered(plan_of(chain(files)))
    data = encode(numbers).data
    for other in (data[:-WORD], data + bytes(16), data[: len(data) // 2]):
        with pytest.raises(BuildError, match="the task table"):
            check_table(other, numbers)


def test_the_table_of_another_plan_is_noticed(files: PtxFolder) -> None:
    ops = chain(files)
    numbers = numbered(plan_of(ops))
    exchanged = [ops[0], sk.Op(ops[1].kernel, ["b", "a", "c", 512], name="left"), *ops[2:]]
    later = encode(numbered(plan_of(exchanged))).data
    with pytest.raises(BuildError, match="argument 0 of op 'left'"):
        check_table(later, numbers)


def test_cores_that_differ_in_their_number_share_a_list(files: PtxFolder) -> None:
    numbers = numbered(plan_of(chain(files)))
    table = encode(numbers)
    assert len(table.runs) < numbers.shape.cores
    assert [core for run in table.runs for core in run.cores] == list(range(numbers.shape.cores))
    for run in table.runs:
        first, last = task_words(table, run.first), task_words(table, run.last - 1)
        assert first == last
    calls = [t for t in task_words(table, 5) if t[TaskWord.KIND] & SECTION_MASK >= len(CodeSection)]
    assert all(t[TaskWord.KIND] & TaskFlag.RANKED for t in calls)
    assert {(t[TaskWord.FIRST_BLOCK] + 5) % (1 << 32) for t in calls} == {5}


def test_a_wait_is_for_all_cores_of_the_producer_and_aggregated_by_sm(files: PtxFolder) -> None:
    plan = plan_of(chain(files), cores=12, device=small_gpu(4))
    assert (plan.shape.sms, plan.shape.slots) == (4, 3)
    numbers = numbered(plan)
    left = next(t for t in task_words(encode(numbers), 10) if t[TaskWord.KIND] & TaskFlag.SHARED_SIGNAL)
    assert left[TaskWord.KIND] & TaskFlag.SHARED_SIGNAL and left[TaskWord.KIND] & TaskFlag.WHOLE_SM
    assert left[TaskWord.SIGNAL_SHARE] == 0, "all three slots of an SM arrive together"
    waiting = [key for key in numbers.waiters if len(key[1]) == 12]
    assert waiting and all(numbers.need_kind(key, 11) is NeedKind.SHARED for key in waiting)


def test_without_room_in_shared_memory_every_core_arrives_by_itself(files: PtxFolder) -> None:
    numbers = numbered(plan_of(chain(files), cores=12, device=small_gpu(4)), room=0)
    table = encode(numbers)
    check_table(table.data, numbers)
    assert numbers.shared_word_count == 0
    assert not any(t[TaskWord.KIND] & TaskFlag.SHARED_SIGNAL for core in range(12) for t in task_words(table, core))


def test_cores_of_one_sm_use_shared_words_alone(files: PtxFolder) -> None:
    add, total = files.add(grid=(3, 1, 1)), files.total()
    plan = plan_of([sk.Op(add, ["a", "b", "c", 512]), sk.Op(total, ["c", "t"]), sk.Op(add, ["c", "c", "d", 512])])
    assert (plan.shape.sms, plan.shape.slots) == (1, 3)
    numbers = numbered(plan)
    check_table(encode(numbers).data, numbers)
    assert not numbers.counters and numbers.waiters


def test_few_blocks_that_move_much_are_on_several_sms(files: PtxFolder) -> None:
    large = files.kernel("large", "ret;", ["in:x:float32[100000]"], grid=(3, 1, 1))
    assert plan_of([sk.Op(large, ["a"])]).shape == SlotGrid(3, 3, 1)
    assert plan_of([sk.Op(files.add(grid=(3, 1, 1)), ["a", "b", "c", 512])]).shape == SlotGrid(3, 1, 3)


def test_a_chain_of_single_blocks_is_one_core_without_a_wait(files: PtxFolder) -> None:
    total = files.total()
    plan = plan_of([sk.Op(total, ["a", "b"]), sk.Op(total, ["a", "c"]), sk.Op(total, ["a", "d"])], cores=528)
    assert plan.cores == 1 and plan.blocking_steps == 0
    numbers = numbered(plan)
    tasks = task_words(encode(numbers), 0)
    assert len(tasks) == 4 and not numbers.waiters


def test_copies_of_a_replicated_op_lie_one_after_the_other(files: PtxFolder) -> None:
    small = files.kernel(
        "small", "ld.param.u64 %rd1, [small_x]; ld.param.u64 %rd2, [small_y]; ld.global.u32 %r1, [%rd1];"
        "st.global.u32 [%rd2], %r1; ret;", [f"in:x:{VECTOR}", "out:y:float32[512]"], grid=(1, 1, 1), pure=True,
    )  # fmt: skip
    add = files.add(grid=(12, 1, 1))
    ops = [sk.Op(add, ["a", "b", "c", 512]), sk.Op(small, ["c", "h"]), sk.Op(add, ["h", "b", "e", 512])]
    plan = plan_of(ops, cores=12, device=small_gpu(4))
    assert len(plan.copies[1]) == 4, plan.summary
    numbers = numbered(plan)
    table = encode(numbers)
    check_table(table.data, numbers)
    assert numbers.copies_bytes == 3 * 2048, "one copy per SM; that of the first is the buffer itself"
    assert plan.placements[1] == (8, 9, 10, 11) and plan.sync_counts["near"] == 1
    waits = [t for t in task_words(table, 3) if t[TaskWord.KIND] & TaskFlag.NEAR_WAIT or t[TaskWord.MORE_NEEDS_COUNT]]
    assert len(waits) == 1, "a slot that computes no copy waits for the one of its SM"
    assert task_words(table, 5) == task_words(table, 1), "lists that say the same are stored once"


def test_scratch_memory_of_ops_is_apart(files: PtxFolder) -> None:
    plan = plan_of(chain(files))
    numbers = numbered(plan)
    kernel = plan.graph.nodes[1].kernel
    scratch = CodeOfKernel(len(CodeSection) + 1, len(kernel.params) + 2, len(kernel.params), 128)
    numbers = CudaNumbering(plan, plan.shape, {**numbers.codes, kernel: scratch}, ROOM)
    check_table(encode(numbers).data, numbers)
    assert numbers.scratch_bytes == 2 * 12 * 128
    areas = [(area.offset, area.stride) for area in numbers.scratch.values()]
    assert areas == [(0, 1536), (1536, 1536)]


def test_time_stamps_are_numbered_in_the_order_of_the_records(files: PtxFolder) -> None:
    numbers = numbered(plan_of(chain(files), "profiling=1"))
    table = encode(numbers)
    for core in range(numbers.shape.cores):
        stamps = [
            t[TaskWord.STAMP] for t in task_words(table, core) if t[TaskWord.KIND] & SECTION_MASK == CodeSection.STAMP
        ]
        assert stamps == list(range(len(stamps)))
        steps = [numbers.plan.steps[number] for number in numbers.stamped_steps(core)]
        assert len(steps) == len(stamps) <= numbers.stamp_room
    assert numbered(plan_of(chain(files))).stamp_room == 0


def test_every_value_of_the_table_has_a_line_in_the_listing(files: PtxFolder) -> None:
    table = encode(numbered(plan_of(chain(files))))
    lists = {run.offset: len(run.steps) for run in table.runs}
    lines = table.listing.splitlines()
    assert len(lines) == 1 + len(lists) + sum(lists.values()) and all(line.startswith("//") for line in lines)
    assert any("wait for counter" in line and "call right: 12 blocks" in line for line in lines)
    assert len(table.task_steps()) == 12
