"""observe.rank_comparison: the profile folders of the ranks of one run -> one time line, and who waited for whom."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import BuildError, OptionError
from . import store
from .compare import cores_used
from .compare_text import TextTable, wrapped_words
from .machine_load import load_warning
from .profile import Profile
from .rank_of_process import FOLDER
from .rank_timeline import rank_trace
from .rank_waits import RankWait, rank_waits, zero_ns


@dataclass(frozen=True)
class RankRow:
    """One rank. A wait counts once for an op of a launch, as long as its slowest core waited."""

    rank: int
    launches: int
    total_us: float  # in launches
    waited_us: Mapping[int, float]  # by the rank that ended the wait
    rest_us: float  # of waits in which all ranks had arrived

    @property
    def for_others_us(self) -> float:
        return sum(self.waited_us.values())


@dataclass(frozen=True)
class RankComparison:
    """The ranks of one run, by their number."""

    profiles: Mapping[int, Profile]
    folders: Mapping[int, Path]

    @cached_property
    def waits(self) -> list[RankWait]:
        return rank_waits(self.profiles)

    @cached_property
    def rows(self) -> list[RankRow]:
        longest: dict[tuple[int, int, str | None], RankWait] = {}
        for wait in self.waits:
            key = wait.rank, wait.launch, wait.span.op
            if key not in longest or wait.us > longest[key].us:
                longest[key] = wait
        waited: dict[int, dict[int, float]] = {rank: defaultdict(float) for rank in self.profiles}
        rest: dict[int, float] = defaultdict(float)
        for wait in longest.values():
            if wait.last is None:
                rest[wait.rank] += wait.us
            else:
                waited[wait.rank][wait.last.rank] += wait.us
        return [
            RankRow(rank, len(profile.launches), profile.total_us, dict(sorted(waited[rank].items())), rest[rank])
            for rank, profile in self.profiles.items()
        ]

    @property
    def notes(self) -> list[str]:
        found = []
        ranks = next(iter(self.profiles.values())).rank
        assert ranks is not None
        if missing := sorted(set(range(ranks.ranks)) - self.profiles.keys()):
            found.append(f"without rank {', '.join(map(str, missing))} of {ranks.ranks}: waits for it have no name")
        if not all(profile.detail for profile in self.profiles.values()):
            found.append("not every rank was recorded with detail=True: waits are known with it only")
        begins = [zero_ns(profile) for profile in self.profiles.values()]
        ends = [zero_ns(profile) + _last_ns(profile) for profile in self.profiles.values()]
        if max(begins) > min(ends):
            found.append("the profiles do not overlap in time: these are ranks of different runs")
        return found + [f"rank {rank}: {note}" for rank, profile in self.profiles.items() for note in profile.notes]

    @property
    def warnings(self) -> list[str]:
        found = ((rank, load_warning(profile.load, cores_used(profile))) for rank, profile in self.profiles.items())
        return [f"rank {rank}: {warning}" for rank, warning in found if warning]

    def to_dict(self) -> dict[str, Any]:
        ranks = [
            {
                "rank": row.rank,
                "directory": str(self.folders[row.rank]),
                "launches": row.launches,
                "total_us": row.total_us,
                "waited_us": {str(other): us for other, us in row.waited_us.items()},
                "all_there_us": row.rest_us,
            }
            for row in self.rows
        ]
        return {"ranks": ranks, "notes": self.notes, "warnings": self.warnings}

    def lines(self) -> list[str]:
        others = sorted({other for row in self.rows for other in row.waited_us})
        head = ("Rank", "launches", "us", *(f"for rank {other}" for other in others), "all there")
        rows = [
            (
                f"rank {row.rank}",
                str(row.launches),
                f"{row.total_us:.2f}",
                *(f"{row.waited_us[other]:.2f}" if other in row.waited_us else "" for other in others),
                f"{row.rest_us:.2f}",
            )
            for row in self.rows
        ]
        table = TextTable("Ranks of one run: time in launches, and in them waits for other ranks", head, tuple(rows))
        said = [_sentence(row) for row in self.rows if row.waited_us]
        said += [f"warning: {warning}" for warning in self.warnings] + [f"note: {note}" for note in self.notes]
        return [*table.lines(), "", *(piece for line in said for piece in wrapped_words(line))]

    def write_trace(self, path: Path) -> Path:
        """One time line, for Perfetto."""
        content = json.dumps(rank_trace(self.profiles, self.waits), separators=(",", ":"), allow_nan=False).encode()
        try:
            path.write_bytes(gzip.compress(content, 3) if path.suffix == ".gz" else content)
        except OSError as reason:
            raise BuildError(f"cannot write {path}: {reason}") from reason
        return path


def _sentence(row: RankRow) -> str:
    longest = max(row.waited_us, key=lambda other: row.waited_us[other])
    share = 100 * row.for_others_us / row.total_us if row.total_us else 0.0
    return (
        f"rank {row.rank} waited {row.for_others_us:.2f} us for other ranks, {share:.1f} % of its launches; "
        f"{row.waited_us[longest]:.2f} us of them for rank {longest}"
    )


def _last_ns(profile: Profile) -> float:
    return max((launch.end_ns for launch in profile.launches), default=0.0)


def rank_folders(directories: Sequence[Path]) -> list[Path]:
    """The folders that are named, or those of the ranks in the one that is named."""
    if len(directories) > 1:
        return list(directories)
    (folder,) = directories
    found = [path for path in folder.glob(f"{FOLDER}*") if path.name.removeprefix(FOLDER).isdigit() and path.is_dir()]
    if not found:
        raise OptionError(
            f"{str(folder)!r} has no folders {FOLDER}0, {FOLDER}1, ... of ranks; compare takes such a folder, or two "
            "profile directories"
        )
    return sorted(found, key=lambda path: int(path.name.removeprefix(FOLDER)))


def find_ranks(folders: Sequence[Path]) -> RankComparison | None:
    """None: these are not different ranks of one run; they may be two runs."""
    profiles = [store.read(folder) for folder in folders]
    known = [profile.rank for profile in profiles if profile.rank is not None]
    numbers = {found.rank for found in known}
    if len(numbers) < len(profiles) or len({found.ranks for found in known}) > 1:
        return None
    if len({found.boot for found in known}) > 1:
        raise OptionError("these ranks ran on several machines, or before and after a restart: their clocks differ")
    pairs = sorted(zip(known, profiles, folders, strict=True), key=lambda found: found[0].rank)
    return RankComparison({r.rank: profile for r, profile, _ in pairs}, {r.rank: folder for r, _, folder in pairs})
