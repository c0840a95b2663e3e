"""The profit gate: fused and unfused take turns on real calls, the faster one stays, and nothing ever runs twice."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from frontend.fused import run
from torch import Tensor

from superkernel.cache import Cache
from superkernel.errors import BuildError
from superkernel.frontend.profit_gate import TURNS, ProfitGate
from superkernel.frontend.scope import super_kernel

MEASURED = 2 * TURNS + 2  # calls until it decides: a first one of each way is not counted


class Clock:
    """Time that passes only while a launch runs."""

    def __init__(self) -> None:
        self.now = 0
        self.launched: list[str] = []

    def read(self) -> int:
        return self.now

    def launcher(self, name: str, *takes: int) -> Any:
        durations = list(takes)

        def launch(values: Any, sizes: Any) -> None:
            self.launched.append(name)
            self.now += durations.pop(0) if len(durations) > 1 else durations[0]

        return launch


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_gate(clock: Clock, fused: Any, unfused: Any, cache: Cache | None = None, key: str = "k") -> ProfitGate:
    return ProfitGate(
        clock.launcher("fused", *fused), lambda: clock.launcher("unfused", *unfused), clock.read, key, cache
    )


@pytest.mark.parametrize(("fused", "unfused", "winner"), [(10, 20, "fused"), (20, 10, "unfused"), (10, 10, "fused")])
def test_they_take_turns_five_measured_calls_each_then_the_faster_one_stays(
    clock: Clock, fused: int, unfused: int, winner: str
) -> None:
    made = make_gate(clock, [fused], [unfused])
    for call in range(MEASURED):
        assert made.fuses is None
        made(None, None)
        assert len(clock.launched) == call + 1  # one launch per call
    assert clock.launched == ["fused", "unfused"] * (TURNS + 1)
    assert made.fuses == (winner == "fused")
    assert [len(times) for times in made.times.values()] == [TURNS, TURNS]
    assert made.medians_us == {"fused": fused / 1000, "unfused": unfused / 1000}
    clock.launched.clear()
    for _ in range(3):
        made(None, None)
    assert clock.launched == [winner] * 3


def test_a_slow_first_call_and_a_slow_outlier_do_not_decide(clock: Clock) -> None:
    made = make_gate(clock, [10_000, 10, 10, 9_000, 10], [20])
    for _ in range(MEASURED):
        made(None, None)
    assert made.fuses


def test_the_decision_and_its_times_are_found_again(clock: Clock, tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    first = make_gate(clock, [20], [10], cache)
    for _ in range(MEASURED):
        first(None, None)
    again = make_gate(clock, [20], [10], cache)
    assert again.fuses is False and again.medians_us == first.medians_us
    clock.launched.clear()
    again(None, None)
    assert clock.launched == ["unfused"]
    assert make_gate(clock, [20], [10], cache, "another").fuses is None


@pytest.mark.parametrize("text", ["", "{}", "nonsense", '{"fused": [], "unfused": []}', '{"fused": 1, "unfused": 2}'])
def test_what_cannot_be_read_is_measured_again(clock: Clock, tmp_path: Path, text: str) -> None:
    cache = Cache(tmp_path)
    blank = make_gate(clock, [20], [10], cache)
    cache.make(blank._entry(), ".json", lambda path: path.write_text(text or " ") and None)
    made = make_gate(clock, [20], [10], cache)
    for _ in range(MEASURED):
        made(None, None)
    assert made.fuses is False


def test_a_cache_that_cannot_be_written_does_not_disturb(clock: Clock, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    (tmp_path / "gone").write_text("a file")
    made = make_gate(clock, [20], [10], cache)
    for _ in range(MEASURED):
        made(None, None)
    assert made.fuses is False


def test_an_error_in_a_launch_is_the_callers_and_the_gate_goes_on(clock: Clock) -> None:
    def fails(values: Any, sizes: Any) -> None:
        raise ValueError

    made = ProfitGate(fails, lambda: clock.launcher("unfused", 1), clock.read, "k", None)
    with pytest.raises(ValueError):
        made(None, None)
    made(None, None)
    assert clock.launched == ["unfused"] and made.fuses is None


def test_threads_launch_once_per_call(clock: Clock) -> None:
    made = make_gate(clock, [1], [1])
    threads = [threading.Thread(target=lambda: [made(None, None) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(clock.launched) == 80 and made.fuses is not None


def test_the_other_way_is_built_aside_and_the_second_call_waits_for_it(clock: Clock) -> None:
    building, may_build = threading.Event(), threading.Event()

    def build() -> Any:
        building.set()
        may_build.wait(60)
        return clock.launcher("unfused", 5)

    made = ProfitGate(clock.launcher("fused", 10), build, clock.read, "k", None)
    made.begin_build()
    assert building.wait(60)
    made(None, None)
    assert clock.launched == ["fused"]
    threading.Timer(0.05, may_build.set).start()
    for _ in range(MEASURED - 1):
        made(None, None)
    assert clock.launched == ["fused", "unfused"] * (TURNS + 1) and made.fuses is False


def test_a_failed_build_is_told_to_the_call_that_needs_it(clock: Clock) -> None:
    def build() -> Any:
        raise BuildError("no disk")

    made = ProfitGate(clock.launcher("fused", 10), build, clock.read, "k", None)
    made.begin_build()
    made(None, None)
    with pytest.raises(BuildError, match="no disk"):
        made(None, None)


# in a model


def model(x: Tensor) -> Tensor:
    with super_kernel("a"):
        x.add_(1)
        return x @ x.t()


def test_a_model_is_measured_on_real_calls_and_another_compilation_knows_the_decision() -> None:
    x = torch.zeros(4, 16)
    (segment,) = run(model, x, profit_gate=1).scopes["a"].segments
    assert len(segment.ops) > 1
    Cache().path(segment.gate._entry(), ".json").unlink(missing_ok=True)  # what an earlier run of this test decided
    torch._dynamo.reset()
    first = run(model, x, profit_gate=1)
    (segment,) = first.scopes["a"].segments
    assert segment.launches == "measuring" and "still measuring" in str(first.report)
    for call in range(1, MEASURED):
        assert segment.gate.fuses is None, call
        first.function(x)
        assert (x == call).all()  # in place, once per call
    assert segment.gate.fuses is not None
    assert set(segment.times_us) == {"fused", "unfused"}
    assert segment.launches in ("fused", "unfused") and "(gate: fused " in str(first.report)
    assert first.report.to_dict()["scopes"][0]["segments"][0]["gate_us"] == segment.times_us
    torch._dynamo.reset()
    again = run(model, x, profit_gate=1)
    (known,) = again.scopes["a"].segments
    assert known.gate is not segment.gate
    assert (known.gate.fuses, known.times_us) == (segment.gate.fuses, segment.times_us)
    torch._dynamo.reset()
    assert run(model, x, profit_gate=0).scopes["a"].segments[0].launches == "fused"
    torch._dynamo.reset()
    assert run(model, x, fuse="off", profit_gate=1).scopes["a"].segments[0].launches == "unfused"
