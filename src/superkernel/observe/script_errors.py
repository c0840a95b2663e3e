"""observe.script_errors: an exception of the user's script -> the same, with the frames from the script on."""

from __future__ import annotations


def from_script_on(error: BaseException, *names: str) -> BaseException:
    """Without the frames that led to the script; all are left where none is in it.

    `names`: what the code of the script may have as its file. A script that could not be compiled has no frames.
    """
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename not in names:
        frame = frame.tb_next
    unread = isinstance(error, SyntaxError) and error.filename in names
    return error.with_traceback(frame) if frame is not None or unread else error
