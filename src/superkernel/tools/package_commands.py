"""tools.package_commands: the commands export and package (info, verify, run, ...), up to what they print."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from .json_answers import AsJson, answer, answering_errors, running_script

package_app = typer.Typer(help="Models compiled ahead of time.")
_Package = Annotated[Path, typer.Argument(metavar="PACKAGE", help="A package, the folder that export has written.")]
_Entry = Annotated[str | None, typer.Option(metavar="NAME", help="The entry; otherwise the only one, or forward.")]
_Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="NAME=FILE.npy",
        help="An input by name; FILE.npy alone is the only input, or the one called like the file; NAME=NUMBER has no "
        "dimensions. Repeatable.",
    ),
]
_Threads = Annotated[int | None, typer.Option(min=1, metavar="N", help="The most that a call uses; otherwise all.")]
_Wait = Annotated[str, typer.Option(metavar="POLICY", help="How threads wait: balanced, spin or sleep.")]


@package_app.callback(invoke_without_command=True)
def package_top(context: typer.Context) -> None:
    """Models compiled ahead of time."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def export_command(
    place: Annotated[
        str,
        typer.Argument(metavar="FILE.py:MAKE", help="A function that returns (model, inputs), inputs as in sk.export."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="NAME.sk", help="The package to write.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[-- ARGS]", help="The file's arguments.")] = None,
    options: Annotated[str, typer.Option(metavar="TEXT", help="Options, as key=value:key=value.")] = "",
    march: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="An instruction set, as x86-64-v3; otherwise this machine's. Repeatable."),
    ] = None,
    cores: Annotated[int | None, typer.Option(metavar="N", help="Plan for this many cores.")] = None,
    allow: Annotated[
        str | None, typer.Option(metavar="library", help="Leave operators without a kernel to torch, at load time too.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a package.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compile a model of torch ahead of time into a package that runs without torch and without a compiler."""
    from ..frontend.export_place import export_place
    from ..package.summary import summarise

    with answering_errors(as_json):
        settings: dict[str, Any] = {"options": options, "cores": cores, "allow": allow, "overwrite": overwrite}
        settings |= {"march": march} if march else {}
        with running_script(place.partition(":")[0], as_json):
            summary = summarise(export_place(place, output, settings, arguments or []))
        answer(as_json, summary.to_dict(), f"{summary}\nwritten: {summary.path}")


@package_app.command("info")
def info_command(package: _Package, as_json: AsJson = False) -> None:
    """What a package holds: entries, shapes, states, instruction sets, sizes. No code of it is loaded."""
    from ..package.summary import summarise

    with answering_errors(as_json):
        summary = summarise(package)
        answer(as_json, summary.to_dict(), str(summary))


@package_app.command("verify")
def verify_command(package: _Package, as_json: AsJson = False) -> None:
    """Compare every file of a package with its checksum. No code of it is loaded."""
    from ..package.summary import verify

    with answering_errors(as_json):
        summary = verify(package)
        count, total = len(summary.files), summary.total_bytes
        fields = {"ok": True, "path": str(package), "name": summary.manifest.name, "files": count, "bytes": total}
        answer(as_json, fields, f"{package}: {count} files, {total / 1e6:.1f} MB, all as they were exported")


@package_app.command("run")
def run_command(
    package: _Package,
    inputs: _Inputs = None,
    entry: _Entry = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Where outputs are saved, as NAME.npy.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="Call N times, with the same inputs.")] = 1,
    threads: _Threads = None,
    as_json: AsJson = False,
) -> None:
    """Call an entry of a package on .npy files. This runs code of the package."""
    from .package_run import CallRequest, run_package

    with answering_errors(as_json):
        result = run_package(CallRequest(package, entry, inputs or (), threads), output, repeat)
        answer(as_json, result.to_dict(), str(result))


@package_app.command("bench")
def bench_command(
    package: _Package,
    inputs: _Inputs = None,
    entry: _Entry = None,
    calls: Annotated[int, typer.Option(min=1, metavar="N", help="Calls that are timed.")] = 10_000,
    rate: Annotated[
        float | None, typer.Option(min=0.001, max=1e6, metavar="N", help="Calls a second; otherwise back to back.")
    ] = None,
    threads: _Threads = None,
    wait: _Wait = "balanced",
    as_json: AsJson = False,
) -> None:
    """Percentiles of the time of a call. Inputs that are not given are made up. This runs code of the package."""
    from .package_latency import measure_package
    from .package_run import CallRequest

    with answering_errors(as_json):
        latency = measure_package(CallRequest(package, entry, inputs or (), threads, wait), calls, rate)
        answer(as_json, latency.to_dict(), str(latency))


@package_app.command("diff")
def diff_command(
    first: Annotated[Path, typer.Argument(metavar="A", help="A package.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    as_json: AsJson = False,
) -> None:
    """What differs between two packages: entries, states, code, weights. No code of them is loaded."""
    from ..package.differences import compare_packages

    with answering_errors(as_json):
        comparison = compare_packages(first, second)
        answer(as_json, comparison.to_dict(), str(comparison))


@package_app.command("build-env")
def build_env_command(
    prefix: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Install headers and libraries here; otherwise beside the cache.")
    ] = None,
    flags: Annotated[bool, typer.Option("--flags", help="Print only the flags to compile and link with.")] = False,
    as_json: AsJson = False,
) -> None:
    """How C and C++ programs that open packages are compiled and linked. Compiles libsuperkernel the first time."""
    from ..package.library import build_environment

    with answering_errors(as_json):
        environment = build_environment(prefix)
        all_flags = shlex.join((*environment.compile_flags, *environment.link_flags))
        answer(as_json, environment.fields(), all_flags if flags else str(environment))
