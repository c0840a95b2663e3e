"""bench.rank_launch: a number of ranks, cores for each and a task -> what the first rank has measured, as JSON."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import torch.distributed as dist

from ...errors import BuildError

_PAUSE_S = 0.05
_GRACE_S = 45.0  # after the time is over, for the workload that has begun


@dataclass(frozen=True)
class RankShape:
    """How the cores are divided."""

    ranks: int
    threads: int  # of each

    @property
    def cores(self) -> int:
        return self.ranks * self.threads

    def __str__(self) -> str:
        return f"{self.ranks} ranks of {self.threads} core{'s' if self.threads > 1 else ''}"


def rank_shape(cores: int) -> RankShape:
    """As many ranks as cores each, in powers of two and at least two: 2 x 1, 2 x 2, 2 x 4, 4 x 4."""
    ranks = max(2, 1 << int(math.log2(math.isqrt(max(1, cores)))))
    return RankShape(ranks, max(1, cores // ranks))


def run_ranks(module: str, shape: RankShape, task: Any, seconds: float | None = None) -> dict[str, Any]:
    """Runs `python -m module` once per rank with a RankTask; all ranks share the first cores of this process.

    What the first rank says of its progress goes to the error output. Ranks that go on long after the `seconds` are
    ended; what they have measured until then is returned, with a note.
    """
    end = None if seconds is None else time.monotonic() + seconds
    usable = sorted(os.sched_getaffinity(0))[: shape.cores]
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory(prefix="superkernel-ranks-") as folder, ExitStack() as stack:
        answer, progress = Path(folder, "answer.json"), Path(folder, "progress")
        said_so_far = stack.enter_context(open(progress, "a+", encoding="utf-8"))
        processes: list[subprocess.Popen[Any]] = []
        outputs: list[TextIO] = []
        commands: list[list[str]] = []
        for rank in range(shape.ranks):
            places = (str(answer), str(progress))
            told = RankTask(rank, shape.ranks, shape.threads, store.port, usable, *places, end, asdict(task))
            errors = stack.enter_context(open(Path(folder, f"errors-{rank}"), "w+", encoding="utf-8"))
            environment = {**os.environ, "OMP_NUM_THREADS": str(shape.threads)}
            command = [sys.executable, "-P", "-m", module, json.dumps(asdict(told))]
            processes.append(subprocess.Popen(command, env=environment, stdout=errors, stderr=errors))
            outputs.append(errors)
            commands.append(command)
        try:
            ended = _wait(processes, said_so_far, None if end is None else end + _GRACE_S)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        failed = ended.failed
        if failed is not None:
            outputs[failed].seek(0)
            status, said = processes[failed].returncode, outputs[failed].read()[-4000:]
            raise BuildError(f"rank {failed} of the measurement ended with status {status}", commands[failed], said)
        if not answer.exists():
            raise BuildError(f"{shape} measured nothing within {seconds:g} s", commands[0])
        measured: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        if ended.late:
            measured["notes"].append(
                f"the ranks were ended {_GRACE_S:g} s after their {seconds:g} s; the rest is missing"
            )
        return measured


@dataclass(frozen=True)
class _Ended:
    failed: int | None = None  # the rank
    late: bool = False


def _wait(processes: Sequence[subprocess.Popen[Any]], progress: TextIO, end: float | None) -> _Ended:
    """Until all have ended, the time is over, or one has failed: the others would wait for it."""
    while True:
        states = [process.poll() for process in processes]
        sys.stderr.write(progress.read())
        sys.stderr.flush()
        for rank, state in enumerate(states):
            if state not in (None, 0):
                return _Ended(failed=rank)
        if all(state == 0 for state in states):
            return _Ended()
        if end is not None and time.monotonic() > end:
            return _Ended(late=True)
        time.sleep(_PAUSE_S)


@dataclass(frozen=True)
class RankTask:
    """What a rank is told."""

    rank: int
    ranks: int
    threads: int
    port: int  # of the store
    cores: list[int]
    answer: str  # where the first rank writes
    progress: str  # and where it says what it has done
    end: float | None  # of the time, by time.monotonic(), which all processes of a machine share
    task: dict[str, Any]

    @classmethod
    def read(cls, words: Sequence[str]) -> RankTask:
        return cls(**json.loads(words[0]))

    def join(self) -> None:
        """Before torch has threads: the cores of all ranks, then the process group."""
        import torch

        os.sched_setaffinity(0, self.cores)
        torch.set_num_threads(self.threads)
        store = dist.TCPStore("localhost", self.port, is_master=False)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.ranks)

    def reply(self, measured: dict[str, Any], line: str) -> None:
        """What was measured so far, and one line of progress."""
        if self.rank == 0:
            written = Path(f"{self.answer}.new")
            written.write_text(json.dumps(measured), encoding="utf-8")
            written.replace(self.answer)
            with open(self.progress, "a", encoding="utf-8") as progress:
                progress.write(f"{line}\n")

    def has_time(self, seconds: float) -> bool:
        """Whether as many seconds are left, by the clock of the first rank."""
        import torch

        left = torch.tensor([int(self.end is None or time.monotonic() + seconds < self.end)])
        dist.broadcast(left, 0)
        return bool(left)
