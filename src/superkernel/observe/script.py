"""observe.script: a script and its arguments -> run under a detailed profile, as `python script` would run it."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from ..errors import OptionError
from .profile import Profile
from .recorder import profile

_INTERRUPTED = 130  # what shells report of a process that Ctrl-C ended


@dataclass(frozen=True)
class ScriptRun:
    """How a script ended, and what was recorded until then."""

    status: int
    profile: Profile
    failure: str  # the traceback; empty if there is none


def run_script(script: Path, arguments: Sequence[str], directory: Path, quiet: bool) -> ScriptRun:
    """quiet: the script prints to the error output, where its traceback goes in any case."""
    if not script.is_file():
        what = "is no file" if script.exists() else "does not exist"
        raise OptionError(f"{str(script)!r} {what}; trace takes a Python script and its arguments")
    status, failure = 0, ""
    recorded = profile(directory, detail=True)
    with recorded, _as_main(script, arguments), redirect_stdout(sys.stderr if quiet else sys.stdout):
        try:
            runpy.run_path(str(script.absolute()), run_name="__main__")
        except SystemExit as end:
            status = _status_of(end)
        except KeyboardInterrupt:
            status, failure = _INTERRUPTED, "interrupted\n"
        except BaseException as error:
            status, failure = 1, "".join(traceback.format_exception(_from_script_on(error, script.absolute())))
        print(failure, end="", file=sys.stderr)  # before anything is written: that may fail as well
    assert recorded.result is not None
    return ScriptRun(status, recorded.result, failure)


def _status_of(end: SystemExit) -> int:
    """As the interpreter does: nothing is success, a number is the status, anything else is printed."""
    if end.code is None or isinstance(end.code, int):
        return int(end.code or 0)
    print(end.code, file=sys.stderr)
    return 1


def _from_script_on(error: BaseException, script: Path) -> BaseException:
    """Without the frames that led to the script; none are left if it could not even be compiled."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != str(script):
        frame = frame.tb_next
    unread = isinstance(error, SyntaxError) and error.filename == str(script)
    return error.with_traceback(frame) if frame is not None or unread else error


@contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    before = sys.argv, sys.path
    sys.argv, sys.path = [str(script), *arguments], [str(script.parent.resolve()), *sys.path]
    try:
        yield
    finally:
        sys.argv, sys.path = before
