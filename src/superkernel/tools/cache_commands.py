"""tools.cache_commands: the commands of cache (info, clear), up to what they print."""

from __future__ import annotations

from typing import Annotated

import typer

from ..cache import GATE_SUFFIX, Cache
from .json_answers import AsJson, answer, answering_errors

cache_app = typer.Typer(help="What is kept of earlier compilations.")


@cache_app.callback(invoke_without_command=True)
def cache_top(context: typer.Context) -> None:
    """What is kept of earlier compilations."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@cache_app.command("info")
def cache_info(as_json: AsJson = False) -> None:
    """Where the cache is, what it holds and how much it may hold."""
    with answering_errors(as_json):
        info = Cache().info()
        fields = {"ok": True} | {
            name: str(value) if name == "directory" else value for name, value in vars(info).items()
        }
        at_most = (
            "no limit" if info.limit is None else f"at most {info.limit / 1e6:.1f} MB, least recently used first out"
        )
        read_only = "" if info.writable else "; read-only"
        text = f"{info.directory}: {info.entries} entries, {info.bytes / 1e6:.1f} MB"
        answer(as_json, fields, f"{text}\n{at_most} (SUPERKERNEL_CACHE_LIMIT){read_only}")


@cache_app.command("clear")
def cache_clear(
    gate: Annotated[
        bool, typer.Option("--gate", help="Only the profit gate's verdicts: new processes measure again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what the cache holds; it is built again when needed."""
    with answering_errors(as_json):
        cache = Cache()
        removed = cache.clear(GATE_SUFFIX if gate else "")
        fields = {"ok": True, "directory": str(cache.directory), "removed": removed}
        answer(as_json, fields, f"{cache.directory}: {removed} {'verdicts' if gate else 'entries'} removed")
