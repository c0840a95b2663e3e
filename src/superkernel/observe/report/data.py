"""observe.report.data: what a report is about: one profile, or two, with the titles of the page."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ...errors import BuildError
from ..calls import CallKind, call_kinds
from ..compare import ProfileComparison, cores_used
from ..core_time import InnerTypeRow, inner_types
from ..machine_load import load_warning
from ..profile import Clock, Profile, ProfiledLaunch


@dataclass(frozen=True)
class ReportedRun:
    """A profile, and the title of its run on the page."""

    title: str
    profile: Profile
    core_names: tuple[str, ...] = ()  # empty: cores have numbers only

    def core_name(self, core: int) -> str:
        return self.core_names[core] if core < len(self.core_names) else f"core {core}"

    @cached_property
    def calls(self) -> tuple[CallKind, ...]:
        return call_kinds(self.profile)

    @cached_property
    def inner_types(self) -> list[InnerTypeRow]:
        return inner_types(self.profile)

    @cached_property
    def kernel_titles(self) -> tuple[str, ...]:
        """One per kernel; kernels of the same name are numbered."""
        titles: list[str] = []
        for kernel in self.profile.kernels:
            title, number = kernel.name, 2
            while title in titles:
                title, number = f"{kernel.name} ({number})", number + 1
            titles.append(title)
        return tuple(titles)

    def launch_title(self, launch: ProfiledLaunch) -> str:
        return launch.name if launch.kernel is None else self.kernel_titles[launch.kernel]

    @property
    def has_spans(self) -> bool:
        return any(launch.spans for launch in self.profile.launches)

    @property
    def notes(self) -> Iterator[str]:
        yield from self.profile.notes
        if not self.has_spans:
            yield "recorded without detail: what each core did is not known (detail=True, or superkernel trace)"

    @property
    def warning(self) -> str:
        """Why its times are not to be trusted; empty: nothing is known against them."""
        return load_warning(self.profile.load, cores_used(self.profile))


@dataclass(frozen=True)
class ReportData:
    """A report on one run, or on two: before and after."""

    title: str
    runs: tuple[ReportedRun, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.runs) not in (1, 2):
            raise BuildError(f"a report shows one run, or two (before and after), not {len(self.runs)}")
        if len({run.profile.clock for run in self.runs}) > 1:
            raise BuildError("a report cannot compare an emulated run with a real one: ticks are no time")

    @classmethod
    def on_one(cls, profile: Profile, title: str, core_names: tuple[str, ...] = ()) -> ReportData:
        return cls(title, (ReportedRun(title, profile, core_names),))

    @classmethod
    def on_two(cls, comparison: ProfileComparison) -> ReportData:
        before, after = (Path(title).name or title for title in comparison.titles)
        runs = ReportedRun(before, comparison.before), ReportedRun(after, comparison.after)
        return cls(f"{before} and {after}", runs, tuple(comparison.notes))

    @property
    def clock(self) -> Clock:
        """The unit of all times on the page."""
        return self.runs[-1].profile.clock

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why times on the page are not to be trusted."""
        return tuple(f"{run.title}: {run.warning}" for run in self.runs if run.warning)

    @property
    def created(self) -> str:
        """When the last run began, as the page shows it."""
        began_ns = self.runs[-1].profile.began_ns
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began_ns / 1e9)) if began_ns else ""
