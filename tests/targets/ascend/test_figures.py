"""The promised numbers, with room for a machine that does other things as well; figures.py prints them."""

from __future__ import annotations

import pytest
from targets.ascend.figures import BARRIER, emitting, emulating, moe_layer, moe_plan


@pytest.mark.serial
def test_emitting_two_thousand_ops_takes_less_than_ten_seconds_and_grows_linearly() -> None:
    rounds = [(emitting(1000), emitting(2000)) for _ in range(5)]
    small, large = (min(times[which].processor for times in rounds) for which in (0, 1))
    assert large <= 2 * 1.2 * small
    assert min(times[1].clock for times in rounds) < 30  # ten, on a machine that does nothing else


@pytest.mark.serial
def test_emulating_eight_mixed_ops_on_all_cores_takes_less_than_two_seconds() -> None:
    _, most = emulating(range(3))
    assert most < 6  # two, on a machine that does nothing else


@pytest.mark.parametrize("options", ["", "stream-fusion=1", "early-start=2"])
def test_a_layer_of_experts_needs_at_most_half_of_a_full_barrier_per_op(options: str) -> None:
    assert len(moe_layer()) == 60
    plan = moe_plan(options)
    assert plan.flag_actions <= BARRIER * 60 // 2, f"{plan.flag_actions} flag actions"
    assert plan.blocking_steps <= BARRIER * 60 // 2
