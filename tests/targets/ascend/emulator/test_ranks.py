"""Collectives between emulated chips: results, faults that must be found, and ranks that do not fit together."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
from targets.ascend.emulator.rank_kernels import (
    KERNELS,
    Chain,
    Stage,
    collective_ops,
    group,
    run,
    tensor,
    with_sources,
)

import superkernel as sk
from superkernel.errors import GraphError, LaunchError, UnsupportedError
from superkernel.targets.ascend.emulator import rank_launch
from superkernel.targets.collectives import CollectiveKind, CollectiveTerms

SUM = Stage(CollectiveKind.ALL_REDUCE)
ALL_KINDS = (
    SUM,
    Stage(CollectiveKind.ALL_TO_ALL),
    Stage(CollectiveKind.REDUCE_SCATTER, "max"),
    Stage(CollectiveKind.ALL_GATHER),
    Stage(CollectiveKind.BROADCAST, root=1),
    Stage(CollectiveKind.ALL_TO_ALL, uneven=True),
)
CHAIN = Chain(ALL_KINDS, 40)
Kernels = list[sk.SuperKernel]


@pytest.fixture(scope="module")
def kernels() -> Iterator[Kernels]:
    compiled = CHAIN.compiled()
    yield compiled
    for kernel in compiled:
        kernel.close()


def check(chain: Chain, kernels: Kernels, seeds: range, launches: int) -> None:
    for seed in seeds:
        inputs = chain.inputs(seed)
        outputs = sk.emulate_ranks(kernels, inputs, seed=seed, launches=launches)
        for output, expected in zip(outputs, chain.expected(inputs), strict=True):
            assert np.array_equal(output[chain.last], expected), f"seed {seed}"


def test_every_kind_has_the_values_of_a_serial_reference(kernels: Kernels) -> None:
    check(CHAIN, kernels, range(8), launches=3)


def test_the_same_seed_gives_the_same_run(kernels: Kernels) -> None:
    steps = []
    for _ in range(2):
        sk.emulate_ranks(kernels, CHAIN.inputs(0), seed=5, launches=2)
        emulated = kernels[1].emulated
        assert emulated is not None
        steps.append([(span.core, span.op, span.begin_ns) for span in emulated.spans])
    assert steps[0] == steps[1] and steps[0]


# faults in the emitted text of rank 0

NOTIFY = re.compile(r"\n *// notify event arrival at c0, .*\n.*sk_publish\(.*, 1\);")
WAIT = re.compile(r"\n *// wait for event arrival at c0, .*\n.*sk_await\(.*, 1\);")
RESET = re.compile(r"\n *// reset event arrival at c0, .*\n.*sk_publish\(.*, 0\);")
CALL = re.compile(r"\n *// call c0_publish on vector cores\n")


def without(pattern: re.Pattern[str], source: str) -> str:
    assert len(pattern.findall(source)) == 1
    return pattern.sub("", source)


def moved(pattern: re.Pattern[str], before: re.Pattern[str], source: str) -> str:
    """What a pattern finds, in front of what another finds."""
    found, left = pattern.search(source), without(pattern, source)
    place = before.search(left)
    assert found is not None and place is not None
    return left[: place.start()] + found.group() + left[place.start() :]


def with_fault(kernels: Kernels, source: str, seeds: range = range(6)) -> list[str]:
    """What is found, seed by seed."""
    found = []
    for seed in seeds:
        with pytest.raises(LaunchError) as caught:
            run(with_sources(kernels, CHAIN.inputs(seed), {0: source}), seed, launches=2)
        found.append(str(caught.value))
    return found


def test_a_missing_notify_is_a_deadlock_of_both_ranks(kernels: Kernels) -> None:
    for text in with_fault(kernels, without(NOTIFY, kernels[0].source)):
        assert "deadlock: no core of any rank can go on" in text or "was never set" in text
        assert "event arrival at c0, 0 to 1" in text
        if "deadlock" in text:
            assert "poll event arrival at c0, 0 to 1 and see 0" in text and "of rank 1" in text


def test_a_missing_wait_is_found_whatever_the_values_are(kernels: Kernels) -> None:
    for text in with_fault(kernels, without(WAIT, kernels[0].source)):
        assert "rank 0" in text and "c0" in text
        assert "nothing orders it after a core that saw event arrival at c0, 1 to 0" in text


def test_a_notify_before_its_op_is_found(kernels: Kernels) -> None:
    for text in with_fault(kernels, moved(NOTIFY, CALL, kernels[0].source)):
        assert "nothing orders it after op 'c0_publish'" in text and "rank 0" in text


def test_a_word_that_is_not_reset_is_found(kernels: Kernels) -> None:
    for text in with_fault(kernels, without(RESET, kernels[0].source)):
        assert "rank 0: event arrival at c0, 1 to 0 is 1 at the end" in text


def test_a_word_that_is_reset_before_its_ops_is_found(kernels: Kernels) -> None:
    for text in with_fault(kernels, moved(RESET, re.compile(r"\n *// call c0_reduce "), kernels[0].source)):
        assert "resets event arrival at c0, 1 to 0 before it has run the ops that it holds back" in text


def test_windows_that_are_used_again_in_the_next_launch_are_found(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_launch, "_IN_TURN", 1)
    found = set()
    for seed in range(12):
        try:
            sk.emulate_ranks(kernels, CHAIN.inputs(seed), seed=seed, launches=3)
        except LaunchError as error:
            found.add(str(error))
    assert any("it would be lost" in text or "without being ordered after" in text for text in found)


# ops whose kernels touch what other ranks store


def one_sum(rank: int, sender: str, written_rank: int) -> list[sk.Op]:
    """An all_reduce whose sender is a kernel of ours."""
    made = collective_ops(
        CollectiveTerms(CollectiveKind.ALL_REDUCE), tensor("x", 16), tensor("y", 16), group(rank, 2), "w", 2
    )
    (publish,), finish = made.start, made.finish
    kernel = sk.SubKernel.from_source(
        KERNELS, sender, block_dim=1, params=["in:x:float32[16]", "out:window:uint8[1024]", "scalar:rank:int64"],
        core="vector", op_type=publish.kernel.op_type, sync_all=False, early_start=False,
    )  # fmt: skip
    return [sk.Op(kernel, ["x", "w", written_rank], name="send", ranks=publish.ranks), *finish]


def texts_of(kernels: Kernels) -> list[str]:
    found = []
    for seed in range(4):
        with pytest.raises(LaunchError) as caught:
            sk.emulate_ranks(kernels, [{"x": np.ones(16, np.float32)}] * len(kernels), seed=seed)
        found.append(str(caught.value))
    return found


def test_ranks_that_store_into_one_slot_race() -> None:
    compiled = [sk.compile(one_sum(rank, "put", 1), f"rank{rank}", target="ascend") for rank in range(2)]
    for text in texts_of(compiled):
        assert "op 'send'" in text and "byte 512 of buffer 'w'" in text
        assert "of rank 0" in text and "of rank 1" in text


def test_a_rank_that_reads_a_slot_before_its_signal_races() -> None:
    compiled = [sk.compile(one_sum(rank, "put_and_look", rank), f"rank{rank}", target="ascend") for rank in range(2)]
    for text in texts_of(compiled):
        assert "without being ordered after" in text or "is still on its way" in text
        assert "op 'send'" in text and "of buffer 'w'" in text
        assert "of rank 0" in text and "of rank 1" in text


# ranks that do not fit together


def compiled_chain(stages: tuple[Stage, ...], rank: int, ranks: int = 2, count: int = 40) -> sk.SuperKernel:
    return sk.compile(Chain(stages, count, ranks).ops(rank), f"rank{rank}", target="ascend")


def test_ranks_with_another_order_or_size_are_refused_and_named() -> None:
    first = compiled_chain((SUM, Stage(CollectiveKind.ALL_TO_ALL)), 0)
    inputs = [{"x": np.ones(40, np.float32)}] * 2
    swapped = compiled_chain((Stage(CollectiveKind.ALL_TO_ALL), SUM), 1)
    with pytest.raises(LaunchError, match=r"rank 1 \('rank1'\) says otherwise: collective 0 is .*AllReduce.*AlltoAll"):
        sk.emulate_ranks([first, swapped], inputs)
    with pytest.raises(LaunchError, match="2 collectives here and 1 there"):
        sk.emulate_ranks([first, compiled_chain((SUM,), 1)], inputs)
    smaller = compiled_chain((SUM, Stage(CollectiveKind.ALL_TO_ALL)), 1, count=24)
    with pytest.raises(LaunchError, match=r"float32\[40\].*float32\[24\]"):
        sk.emulate_ranks([first, smaller], inputs)


def test_every_rank_needs_one_super_kernel(kernels: Kernels) -> None:
    inputs = CHAIN.inputs(0)
    with pytest.raises(LaunchError, match=r"there is no super kernel of rank 1; pass one for each rank"):
        sk.emulate_ranks(kernels[:1], inputs[:1])
    with pytest.raises(LaunchError, match="are both of rank 0"):
        sk.emulate_ranks([kernels[0], kernels[0]], inputs)
    with pytest.raises(LaunchError, match=r"emulate all of them together: sk\.emulate_ranks"):
        kernels[0].emulate(inputs[0])
    with pytest.raises(LaunchError, match="2 super kernels and 1 dicts of buffers"):
        sk.emulate_ranks(kernels, inputs[:1])
    with pytest.raises(LaunchError, match=r"'c0' is a window; the emulator makes it for all ranks"):
        sk.emulate_ranks(kernels, [{**each, "c0": np.zeros(1024, np.uint8)} for each in inputs])


def test_what_the_kernels_cannot_do_is_refused() -> None:
    x, y = tensor("x", 40), tensor("y", 40)
    for terms, source, result, why in (
        (CollectiveTerms(CollectiveKind.ALL_REDUCE, "xor"), x, y, "reduction 'xor'"),
        (CollectiveTerms(CollectiveKind.ALL_TO_ALL, sent=(1, 39), received=(1, 39)), x, y, "the splits of all ranks"),
        (CollectiveTerms(CollectiveKind.ALL_REDUCE), tensor("x", 40, "float64"), y, "there are kernels for"),
    ):
        with pytest.raises(UnsupportedError, match=why):
            collective_ops(terms, source, result, group(0, 2), "w", 4)
    for terms, source, result, why in (
        (CollectiveTerms(CollectiveKind.ALL_GATHER), x, y, "do not fit for 2 ranks"),
        (CollectiveTerms(CollectiveKind.ALL_REDUCE), x, x, "different buffers"),
        (CollectiveTerms(CollectiveKind.ALL_TO_ALL), tensor("x", 41), tensor("y", 41), "2 equal parts"),
    ):
        with pytest.raises(GraphError, match=why):
            collective_ops(terms, source, result, group(0, 2), "w", 4)
