"""Collectives between emulated GPUs: results under every order, planted faults, ranks that do not fit together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from targets.cuda.emulator.planted_faults import Words, replaced, with_tasks
from targets.cuda.emulator.rank_kernels import SMALL, Sums

import superkernel as sk
from superkernel.errors import BuildError, LaunchError, UnsupportedError
from superkernel.model.graph import build_graph
from superkernel.targets.cuda import target as cuda_target
from superkernel.targets.cuda.emulator import CudaEmulator
from superkernel.targets.cuda.executable import CudaExecutable
from superkernel.targets.cuda.read_back import check_table
from superkernel.targets.cuda.task_layout import SECTION_MASK, CodeSection, TaskFlag, TaskWord
from superkernel.targets.protocol import RankLaunch

SUMS = Sums(200)  # two blocks
Kernels = list[sk.SuperKernel]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernels]:
    compiled = SUMS.compiled(tmp_path_factory.mktemp("ptx"))
    yield compiled
    for kernel in compiled:
        kernel.close()


def check(sums: Sums, kernels: Kernels, seeds: range, launches: int) -> None:
    for seed in seeds:
        inputs = sums.inputs(seed)
        outputs = sk.emulate_ranks(kernels, inputs, seed=seed, launches=launches)
        for output in outputs:
            assert np.array_equal(output[sums.last], sums.expected(inputs)), f"seed {seed}"


def test_every_rank_has_the_sum_launch_after_launch(kernels: Kernels) -> None:
    check(SUMS, kernels, range(8), launches=3)


def test_ranks_of_several_sms_each(tmp_path: Path) -> None:
    """One slot on each SM: waits go through device memory."""
    sums = replace(SUMS, count=500, slots=False)
    kernels = sums.compiled(tmp_path)
    executable = kernels[0].executable
    assert isinstance(executable, CudaExecutable) and (executable.shape.sms, executable.slots) == (3, 1)
    check(sums, kernels, range(4), launches=2)


def test_arrivals_are_published_and_seen_at_system_scope(kernels: Kernels) -> None:
    text = kernels[0].source
    assert text.count("st.release.sys.global.u32 [%sk_event], %sk_launches;") == 1
    assert text.count("ld.acquire.sys.global.u32 %sk_seen, [%sk_event];") == 1
    assert kernels[0].plan.rank_syncs == SUMS.stages  # type: ignore[attr-defined]


def test_a_kernel_without_collectives_has_no_code_for_them(tmp_path: Path) -> None:
    ops = SUMS.ops(tmp_path, 0)[:1]
    with sk.compile(ops, "alone", target="cuda", chip=SMALL) as alone:
        assert "sk_await_ranks:" not in alone.source and "sk_notify_ranks:" not in alone.source


# faults


def found(kernels: Kernels, executables: Sequence[CudaExecutable], seeds: range = range(5)) -> list[str]:
    texts = []
    for seed in seeds:
        inputs = SUMS.inputs(seed)
        ranks = [
            RankLaunch(executable, given, kernel.emulator_inputs())
            for kernel, executable, given in zip(kernels, executables, inputs, strict=True)
        ]
        with pytest.raises(LaunchError) as caught:
            CudaEmulator().emulate_ranks(ranks, seed=seed, launches=3)
        texts.append(str(caught.value))
    return texts


def with_fault(kernels: Kernels, change: Callable[[CudaExecutable], CudaExecutable]) -> list[CudaExecutable]:
    """Rank 0 has the fault."""
    first, *others = (kernel.executable for kernel in kernels)
    assert isinstance(first, CudaExecutable)
    return [change(first), *others]  # type: ignore[list-item]


def section_out(section: CodeSection) -> Callable[[Words], bool]:
    """A task only waits and signals, in place of what it did."""

    def change(words: Words) -> bool:
        if words[TaskWord.KIND] & SECTION_MASK != section:
            return False
        words[TaskWord.KIND] = words[TaskWord.KIND] & ~SECTION_MASK | CodeSection.SYNC
        return True

    return change


def early_notify(words: Words) -> bool:
    if words[TaskWord.KIND] & SECTION_MASK != CodeSection.NOTIFY_RANKS or not words[TaskWord.KIND] & TaskFlag.WAITS:
        return False
    words[TaskWord.KIND] &= ~(TaskFlag.WAITS | TaskFlag.NEAR_WAIT | TaskFlag.SHARED_WAIT).value
    return True


def fewer_ranks(words: Words) -> bool:
    if words[TaskWord.KIND] & SECTION_MASK != CodeSection.AWAIT_RANKS:
        return False
    words[TaskWord.BLOCKS] -= 1
    return True


def test_a_missing_notify_is_a_deadlock_of_both_ranks(kernels: Kernels) -> None:
    executables = with_fault(kernels, lambda good: with_tasks(good, section_out(CodeSection.NOTIFY_RANKS)))
    for text in found(kernels, executables):
        assert "deadlock: no warp of any rank can go on" in text
        assert "of rank 1: polls byte 0 of buffer 'w0' and sees 0" in text


def test_a_missing_wait_a_notify_too_early_and_too_few_ranks_are_races(kernels: Kernels) -> None:
    for change in (section_out(CodeSection.AWAIT_RANKS), early_notify, fewer_ranks):
        executables = with_fault(kernels, lambda good, change=change: with_tasks(good, change))
        for text in found(kernels, executables):
            assert "data race" in text and "of buffer 'w0'" in text and "rank 0" in text


def test_a_scope_that_does_not_reach_the_other_gpu_is_found(kernels: Kernels) -> None:
    for old, new in (
        ("st.release.sys.global.u32 [%sk_event], %sk_l", "st.release.gpu.global.u32 [%sk_event], %sk_l"),
        ("st.release.sys.global.u32 [%sk_event], %sk_l", "st.relaxed.sys.global.u32 [%sk_event], %sk_l"),
        ("ld.acquire.sys.global.u32 %sk_seen", "ld.acquire.gpu.global.u32 %sk_seen"),
        ("ld.acquire.sys.global.u32 %sk_seen", "ld.relaxed.sys.global.u32 %sk_seen"),
    ):
        executables = with_fault(kernels, lambda good, old=old, new=new: replaced(good, old, new))
        for text in found(kernels, executables, range(3)):
            assert "data race" in text and "of buffer 'w0'" in text


def test_an_arrival_that_does_not_say_its_round_is_found_in_the_next(kernels: Kernels) -> None:
    stale = "mov.u32 %sk_launches, 1;\n\tst.release.sys.global.u32 [%sk_event], %sk_launches;"
    executables = with_fault(
        kernels, lambda good: replaced(good, "st.release.sys.global.u32 [%sk_event], %sk_launches;", stale)
    )
    for text in found(kernels, executables):
        assert "launch 2" in text or "deadlock" in text


# lines of the two sections without which a launch still does what it must, and why
HARMLESS = {
    "@!%sk_first bra $sk_ranks_join;": "every thread of the slot polls, and sees the same",
    "setp.ne.u32 %sk_abort": "a wait before has set it; it says something only where a launch is aborted",
    "@%sk_p bra $sk_end;": "taken only where a launch is aborted",
    "ld.shared.u32 %sk_launches": "the register holds it since the entry; it is loaded so that it need not be kept",
    "mov.u32 %sk_polls, 0;": "counts the patience of a wait",
    "mov.u64 %sk_since, 0;": "when a wait has begun, for its patience",
    "bar.warp.sync": "the lanes meet at the barrier behind it",
}


def rank_lines(source: str) -> list[str]:
    """The statements that wait for other ranks and notify them, without what a wait that lasts for long does."""
    lines = source.splitlines()
    begin, end = lines.index("$sk_await_ranks:"), lines.index("$sk_notify_ranks:")
    last = next(at for at in range(end, len(lines)) if "bra $sk_advance;" in lines[at] and "@" not in lines[at])
    patience = lines.index("$sk_ranks_poll:"), lines.index("$sk_ranks_seen:")
    tested = [line for line in lines[patience[0] : patience[1]] if "%sk_seen" in line or "setp.ge.s32" in line]
    section = [*lines[begin : patience[0]], *tested, *lines[patience[1] : last]]
    return [line for line in section if line.startswith("\t") and not line.startswith("\t//")]


@pytest.mark.conformance
def test_every_line_of_the_rank_sections_is_needed(kernels: Kernels) -> None:
    good = kernels[0].executable
    assert isinstance(good, CudaExecutable)
    unseen = []
    for line in dict.fromkeys(rank_lines(kernels[0].source)):
        head, _, tail = good.ptx.partition("$sk_await_ranks:")
        changed = head + "$sk_await_ranks:" + tail.replace(f"{line}\n", "", 1)
        executables = [replace(good, ptx=changed), *(kernel.executable for kernel in kernels[1:])]
        ranks = [
            RankLaunch(executable, given, kernel.emulator_inputs())
            for kernel, executable, given in zip(kernels, executables, SUMS.inputs(1), strict=True)
        ]
        for seed in range(6):
            try:
                CudaEmulator().emulate_ranks(ranks, seed=seed, launches=3)
            except (LaunchError, UnsupportedError):
                break
        else:
            unseen.append(line.strip())
    assert not [line for line in unseen if not any(line.startswith(known) for known in HARMLESS)]


def test_a_slot_that_is_used_in_every_round_is_found(tmp_path: Path) -> None:
    """Without the parity of the round, a rank stores into what another still reads."""
    texts = set()
    sums = replace(SUMS, stages=1)
    kernels = sums.compiled(tmp_path)
    executables = [
        replaced(kernel.executable, "and.b32 %r5, %r5, 1;", "and.b32 %r5, %r5, 0;")  # type: ignore[arg-type]
        for kernel in kernels
    ]
    for seed in range(12):
        ranks = [
            RankLaunch(executable, given, kernel.emulator_inputs())
            for kernel, executable, given in zip(kernels, executables, sums.inputs(seed), strict=True)
        ]
        try:
            CudaEmulator().emulate_ranks(ranks, seed=seed, launches=3)
        except LaunchError as error:
            texts.add(str(error))
    assert any("data race: it writes byte" in text and "after the read by op 'reduce_w" in text for text in texts)


def test_a_table_that_is_not_the_plan_is_refused(kernels: Kernels) -> None:
    for change in (section_out(CodeSection.NOTIFY_RANKS), section_out(CodeSection.AWAIT_RANKS), fewer_ranks):
        good = kernels[0].executable
        assert isinstance(good, CudaExecutable)
        check_table(good.table.data, good.numbers)
        with pytest.raises(BuildError, match="the task table is not the validated plan"):
            check_table(with_tasks(good, change).table.data, good.numbers)


# refused


def test_ranks_that_do_not_fit_together_are_refused_and_named(kernels: Kernels, tmp_path: Path) -> None:
    inputs = SUMS.inputs(0)
    shorter = replace(SUMS, stages=1).of_rank(tmp_path, 1)
    with pytest.raises(LaunchError, match=r"rank 1 \('rank1'\) says otherwise: 2 collectives here and 1 there"):
        sk.emulate_ranks([kernels[0], shorter], inputs)
    with pytest.raises(LaunchError, match="there is no super kernel of rank 1"):
        sk.emulate_ranks(kernels[:1], inputs[:1])
    with pytest.raises(LaunchError, match=r"emulate all of them together: sk\.emulate_ranks"):
        kernels[0].emulate(inputs[0])
    with pytest.raises(LaunchError, match="'w0' is a window; the emulator makes it"):
        window = np.zeros(kernels[0].graph.buffers["w0"].shape or (), np.uint8)
        sk.emulate_ranks(kernels, [{**each, "w0": window} for each in inputs])


def test_a_collective_does_not_run_op_by_op(tmp_path: Path) -> None:
    for option in ("debug-replay", "debug-check"):
        kernels = replace(SUMS, stages=1, options=f"{option}=1").compiled(tmp_path)
        with pytest.raises(UnsupportedError, match=f"{option}=1 runs every op alone"):
            sk.emulate_ranks(kernels, SUMS.inputs(0))
    part = build_graph(SUMS.ops(tmp_path, 0)[:2], "part", part=True)
    with pytest.raises(UnsupportedError, match="runs inside one super kernel, not op by op"):
        cuda_target._refuse_parts(part)


@pytest.mark.conformance
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("options", ["", "early-start=0", "profiling=1", "debug-sync-all=1"])
def test_more_ranks_sizes_and_orders(tmp_path: Path, ranks: int, options: str) -> None:
    for count, slots in ((1, True), (130, False), (700, False), (1500, True)):
        sums = Sums(count, 3, ranks, options, slots)
        check(sums, sums.compiled(tmp_path), range(8), launches=4)
