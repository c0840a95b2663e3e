"""tools.json_answers: with --json, standard output is one JSON object, whatever the user's script prints or raises."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..errors import BuildError, SuperKernelError
from ..observe.script_errors import from_script_on

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
_UsageError: Any = typer.BadParameter.__mro__[1]  # click's class; typer may bring its own copy of click
_taken: list[int] = []  # the file descriptor of the standard output, after scripts were cut off from it


def print_json(fields: dict[str, Any]) -> None:
    text = json.dumps(fields, indent=1)
    with _writing_output():
        if not _taken:
            typer.echo(text)
            return
        with open(os.dup(_taken[0]), "w", encoding="utf-8") as stream:
            stream.write(f"{text}\n")


def answer(as_json: bool, fields: dict[str, Any], text: str) -> None:
    """What a command that succeeded prints."""
    if as_json:
        print_json(fields)
    else:
        with _writing_output():
            typer.echo(text)


@contextmanager
def _writing_output() -> Iterator[None]:
    """The body writes an answer; a full disk ends the command with a sentence."""
    try:
        yield
    except BrokenPipeError:  # the reader has what it wants
        raise
    except OSError as reason:
        typer.echo(f"error: the standard output cannot be written: {reason.strerror}", err=True)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # or the interpreter, which writes the rest at its end, fails again
        os.close(nowhere)
        raise typer.Exit(1) from None


@contextmanager
def answering_errors(as_json: bool) -> Iterator[None]:
    """An error of ours becomes one message and exit status 1; any other is a defect and keeps its traceback."""
    try:
        yield
    except SuperKernelError as error:
        if as_json:
            print_json(error_fields(error))
        else:
            typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def error_fields(error: BaseException) -> dict[str, Any]:
    """The answer of a command that failed."""
    fields: dict[str, Any] = {"kind": type(error).__name__, "message": str(error), "command": [], "stderr": ""}
    if isinstance(error, BuildError):
        fields |= {"message": error.message, "command": list(error.command), "stderr": error.stderr}
    return {"ok": False, "error": fields}


@contextmanager
def running_script(script: str, as_json: bool) -> Iterator[None]:
    """The body runs this file of the user: an exception in it ends the command with a traceback from the file on."""
    names = script, str(Path(script).absolute())  # the file may change the current directory
    with _ScriptFailure(as_json, names), scripts_print_to_stderr(as_json):
        yield


@contextmanager
def scripts_print_to_stderr(wanted: bool) -> Iterator[None]:
    """The body runs code of the user, whose standard output becomes the error output.

    In a process of the shell that holds until the process ends: threads and exit handlers print as well, and so do
    C code and child processes. Elsewhere `sys.stdout` is replaced in the body.
    """
    if not wanted:
        yield
    elif sys.stdout is sys.__stdout__:
        _take_standard_output()
        yield
    else:
        with redirect_stdout(sys.stderr):
            yield


def _take_standard_output() -> None:
    if not _taken:
        sys.stdout.flush()
        _taken.append(os.dup(sys.stdout.fileno()))
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


class _ScriptFailure:
    """An exception of the user's code ends the command; its traceback goes to the error output."""

    def __init__(self, as_json: bool, names: Sequence[str]) -> None:
        self._as_json = as_json
        self._names = names

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, Exception) and not isinstance(error, SuperKernelError | typer.Exit):
            traceback.print_exception(from_script_on(error, *self._names))
            if self._as_json:
                print_json(error_fields(error))
            raise typer.Exit(1) from None


class JsonGroup(TyperGroup):
    """The commands of the shell; with --json a wrong use is answered in JSON, too."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        is_json = "--json" in (words[: words.index("--")] if "--" in words else words)
        if not (standalone_mode and is_json):
            return super().main(args, prog_name, complete_var, standalone_mode, windows_expand_args, **extra)
        try:
            status = super().main(words, prog_name, complete_var, False, windows_expand_args, **extra)
        except _UsageError as error:
            fields = error_fields(error)
            fields["error"] |= {"kind": "UsageError", "message": error.format_message()}
            print_json(fields)
            sys.exit(error.exit_code)
        sys.exit(status if isinstance(status, int) else 0)
