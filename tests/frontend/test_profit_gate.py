"""The profit gate: the ways to launch take turns on real calls, the fastest stays, and nothing ever runs twice."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from frontend.fused import run
from torch import Tensor

from superkernel.cache import GATE_SUFFIX, Cache
from superkernel.errors import BuildError
from superkernel.frontend import compile_part
from superkernel.frontend.profit_gate import FUSED, ON_ONE_CORE, TURNS, UNFUSED, ProfitGate
from superkernel.frontend.report import CompileReport
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
        {FUSED: clock.launcher("fused", *fused)}, lambda: clock.launcher("unfused", *unfused), clock.read, key, cache
    )


@pytest.mark.parametrize(("fused", "unfused", "winner"), [(10, 20, "fused"), (20, 10, "unfused"), (10, 10, "fused")])
def test_they_take_turns_five_measured_calls_each_then_the_faster_one_stays(
    clock: Clock, fused: int, unfused: int, winner: str
) -> None:
    made = make_gate(clock, [fused], [unfused])
    for call in range(MEASURED):
        assert made.chosen is None
        made(None, None)
        assert len(clock.launched) == call + 1  # one launch per call
    assert clock.launched == ["fused", "unfused"] * (TURNS + 1)
    assert made.chosen == winner
    assert [len(times) for times in made.turns.times.values()] == [TURNS, TURNS]
    assert made.medians_us == {"fused": fused / 1000, "unfused": unfused / 1000}
    clock.launched.clear()
    for _ in range(3):
        made(None, None)
    assert clock.launched == [winner] * 3


def test_a_slow_first_call_and_a_slow_outlier_do_not_decide(clock: Clock) -> None:
    made = make_gate(clock, [10_000, 10, 10, 9_000, 10], [20])
    for _ in range(MEASURED):
        made(None, None)
    assert made.chosen == FUSED


@pytest.mark.parametrize(
    ("alone", "team", "unfused", "winner"),
    [
        (5, 10, 20, ON_ONE_CORE),
        (20, 10, 30, FUSED),
        (20, 20, 10, UNFUSED),
        (1020, 1000, 3000, ON_ONE_CORE),  # as fast, but for noise, and it needs one processor
    ],
)
def test_one_core_all_cores_and_unfused_take_turns(
    clock: Clock, alone: int, team: int, unfused: int, winner: str
) -> None:
    fused = {ON_ONE_CORE: clock.launcher(ON_ONE_CORE, alone), FUSED: clock.launcher(FUSED, team)}
    made = ProfitGate(fused, lambda: clock.launcher(UNFUSED, unfused), clock.read, "k", None)
    for _ in range(3 * (TURNS + 1)):
        assert made.chosen is None
        made(None, None)
    assert clock.launched == [ON_ONE_CORE, FUSED, UNFUSED] * (TURNS + 1)
    assert made.chosen == winner and set(made.medians_us) == {ON_ONE_CORE, FUSED, UNFUSED}
    clock.launched.clear()
    made(None, None)
    assert clock.launched == [winner]


def test_a_segment_of_one_op_is_measured_on_one_core_and_on_all(clock: Clock) -> None:
    fused = {ON_ONE_CORE: clock.launcher(ON_ONE_CORE, 5), FUSED: clock.launcher(FUSED, 10)}
    made = ProfitGate(fused, None, clock.read, "k", None)
    made.begin_build()
    for _ in range(2 * (TURNS + 1)):
        made(None, None)
    assert clock.launched == [ON_ONE_CORE, FUSED] * (TURNS + 1) and made.chosen == ON_ONE_CORE


@pytest.mark.parametrize(("unfused", "winner"), [(20, FUSED), (1, UNFUSED)])
def test_a_crowded_machine_decides_nothing_for_later(clock: Clock, tmp_path: Path, unfused: int, winner: str) -> None:
    """Neither against a team, which runs on one core there, nor for other processes."""
    fused = {ON_ONE_CORE: clock.launcher(ON_ONE_CORE, 5), FUSED: clock.launcher(FUSED, 10)}
    cache = Cache(tmp_path)

    def gate(crowded: bool) -> ProfitGate:
        return ProfitGate(fused, lambda: clock.launcher(UNFUSED, unfused), clock.read, "k", cache, lambda: crowded)

    busy = gate(crowded=True)
    for _ in range(3 * (TURNS + 1)):
        busy(None, None)
    assert busy.chosen == winner
    assert gate(crowded=False).chosen is None


def test_times_of_other_alternatives_do_not_decide(clock: Clock, tmp_path: Path) -> None:
    """A decision between fused and unfused says nothing of one core."""
    cache = Cache(tmp_path)
    first = make_gate(clock, [20], [10], cache)
    for _ in range(MEASURED):
        first(None, None)
    fused = {ON_ONE_CORE: clock.launcher(ON_ONE_CORE, 5), FUSED: clock.launcher(FUSED, 20)}
    assert ProfitGate(fused, lambda: clock.launcher(UNFUSED, 10), clock.read, "k", cache).chosen is None


def test_the_decision_and_its_times_are_found_again(clock: Clock, tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    first = make_gate(clock, [20], [10], cache)
    for _ in range(MEASURED):
        first(None, None)
    again = make_gate(clock, [20], [10], cache)
    assert again.chosen == UNFUSED and again.medians_us == first.medians_us
    assert again.conditions == first.conditions is not None  # its date and the load of the machine
    clock.launched.clear()
    again(None, None)
    assert clock.launched == ["unfused"]
    assert make_gate(clock, [20], [10], cache, "another").chosen is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "nonsense",
        '{"times_ns": {}, "conditions": {}}',
        '{"times_ns": 1, "conditions": {"date": "", "load": 0}}',
    ],
)
def test_what_cannot_be_read_is_measured_again(clock: Clock, tmp_path: Path, text: str) -> None:
    cache = Cache(tmp_path)
    blank = make_gate(clock, [20], [10], cache)
    cache.write_text(blank._entry(), GATE_SUFFIX, text or " ")
    made = make_gate(clock, [20], [10], cache)
    for _ in range(MEASURED):
        made(None, None)
    assert made.chosen == UNFUSED


def test_a_cache_that_cannot_be_written_does_not_disturb(clock: Clock, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    (tmp_path / "gone").write_text("a file")
    made = make_gate(clock, [20], [10], cache)
    for _ in range(MEASURED):
        made(None, None)
    assert made.chosen == UNFUSED


def test_an_error_in_a_launch_is_the_callers_and_the_gate_goes_on(clock: Clock) -> None:
    def fails(values: Any, sizes: Any) -> None:
        raise ValueError

    made = ProfitGate({FUSED: fails}, lambda: clock.launcher("unfused", 1), clock.read, "k", None)
    with pytest.raises(ValueError):
        made(None, None)
    made(None, None)
    assert clock.launched == ["unfused"] and made.chosen is None


def test_threads_launch_once_per_call(clock: Clock) -> None:
    made = make_gate(clock, [1], [1])
    threads = [threading.Thread(target=lambda: [made(None, None) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(clock.launched) == 80 and made.chosen is not None


def test_the_other_way_is_built_aside_and_the_second_call_waits_for_it(clock: Clock) -> None:
    building, may_build = threading.Event(), threading.Event()

    def build() -> Any:
        building.set()
        may_build.wait(600)
        return clock.launcher("unfused", 5)

    made = ProfitGate({FUSED: clock.launcher("fused", 10)}, build, clock.read, "k", None)
    made.begin_build()
    assert building.wait(600)
    made(None, None)
    assert clock.launched == ["fused"]
    threading.Timer(0.05, may_build.set).start()
    for _ in range(MEASURED - 1):
        made(None, None)
    assert clock.launched == ["fused", "unfused"] * (TURNS + 1) and made.chosen == UNFUSED


def test_a_failed_build_is_told_to_the_call_that_needs_it(clock: Clock) -> None:
    def build() -> Any:
        raise BuildError("no disk")

    made = ProfitGate({FUSED: clock.launcher("fused", 10)}, build, clock.read, "k", None)
    made.begin_build()
    made(None, None)
    with pytest.raises(BuildError, match="no disk"):
        made(None, None)


# in a model


def _unwrapped(report: CompileReport) -> str:
    return " ".join(str(report).split())


def model(x: Tensor) -> Tensor:
    with super_kernel("a"):
        x.add_(1)
        return x @ x.t()


def test_a_model_is_measured_on_real_calls_and_another_compilation_knows_the_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compile_part, "_is_compared", lambda *args: False)  # with Inductor: test_part_gate.py
    x = torch.zeros(64, 512)  # enough for two blocks
    (segment,) = run(model, x, profit_gate=1).scopes["a"].segments
    assert len(segment.ops) > 1
    Cache().path(segment.gate._entry(), GATE_SUFFIX).unlink(missing_ok=True)  # what an earlier run of this test decided
    torch._dynamo.reset()
    first = run(model, x, profit_gate=1)
    (segment,) = first.scopes["a"].segments
    assert segment.launches == "measuring" and "still measuring" in str(first.report)
    for call in range(1, len(segment.gate.turns.names) * (TURNS + 1)):
        assert segment.gate.chosen is None, call
        first.function(x)
        assert (x == call).all()  # in place, once per call
    ways = {"fused", "unfused"} | ({"fused on one core"} if segment.kernel.plan.cores > 1 else set())
    assert segment.gate.chosen is not None
    assert set(segment.times_us) == ways
    assert segment.launches in ways and "(gate: fused " in _unwrapped(first.report)
    assert first.report.to_dict()["scopes"][0]["segments"][0]["gate_us"] == segment.times_us
    torch._dynamo.reset()
    again = run(model, x, profit_gate=1)
    (known,) = again.scopes["a"].segments
    assert known.gate is not segment.gate
    assert (known.gate.chosen, known.times_us) == (segment.gate.chosen, segment.times_us)
    assert known.measured == segment.measured and f"; measured {segment.gate.conditions.date}" in _unwrapped(
        again.report
    )
    torch._dynamo.reset()
    assert run(model, x, profit_gate=0).scopes["a"].segments[0].launches == "fused"
    torch._dynamo.reset()
    assert run(model, x, fuse="off", profit_gate=1).scopes["a"].segments[0].launches == "unfused"
