"""One kernel on other numbers of cores: saved for smaller machines, measured, profiled; no launch compiles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.cpu.small import compile_ops, expected, launched, numbers, small

import superkernel as sk
from superkernel import Op, SuperKernel
from superkernel.plan import CoreChoice
from superkernel.runtime import launch_events
from superkernel.runtime.measured_kernel import ALONE, TEAM, MeasuredKernel
from superkernel.runtime.turns import TURNS
from superkernel.targets.cpu.target import CpuPlanner
from superkernel.targets.native import toolchain

pytestmark = pytest.mark.slow

OPS = [
    Op(small("mix", 8), ["a", "b", "t"]),
    Op(small("fold", 8), ["t", "a"]),
    Op(small("early", 8), ["t", "b", "u"]),
    Op(small("scale", 8), ["u", "v"]),
]


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*args: object, **more: object) -> None:
        raise AssertionError("a launch or a load called the compiler")

    with monkeypatch.context() as patch:
        patch.setattr(toolchain.subprocess, "run", refuse)
        yield


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with compile_ops(OPS, "for_eight", "", 8) as k:
        return k.save(tmp_path_factory.mktemp("saved") / "eight")


def assert_right(kernel: SuperKernel) -> None:
    arrays = numbers("a", "b")
    found, wanted = launched(kernel, kernel, arrays), expected(kernel, arrays)
    for name in ("u", "v"):
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


def available(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(CpuPlanner, "core_count", lambda self: cores)


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(("cores", "team"), [(1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (64, 8)])
def test_an_artefact_uses_the_cores_of_the_machine_that_loads_it(
    artefact: Path, monkeypatch: pytest.MonkeyPatch, cores: int, team: int
) -> None:
    available(monkeypatch, cores)
    monkeypatch.setattr(CpuPlanner, "choose_cores", lambda self, graph, options, most: CoreChoice(most))
    monkeypatch.setattr(CpuPlanner, "launch_limit", lambda self: 64)
    with sk.load(artefact) as k:
        assert k.loaded.cores == team
        for _ in range(3):
            assert_right(k)
        if 1 < team < 8:
            assert k.plan.cores == team and f"cores: {team} of the 8 that it was saved for" in str(k.plan)


@pytest.mark.usefixtures("no_compiler")
def test_tiny_work_runs_on_one_core_of_a_smaller_machine(artefact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    available(monkeypatch, 2)
    with sk.load(artefact) as k:
        assert isinstance(k.loaded, MeasuredKernel) or k.loaded.cores == 1  # type: ignore[attr-defined]
        for _ in range(2 * TURNS + 3):
            assert_right(k)


@pytest.mark.usefixtures("no_compiler")
def test_a_loaded_artefact_is_saved_again_for_all_core_counts(
    artefact: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    available(monkeypatch, 2)
    with sk.load(artefact) as k:
        k.save(tmp_path / "again")
    available(monkeypatch, 8)
    with sk.load(tmp_path / "again") as k:
        assert k.plan.cores == 8
        assert_right(k)


def test_an_artefact_of_a_plan_that_work_decided_loads(tmp_path: Path) -> None:
    with sk.compile(OPS, "by_work") as k:
        assert "cores: estimated" in str(k.plan) or k.plan.cores == 1
        k.save(tmp_path / "saved")
        page = str(k.plan)
    with sk.load(tmp_path / "saved") as again:
        assert str(again.plan) == page
        assert_right(again)


def test_a_team_that_meets_keeps_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = [Op(small("mix", 3), ["a", "b", "t"]), Op(small("total", 3), ["t", "ws", "u"])]
    with compile_ops(ops, "meets", "debug-watchdog=200", 3) as k:
        k.save(tmp_path / "three")
    available(monkeypatch, 1)
    with sk.load(tmp_path / "three") as k:
        assert k.loaded.cores == 3
        arrays = numbers("a", "b")
        np.testing.assert_array_equal(launched(k, k, arrays)["u"], expected(k, arrays)["u"])


def test_a_net_of_a_few_microseconds_runs_on_the_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    available(monkeypatch, 8)
    with sk.compile([Op(small("mix", 8), ["a", "b", "t"])], "tiny") as k:
        assert k.plan.cores == 1 and "a team costs more" in str(k.plan)
    with sk.compile([Op(small("mix", 8), ["a", "b", "t"])], "all_cores", cores_by_work=False) as k:
        assert k.plan.cores == 8


def test_one_core_and_any_team_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuPlanner, "launch_limit", lambda self: 64)
    available(monkeypatch, 4)
    arrays = numbers("a", "b")
    with sk.compile(OPS, "team", cores_by_work=False) as team, compile_ops(OPS, "single", "", 1) as single:
        assert (team.loaded.cores, single.loaded.cores) == (4, 1)
        by_team, by_one = launched(team, team, arrays), launched(single, single, arrays)
        monkeypatch.setattr(team, "_launch_limit", lambda: 1)
        assert team.loaded.cores == 1
        alone = launched(team, team, arrays)
        kernels = {node.kernel for node in team.graph.nodes}
        assert kernels == {node.kernel for node in single.graph.nodes}
    for name, array in by_team.items():
        assert array.tobytes() == alone[name].tobytes() == by_one[name].tobytes()


@pytest.mark.parametrize(("slow", "crowded", "winner"), [(TEAM, False, 1), (ALONE, False, 2), (TEAM, True, 2)])
def test_first_launches_measure_one_core_and_the_team(
    monkeypatch: pytest.MonkeyPatch, slow: str, crowded: bool, winner: int
) -> None:
    monkeypatch.setattr(CpuPlanner, "choose_cores", lambda *given: CoreChoice(2, measures_alone=True))
    monkeypatch.setattr(CpuPlanner, "launch_limit", lambda self: 2)
    with sk.compile(OPS, "measured") as k:
        measured = k.loaded
        assert isinstance(measured, MeasuredKernel)
        turns = iter(range(10_000))
        # a clock that is read before and after each launch: alone comes first, then the team
        order = [ALONE, TEAM]

        def clock() -> int:
            reading = next(turns)
            launch, after = divmod(reading, 2)
            return launch * 1_000_000 + after * (500_000 if order[launch % 2] == slow else 1_000)

        measured._clock, measured._crowded = clock, lambda: crowded
        for _ in range(2 * (TURNS + 1)):
            assert k.loaded is measured
            assert_right(k)
        assert k.loaded.cores == winner  # type: ignore[attr-defined]
        assert_right(k)


def test_a_profile_with_detail_builds_when_it_begins_and_no_launch_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with compile_ops(OPS, "profiled") as k:
        k.unfused()
        arrays = numbers("a", "b")
        wanted = expected(k, arrays)["u"]

        def refuse(*args: Any, **more: Any) -> None:
            raise AssertionError("a launch called the compiler")

        with sk.profile(tmp_path / "profile", detail=True):
            monkeypatch.setattr(toolchain.subprocess, "run", refuse)
            for kernel in (k, k.unfused()):
                np.testing.assert_array_equal(launched(kernel, k, arrays)["u"], wanted)


def test_a_profile_that_cannot_be_built_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with compile_ops([*OPS, Op(small("scale", 8), ["v", "w"])], "unprofiled") as k:
        build = k._rebuild

        def fail(options: sk.Options) -> None:
            raise sk.BuildError("no disk")

        monkeypatch.setattr(k, "_rebuild", fail)
        with pytest.raises(sk.BuildError, match="no disk"), sk.profile(tmp_path / "profile", detail=True):
            pass
        assert not launch_events.has_listeners()
        monkeypatch.setattr(k, "_rebuild", build)
        assert k.loaded.cores == 2  # type: ignore[attr-defined]
        assert_right(k)


def test_debug_replay_builds_when_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    with compile_ops(OPS, "replayed", "debug-replay=1") as k:
        monkeypatch.setattr(toolchain.subprocess, "run", None)
        for _ in range(2):
            assert_right(k)
