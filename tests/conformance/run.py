"""The long sweeps, in batches over several processes: python tests/conformance/run.py [op_db] [programs] --jobs 2.

Each batch that is done is kept under build/conformance, so that --resume goes on where a run was stopped. The summary
beside this file is written when all batches are there.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

import torch  # noqa: E402
from conformance import operators, programs, texts  # noqa: E402
from conformance.checks import Case, Outcome, State  # noqa: E402
from conformance.sweep import Sweep, sweep  # noqa: E402

BATCH = 20
CORES = (1, 2)
SAMPLES = int(os.environ.get("SAMPLES", "1"))  # of each operator; more take as much longer
PROGRAMS = 1000
TITLES = ("op_db", "programs")


def members(title: str) -> list[Any]:
    return list(operators.operators()) if title == "op_db" else list(range(PROGRAMS))


def batches(title: str) -> list[list[Any]]:
    every = members(title)
    return [every[first : first + BATCH] for first in range(0, len(every), BATCH)]


def check_batch(title: str, number: int, kept: Path) -> int:
    """Check one batch and keep what became of it; how many cases there were."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    context: AbstractContextManager[None]
    if title == "op_db":
        context = operators.seeded_outside()
    else:
        context = texts.without_stock()
    with context:
        done = sweep(title, _cases(title, batches(title)[number]), CORES)
    _write(kept / f"{number}.json", done)
    return sum(map(len, done.outcomes.values()))


def _cases(title: str, chosen: Sequence[Any]) -> list[Case]:
    if title == "op_db":
        return operators.cases(chosen, samples=SAMPLES)
    return [programs.write(seed).case() for seed in chosen]


def _write(path: Path, done: Sweep) -> None:
    outcomes = {
        cores: [(outcome.name, outcome.state.name, outcome.reasons) for outcome in found]
        for cores, found in done.outcomes.items()
    }
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps({"kernels": done.kernels, "seconds": done.seconds, "outcomes": outcomes}))
    part.replace(path)


def joined(title: str, kept: Path) -> Sweep:
    """All batches as one sweep; its seconds are those of one process."""
    whole = Sweep(title, {cores: [] for cores in CORES})
    for number in range(len(batches(title))):
        facts = json.loads((kept / f"{number}.json").read_text())
        whole.kernels += facts["kernels"]
        whole.seconds += facts["seconds"]
        for cores in CORES:
            whole.outcomes[cores] += [
                Outcome(name, State[state], reasons) for name, state, reasons in facts["outcomes"][str(cores)]
            ]
    return whole


def run(title: str, jobs: int, resume: bool) -> bool:
    """All batches that are not there yet, then the summary. Whether nothing failed."""
    kept = FOLDER.parents[1] / "build" / "conformance" / f"{title}-torch{torch.__version__.split('+')[0]}"
    if not resume:
        shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True, exist_ok=True)
    left = [number for number in range(len(batches(title))) if not (kept / f"{number}.json").exists()]
    for line in _checked(title, left, kept, jobs):
        print(line, flush=True)
    whole = joined(title, kept)
    print(whole, whole.write(), sep="\n")
    if whole.failures:
        print(whole.failures, file=sys.stderr)
    return not whole.failures


def _checked(title: str, left: Sequence[int], kept: Path, jobs: int) -> Iterator[str]:
    """A process for each batch: Dynamo keeps what it compiled, and one that dies takes one batch with it."""
    began = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(_in_process, title, number, kept): number for number in left}
        for done, future in enumerate(as_completed(waiting), 1):
            yield (
                f"{title}: batch {waiting[future]}, {future.result()} checks; {done} of {len(left)} batches, "
                f"{time.monotonic() - began:.0f} s"
            )


def _in_process(title: str, number: int, kept: Path) -> int:
    command = [sys.executable, __file__, title, "--batch", str(number), "--kept", str(kept)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    if ran.returncode != 0:
        raise SystemExit(f"{title}: batch {number} died with status {ran.returncode}\n{ran.stderr[-4000:]}")
    return int(ran.stdout.split()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description="the long conformance sweeps")
    parser.add_argument("sweeps", nargs="*", metavar="SWEEP", help=f"{' or '.join(TITLES)}; both if none is given")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all processors)")
    parser.add_argument("--resume", action="store_true", help="keep the batches of an earlier run")
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)  # one batch, in this process
    parser.add_argument("--kept", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := [name for name in given.sweeps if name not in TITLES]:
        parser.error(f"unknown sweep {unknown[0]!r}; there are {', '.join(TITLES)}")
    if given.jobs < 1:
        parser.error("--jobs needs at least 1")
    if given.batch is not None:
        print(check_batch(given.sweeps[0], given.batch, given.kept))
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", str(max(CORES)))
    return 0 if all([run(title, given.jobs, given.resume) for title in given.sweeps or TITLES]) else 1


if __name__ == "__main__":
    sys.exit(main())
