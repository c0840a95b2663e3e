"""bench.package_short: the suite package within a few minutes, for machines with many cores that are lent for a while.

    python3 -m superkernel.tools.bench.package_short results.json --cores 16 --seconds 200

Everything is compiled first, all workloads at the same time. Then the workloads are measured one after the other, each
in a process of its own and with fewer calls than in the suite; those that no longer fit into the time, or whose process
crashes, are left out, and a note says which. Nothing has to be installed: the back end is registered by its import.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from ...errors import SuperKernelError
from ...frontend.export.export import export
from .aot_loaders import AotLoader, assume_loader, working_loader
from .measure import Result, describe_machine
from .package import Effort, compare, missing_peers
from .package_costs import cost_of_python, costs_of_loading
from .package_peers import ONNX, missing, write_ahead_of_time, write_onnx
from .package_workloads import WORKLOAD_COUNT, PackageWorkload, package_workload
from .peers import INDUCTOR, OURS, fresh_caches, prepare, threads

SHORT = Effort(3000, 0.6, 0.8, 0.2, all_of_ours=False, frozen=False)
_COMMAND = (sys.executable, "-m", "superkernel.tools.bench.package_short")
_NO_LOADER = "none"
COMPILE_SHARE = 0.5  # of the time, after which compilations that are not done are given up


def register_backend() -> None:
    """What the entry point of an installed package does."""
    from ...frontend.backend import superkernel

    if "superkernel" not in torch._dynamo.list_backends(exclude_tags=()):
        torch._dynamo.register_backend(superkernel, name="superkernel")


def workload_of(index: int) -> PackageWorkload:
    """With the same weights in every process."""
    torch.manual_seed(0)
    return package_workload(index)


def compile_workload(index: int, folder: Path, cores: int) -> None:
    """Fills the caches, and leaves what ONNX Runtime reads in the folder."""
    item = workload_of(index)
    workload = item.workload
    with torch.no_grad():
        export(workload.model, workload.inputs, folder / "compiled.sk")
        for count in sorted({1, cores}):
            with threads(count):
                prepare(INDUCTOR, workload.model, workload.inputs)
        with threads(cores):
            prepare(OURS, workload.model, workload.inputs)
        if not missing(ONNX):
            write_onnx(item.for_formats_without_states, folder / "model.onnx")


def compile_ahead_of_time(index: int, folder: Path, cores: int) -> None:
    """Leaves what AOTInductor compiles in the folder."""
    with torch.no_grad():
        for count in sorted({1, cores}):
            write_ahead_of_time(workload_of(index).workload, folder, count, frozen=False)


COMPILERS = {"--compile": compile_workload, "--compile-ahead": compile_ahead_of_time}


def compile_all(folders: list[Path], cores: int, seconds: float) -> list[str]:
    """Compiles for all ways to run the workloads; returns notes on those that were not done in time."""
    end = time.monotonic() + seconds
    started = start_all(folders, cores, "--compile")
    loads = working_loader() is not None  # tried meanwhile
    notes = await_all(started, end)
    return notes + (await_all(start_all(folders, cores, "--compile-ahead"), end) if loads else [])


def start_all(folders: list[Path], cores: int, option: str) -> list[subprocess.Popen[bytes]]:
    """Each workload in a process of its own."""
    command = [*_COMMAND, "--cores", str(cores), option]
    return [subprocess.Popen([*command, str(index), str(folder)]) for index, folder in enumerate(folders)]


def await_all(started: list[subprocess.Popen[bytes]], end: float) -> list[str]:
    notes = []
    for index, process in enumerate(started):
        try:
            if process.wait(max(0.1, end - time.monotonic())):
                notes.append(f"compiling workload {index} beforehand failed with status {process.returncode}")
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            notes.append(f"compiling workload {index} beforehand took too long")
    return notes


def measure_workload(index: int, folder: Path, cores: int) -> Result:
    """What one workload adds to the results."""
    result = Result("package", describe_machine(cores))
    item = workload_of(index)
    with threads(cores), torch.no_grad():
        try:
            compare(result, item, folder, SHORT)
            if index == 0:
                result.figures.append(cost_of_python(folder / "model.sk", item.workload))
        except (SuperKernelError, RuntimeError) as reason:
            result.notes.append(f"{item.workload.name} was not measured: {reason}")
    return result


def measure_in_process(index: int, folder: Path, cores: int, seconds: float) -> Result | str:
    """In a process of its own: a runner that crashes ends that one. A string says why there is no result."""
    measured = folder / "measured.pickle"
    loader = working_loader()
    command = [*_COMMAND, "--cores", str(cores), "--loader", loader.value if loader else _NO_LOADER]
    command += ["--measure", str(index), str(folder), str(measured)]
    try:
        status = subprocess.run(command, check=False, timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        return f"it took more than {seconds:.0f} s"
    if status:
        ended = f"signal {-status}" if status < 0 else f"status {status}"
        return f"its process ended with {ended}; standard error has a trace"
    found: Result = pickle.loads(measured.read_bytes())  # written by the process that has just ended
    return found


def keep(result: Result, output: Path) -> None:
    output.write_text(json.dumps({"ok": result.ok, "suites": {"package": result.to_dict()}}, indent=1) + "\n")


def run_short(cores: int, seconds: float, output: Path) -> Result:
    """What was measured is kept after every workload: the machine may be gone before the last."""
    begin = time.monotonic()
    result = Result("package", describe_machine(cores))
    result.notes += [f"short: fewer calls, and {seconds:g} s for all", *missing_peers()]
    with tempfile.TemporaryDirectory() as made, fresh_caches():
        folders = [Path(made, str(index)) for index in range(WORKLOAD_COUNT)]
        for folder in folders:
            folder.mkdir()
        result.notes += compile_all(folders, cores, COMPILE_SHARE * seconds)
        print(f"compiled: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        longest = 0.0
        for index, folder in enumerate(folders):
            name, started = workload_of(index).workload.name, time.monotonic()
            if started - begin + longest > seconds:
                result.notes.append(f"{name} was not measured: the time was over")
                continue
            found = measure_in_process(index, folder, cores, 2 * seconds)
            if isinstance(found, str):
                result.notes.append(f"{name} was not measured: {found}")
            else:
                result.add(found)
            longest = max(longest, time.monotonic() - started)
            keep(result, output)
            print(f"{name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        if time.monotonic() - begin < seconds:
            result.figures += costs_of_loading(Path(made))
            keep(result, output)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m superkernel.tools.bench.package_short", description=__doc__)
    parser.add_argument("output", nargs="?", type=Path, help="the file for the results, as JSON")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=200.0)
    for option in COMPILERS:
        parser.add_argument(option, nargs=2, metavar=("INDEX", "FOLDER"), help="compile one workload, for the output")
    loaders = [*(loader.value for loader in AotLoader), _NO_LOADER]
    parser.add_argument("--loader", choices=loaders, help="of AOTInductor, for --measure")
    parser.add_argument("--measure", nargs=3, metavar=("INDEX", "FOLDER", "FILE"), help="measure one, for the output")
    chosen = parser.parse_args()
    faulthandler.enable()  # a peer that crashes says where
    register_backend()
    for compile_one, given in zip(COMPILERS.values(), (chosen.compile, chosen.compile_ahead), strict=True):
        if given:
            compile_one(int(given[0]), Path(given[1]), chosen.cores)
            return 0
    if chosen.loader:
        assume_loader(None if chosen.loader == _NO_LOADER else AotLoader(chosen.loader))
    if chosen.measure:
        index, folder, file = chosen.measure
        Path(file).write_bytes(pickle.dumps(measure_workload(int(index), Path(folder), chosen.cores)))
        return 0
    if chosen.output is None:
        parser.error("name the file for the results")
    result = run_short(chosen.cores, chosen.seconds, chosen.output)
    print(result)
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main())
