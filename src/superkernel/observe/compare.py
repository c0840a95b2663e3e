"""observe.compare: two profiles, before and after -> what changed: in total, per call, by op type and by scope."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..model import notebook_html
from . import store
from .calls import CallKind, ScopeTime, call_kinds, scope_times
from .machine_load import load_warning
from .profile import Profile
from .tables import statistic


@dataclass(frozen=True)
class Difference:
    """One type of op on one kind of cores, in both runs."""

    op_type: str
    core_type: str
    before_count: int
    before_us: float
    after_count: int
    after_us: float

    @property
    def change_us(self) -> float:
        return self.after_us - self.before_us

    @property
    def change_percent(self) -> float | None:
        return 100 * self.change_us / self.before_us if self.before_us else None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"change_us": self.change_us, "change_percent": self.change_percent}


@dataclass(frozen=True)
class CallDifference:
    """Calls of the same graphs in both runs."""

    before: CallKind
    after: CallKind

    @property
    def benefit_percent(self) -> float | None:
        """How much less time the median call took."""
        return percent_less(self.before.times.median, self.after.times.median)

    def to_dict(self) -> dict[str, Any]:
        sides = {"before": _call_fields(self.before), "after": _call_fields(self.after)}
        return {"name": self.after.name, **sides, "benefit_percent": self.benefit_percent}


@dataclass(frozen=True)
class ScopeDifference:
    """One scope per call in both runs; None: the run has no launch of it."""

    scope: str
    before: ScopeTime | None
    after: ScopeTime | None

    @property
    def change_percent(self) -> float | None:
        if self.before is None or self.after is None or not self.before.time_us:
            return None
        return 100 * (self.after.time_us - self.before.time_us) / self.before.time_us

    def to_dict(self) -> dict[str, Any]:
        sides = (("before", self.before), ("after", self.after))
        times = {name: side and {"launches": side.launches, "time_us": side.time_us} for name, side in sides}
        return {"scope": self.scope, **times, "change_percent": self.change_percent}


@dataclass(frozen=True)
class ProfileComparison:
    before: Profile
    after: Profile
    titles: tuple[str, str]

    @property
    def rows(self) -> list[Difference]:
        """Types of both runs: those of the first by their time there, then those that only the second has."""
        before, after = (
            {(row.op_type, row.core_type): (row.count, row.total_us) for row in statistic(profile.launches)}
            for profile in (self.before, self.after)
        )
        nothing = (0, 0.0)
        return [Difference(*key, *before.get(key, nothing), *after.get(key, nothing)) for key in {**before, **after}]

    @cached_property
    def calls(self) -> list[CallDifference]:
        """Kinds of calls that both runs have; those that took most time in the first run come first."""
        after = {kind.signature: kind for kind in call_kinds(self.after)}
        pairs = ((kind, after.get(kind.signature)) for kind in call_kinds(self.before))
        return [CallDifference(kind, other) for kind, other in pairs if other is not None]

    @cached_property
    def scopes(self) -> list[ScopeDifference]:
        before, after = scope_times(self.before), scope_times(self.after)
        return [ScopeDifference(name, before.get(name), after.get(name)) for name in {**before, **after}]

    @property
    def empty(self) -> str:
        """Which run launched nothing, in words; empty: none of them."""
        runs = (("first", self.before), ("second", self.after))
        return " and the ".join(name for name, profile in runs if not profile.launches)

    @property
    def benefit_percent(self) -> float | None:
        """How much less time the second run took; None: one of them launched nothing."""
        return None if self.empty else percent_less(self.before.total_us, self.after.total_us)

    @property
    def kernel_drop_percent(self) -> float | None:
        return None if self.empty else percent_less(len(self.before.launches), len(self.after.launches))

    @property
    def same_model(self) -> bool:
        same_graphs = self.before.runs_by_identity.keys() == self.after.runs_by_identity.keys()
        return same_graphs and self.before.torch_types == self.after.torch_types

    @property
    def notes(self) -> list[str]:
        """What a reader must know before believing the numbers."""
        return list(_notes(self))

    @property
    def warnings(self) -> list[str]:
        """Why the times themselves are not to be trusted."""
        named = zip(self.titles, (self.before, self.after), strict=True)
        found = ((title, load_warning(profile.load, cores_used(profile))) for title, profile in named)
        return [f"{title}: {warning}" for title, warning in found if warning]

    def to_dict(self) -> dict[str, Any]:
        before_us, after_us = self.before.total_us, self.after.total_us
        before, after = len(self.before.launches), len(self.after.launches)
        return {
            "before": _side(self.titles[0], self.before),
            "after": _side(self.titles[1], self.after),
            "same_model": self.same_model,
            "rows": [row.to_dict() for row in self.rows],
            "total": {"before_us": before_us, "after_us": after_us, "change_us": after_us - before_us},
            "kernels": {"before": before, "after": after, "drop_percent": self.kernel_drop_percent},
            "calls": [row.to_dict() for row in self.calls],
            "scopes": [row.to_dict() for row in self.scopes],
            "benefit_percent": self.benefit_percent,
            "notes": self.notes,
            "warnings": self.warnings,
        }

    def summary(self) -> list[str]:
        before, after, drop = self.before, self.after, self.kernel_drop_percent
        unknown = f"not known: the {self.empty} run launched nothing"
        change = unknown if drop is None else f"{abs(drop):.2f} % {'fewer' if drop >= 0 else 'more'}"
        benefit = unknown if self.benefit_percent is None else f"{self.benefit_percent:.2f} %"
        lines = [f"kernels: {len(before.launches)} -> {len(after.launches)} ({change})", *map(_call_line, self.calls)]
        lines += [f"total time: {before.total_us:.2f} us -> {after.total_us:.2f} us", f"benefit: {benefit}"]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return [*lines, *(f"note: {note}" for note in self.notes)]

    def _repr_html_(self) -> str:
        """For notebooks: the summary, and the op types of both runs."""
        first, second = (Path(title).name or title for title in self.titles)
        columns = ["OP Type", "Core Type", f"{first}: Count", "Total Time(us)", f"{second}: Count", "Total Time(us)"]
        rows = [
            (
                row.op_type,
                row.core_type,
                str(row.before_count),
                f"{row.before_us:.2f}",
                str(row.after_count),
                f"{row.after_us:.2f}",
                f"{row.change_us:+.2f}",
            )
            for row in self.rows
        ]
        lines = self.summary()
        benefit = next(line for line in lines if line.startswith("benefit: "))
        return notebook_html.page(
            notebook_html.heading(benefit),
            *(notebook_html.paragraph(line) for line in lines if line != benefit),
            notebook_html.table([*columns, "change(us)"], rows),
        )


def compare(before: str | Path, after: str | Path) -> ProfileComparison:
    """Two profile directories."""
    return ProfileComparison(store.read(before), store.read(after), (str(before), str(after)))


def percent_less(before: float, after: float) -> float | None:
    """How much less `after` is, in percent of `before`; negative where it is more."""
    return 100 * (before - after) / before if before else None


def cores_used(profile: Profile) -> int:
    cores = profile.machine.get("cores used", 0)
    return cores if isinstance(cores, int) else 0


def _call_line(row: CallDifference) -> str:
    before, after = row.before.times, row.after.times
    pairs = ((name, getattr(before, name), getattr(after, name)) for name in ("median", "p99", "slowest"))
    times = ", ".join(f"{name} {first:.1f} -> {second:.1f} us" for name, first, second in pairs)
    return f"per call of {row.after.name}: {times}"


def _call_fields(kind: CallKind) -> dict[str, Any]:
    times = kind.times
    return {
        "calls": len(kind.calls),
        "median_us": times.median,
        "p99_us": times.p99,
        "slowest_us": times.slowest,
        "fastest_us": times.fastest,
        "launches": kind.launches,
        "host_us": kind.host_us,
        "gap_before_us": kind.before_us,
    }


def _side(title: str, profile: Profile) -> dict[str, Any]:
    return {
        "directory": title,
        "package": profile.package,
        "detail": profile.detail,
        "launches": len(profile.launches),
        "total_us": profile.total_us,
        "machine": dict(profile.machine),
        "load": profile.load and asdict(profile.load),
        "model": profile.runs_by_identity,
    }


def _notes(comparison: ProfileComparison) -> Iterator[str]:
    before, after = comparison.before, comparison.after
    if before == after:
        yield "these are one and the same run"
    first, second = before.runs_by_identity, after.runs_by_identity
    if not comparison.same_model:
        what = "partly different models" if first.keys() & second.keys() else "different models"
        only = "; ".join(_only_in(comparison))
        yield f"these are runs of {what}: the totals do not say what fusion gained ({only})"
    counts = sorted({(first[identity], second[identity]) for identity in first.keys() & second.keys()})
    if different := [f"{count} and {later} times" for count, later in counts if count != later]:
        yield f"the same graph ran {', '.join(different)}: compare times per call, not totals"
    for name in sorted(before.machine.keys() | after.machine.keys()):
        value, later_value = before.machine.get(name), after.machine.get(name)
        if value != later_value and not (name == "cores used" and 0 in (value, later_value)):
            yield f"recorded with another {name}: {value}, then {later_value}"
    if before.package != after.package:
        yield f"recorded with superkernel {before.package}, then {after.package}"
    if before.detail != after.detail:
        yield "only one of the two recorded what cores did, which takes time as well"
    for title, profile in zip(comparison.titles, (before, after), strict=True):
        if not profile.launches:
            yield f"{title} has no launches"
        yield from (f"{title}: {note}" for note in profile.notes)


def _only_in(comparison: ProfileComparison) -> Iterator[str]:
    """The names of what only one of the two runs launched."""
    before, after = comparison.before, comparison.after
    for title, profile, other in zip(comparison.titles, (before, after), (after, before), strict=True):
        kernels = {kernel.name for kernel in profile.kernels if kernel.identity not in other.runs_by_identity}
        if names := sorted(kernels | (profile.torch_types - other.torch_types)):
            yield f"only {title}: {', '.join(names)}"
