"""observe.shell: what the commands compare and trace do, for the shell to print."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from . import store
from .compare import Comparison, compare
from .facts import Profile
from .machine import machine_facts
from .report import write_report
from .reportable import of_one, of_two
from .script import run_script
from .tables import statistic

ReadRate = Callable[[int], float]  # cores -> bytes per second


def compared(before: Path, after: Path, html: Path | None, read_rate: ReadRate) -> Comparison:
    """Two directories; with a page of both, where that is wanted."""
    found = compare(before, after)
    if html is not None:
        rate = cache(read_rate)  # one machine has one roof, however much two measurements differ
        first, second = (_with_rate(one, rate) for one in (found.before, found.after))
        write_report(html, of_two(replace(found, before=first, after=second)))
    return found


def _with_rate(profile: Profile, read_rate: ReadRate) -> Profile:
    """What the memory gives: measured now, if this is the machine that the profile was recorded on."""
    here = machine_facts([])["processor"]
    cores = profile.machine.get("cores used")
    if profile.read_bytes_per_s is not None or profile.machine.get("processor") != here:
        return profile
    if not isinstance(cores, int) or cores < 1:
        return profile
    return replace(profile, read_bytes_per_s=read_rate(cores))


@dataclass(frozen=True)
class Shown:
    """A traced script, in words and as fields."""

    status: int
    lines: list[str]
    fields: dict[str, Any]


def traced(script: Path, words: Sequence[str], directory: Path, quiet: bool, read_rate: ReadRate) -> Shown:
    """Run, record, and leave the tables, the trace and the report."""
    place = directory.absolute()  # the script may go elsewhere
    ran = run_script(script, words, place, quiet)
    profile = _with_rate(ran.profile, read_rate)
    store.write(place, profile)
    report = write_report(place / store.REPORT, of_one(profile, script.name))
    files = [*store.FILES, store.FACTS, report.name]
    rows = statistic(profile.launches)
    lines = [f"{script}: {len(profile.launches)} launches, {profile.total_us:.2f} us"]
    lines += [f"  {row.op_type:<24} {row.core_type:<8} {row.count:>6} x {row.total_us:>12.2f} us" for row in rows]
    lines += [f"note: {note}" for note in profile.notes]
    if not profile.launches and ran.status == 0:
        lines.append("note: nothing was launched: is the model compiled with backend='superkernel'?")
    lines.append(f"{directory}: {', '.join(files)}; open {store.REPORT} in a browser, trace.json in ui.perfetto.dev")
    fields = {
        "ok": ran.status == 0,
        "status": ran.status,
        "directory": str(directory),
        "files": files,
        "launches": len(profile.launches),
        "total_us": profile.total_us,
    }
    return Shown(ran.status, lines, fields | ({"failure": ran.failure} if ran.failure else {}))
