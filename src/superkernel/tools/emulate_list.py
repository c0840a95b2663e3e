"""tools.emulate_list: the command emulate: a list of ops -> its super kernel on an emulator, twice per seed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from ..errors import LaunchError, UnsupportedError
from ..observe.emulation import emulation_profile
from ..observe.report import ReportData, write_report
from ..runtime.compile import compile as compile_ops
from ..runtime.super_kernel import SuperKernel
from ..targets import find_target
from ..targets.protocol import EmulatedLaunch, EmulatedMachine
from .compile_output import compiled_fields, merged_options

LAUNCHES = 2  # in a row, per seed: the second finds the words, areas and flags that the first left
_MOST_NAMED = 8  # failing seeds that the text names


@dataclass(frozen=True)
class SeedFailure:
    seed: int
    message: str


@dataclass(frozen=True)
class EmulatedList:
    """What all seeds said."""

    summary: tuple[str, ...]  # of the plan
    fields: dict[str, Any]
    machine: EmulatedMachine
    seeds: int
    failures: tuple[SeedFailure, ...]
    notes: tuple[str, ...]
    seconds: float
    report: Path | None = None

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def share_of_barriers(self) -> float:
        return self.machine.sync_actions / self.machine.barrier_actions

    def to_dict(self) -> dict[str, Any]:
        return self.fields | {
            "ok": self.ok,
            "machine": self.machine.name,
            "sync_actions": self.machine.sync_actions,
            "barrier_actions": self.machine.barrier_actions,
            "seeds": self.seeds,
            "passed": self.seeds - len(self.failures),
            "failures": [{"seed": failure.seed, "message": failure.message} for failure in self.failures],
            "emulation_notes": list(self.notes),
            "seconds": round(self.seconds, 3),
            "report": self.report and str(self.report),
        }

    def __str__(self) -> str:
        machine = self.machine
        lines = [*self.summary]
        lines.append(
            f"{machine.sync_actions} flag actions, {self.share_of_barriers:.2f} of the {machine.barrier_actions} that "
            "one full barrier per op would take"
        )
        lines += [f"note: {note}" for note in self.notes]
        lines.append(f"{self.seeds - len(self.failures)} of {self.seeds} seeds passed in {self.seconds:.1f} s")
        if self.failures:
            first = self.failures[0]
            more = [str(failure.seed) for failure in self.failures[1:]]
            listed = ", ".join(more[:_MOST_NAMED]) + (", ..." if len(more) > _MOST_NAMED else "")
            lines += [f"seed {first.seed} failed: {first.message}", *([f"so did seeds {listed}"] if more else [])]
        return "\n".join([*lines, *([f"report: {self.report}"] if self.report else [])])


def emulate_list(
    path: Path, seeds: Sequence[int], target: str, options: str, chip: str | None, report: Path | None
) -> EmulatedList:
    chosen = find_target(target).for_chip(chip)
    emulator = chosen.emulator
    if emulator is None:
        raise UnsupportedError(f"target {target!r} has no emulator: launch the kernel with superkernel run")
    described = chosen.read_ops(path)
    merged = merged_options(described.options, options)
    with compile_ops(described.ops, described.name, merged, target, chip=chip, outputs=described.outputs) as kernel:
        for collective in kernel.graph.collectives:
            if collective.group.size > 1:
                raise UnsupportedError(
                    f"{path}: collective {collective.name!r} waits for other ranks of {collective.group}; emulate the "
                    "lists of all ranks together, from Python: sk.emulate_ranks([...], [...])"
                )
        machine, begin = emulator.machine(kernel.executable), perf_counter()
        first, failures = _try_seeds(kernel, seeds)
        seconds = perf_counter() - begin
        notes = tuple(first.notes) if first is not None else ()
        if report is not None:
            said = [*notes, *(f"seed {failure.seed} failed: {failure.message}" for failure in failures[:1])]
            profile = emulation_profile(kernel, first, machine, said)
            report = write_report(report, ReportData.on_one(profile, kernel.name, machine.core_names))
        fields = compiled_fields(kernel, target)
        summary = tuple(kernel.plan.summary)
    return EmulatedList(summary, fields, machine, len(seeds), tuple(failures), notes, seconds, report)


def _try_seeds(kernel: SuperKernel, seeds: Sequence[int]) -> tuple[EmulatedLaunch | None, list[SeedFailure]]:
    """The first launch that passed, and all that failed."""
    first: EmulatedLaunch | None = None
    failures = []
    for seed in _with_bar(seeds):
        try:
            kernel.emulate({}, seed=seed, stand_ins=True, launches=LAUNCHES, record=first is None)
        except LaunchError as error:
            failures.append(SeedFailure(seed, str(error)))
            continue
        first = first or kernel.emulated
    return first, failures


def _with_bar(seeds: Sequence[int]) -> Iterable[int]:
    """A bar on a terminal that moves with every seed."""
    if not sys.stderr.isatty():
        return seeds
    from rich.console import Console
    from rich.progress import track

    return track(seeds, "seeds", console=Console(stderr=True), transient=True)
