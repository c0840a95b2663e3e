"""frontend.export.choose_plans: a written package -> its manifest, without needlessly large teams."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter_ns, sleep
from typing import Any

import torch

from ...errors import LaunchError, UnsupportedError
from ...package.manifest import Manifest, PackagedLaunch, PackagedShape
from ...package.model import load_model
from ..gate_conditions import GateConditions

_WORTH_A_TEAM = 1.1  # a team occupies other cores: it must be so much faster than a smaller one, or than one core
_WARM_UP_NS, _BURST_NS = 20_000_000, 2_000_000
_BURSTS, _FEWEST_CALLS = 9, 3  # of each way to launch; in a burst
# Seconds before another attempt, while a team seems no faster: another program may have had its processor for a moment,
# and after a crowd the run time asks for no team for up to 2 s (kLongestPauseNs in formation.cpp).
_PAUSES_S = (0.0, 0.1, 2.1)
_LOOKS, _LOOK_S = 5, 0.02
_SMALL_BYTES = 1 << 19  # read and written by a launch; below, waking a team costs more than it saves

Times = Mapping[int, Sequence[int]]  # nanoseconds, by the number of cores


@dataclass(frozen=True)
class ExampleCall:
    """The example inputs of a shape of an entry."""

    entry: str
    launch: str
    tensors: tuple[Any, ...]


def choose_plans(folder: Path, manifest: Manifest, examples: Sequence[ExampleCall]) -> Manifest:
    """Times each shape on one core and with teams of every size that it has plans for, and keeps those up to the best.

    Where other programs keep the machine busy, times mean nothing for later, and the sizes of arguments decide. Two
    threads may be slow for a minute on an idle virtual machine: shapes with large arguments keep a team, and calls
    compare it with one core.
    """
    wanted = [example for example in examples if any(map(_has_choice, _launches(manifest, example)))]
    if not wanted:
        return manifest
    if GateConditions.now().busy:
        return _with_teams_up_to(manifest, {e.launch: 1 for e in wanted if _is_small(manifest, e)})
    try:
        best = {example: best_cores(times) for example, times in _measured(folder, manifest, wanted).items()}
    except (UnsupportedError, LaunchError):  # no object for this processor, or inputs that the model refuses
        return manifest
    undecided = {example for example, cores in best.items() if cores == 1 and not _is_small(manifest, example)}
    if undecided and lacks_processors():  # teams did not get them: no size is known to be needlessly large
        best = {example: cores for example, cores in best.items() if example not in undecided}
    else:
        best |= {example: _team_sizes(manifest, example)[1] for example in undecided}
    return _with_teams_up_to(manifest, {example.launch: cores for example, cores in best.items()})


def _measured(folder: Path, manifest: Manifest, wanted: Sequence[ExampleCall]) -> dict[ExampleCall, Times]:
    """The times of each example on the sizes that it has plans for."""
    sizes = {example: _team_sizes(manifest, example) for example in wanted}
    with ExitStack() as opened:
        counts = sorted({cores for found in sizes.values() for cores in found})
        models = {cores: opened.enter_context(load_model(folder, threads=cores)) for cores in counts}
        return {
            example: _times({cores: models[cores] for cores in found}, example, bool(manifest.states))
            for example, found in sizes.items()
        }


def _with_teams_up_to(manifest: Manifest, best: Mapping[str, int]) -> Manifest:
    """`best`: the most cores that a launch keeps plans for; launches that it does not name keep all."""
    return replace(
        manifest,
        entries=tuple(
            replace(entry, shapes=tuple(_revised(shape, best) for shape in entry.shapes)) for entry in manifest.entries
        ),
    )


def best_cores(times: Times) -> int:
    """By the least times: other programs disturb some of the samples."""
    best, *larger = sorted(times)
    for cores in larger:
        if min(times[best]) >= _WORTH_A_TEAM * min(times[cores]):
            best = cores
    return best


def lacks_processors() -> bool:
    """Whether more threads of the machine want to run than it has processors, in some looks one after the other."""
    looks = []
    for _ in range(_LOOKS):
        sleep(_LOOK_S)
        looks.append(runnable_threads() > (os.cpu_count() or 1))
    return sum(looks) > _LOOKS // 2


def runnable_threads() -> int:
    """This one included; 0: the system does not say."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return 0


def _times(models: Mapping[int, Any], example: ExampleCall, has_states: bool) -> Times:
    """Times per call. Ways to launch take turns, in bursts of calls, between which the threads of a team stay awake."""

    arguments = _as_arrays(example.tensors)

    def call(model: Any) -> Callable[[], object]:
        entry = getattr(model, example.entry)
        return lambda: entry(*arguments)

    def reset() -> None:
        for model in models.values() if has_states else ():
            model.reset()

    calls = {cores: call(model) for cores, model in models.items()}
    for function in calls.values():
        _time_per_call(function, reset, _WARM_UP_NS)
    times: dict[int, list[int]] = {cores: [] for cores in calls}
    for pause_s in _PAUSES_S:
        sleep(pause_s)
        for _ in range(_BURSTS):
            for cores, function in calls.items():
                times[cores].append(_time_per_call(function, reset, _BURST_NS))
        if best_cores(times) > 1:
            break
    return times


def _as_arrays(arguments: Sequence[Any]) -> Sequence[Any]:
    """Tensors as numpy arrays, whose checks take least; numpy has no bfloat16."""
    if any(isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16 for value in arguments):
        return arguments
    return [value.detach().numpy() if isinstance(value, torch.Tensor) else value for value in arguments]


def _time_per_call(call: Callable[[], object], reset: Callable[[], None], burst_ns: int) -> int:
    """Of calls that follow each other. Every call begins with the initial states; resetting them is not timed."""
    spent = count = 0
    while count < _FEWEST_CALLS or spent < burst_ns:
        reset()
        begin = perf_counter_ns()
        call()
        spent += perf_counter_ns() - begin
        count += 1
    return spent // count


def _launches(manifest: Manifest, example: ExampleCall) -> list[PackagedLaunch]:
    launches = (launch for entry in manifest.entries for shape in entry.shapes for launch in shape.launches)
    return [launch for launch in launches if launch.object == example.launch]


def _is_small(manifest: Manifest, example: ExampleCall) -> bool:
    places = [place for launch in _launches(manifest, example) for place in launch.arguments]
    return sum(place.nbytes for place in places) < _SMALL_BYTES


def _has_choice(launch: PackagedLaunch) -> bool:
    return launch.plans[0].cores > 1 and launch.plans[-1].cores == 1


def _team_sizes(manifest: Manifest, example: ExampleCall) -> list[int]:
    """The numbers of cores that some launch of the example has a plan for."""
    return sorted({plan.cores for launch in _launches(manifest, example) for plan in launch.plans})


def _revised(shape: PackagedShape, best: Mapping[str, int]) -> PackagedShape:
    """Launches without the plans for more cores than the best."""
    launches = (
        replace(launch, plans=tuple(plan for plan in launch.plans if plan.cores <= best[launch.object]))
        if launch.object in best
        else launch
        for launch in shape.launches
    )
    return replace(shape, launches=tuple(launches))
