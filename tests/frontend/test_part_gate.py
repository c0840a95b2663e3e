"""A part for which stock Inductor is faster is left out, for good, and every call of it has its effects once."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from frontend.fused import assert_same_bits, run
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import superkernel as sk
from superkernel.cache import GATE_SUFFIX, Cache
from superkernel.frontend import compile_part, part_gate, registry
from superkernel.frontend.capture.partition import GraphPart
from superkernel.frontend.comparable_parts import TrialInputs, is_comparable, written_inputs
from superkernel.frontend.gate_conditions import GateConditions
from superkernel.frontend.lowering.program_trace import LibraryCall
from superkernel.frontend.part_gate import WITH_LIBRARY_CALLS, PartGate, PartMeasurement
from superkernel.frontend.part_verdict import (
    INDUCTOR,
    LibraryCallTimes,
    PartChoice,
    PartVerdict,
    VerdictTable,
)
from superkernel.frontend.profit_gate import FUSED, ON_ONE_CORE
from superkernel.frontend.report import CompileReport
from superkernel.frontend.scope import super_kernel
from superkernel.frontend.segments import MatchedProgram
from superkernel.runtime.launch_events import LaunchEvent, add_listener, remove_listener

NOW = GateConditions("2026-11-16 10:52", 0.25)
LEFT_OUT = PartVerdict(PartChoice.INDUCTOR, {FUSED: 30.0, INDUCTOR: 20.0}, NOW)
WITH_CALL = PartVerdict(PartChoice.LIBRARY_CALLS, {FUSED: 30.0}, NOW, (LibraryCallTimes(1, 25.0, 15.0),))
KEPT = PartVerdict(PartChoice.SUPER_KERNELS, {FUSED: 10.0}, NOW)


# verdicts


def test_a_verdict_never_changes_in_a_process_and_later_processes_read_it(tmp_path: Path) -> None:
    store = Cache(tmp_path)
    table = VerdictTable()
    assert table.find("k", store) is None
    assert table.keep("k", LEFT_OUT, store) is LEFT_OUT
    assert table.keep("k", KEPT, store) is LEFT_OUT
    store.clear()
    assert table.find("k", store) is LEFT_OUT
    assert VerdictTable().find("k", store) is None


@pytest.mark.parametrize("verdict", [LEFT_OUT, WITH_CALL, KEPT])
def test_another_process_finds_the_same_verdict(tmp_path: Path, verdict: PartVerdict) -> None:
    store = Cache(tmp_path)
    VerdictTable().keep("k", verdict, store)
    assert VerdictTable().find("k", store) == verdict


def test_a_verdict_for_this_process_only_is_not_written(tmp_path: Path) -> None:
    table, store = VerdictTable(), Cache(tmp_path)
    table.keep("k", LEFT_OUT, None)
    assert table.find("k", store) is LEFT_OUT and VerdictTable().find("k", store) is None


@pytest.mark.parametrize("text", [" ", "{}", "[]", '{"choice": "ELSE"}', LEFT_OUT.to_text().replace("30.0", '"x"')])
def test_an_entry_that_is_no_verdict_is_ignored(tmp_path: Path, text: str) -> None:
    store = Cache(tmp_path)
    store.write_text("k", GATE_SUFFIX, text)
    assert VerdictTable().find("k", store) is None


def test_the_reason_has_both_times() -> None:
    assert LEFT_OUT.reason.startswith("left out: stock Inductor is faster: 20.0 us, as super kernels 30.0 us")
    assert "15.0 us, as a sub-kernel 25.0 us" in WITH_CALL.library_calls[0].reason
    assert KEPT.reason == WITH_CALL.reason == ""


# what may run on trial


def as_part(function: Any, *inputs: Any) -> GraphPart:
    module: GraphModule = make_fx(function)(*inputs)
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    placeholders = tuple(node for node in module.graph.nodes if node.op == "placeholder")
    return GraphPart("a", tuple(nodes), module, placeholders, ())


def test_written_inputs_are_found_through_views() -> None:
    def write(weight: Tensor, cache: Tensor, x: Tensor) -> Tensor:
        cache.view(-1)[2:4].copy_(x)
        return weight @ weight

    assert written_inputs(as_part(write, torch.ones(2, 2), torch.ones(2, 2), torch.ones(2))) == [1]


def test_random_numbers_and_higher_order_operators_are_not_tried() -> None:
    call = LibraryCall(torch.ops.aten.mm.default, (), {}, ())
    matched: Any = MatchedProgram(None, [(call, [])], None)  # type: ignore[arg-type]
    assert is_comparable(as_part(lambda x: x @ x, torch.ones(2, 2)), matched)
    assert not is_comparable(as_part(lambda x: torch.rand_like(x @ x), torch.ones(2, 2)), matched)
    writing = LibraryCall(torch.ops.aten.index_put_.default, (), {}, ())
    only_writing: Any = MatchedProgram(None, [(writing, [])], None)  # type: ignore[arg-type]
    assert not is_comparable(as_part(lambda x: x @ x, torch.ones(2, 2)), only_writing)


def test_trial_runs_get_copies_of_what_they_write_and_nothing_else() -> None:
    weight, cache = torch.ones(3), torch.arange(6.0).as_strided((2, 2), (3, 1))
    trial = TrialInputs([weight, 7, cache], [2])
    assert trial.args[0] is weight and trial.args[1] == 7 and trial.args[2].data_ptr() != cache.data_ptr()
    assert trial.args[2].stride() == (3, 1) and torch.equal(trial.args[2], cache)
    trial.args[2].add_(1)
    trial.restore()
    assert torch.equal(trial.args[2], cache)


def test_threads_measure_once() -> None:
    class Measured:
        calls = 0

        def choose(self, args: Any) -> Any:
            Measured.calls += 1
            return lambda args: ["chosen", *args]

    gate = PartGate(Measured(), None)  # type: ignore[arg-type]
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(gate([1]))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [["chosen", 1]] * 8 and Measured.calls == 1


# in a model


class InProcess(VerdictTable):
    """Verdicts of one test, which finds none of earlier runs and leaves none behind."""

    written = False

    def find(self, key: str, store: Cache) -> PartVerdict | None:
        return self._verdicts.get(key)

    def keep(self, key: str, verdict: PartVerdict, store: Cache | None) -> PartVerdict:
        self.written = store is not None
        return super().keep(key, verdict, None)


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> InProcess:
    table = InProcess()
    for module in (part_gate, compile_part):
        monkeypatch.setattr(module, "VERDICTS", table)
    return table


class GivenTimes(PartMeasurement):
    """A measurement whose times, in microseconds, are given; what would be timed runs once."""

    times_us: ClassVar[dict[str, int]]
    ran: ClassVar[list[str]]

    def _least_launch_time(self, launch: Any) -> int:
        return 1000 * self.times_us[FUSED]

    def _library_times(self, calls: Mapping[int, LibraryCall]) -> dict[int, int]:
        super()._library_times(calls)
        return dict.fromkeys(calls, 1000 * self.times_us["library"])

    def _kernel_times(self, calls: Mapping[int, LibraryCall]) -> dict[int, int]:
        assert super()._kernel_times(calls).keys() == calls.keys()
        return dict.fromkeys(calls, 1000 * self.times_us["kernel"])

    def _alternate(self, functions: Mapping[str, Any]) -> dict[str, list[int]]:
        for name, function in functions.items():
            self.trial.restore()
            function()
            self.ran.append(name)
        return {name: [1000 * self.times_us[name]] * 3 for name in functions}


def _unwrapped(report: CompileReport) -> str:
    return " ".join(str(report).split())


def given(monkeypatch: pytest.MonkeyPatch, **times_us: int) -> list[str]:
    """From now on these times are measured; returns what ran on trial."""
    names = {"one_core": ON_ONE_CORE, "with_library_calls": WITH_LIBRARY_CALLS}
    GivenTimes.times_us = {names.get(name, name): us for name, us in times_us.items()}
    GivenTimes.times_us.setdefault(ON_ONE_CORE, GivenTimes.times_us[FUSED])
    GivenTimes.ran = []
    monkeypatch.setattr(part_gate, "PartMeasurement", GivenTimes)
    return GivenTimes.ran


def model(x: Tensor, count: Tensor) -> Tensor:
    with super_kernel("a"):
        count.add_(1)
        return torch.relu(x @ x) + count


def inputs() -> tuple[Tensor, Tensor]:
    return torch.arange(4096.0).reshape(64, 64) / 4096, torch.zeros(64)


def test_a_part_that_loses_is_left_out_for_good_and_with_fuse_off_too(
    verdicts: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused = run(model, *inputs(), profit_gate=0)
    assert not verdicts._verdicts and fused.scopes["a"].segments[0].launches == "fused"
    ran = given(monkeypatch, fused=5000, library=100, kernel=4000, inductor=1000, with_library_calls=2000)
    torch._dynamo.reset()
    gated = run(model, *inputs(), profit_gate=1)
    (segment,) = gated.scopes["a"].segments
    assert not segment.fused and segment.launches == "left out" and segment.ops
    assert segment.times_us[INDUCTOR] == 1000 and segment.times_us[FUSED] == 5000
    reason = "left out: stock Inductor is faster: 1000.0 us, as super kernels 5000.0 us"
    assert segment.reason.startswith(reason) and reason in _unwrapped(gated.report)
    assert f"; measured {segment.verdict.conditions.date}" in _unwrapped(gated.report) and INDUCTOR in ran
    assert gated.report.to_dict()["scopes"][0]["segments"][0]["launches"] == "left out"
    torch.testing.assert_close(gated.outputs, fused.outputs)
    assert (gated.inputs[1] == 1).all()  # trial runs write copies
    gated.function(*gated.inputs)
    assert (gated.inputs[1] == 2).all()
    del ran[:]
    torch._dynamo.reset()
    off = run(model, *inputs(), profit_gate=1, fuse="off")
    assert off.scopes["a"].segments[0].launches == "left out" and not ran
    assert_same_bits(off.outputs, gated.outputs)


def test_an_operator_that_loses_is_left_to_torch(verdicts: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = given(monkeypatch, fused=5000, library=100, kernel=4000, inductor=3000, with_library_calls=1000)
    with torch.inference_mode():  # in which nothing can be compiled
        gated = run(model, *inputs(), profit_gate=1)
    scope = gated.scopes["a"]
    assert ran[-1] == WITH_LIBRARY_CALLS and scope.segments and all(segment.fused for segment in scope.segments)
    (left,) = scope.unfusible
    assert left.op == "aten::mm"
    assert "torch's function is faster: 100.0 us, as a sub-kernel 4000.0 us" in _unwrapped(gated.report)
    torch.testing.assert_close(gated.outputs, model(*inputs()))
    assert (gated.inputs[1] == 1).all()
    del ran[:]
    torch._dynamo.reset()
    off = run(model, *inputs(), profit_gate=1, fuse="off", strict_scope_check="abort")  # it is no mistake of the user
    assert off.shape == gated.shape and list(map(str, off.scopes["a"].unfusible)) == [str(left)] and not ran
    assert_same_bits(off.outputs, gated.outputs)


def test_nothing_is_compiled_where_the_library_takes_as_long(
    verdicts: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = given(monkeypatch, fused=5000, library=5000)
    gated = run(model, *inputs(), profit_gate=1)
    (segment,) = gated.scopes["a"].segments
    assert segment.fused and not ran and segment.verdict.choice is PartChoice.SUPER_KERNELS


def test_listeners_receive_no_trial_runs(verdicts: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = given(monkeypatch, fused=5000, library=3999, kernel=4000)

    class Listener:
        detail = False
        events: ClassVar[list[LaunchEvent]] = []

        def on_launch(self, event: LaunchEvent) -> None:
            self.events.append(event)

    listener = Listener()
    add_listener(listener)
    try:
        gated = run(model, *inputs(), profit_gate=1)
    finally:
        remove_listener(listener)
    (segment,) = gated.scopes["a"].segments
    assert FUSED in ran and segment.fused
    assert [event.kernel.name for event in listener.events] == [segment.kernel.name]


def test_what_fails_on_trial_stays_a_super_kernel(verdicts: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: PartMeasurement) -> PartVerdict:
        raise RuntimeError("no room")

    monkeypatch.setattr(PartMeasurement, "verdict", fails)
    gated = run(model, *inputs(), profit_gate=1)
    (segment,) = gated.scopes["a"].segments
    assert segment.fused and "no room" in segment.verdict.note and not verdicts.written
    torch.testing.assert_close(gated.outputs, model(*inputs()))


SLOW = """
extern "C" void slow_twice(const float *x, float *z, long n)
{
    volatile long steps = 30000000;  // some 100 ms
    while (steps > 0)
        steps = steps - 1;
    for (long i = 0; i < n; i++)
        z[i] = 2 * x[i];
}
"""


@pytest.mark.conformance
def test_a_slow_sub_kernel_loses_in_a_real_measurement(verdicts: InProcess, tmp_path: Path) -> None:
    @torch.library.custom_op("gate_test::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x + x

    twice.register_fake(torch.empty_like)
    source = tmp_path / "slow.cpp"
    source.write_text(SLOW)

    @sk.register_kernel(twice)
    def kernel(x: Any, *, out: Any) -> sk.Op:
        params = ["in:x", "out:z", "scalar:n:int64"]
        sub_kernel = sk.SubKernel.from_source(source, "slow_twice", block_dim=1, params=params)
        return sk.Op(sub_kernel, [sk.Place(x.name, x.offset), sk.Place(out.name, out.offset), 64 * 64])

    try:
        gated = run(lambda x, y: torch.relu(twice(x @ x)) + y, *inputs(), profit_gate=1)
    finally:
        registry._registered.pop(("gate_test::twice", "cpu"))
    (scope,) = gated.report.scopes
    assert all(segment.launches == "left out" for segment in scope.segments) or scope.unfusible
    assert "faster: " in _unwrapped(gated.report)
    torch.testing.assert_close(gated.outputs, torch.relu(2 * (inputs()[0] @ inputs()[0])))
