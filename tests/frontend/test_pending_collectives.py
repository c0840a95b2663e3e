"""The finish of a collective stands before the first op that needs it, directly or through another finish."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from superkernel.frontend.collective_match import FusedCollective
from superkernel.frontend.lowering.program_trace import LibraryCall
from superkernel.frontend.pending_collectives import PendingCollectives
from superkernel.frontend.process_groups import ProcessGroupRanks
from superkernel.model.op import Op
from superkernel.model.ranks import RankGroup
from superkernel.model.tensor_arg import TensorArg
from superkernel.targets.collectives import CollectiveKind, CollectiveTerms
from superkernel.targets.cpu.kernels.collectives import collective_ops

PAIR, ALONE = RankGroup("pair", (0, 1), 0), RankGroup("alone", (0,), 0)
OTHER = RankGroup("other", (0, 2), 0)
LARGE = 1 << 20  # elements: such an all_reduce has two windows
CALL = LibraryCall(SimpleNamespace(), (), {}, ())


def collective(group: RankGroup, given: str, result: str, count: int = 8) -> FusedCollective:
    terms, name = CollectiveTerms(CollectiveKind.ALL_REDUCE), f"{given}_to_{result}"
    tensors = [TensorArg(buffer, 0, "float32", (count,), (1,)) for buffer in (given, result)]
    ops = collective_ops(terms, *tensors, group, name, 1)
    handle: Any = object()
    return FusedCollective(name, CALL, terms, ProcessGroupRanks(group, handle, handle, 1.0), ops, 32)


def reading(name: str) -> list[Op]:
    """Ops that read a buffer and write another."""
    return list(collective(ALONE, name, "elsewhere").ops.finish)


def pending(*collectives: FusedCollective) -> PendingCollectives:
    started = PendingCollectives()
    for each in collectives:
        started.start(each)
    return started


def test_what_an_op_does_not_need_stays_pending() -> None:
    first, second = collective(PAIR, "a", "b"), collective(PAIR, "c", "d")
    started = pending(first, second)
    assert started.needed_by(reading("d")) == [second]
    assert started.needed_by(reading("d")) == []
    assert started.rest() == [first]


def test_a_finish_that_reads_the_result_of_another_comes_behind_it() -> None:
    """A collective of one rank starts with no op: its finish is the first that reads its input."""
    first, apart, second, third = (
        collective(PAIR, "a", "b"),
        collective(PAIR, "x", "y"),
        collective(ALONE, "b", "c"),
        collective(ALONE, "c", "d"),
    )
    started = pending(first, apart, second, third)
    assert started.needed_by(reading("d")) == [first, second, third]
    assert started.rest() == [apart]


def test_an_op_that_overwrites_the_input_of_a_finish_comes_behind_it() -> None:
    first = collective(PAIR, "a", "b")
    assert pending(first).needed_by(collective(ALONE, "c", "a").ops.finish) == [first]


def test_a_finish_that_notifies_comes_before_what_is_notified_later() -> None:
    """Whatever else a rank computes in between: then all ranks notify each other in one order."""
    large, small = collective(PAIR, "a", "b", LARGE), collective(PAIR, "c", "d")
    later = collective(OTHER, "e", "f")
    assert pending(large, small).needed_by(later.ops.start) == [large]
    assert pending(small, large).needed_by(later.ops.start) == [large]
    together = collective(PAIR, "x", "y", LARGE)  # started by the same call
    assert pending(large, together).needed_by(reading("y")) == [large, together]
    assert pending(large, together).needed_by(reading("b")) == [large]
