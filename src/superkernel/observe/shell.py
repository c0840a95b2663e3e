"""observe.shell: the commands compare and trace, up to what the shell prints."""

from __future__ import annotations

import importlib.util
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import OptionError, counted
from . import recorder, store
from .calls import CallKind, call_kinds
from .compare import ProfileComparison, compare, cores_used
from .machine import machine_facts
from .machine_load import load_warning
from .profile import Profile
from .report import ReportData, write_report
from .script_errors import from_script_on
from .tables import statistic

ReadRate = Callable[[int], float]  # cores -> bytes per second
_INTERRUPTED = 130  # what shells report of a process that Ctrl-C ended


def compare_directories(before: Path, after: Path, html: Path | None, read_rate: ReadRate) -> ProfileComparison:
    """The comparison of two profile directories; `html` is where a report on both is written."""
    comparison = compare(before, after)
    if html is not None:
        rate = cache(read_rate)  # both runs are compared with one measurement
        measured = [_with_bandwidth(profile, rate) for profile in (comparison.before, comparison.after)]
        write_report(html, ReportData.on_two(replace(comparison, before=measured[0], after=measured[1])))
    return comparison


def _with_bandwidth(profile: Profile, read_rate: ReadRate) -> Profile:
    """Measured now, if this is the machine that the profile was recorded on."""
    cores = profile.machine.get("cores used")
    if profile.read_bytes_per_s is not None or profile.machine.get("processor") != machine_facts([])["processor"]:
        return profile
    if not isinstance(cores, int) or cores < 1:
        return profile
    return replace(profile, read_bytes_per_s=read_rate(cores))


@dataclass(frozen=True)
class TraceAnswer:
    """The answer of the command trace, as lines and as fields."""

    status: int
    lines: list[str]
    fields: dict[str, Any]


@dataclass(frozen=True)
class TracedProgram:
    """What the command trace runs: a script by its path, or a module by its name, as `python -m` does."""

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def path(self) -> Path:
        """The file that runs first."""
        if not self.is_module:
            return Path(self.name).absolute()
        return Path(_module_file(self.name))

    @property
    def title(self) -> str:
        return self.name if self.is_module else Path(self.name).name

    @property
    def search_path(self) -> str:
        """What comes first in sys.path."""
        return str(Path.cwd()) if self.is_module else str(self.path.parent.resolve())


def _module_file(name: str) -> str:
    """The file of a module, or the __main__ of a package."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise OptionError(f"trace -m: there is no module {name!r} to run; it is searched here and in sys.path")
    return spec.origin


def trace_program(program: TracedProgram, directory: Path, quiet: bool, read_rate: ReadRate) -> TraceAnswer:
    """Run the program under a profile, and leave the tables, the trace and the report."""
    place = directory.absolute()  # the script may change the current directory
    run = run_program(program, place, quiet)
    place = run.directory
    directory = directory if run.profile.rank is None else directory / place.name
    profile = _with_bandwidth(run.profile, read_rate)
    files = store.write(place, profile)
    report = write_report(place / store.REPORT, ReportData.on_one(profile, program.title))
    files = [*files, report.name]
    rows, calls = statistic(profile.launches), call_kinds(profile)
    warning = load_warning(profile.load, cores_used(profile))
    lines = [f"{program.name}: {counted(len(profile.launches), 'launch', 'launches')}, {profile.total_us:.2f} us"]
    lines += [f"  {row.op_type:<24} {row.core_type:<8} {row.count:>6} x {row.total_us:>12.2f} us" for row in rows]
    lines += map(_call_line, calls)
    lines += [f"warning: {warning}"] if warning else []
    lines += [f"note: {note}" for note in profile.notes]
    if not profile.launches and run.status == 0:
        lines.append("note: nothing was launched: is the model compiled with backend='superkernel'?")
    trace = next(name for name in files if name.startswith("trace.json"))
    lines.append(f"{directory}: {', '.join(files)}; open {store.REPORT} in a browser, {trace} in ui.perfetto.dev")
    fields = {"ok": run.status == 0, "status": run.status, "directory": str(directory), "files": files}
    fields |= {
        "launches": len(profile.launches),
        "total_us": profile.total_us,
        "warnings": [warning] if warning else [],
    }
    fields["calls"] = [{"name": kind.name, "calls": len(kind.calls), **asdict(kind.times)} for kind in calls]
    return TraceAnswer(run.status, lines, fields | ({"failure": run.failure} if run.failure else {}))


def _call_line(kind: CallKind) -> str:
    times = kind.times
    median, p99, slowest = (f"{us:.1f}" for us in (times.median, times.p99, times.slowest))
    return f"{counted(len(kind.calls), 'call')} of {kind.name}: median {median} us, p99 {p99} us, slowest {slowest} us"


@dataclass(frozen=True)
class ScriptRun:
    """How a script ended, and what was recorded until then."""

    status: int
    profile: Profile
    directory: Path  # that of a rank is a folder of the one that was asked for
    failure: str  # the traceback; empty if there is none


def run_program(program: TracedProgram, directory: Path, quiet: bool) -> ScriptRun:
    """quiet: the script prints to the error output, where its traceback goes in any case."""
    if not program.is_module and not program.path.is_file():
        what = "is no file" if program.path.exists() else "does not exist"
        raise OptionError(f"{program.name!r} {what}; trace takes a Python script and its arguments")
    status, failure = 0, ""
    with _as_main(program):
        path = program.path
        recorded = recorder.profile(directory, detail=True)
        with recorded, redirect_stdout(sys.stderr if quiet else sys.stdout):
            try:
                _run(program)
            except SystemExit as end:
                status = _status_of(end)
            except KeyboardInterrupt:
                status, failure = _INTERRUPTED, "interrupted\n"
            except BaseException as error:
                status, failure = 1, "".join(traceback.format_exception(from_script_on(error, str(path))))
            print(failure, end="", file=sys.stderr)  # before anything is written: that may fail as well
    assert recorded.result is not None
    return ScriptRun(status, recorded.result, recorded.directory, failure)


def _run(program: TracedProgram) -> None:
    if program.is_module:
        runpy.run_module(program.name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(str(program.path), run_name="__main__")


def _status_of(end: SystemExit) -> int:
    """As the interpreter does: nothing is success, a number is the status, anything else is printed."""
    if end.code is None or isinstance(end.code, int):
        return int(end.code or 0)
    print(end.code, file=sys.stderr)
    return 1


@contextmanager
def _as_main(program: TracedProgram) -> Iterator[None]:
    before = sys.argv, sys.path
    sys.argv, sys.path = [program.name, *program.arguments], [program.search_path, *sys.path]
    try:
        yield
    finally:
        sys.argv, sys.path = before
