"""Plans of a package: no team that is not clearly faster than a smaller one, decided by times that were given."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from superkernel.errors import UnsupportedError
from superkernel.frontend.export import choose_plans as chosen
from superkernel.frontend.export.choose_plans import ExampleCall, choose_plans
from superkernel.package.manifest import (
    Manifest,
    PackagedEntry,
    PackagedLaunch,
    PackagedPlan,
    PackagedShape,
    PackagedTensor,
    PackagePlace,
    PlaceKind,
)


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(chosen, "runnable_threads", lambda: 1)
    monkeypatch.setattr(chosen, "sleep", lambda seconds: None)


PLAN = PackagedPlan(1, "sk_segment", (), (), 0, 0, 0, False, 0, (), (), 0, (), 0)


def shape_of(launch: str, *cores: int) -> PackagedShape:
    plans = tuple(replace(PLAN, cores=count, entry=f"on{count}") for count in cores)
    return PackagedShape((), (), None, 0, (PackagedLaunch(launch, (), plans),), ())


MANIFEST = Manifest(
    "m",
    "0.1.0",
    (
        PackagedEntry("small", (shape_of("small_0", 4, 2, 1),)),
        PackagedEntry("large", (shape_of("large_0", 4, 2, 1), shape_of("large_1", 1))),
    ),
    states=(PackagedTensor("s", "float32", (1,)),),
)
EXAMPLES = [
    ExampleCall("small", "small_0", (1,)),
    ExampleCall("large", "large_0", (2,)),
    ExampleCall("large", "large_1", ()),
]


class FakeModel:
    """A model on a clock of its own: nanoseconds by entry."""

    now = 0
    resets = 0

    def __init__(self, small: int, large: int) -> None:
        self._times = {"small": small, "large": large}

    def __enter__(self) -> FakeModel:
        return self

    def __exit__(self, *error: object) -> None: ...

    def reset(self) -> None:
        FakeModel.resets += 1

    def __getattr__(self, entry: str) -> Any:
        def call(*tensors: object) -> None:
            FakeModel.now += self._times[entry]

        return call


def test_a_team_must_be_clearly_faster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    models = {1: FakeModel(3000, 90_000), 2: FakeModel(2900, 60_000), 4: FakeModel(2800, 50_000)}
    monkeypatch.setattr(chosen, "load_model", lambda folder, threads: models[threads])
    monkeypatch.setattr(chosen, "perf_counter_ns", lambda: FakeModel.now)
    small, large = choose_plans(tmp_path, MANIFEST, EXAMPLES).entries
    assert [plan.cores for plan in small.shapes[0].launches[0].plans] == [1]
    assert [[p.cores for p in shape.launches[0].plans] for shape in large.shapes] == [[4, 2, 1], [1]]
    assert FakeModel.resets > 0, "every call begins with the initial states"


@pytest.mark.parametrize(
    ("times", "kept"),
    [
        ({1: 90, 2: 60, 4: 58}, [2, 1]),  # 4 cores are not worth it
        ({1: 90, 2: 85, 4: 70}, [4, 2, 1]),  # 2 are not, 4 are
        ({1: 90, 2: 50, 4: 120}, [2, 1]),  # 4 are slower
        ({1: 90, 2: 88, 4: 84}, [1]),
    ],
)
def test_the_smallest_team_that_is_about_as_fast(
    times: dict[int, int], kept: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    models = {cores: FakeModel(3000, 1000 * microseconds) for cores, microseconds in times.items()}
    monkeypatch.setattr(chosen, "load_model", lambda folder, threads: models[threads])
    monkeypatch.setattr(chosen, "perf_counter_ns", lambda: FakeModel.now)
    _, large = choose_plans(tmp_path, MANIFEST, EXAMPLES).entries
    assert [[p.cores for p in shape.launches[0].plans] for shape in large.shapes] == [kept, [1]]


def test_a_team_that_was_disturbed_for_a_while_is_timed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    models = {1: FakeModel(3000, 90_000), 2: FakeModel(3000, 120_000), 4: FakeModel(3000, 120_000)}
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        models[4]._times["large"] = 50_000  # the other program is done

    monkeypatch.setattr(chosen, "load_model", lambda folder, threads: models[threads])
    monkeypatch.setattr(chosen, "perf_counter_ns", lambda: FakeModel.now)
    monkeypatch.setattr(chosen, "sleep", pause)
    example = [ExampleCall("large", "large_0", (2,))]
    _, large = choose_plans(tmp_path, MANIFEST, example).entries
    assert [plan.cores for plan in large.shapes[0].launches[0].plans] == [4, 2, 1]
    assert len(pauses) == 1, "no pause after a team that was faster"


def test_where_a_team_got_no_processors_the_sizes_decide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    models = {cores: FakeModel(3000, 90_000) for cores in (1, 2, 4)}
    monkeypatch.setattr(chosen, "load_model", lambda folder, threads: models[threads])
    monkeypatch.setattr(chosen, "perf_counter_ns", lambda: FakeModel.now)
    monkeypatch.setattr(chosen, "runnable_threads", lambda: 1 + (os.cpu_count() or 1))
    monkeypatch.setattr(chosen, "_is_small", lambda manifest, example: example.entry == "small")
    small, large = choose_plans(tmp_path, MANIFEST, EXAMPLES).entries
    assert [plan.cores for plan in small.shapes[0].launches[0].plans] == [1]
    assert [plan.cores for plan in large.shapes[0].launches[0].plans] == [4, 2, 1]


def test_shapes_with_large_arguments_keep_the_smallest_team(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Calls compare it with one core; a slow minute of the exporting machine must not decide for good."""
    models = {1: FakeModel(3000, 90_000), 2: FakeModel(3000, 88_000), 4: FakeModel(3000, 95_000)}
    monkeypatch.setattr(chosen, "load_model", lambda folder, threads: models[threads])
    monkeypatch.setattr(chosen, "perf_counter_ns", lambda: FakeModel.now)
    monkeypatch.setattr(chosen, "_is_small", lambda manifest, example: example.entry == "small")
    small, large = choose_plans(tmp_path, MANIFEST, EXAMPLES).entries
    assert [plan.cores for plan in small.shapes[0].launches[0].plans] == [1]
    assert [plan.cores for plan in large.shapes[0].launches[0].plans] == [2, 1]


def test_on_a_busy_machine_the_sizes_decide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(chosen, "load_model", None)
    monkeypatch.setattr(os, "getloadavg", lambda: (2.0 * (os.cpu_count() or 1),) * 3)
    large = shape_of("large_0", 4, 2, 1)
    places = (PackagePlace(PlaceKind.WEIGHT, 0, 1 << 20, name="w"),)
    large = replace(large, launches=(replace(large.launches[0], arguments=places),))
    manifest = replace(MANIFEST, entries=(MANIFEST.entries[0], PackagedEntry("large", (large,))))
    found = choose_plans(tmp_path, manifest, EXAMPLES)
    plans = [[plan.cores for plan in entry.shapes[0].launches[0].plans] for entry in found.entries]
    assert plans == [[1], [4, 2, 1]]


def test_a_package_that_cannot_run_here_keeps_its_plans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(folder: Path, threads: int) -> Any:
        raise UnsupportedError("another processor")

    monkeypatch.setattr(chosen, "load_model", refuse)
    assert choose_plans(tmp_path, MANIFEST, EXAMPLES) == MANIFEST
    one_core = replace(MANIFEST, entries=(PackagedEntry("large", (shape_of("large_1", 1),)),))
    monkeypatch.setattr(chosen, "load_model", None)
    assert choose_plans(tmp_path, one_core, EXAMPLES) == one_core, "nothing to choose, nothing is opened"
