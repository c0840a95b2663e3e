"""The promised numbers, with room for a machine that does other things as well; figures.py prints them."""

from __future__ import annotations

import pytest
from measured import grows_by, least
from targets.ascend.figures import BARRIER, LAYERS, barrier_share, emitting, emulating, moe_plan


@pytest.mark.conformance
def test_emitting_two_thousand_ops_takes_less_than_ten_seconds_and_grows_linearly() -> None:
    assert least(lambda: emitting(2000).processor, limit=10) < 10
    assert grows_by(lambda: emitting(1000), lambda: emitting(2000), limit=2 * 1.2) < 2 * 1.2


@pytest.mark.conformance
def test_emulating_eight_mixed_ops_on_all_cores_takes_less_than_two_seconds() -> None:
    """Of the clock, since cores are threads: six, where other processes have their share of the processors."""
    assert least(lambda: emulating(range(3))[1], limit=6) < 6


@pytest.mark.parametrize(("options", "promised"), LAYERS)
def test_a_layer_of_experts_needs_a_third_of_a_full_barrier_per_op_or_half_without_promises(
    options: str, promised: bool
) -> None:
    plan = moe_plan(options, promised)
    assert len(plan.graph.nodes) == 60 and plan.full_barrier_actions == BARRIER
    assert barrier_share(plan) <= (0.33 if promised else 0.5), f"{plan.flag_actions} flag actions"
    assert plan.blocking_steps <= BARRIER * 60 // 2
