"""frontend.export.choose_plans: a written package -> its manifest without the plans that are slower than fewer cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

from ...errors import LaunchError, UnsupportedError
from ...package.manifest import Manifest, PackagedLaunch, PackagedShape
from ...package.model import load_model
from ..gate_timing import alternate

_TEAM, _ALONE = "team", "one core"
_WORTH_A_TEAM = 1.1  # a team occupies other cores: it must be so much faster than one core

Times = Mapping[str, Sequence[int]]  # nanoseconds, by the way to launch


@dataclass(frozen=True)
class ExampleCall:
    """The example inputs of a shape of an entry."""

    entry: str
    shape: int
    tensors: tuple[Any, ...]


def choose_plans(folder: Path, manifest: Manifest, examples: Sequence[ExampleCall]) -> Manifest:
    """Times each shape with its team and on one core, and keeps the plans of the faster."""
    wanted = [example for example in examples if _has_choice(_shape(manifest, example))]
    if not wanted:
        return manifest
    try:
        with load_model(folder, threads=1) as alone, load_model(folder) as team:
            models = {_TEAM: team, _ALONE: alone}
            measured = {example: _times(models, example, bool(manifest.states)) for example in wanted}
    except (UnsupportedError, LaunchError):  # no object for this processor, or inputs that the model refuses
        return manifest
    slower = [example for example, times in measured.items() if not is_worth_a_team(times)]
    entries = []
    for entry in manifest.entries:
        shapes = list(entry.shapes)
        for example in slower:
            if example.entry == entry.name:
                shapes[example.shape] = _on_one_core(shapes[example.shape])
        entries.append(replace(entry, shapes=tuple(shapes)))
    return replace(manifest, entries=tuple(entries))


def is_worth_a_team(times: Times) -> bool:
    return median(times[_ALONE]) >= _WORTH_A_TEAM * median(times[_TEAM])


def _times(models: Mapping[str, Any], example: ExampleCall, has_states: bool) -> Times:
    def call(model: Any) -> Callable[[], object]:
        entry = getattr(model, example.entry)
        return lambda: entry(*example.tensors)

    def reset() -> None:
        for model in models.values() if has_states else ():
            model.reset()

    return alternate({name: call(model) for name, model in models.items()}, perf_counter_ns, reset)


def _shape(manifest: Manifest, example: ExampleCall) -> PackagedShape:
    return next(entry for entry in manifest.entries if entry.name == example.entry).shapes[example.shape]


def _has_choice(shape: PackagedShape) -> bool:
    return any(launch.plans[0].cores > 1 and launch.plans[-1].cores == 1 for launch in shape.launches)


def _on_one_core(shape: PackagedShape) -> PackagedShape:
    def alone(launch: PackagedLaunch) -> PackagedLaunch:
        plans = tuple(plan for plan in launch.plans if plan.cores == 1)
        return replace(launch, plans=plans or launch.plans)

    return replace(shape, launches=tuple(map(alone, shape.launches)))
