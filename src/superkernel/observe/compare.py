"""observe.compare: two profiles, before and after -> what changed, op by op and in total."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import store
from .profile import Profile
from .tables import statistic

if TYPE_CHECKING:
    from rich.console import RenderableType


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

    @property
    def benefit_percent(self) -> float | None:
        """How much less time the second run took."""
        return percent_less(self.before.total_us, self.after.total_us)

    @property
    def kernel_drop_percent(self) -> float | None:
        return percent_less(len(self.before.launches), len(self.after.launches))

    @property
    def same_model(self) -> bool:
        same_graphs = self.before.runs_by_identity.keys() == self.after.runs_by_identity.keys()
        return same_graphs and self.before.torch_types == self.after.torch_types

    @property
    def notes(self) -> list[str]:
        """What a reader must know before believing the numbers."""
        return list(_notes(self))

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
            "benefit_percent": self.benefit_percent,
            "notes": self.notes,
        }

    def summary(self) -> list[str]:
        before, after, drop = self.before, self.after, self.kernel_drop_percent
        change = _shown(drop) if drop is None else f"{_shown(abs(drop))} {'fewer' if drop >= 0 else 'more'}"
        lines = [
            f"kernels: {len(before.launches)} -> {len(after.launches)} ({change})",
            f"total time: {before.total_us:.2f} us -> {after.total_us:.2f} us",
            f"benefit: {_shown(self.benefit_percent)}",
        ]
        return [*lines, *(f"note: {note}" for note in self.notes)]


def compare(before: str | Path, after: str | Path) -> ProfileComparison:
    """Two profile directories."""
    return ProfileComparison(store.read(before), store.read(after), (str(before), str(after)))


def table(comparison: ProfileComparison) -> RenderableType:
    """Both op tables side by side."""
    from rich.table import Table
    from rich.text import Text

    first, second = (Path(title).name or title for title in comparison.titles)
    shown = Table(title=Text(f"{first}, then {second}: Total Time(us) of launches"), title_justify="left")
    for name in ("OP Type", "Core Type"):
        shown.add_column(f"\n{name}", overflow="fold")
    for over, name in ((first, "Count"), ("", "Total Time(us)"), (second, "Count"), ("", "Total Time(us)")):
        shown.add_column(Text(f"{over}\n{name}"), justify="right")
    for name in ("change(us)", "change(%)"):
        shown.add_column(f"\n{name}", justify="right")
    for row in comparison.rows:
        shown.add_row(Text(row.op_type), Text(row.core_type), *_cells(row))
    shown.add_section()
    before, after = comparison.before, comparison.after
    total = Difference("Total", "", len(before.launches), before.total_us, len(after.launches), after.total_us)
    shown.add_row("Total", "", *_cells(total), style="bold")
    return shown


def _cells(row: Difference) -> list[str]:
    sides = ((row.before_count, row.before_us), (row.after_count, row.after_us))
    cells = [cell for count, us in sides for cell in ((str(count), f"{us:.2f}") if count else ("", ""))]
    percent = "" if row.change_percent is None else f"{row.change_percent:+.1f}"
    return [*cells, f"{row.change_us:+.2f}", percent]


def percent_less(before: float, after: float) -> float | None:
    """How much less `after` is, in percent of `before`; negative where it is more."""
    return 100 * (before - after) / before if before else None


def _shown(percent: float | None) -> str:
    return "not known: the first run launched nothing" if percent is None else f"{percent:.2f} %"


def _side(title: str, profile: Profile) -> dict[str, Any]:
    return {
        "directory": title,
        "package": profile.package,
        "detail": profile.detail,
        "launches": len(profile.launches),
        "total_us": profile.total_us,
        "machine": dict(profile.machine),
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
        yield f"the same graph ran {', '.join(different)}: compare averages, not totals"
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
