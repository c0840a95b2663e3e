"""tools.cli: shell commands in, one answer out: text, or one JSON object with --json; exit status 0 only on success."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import BuildError, OptionError, nearest
from ..model.binary import Form
from ..model.op import Op
from ..model.opsfile import read_ops
from ..model.tiling import CompiledTiling
from ..runtime.compile import compile as compile_ops
from ..targets import find_target
from ..version import __version__
from .cache_commands import cache_app
from .compile_output import check_output, compiled_fields, ignored_fields, merged_options, save_at, saved_summary
from .json_answers import AsJson, JsonGroup, answer, answering_errors, running_script
from .package_commands import export_command, package_app

if TYPE_CHECKING:
    from .doctor import DoctorReport

app = typer.Typer(
    name="superkernel",
    cls=JsonGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.add_typer(cache_app, name="cache")
app.add_typer(package_app, name="package")


def main() -> None:
    """The console entry."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file name need not be text in the terminal's encoding
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="superkernel")


def _open_closed_streams() -> None:
    """Standard streams that the caller has closed go nowhere; a file that is opened later would get their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = os.fdopen(os.open(os.devnull, os.O_RDWR), mode)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"superkernel {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    """Links kernels that are already compiled into one kernel and launches it once."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("demo")
def demo_command(as_json: AsJson = False) -> None:
    """Compile two kernels into one super kernel, launch it and check its output."""
    from . import demo

    with answering_errors(as_json):
        result = demo.run()
        answer(as_json, {"ok": True, **vars(result)}, str(result))


@app.command("doctor")
def doctor_command(as_json: AsJson = False) -> None:
    """Look at compiler, linker, cores, torch, GPU and CANN: what is missing, and how to get it."""
    from . import doctor

    with answering_errors(as_json):
        report = doctor.examine()
        if as_json:
            answer(as_json, report.to_dict(), "")
        else:
            _print_report(report)
        raise typer.Exit(0 if report.ok else 1)


@app.command("compile")
def compile_command(
    ops: Annotated[Path, typer.Argument(metavar="OPS.json", help="The description of kernels and ops.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Where the super kernel is saved.")],
    target: Annotated[str | None, typer.Option(help="Instead of the file's target.")] = None,
    options: Annotated[
        str, typer.Option(metavar="TEXT", help="More options, as key=value:key=value; they win over those of the file.")
    ] = "",
    cores: Annotated[int | None, typer.Option(help="Plan for this many cores.")] = None,
    chip: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE.json", help="The chip or GPU to compile for, on targets with several."),
    ] = None,
    march: Annotated[
        str | None, typer.Option(metavar="NAME", help="The processor to compile for, as x86-64-v3; otherwise this one.")
    ] = None,
    dump: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write graph, plan, source and commands there.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also list the fields of another tool's files that were not read.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Link the kernels of OPS.json into one super kernel that runs without a compiler."""
    with answering_errors(as_json):
        check_output(output, dump)
        described = find_target(target).for_chip(chip).read_ops(ops) if target else read_ops(ops)
        chosen = target or described.target
        merged = merged_options(described.options, options)
        with _progress(described.ops, hidden=as_json) as bar:
            kernel = compile_ops(
                described.ops,
                described.name,
                merged,
                chosen,
                cores=cores,
                chip=chip,
                march=march,
                outputs=described.outputs,
                progress=bar,
            )
        with kernel:
            if dump is not None:
                try:
                    kernel.dump(dump)
                except OSError as reason:
                    raise BuildError(f"cannot write --dump {dump}: {reason}") from reason
            files = save_at(kernel, output)
            fields = compiled_fields(kernel, chosen) | {"artefact": str(output), "files": files}
            fields["remarks"] = list(kernel.executable.remarks)
            text = saved_summary(kernel, output, files, dump)
            if verbose:
                fields["ignored"] = [{"file": place.file, "field": place.path} for place in described.ignored]
                text = "\n".join([text, *ignored_fields(described.ignored)])
            answer(as_json, fields | {"dump": dump and str(dump)}, text)


@app.command("emulate")
def emulate_command(
    ops: Annotated[Path, typer.Argument(metavar="OPS.json", help="The description of kernels and ops.")],
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Launch with seeds 0 to N - 1.")] = 20,
    seed: Annotated[int | None, typer.Option(min=0, metavar="SEED", help="Launch with this seed only.")] = None,
    target: Annotated[str, typer.Option(help="Whose emulator.")] = "ascend",
    options: Annotated[
        str, typer.Option(metavar="TEXT", help="More options, as key=value:key=value; they win over those of the file.")
    ] = "",
    chip: Annotated[str | None, typer.Option(metavar="NAME|FILE.json", help="The chip to emulate.")] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write a page that shows lanes, ops and waits.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the super kernel of OPS.json on an emulator under many timings, with stand-ins for its kernels."""
    from .emulate_list import emulate_list

    with answering_errors(as_json):
        chosen = range(seeds) if seed is None else range(seed, seed + 1)
        emulated = emulate_list(ops, chosen, target, options, chip, report)
        answer(as_json, emulated.to_dict(), str(emulated))
        raise typer.Exit(0 if emulated.ok else 1)


@app.command("run")
def run_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A saved super kernel.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=FILE.npy",
            help="An array by name; FILE.npy alone is called like the file; NAME=NUMBER is a scalar. Repeatable.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Where outputs are saved, as NAME.npy.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="Launch N times, with the same inputs.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Launch a saved super kernel on .npy files."""
    from .run_saved import run_saved

    with answering_errors(as_json):
        result = run_saved(directory, inputs or (), output, repeat)
        answer(as_json, result.to_dict(), str(result))


app.command("export")(export_command)


@app.command("explain")
def explain_command(
    place: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py[:FUNCTION]", help="A function; a file alone is run as a script; or a dumped graph."
        ),
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[-- ARGS]", help="The file's arguments.")] = None,
    fuse: Annotated[
        str | None, typer.Option(metavar="WHAT", help="auto, marked, whole or off; otherwise auto.")
    ] = None,
    options: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Scope options for scopes that give none, as key=value:key=value."),
    ] = None,
    target: Annotated[str | None, typer.Option(help="The target to compile for.")] = None,
    kernel_meta: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Metadata of compiled operators, for the ascend target.")
    ] = None,
    chip: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE.json", help="The chip or GPU to compile for, on targets with several."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a model is fused, what splits it and what to do; then its segments, sub-kernels and syncs."""
    from ..frontend.import_explain import import_explain

    with answering_errors(as_json):
        settings: dict[str, Any] = {"fuse": fuse, "options": options, "target": target, "chip": chip}
        settings |= {"kernel_meta": kernel_meta and str(kernel_meta)}
        settings = {name: value for name, value in settings.items() if value is not None}
        with running_script(place.partition(":")[0], as_json):
            report = import_explain().explain_place(place, settings, arguments or [])
        answer(as_json, {"ok": True, **report.to_dict()}, str(report))


@app.command("bench")
def bench_command(
    suite: Annotated[
        str,
        typer.Argument(
            metavar="SUITE",
            help="boundary, torch, moe, decode, quantized, attention, convolution, loaded, package, collectives; all; "
            "cuda.",
        ),
    ],
    device_suite: Annotated[
        str | None,
        typer.Option("--suite", metavar="NAME", help="Of cuda: boundary, chain, gemv or chain-decode; otherwise all."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions, for a first look.")] = False,
    cores: Annotated[int | None, typer.Option(metavar="N", help="For us and for every peer; otherwise 2.")] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="Of collectives: leave out what does not fit into them; the figures come first."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure against named peers; every result is checked before it is timed."""
    from . import bench

    with answering_errors(as_json):
        known = [*bench.SUITES, "all", *bench.DEVICES]
        if suite not in known:
            raise OptionError(f"unknown suite {suite!r}{nearest(suite, known)}; suites are {', '.join(known)}")
        if suite in bench.DEVICES:
            for option, value in (("--cores", cores), ("--seconds", seconds)):
                if value is not None:
                    raise OptionError(f"{option} has no meaning for {suite}: its suites use the whole device")
            chosen: tuple[str, ...] = bench.DEVICES[suite] if device_suite is None else (device_suite,)
            results = {f"{suite} {name}": bench.run_on_device(suite, name, quick) for name in chosen}
        elif device_suite is not None:
            raise OptionError(f"--suite belongs to {', '.join(bench.DEVICES)}: name a suite of {suite} without it")
        else:
            suites = bench.SUITES if suite == "all" else [suite]
            results = {name: bench.run(name, quick, cores, seconds) for name in suites}
        ok = all(result.ok for result in results.values())
        tables = {name: result.to_dict() for name, result in results.items()}
        answer(as_json, {"ok": ok, "suites": tables}, "\n\n".join(map(str, results.values())))
        raise typer.Exit(0 if ok else 1)


@app.command("compare")
def compare_command(
    directories: Annotated[
        list[Path], typer.Argument(metavar="A B", help="Profiles: two runs, the ranks of a run, or a folder of ranks.")
    ],
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a report on both runs.")] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the time line of ranks goes; by default beside them.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What changed between two runs: op by op, in total, in kernels; or which ranks of one run waited for which."""
    from ..observe.compare_command import compared
    from .bench.bandwidth import read_rate

    with answering_errors(as_json):
        fields, lines = compared(directories, html, trace, read_rate)
        answer(as_json, fields, "\n".join(lines))


@app.command("trace", context_settings={"ignore_unknown_options": True})
def trace_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT.py [ARGS]",
            help="The script to run, and its arguments. After -- they are the script's even if trace has them too.",
        ),
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", metavar="MODULE", help="Run a module instead of a script, as python -m does.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Where the profile is left.")] = Path(
        "prof_result/trace"
    ),
    as_json: AsJson = False,
) -> None:
    """Run a script, keep its exit status, and leave what it launched: tables, trace.json for Perfetto, report.html."""
    from ..observe import shell
    from .bench.bandwidth import read_rate

    if module is None and not words:
        raise typer.BadParameter("name a script, or a module with -m", param_hint="SCRIPT.py")
    arguments = words or []
    program = (
        shell.TracedProgram(arguments[0], tuple(arguments[1:]))
        if module is None
        else shell.TracedProgram(module, tuple(arguments), is_module=True)
    )
    with answering_errors(as_json):
        with running_script(program.name, as_json):
            traced = shell.trace_program(program, output, as_json, read_rate)
        answer(as_json, traced.fields, "\n".join(traced.lines))
        raise typer.Exit(traced.status)


@contextmanager
def _progress(ops: Sequence[Op], hidden: bool) -> Iterator[Callable[[str], None] | None]:
    """A bar on a terminal that moves with every compiled source, and a last time when all is linked."""
    if hidden or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    functions = [op.tiling.function for op in ops if isinstance(op.tiling, CompiledTiling)]
    binaries = {kernel.binary for kernel in (*(op.kernel for op in ops), *functions)}
    sources = [binary for binary in binaries if binary.form is Form.SOURCE]
    columns = (SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        work = bar.add_task("compiling", total=len(sources) + 1)
        yield lambda text: bar.update(work, advance=1, description=text, refresh=True)
        bar.update(work, advance=1, description="linked")


def _print_report(report: DoctorReport) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ..targets.checks import CheckState

    colours = {CheckState.OK: "green", CheckState.MISSING: "yellow", CheckState.PROBLEM: "red"}
    table = Table("check", "state", "found, and what to do", show_lines=False)
    for check in report.checks:
        text = f"{check.found}\n-> {check.remedy}" if check.remedy else check.found
        colour = colours[check.state]
        table.add_row(Text(check.name), Text(check.state.value, style=colour), Text(text, overflow="fold"))
    Console().print(table)
    typer.echo(f"The cpu target {'works' if report.ok else 'cannot work'} here.")


if __name__ == "__main__":
    main()
