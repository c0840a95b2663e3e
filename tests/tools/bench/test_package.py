"""The suite package: models are right, threads and figures are chosen from times, peers that are missing are named."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from handmade_package import WEIGHT, write_handmade  # noqa: E402
from package.awake_threads import await_end_of_awake_threads  # noqa: E402

from superkernel.package.model import load_model  # noqa: E402
from superkernel.tools import bench  # noqa: E402
from superkernel.tools.bench import (  # noqa: E402
    aot_loaders,
    package,
    package_peers,
    package_short,
    package_workloads,
    workloads,
)
from superkernel.tools.bench.call_rate import RunFromC, python_calls_at_rate  # noqa: E402
from superkernel.tools.bench.latency import (  # noqa: E402
    TimedRunner,
    latency_of,
    rounds_in_turns,
    tail_of_rounds,
    times_in_turns,
    times_of_calls,
)
from superkernel.tools.bench.measure import Result, Timing  # noqa: E402
from superkernel.tools.bench.package_peers import AOT, ONNX, OPENVINO, missing, tensors_of  # noqa: E402
from superkernel.tools.bench.package_workloads import PackageWorkload, decode_with_states  # noqa: E402
from superkernel.tools.bench.workloads import Workload  # noqa: E402


def timing(name: str, median: float) -> Timing:
    return Timing(name, median, median, median)


def test_percentiles_are_those_of_single_calls() -> None:
    runner = TimedRunner("some", 2, lambda: None)
    found = latency_of("net", "back to back", runner, np.arange(1.0, 102.0))
    assert (found.p50, found.p99, found.largest, found.calls, found.threads) == (51.0, 100.0, 101.0, 101, 2)
    assert found.tail == pytest.approx(100 / 51)
    shown = str(Result("package", {}, latencies=[found]))
    assert "net, back to back" in shown and "p99    100.00" in shown


def test_a_tail_is_the_median_of_the_rounds() -> None:
    quiet, slower = np.array([10.0] * 98 + [15.0] * 2), np.array([20.0] * 98 + [40.0] * 2)
    disturbed = np.array([10.0] * 90 + [900.0] * 10)
    assert tail_of_rounds([quiet, disturbed, slower]) == pytest.approx(2.0, rel=0.02)
    assert tail_of_rounds([quiet, disturbed, quiet]) == pytest.approx(1.5, rel=0.02)


def test_a_machine_is_idle_where_a_loop_that_reads_keeps_the_limit() -> None:
    idle, busy = np.array([10.0] * 98 + [15.0] * 2), np.array([10.0] * 90 + [25.0] * 10)
    assert package.idle_rounds([busy, idle, busy, idle]) == [1, 3]


@pytest.mark.parametrize("idle_from", [0, 3, 99])
def test_tails_are_those_of_rounds_on_an_idle_machine_and_more_are_made_until_there_are_enough(idle_from: int) -> None:
    made = {"package": 0, package.READING: 0}

    def runner(name: str, idle: float, busy: float) -> TimedRunner:
        def at_rate(calls: int, rate: float, seconds: float) -> np.ndarray:  # type: ignore[type-arg]
            made[name] += 1
            return np.array([10.0] * 90 + [idle if made[name] > idle_from else busy] * 10)

        return TimedRunner(name, 1, lambda: None, at_rate=at_rate)

    runners = {"package": runner("package", 12.0, 40.0), package.READING: runner(package.READING, 11.0, 30.0)}
    effort = package.Effort(settle=0, calls_at_rate=600, most_rounds=10)
    rounds = rounds_in_turns(runners, 600, 6, package.RATE, settle=0)
    result = Result("package", {})
    (figure,) = package.tails_on_idle_machine(result, "net", ["package"], runners, rounds, effort)
    tried = {0: 6, 3: 9, 99: 10}[idle_from]
    assert made["package"] == len(rounds["package"]) == tried
    assert figure.value == pytest.approx(1.2 if idle_from < 99 else 4.0)
    shown = f"net: in {0 if idle_from == 99 else 6} of {tried} rounds at 1000 calls a second the machine was idle"
    assert result.notes[0].startswith(shown) and ("all rounds" in result.notes[0]) == (idle_from == 99)


def test_runners_take_turns_in_another_order_each_round() -> None:
    entered: list[str] = []
    runners = {
        name: TimedRunner(name, 1, lambda: None, lambda name=name: entered.append(name))  # type: ignore[misc]
        for name in "abc"
    }
    times = times_in_turns(runners, calls=9, rounds=3)
    assert "".join(entered) == "abcbcacab"
    assert {name: len(taken) for name, taken in times.items()} == {"a": 9, "b": 9, "c": 9}


def test_a_slow_runner_makes_fewer_calls() -> None:
    made: list[str] = []
    names = ("ours", "fast", "slow")
    runners = {name: TimedRunner(name, 1, lambda name=name: made.append(name)) for name in names}  # type: ignore[misc]
    rounds = rounds_in_turns(runners, calls=8, rounds=2, seconds=0, unlimited=["ours"])
    assert {name: [len(taken) for taken in parts] for name, parts in rounds.items()} == {
        "ours": [4, 4], "fast": [1, 1], "slow": [1, 1],
    }  # fmt: skip
    assert len(times_of_calls(lambda: None, 5, seconds=3600)) == 5


def test_calls_at_a_rate_begin_when_they_are_due() -> None:
    begun: list[float] = []
    start = time.perf_counter()
    times = python_calls_at_rate(lambda: begun.append(time.perf_counter()), 20, 2000.0)
    assert len(times) == 20
    for number, moment in enumerate(begun, 1):
        assert moment - start >= number / 2000 - 1e-6  # later on a busy machine, never earlier
    assert len(python_calls_at_rate(lambda: None, 20, 2000.0, seconds=0)) == 1


def test_a_call_that_raises_ends_the_loop() -> None:
    def refuse() -> None:
        raise LookupError("refused")

    with pytest.raises(LookupError, match="refused"):
        python_calls_at_rate(refuse, 3, 1e4)


def test_a_package_runs_from_c_at_a_rate(tmp_path: Path) -> None:
    x, y = np.arange(8, dtype=np.float32).reshape(2, 4), np.full((2, 4), 2, np.float32)
    run = RunFromC(load_model(write_handmade(tmp_path / "hand.sk")), [x, y])
    run.results[0][:] = 0
    assert len(run.at_rate(5, 1e4)) == 5 and run.back_to_back(2) > 0
    np.testing.assert_array_equal(run.results[0], x + y * WEIGHT)
    run.close()
    with pytest.raises(RuntimeError, match="has failed"):
        run.at_rate(1, 1e4)
    assert len(RunFromC().at_rate(3, 1e4)) == 3


def test_calls_without_a_model_do_nothing_or_read() -> None:
    python, nothing, reading = package_peers.calls_of_the_machine()
    times = {runner.name: runner.times_at_rate(5, 1e4, 1.0) for runner in (python, nothing, reading)}
    assert list(times) == ["empty Python function", "empty C function", "256 KB read in C"]
    assert all(len(taken) == 5 for taken in times.values())
    assert times[reading.name].min() > times[nothing.name].min()


@pytest.mark.parametrize("called_from", package_peers.CalledFrom)
def test_a_package_is_open_only_while_it_is_timed(tmp_path: Path, called_from: package_peers.CalledFrom) -> None:
    x, y = torch.arange(8.0).reshape(2, 4), torch.full((2, 4), 2.0)
    folder = write_handmade(tmp_path / "hand.sk")
    opened = package_peers.TimedPackage(Workload("hand", torch.add, (x, y)), folder, 1, "spin", called_from)
    runner = opened.runner
    assert runner.name == f"{called_from.value}, wait=spin"
    rounds = rounds_in_turns({runner.name: runner}, 6, 2, 1e4, settle=0)
    assert [len(times) for times in rounds[runner.name]] == [3, 3]
    np.testing.assert_array_equal(opened.results[0], x + y * torch.from_numpy(WEIGHT))
    await_end_of_awake_threads()


def test_a_runner_is_left_before_the_next_one_is_entered() -> None:
    steps: list[str] = []
    runners = {
        name: TimedRunner(
            name,
            1,
            lambda: None,
            lambda name=name: steps.append(f"+{name}"),
            lambda name=name: steps.append(f"-{name}"),
        )  # type: ignore[misc]
        for name in "ab"
    }
    times_in_turns(runners, calls=2, rounds=1, rate=1e4)
    assert steps == ["+a", "-a", "+b", "-b"]


def test_each_runner_gets_the_number_of_threads_that_is_faster_for_it_in_most_rounds() -> None:
    slow, fast, disturbed = np.full(5, 40.0), np.full(5, 10.0), np.full(5, 900.0)
    measured = {
        ("a", 1): [slow, fast, slow],
        ("b", 1): [fast, fast, disturbed],
        ("a", 2): [disturbed, fast, fast],
        ("b", 2): [slow, slow, fast],
        ("c", 1): [slow, slow, slow],
    }
    assert package.best_threads(measured) == {"a": 2, "b": 1, "c": 1}


@pytest.mark.parametrize(("slowest_us", "rate"), [(20, 1000), (499, 1000), (600, 100), (4000, 100), (60_000, 5)])
def test_the_rate_leaves_idle_gaps_to_the_slowest_runner(slowest_us: float, rate: float) -> None:
    assert package.affordable_rate(slowest_us) == rate


def test_figures_compare_with_the_best_of_those_that_compile_ahead_of_time() -> None:
    to_ours = {"package": 1.0, "eager": 0.5, AOT: 4.0, ONNX: 3.0, OPENVINO: 3.5}
    net = Workload("net", lambda: None, ())
    [figure] = package.ratios(PackageWorkload(net, 1.5), to_ours)
    assert (figure.name, figure.value, figure.limit, figure.met) == (f"net: {ONNX} to ours", 3.0, 1.5, True)
    convolution = package.ratios(PackageWorkload(net, None), to_ours | {ONNX: 0.9})
    assert [(figure.limit, figure.met) for figure in convolution] == [(1.0, True), (1.0, False)]


def test_what_a_peer_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "superkernel.tools.bench.package_peers.find_spec", lambda name: None if name == "onnx" else name
    )
    assert missing(ONNX) == missing(OPENVINO) == ["onnx"]
    assert missing(AOT) == []


def test_the_workloads_are_those_of_the_table_and_the_stateless_decoder_is_the_decoder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workloads, "LAYERS", 2)
    torch.manual_seed(0)
    with torch.no_grad():
        step = decode_with_states(288)
        assert step.stateless is not None
        [expected] = tensors_of(step.workload.model(*step.workload.inputs))
        logits, keys, _ = step.stateless.model(*step.stateless.inputs)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
        layer = step.workload.model.layers[1]  # type: ignore[attr-defined]
        torch.testing.assert_close(keys[1], layer.keys[:, :, 130:131], rtol=1e-4, atol=1e-4)
        state_space = package_workloads.state_space_step()
        _, states = state_space.model(*state_space.inputs)
        assert states.shape == state_space.inputs[1].shape
    limits = {item.workload.name.split(",")[0]: item.limit for item in package_workloads.package_workloads(quick=False)}
    assert limits == {
        "control policy": 1.5, "recommender": 1.5, "four blocks": 1.5, "state-space step": 1.5, "encoder": 1.2,
        "decode step": 1.2, "depthwise-separable net": None,
    }  # fmt: skip


def test_a_package_is_exported_for_all_cores_whatever_the_runner_before_has_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found: list[int] = []

    def prepare_package(workload: Workload, folder: Path, count: int) -> None:
        found.append(torch.get_num_threads())
        raise KeyboardInterrupt

    monkeypatch.setattr(package, "prepare_package", prepare_package)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with pytest.raises(KeyboardInterrupt):
            package.compare(Result("package", {"cores_used": 2}), package_short.workload_of(0), tmp_path, package.QUICK)
    finally:
        torch.set_num_threads(before)
    assert found == [2]


def test_the_short_suite_says_which_workloads_it_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(package_short, "_COMMAND", (sys.executable, "-S", "-c", "import sys; sys.stdin.read()"))
    monkeypatch.setattr(aot_loaders, "_assumed", [None])
    monkeypatch.setattr(package_short, "costs_of_loading", lambda folder: [])
    result = package_short.run_short(1, 0.0, tmp_path / "results.json")
    left_out = [note for note in result.notes if note.endswith("was not measured: compiling took too long")]
    assert len(left_out) == package_workloads.WORKLOAD_COUNT and not result.comparisons


def test_the_short_suite_names_workloads_whose_process_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(package_short, "_COMMAND", (sys.executable, "-S", "-c", "raise SystemExit(3)"))
    monkeypatch.setattr(aot_loaders, "_assumed", [None])
    (started,) = package_short.compile_all({0: tmp_path}, 1, 600).values()
    found = package_short.measure_in_turn(started, 600)
    assert found == "its process ended with status 3; standard error has a trace"


def test_the_short_suite_measures_in_turns_and_goes_on_with_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Processes that say what they are told: the loader, then that it is their turn."""
    script = (
        "import pickle, sys\n"
        "from superkernel.tools.bench.measure import Result\n"
        "loader = sys.stdin.readline().strip()\n"
        "print('ready', flush=True)\n"
        "notes = [sys.argv[4] + ' ' + loader + ' ' + sys.stdin.readline().strip()]\n"
        "open(sys.argv[6], 'wb').write(pickle.dumps(Result('package', {}, notes=notes)))\n"
    )
    monkeypatch.setattr(package_short, "_COMMAND", (sys.executable, "-c", script))
    monkeypatch.setattr(aot_loaders, "_assumed", [None])
    monkeypatch.setattr(package_short, "costs_of_loading", lambda folder: [])
    monkeypatch.setattr(package_short, "WORKLOAD_COUNT", 2)
    output = tmp_path / "results.json"
    told = [f"{index} none go" for index in range(2)]
    assert [note for note in package_short.run_short(1, 1200, output).notes if note in told] == told
    package_short.parts_of(output).joinpath("1.pickle").unlink()
    earlier = package_short.parts_of(output).joinpath("0.pickle").stat().st_mtime_ns
    assert [note for note in package_short.run_short(1, 1200, output, resume=True).notes if note in told] == told
    assert package_short.parts_of(output).joinpath("0.pickle").stat().st_mtime_ns == earlier
    assert told[1] in output.read_text()


def test_a_loader_that_fails_in_a_process_of_its_own_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "layer.pt2").write_bytes(b"not a package")
    assert not aot_loaders._loads(aot_loaders.AotLoader.CONTAINER, tmp_path / "layer.pt2")


def test_where_the_loaders_of_torch_crash_nothing_is_compiled_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(aot_loaders, "_assumed", [None])
    workload = package_short.workload_of(0).workload
    assert package_peers.prepare_ahead_of_time(workload, tmp_path, 1, frozen=False) is None
    assert not list(tmp_path.iterdir())


def test_the_loader_that_another_process_found_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aot_loaders, "_assumed", [])
    aot_loaders.assume_loader(aot_loaders.AotLoader.CONTAINER)
    assert aot_loaders.working_loader() is aot_loaders.AotLoader.CONTAINER


def test_the_short_suite_registers_the_back_end_where_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[str] = []
    monkeypatch.setattr(torch._dynamo, "list_backends", lambda exclude_tags=(): ["inductor"])
    monkeypatch.setattr(torch._dynamo, "register_backend", lambda function, name: registered.append(name))
    package_short.register_backend()
    assert registered == ["superkernel"]


@pytest.mark.conformance
def test_the_quick_suite_gives_right_results() -> None:
    result = bench.run("package", quick=True)
    assert result.ok, result
    assert {latency.condition for latency in result.latencies} == {
        package.BACK_TO_BACK, "1000 calls a second", package.BUSY,
    }  # fmt: skip
    assert any("the bits of torch.compile" in name for name in result.checks)
