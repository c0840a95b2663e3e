"""bench.package_short: the suite package within a few minutes, for machines with many cores that are lent for a while.

    python3 -m superkernel.tools.bench.package_short results.json --cores 16 --seconds 200

Each workload has a process of its own. All processes compile at the same time; then they measure one after the other,
while the others sleep, with fewer calls than in the suite. Results are kept after each workload. Those that no longer
fit into the time, or whose process crashes, are left out, and a note says which; `--resume` measures these and keeps
the others. Nothing has to be installed: the back end is registered by its import.
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
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ...errors import SuperKernelError
from ...frontend.export.export import export
from .aot_loaders import AotLoader, assume_loader, working_loader
from .measure import Result, describe_machine
from .package import Effort, compare, missing_peers
from .package_costs import cost_of_python, costs_of_loading
from .package_peers import prepare_compilers_ahead, prepare_torch
from .package_workloads import WORKLOAD_COUNT, PackageWorkload, package_workload
from .peers import OURS, fresh_caches, prepare, threads

SHORT = Effort(
    3000,
    0.5,
    1500,
    2.0,
    0.2,
    all_of_ours=False,
    frozen=False,
    rounds=5,
    settle=0.12,
    peers_at_rate=False,
    most_rounds=12,
)
_COMMAND = (sys.executable, "-m", "superkernel.tools.bench.package_short")
_NO_LOADER = "none"
_READY, _GO = "ready", "go"
COMPILE_SHARE = 0.6  # of the time, after which compilations that are not done are given up
COMPILERS_PER_PROCESS = 2  # of Inductor, which otherwise starts as many processes as there are cores, each with torch


@dataclass(frozen=True)
class Started:
    """The process of a workload; `ready` is set when it has compiled, or ended."""

    process: subprocess.Popen[str]
    ready: threading.Event
    measured: Path


def register_backend() -> None:
    """What the entry point of an installed package does."""
    from ...frontend.backend import superkernel

    if "superkernel" not in torch._dynamo.list_backends(exclude_tags=()):
        torch._dynamo.register_backend(superkernel, name="superkernel")


def workload_of(index: int) -> PackageWorkload:
    """With the same weights in every process."""
    torch.manual_seed(0)
    return package_workload(index)


def measure_workload(index: int, folder: Path, cores: int) -> Result:
    """Compiles, says so, waits for its turn, and returns what the workload adds to the results.

    Plans and the ways of peers are chosen by times: the package, and the model of our back end, are made a second time
    from the caches when it is this workload's turn.
    """
    result = Result("package", describe_machine(cores))
    item = workload_of(index)
    workload = item.workload
    with threads(cores), torch.no_grad():
        export(workload.model, workload.inputs, folder / "compiled.sk")
        prepare(OURS, workload.model, workload.inputs)
        counts = sorted({1, cores})
        peers = [prepared for count in counts for prepared in prepare_torch(workload, count)]
        loader = sys.stdin.readline().strip()  # was tried meanwhile
        assume_loader(None if loader == _NO_LOADER else AotLoader(loader))
        peers += [prepared for count in counts for prepared in prepare_compilers_ahead(item, folder, count)]
        torch.set_num_threads(cores)
        print(_READY, flush=True)
        if sys.stdin.readline().strip() != _GO:
            raise SystemExit(1)
        try:
            compare(result, item, folder, SHORT, peers)
            if index == 0:
                result.figures.append(cost_of_python(folder / "model.sk", workload))
        except (SuperKernelError, RuntimeError) as reason:
            result.notes.append(f"{workload.name} was not measured: {reason}")
    return result


def start(index: int, folder: Path, cores: int) -> Started:
    measured = folder / "measured.pickle"
    command = [*_COMMAND, "--cores", str(cores), "--measure", str(index), str(folder), str(measured)]
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": str(COMPILERS_PER_PROCESS)}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
    )
    ready = threading.Event()

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == _READY:
                ready.set()
        ready.set()  # it has ended

    threading.Thread(target=listen, daemon=True).start()
    return Started(process, ready, measured)


def tell(started: Started, word: str) -> None:
    assert started.process.stdin is not None
    try:
        started.process.stdin.write(word + "\n")
        started.process.stdin.flush()
    except BrokenPipeError:
        pass  # it has ended, and its status is looked at later


def compile_all(folders: Mapping[int, Path], cores: int, seconds: float) -> dict[int, Started]:
    """Starts a process for each workload and waits until all have compiled; slow ones are ended and left out."""
    end = time.monotonic() + seconds
    started = {index: start(index, folder, cores) for index, folder in folders.items()}
    loader = working_loader()
    for workload in started.values():
        tell(workload, loader.value if loader else _NO_LOADER)
    late = [index for index, workload in started.items() if not workload.ready.wait(max(0.1, end - time.monotonic()))]
    for index in late:
        started.pop(index).process.kill()
    return started


def measure_in_turn(started: Started, seconds: float) -> Result | str:
    """A string says why there is no result."""
    tell(started, _GO)
    try:
        status = started.process.wait(seconds)
    except subprocess.TimeoutExpired:
        started.process.kill()
        started.process.wait()
        return f"it took more than {seconds:.0f} s"
    if status:
        ended = f"signal {-status}" if status < 0 else f"status {status}"
        return f"its process ended with {ended}; standard error has a trace"
    found: Result = pickle.loads(started.measured.read_bytes())  # written by the process that has just ended
    return found


def keep(result: Result, output: Path) -> None:
    output.write_text(json.dumps({"ok": result.ok, "suites": {"package": result.to_dict()}}, indent=1) + "\n")


def parts_of(output: Path) -> Path:
    """The folder with the results of single workloads, for another run."""
    return output.with_name(output.name + ".parts")


def all_results(cores: int, seconds: float, output: Path, left_out: Mapping[str, str]) -> Result:
    """Of this run and of those before it, in the order of the workloads."""
    result = Result("package", describe_machine(cores))
    result.notes += [f"short: fewer calls, and {seconds:g} s for all", *missing_peers()]
    for part in sorted(parts_of(output).glob("*.pickle")):
        result.add(pickle.loads(part.read_bytes()))  # written by this program
    result.notes += [f"{name} was not measured: {reason}" for name, reason in left_out.items()]
    return result


def run_short(cores: int, seconds: float, output: Path, resume: bool = False) -> Result:
    """What was measured is kept after every workload: the machine may be gone before the last."""
    begin = time.monotonic()
    parts, left_out = parts_of(output), dict[str, str]()
    parts.mkdir(exist_ok=True)
    for part in () if resume else parts.glob("*.pickle"):
        part.unlink()
    with tempfile.TemporaryDirectory() as made, fresh_caches():
        missing = [index for index in range(WORKLOAD_COUNT) if not (parts / f"{index}.pickle").exists()]
        folders = {index: Path(made, str(index)) for index in missing}
        for folder in folders.values():
            folder.mkdir()
        started = compile_all(folders, cores, COMPILE_SHARE * seconds)
        print(f"compiled: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        longest = 0.0
        for index in missing:
            name, turn = workload_of(index).workload.name, time.monotonic()
            if index not in started:
                left_out[name] = "compiling took too long"
                continue
            workload = started[index]
            if turn - begin + longest > seconds:
                left_out[name] = "the time was over"
                workload.process.kill()
                continue
            found = measure_in_turn(workload, 2 * seconds)
            if isinstance(found, str):
                left_out[name] = found
            else:
                (parts / f"{index}.pickle").write_bytes(pickle.dumps(found))
                longest = max(longest, time.monotonic() - turn)
            keep(all_results(cores, seconds, output, left_out), output)
            print(f"{name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        loading = parts / "loading.pickle"
        if not loading.exists() and time.monotonic() - begin < seconds:
            costs = Result("package", describe_machine(cores), figures=costs_of_loading(Path(made)))
            loading.write_bytes(pickle.dumps(costs))
    result = all_results(cores, seconds, output, left_out)
    keep(result, output)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m superkernel.tools.bench.package_short", description=__doc__)
    parser.add_argument("output", nargs="?", type=Path, help="the file for the results, as JSON")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--resume", action="store_true", help="keep what an earlier run has measured for the output")
    parser.add_argument("--measure", nargs=3, metavar=("INDEX", "FOLDER", "FILE"), help="one workload, for the output")
    chosen = parser.parse_args()
    faulthandler.enable()  # a peer that crashes says where
    register_backend()
    if chosen.measure:
        index, folder, file = chosen.measure
        Path(file).write_bytes(pickle.dumps(measure_workload(int(index), Path(folder), chosen.cores)))
        return 0
    if chosen.output is None:
        parser.error("name the file for the results")
    result = run_short(chosen.cores, chosen.seconds, chosen.output, chosen.resume)
    print(result)
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main())
