"""Models that torch's own API shards, in-place collectives, scopes and training, between two processes."""

from __future__ import annotations

import pytest
from frontend.ranks import model_cases
from frontend.ranks.rank_processes import RankProcesses

LONG = pytest.mark.conformance


@pytest.mark.parametrize(
    ("name", "collectives"), [pytest.param("mlp", 1, marks=LONG), ("block", 2), pytest.param("sequence", 2, marks=LONG)]
)
def test_sharded_models_are_one_super_kernel(pair: RankProcesses, name: str, collectives: int) -> None:
    outcomes = pair.call(model_cases.sharded_model, name)
    for outcome in outcomes:
        (segment,) = outcome.segments
        # an all_reduce and the RMSNorm behind it need one sync across ranks
        assert [segment[what] for what in ("collectives", "awaits", "notifies")] == [collectives] * 3
        assert outcome.torch_calls == []
    assert len({outcome.digest for outcome in outcomes}) == 1


@LONG
@pytest.mark.parametrize("function", [model_cases.dtensors, model_cases.in_place])
def test_distributed_tensors_and_functions_are_one_super_kernel(pair: RankProcesses, function: object) -> None:
    for (segment,) in pair.call(function):
        assert segment["collectives"] == segment["awaits"] == segment["notifies"] > 1


@LONG
def test_a_scope_holds_collectives_and_explain_shows_them(pair: RankProcesses) -> None:
    for (segment,), text in pair.call(model_cases.scoped):
        assert segment["collectives"] == 2
        words = " ".join(text.split())
        assert "all_reduce (sum) of 24 B, group 0 (ranks 0,1), shared memory, 1 sync across ranks, about" in words
        assert "us (estimated)" in words


@LONG
def test_gradients_through_collectives_are_those_of_eager_mode(pair: RankProcesses) -> None:
    pair.call(model_cases.trained)


@LONG
def test_new_shapes_and_inference_mode_share_memory_of_their_own(pair: RankProcesses) -> None:
    pair.call(model_cases.shapes_and_modes)
