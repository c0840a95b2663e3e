"""Processes that are the ranks of a gloo group: each takes functions by name and answers with a result or an error.

The processes are forked from a server that has imported torch once, so that a set of ranks starts in milliseconds.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

_PRELOADED = "frontend.ranks.preloaded"
_LEAVE_S = 5.0
_ANSWER_S = 800.0  # for what hangs; a loaded machine compiles slowly
_context = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class RankError:
    """What a function raised on a rank."""

    kind: str
    text: str


@dataclass(frozen=True)
class Died:
    """The process ended without an answer."""

    signal: int


def _start_server() -> None:
    """The server imports before it knows the paths of its parent, other than through the environment."""
    forkserver.set_forkserver_preload([_PRELOADED])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


class RankProcesses:
    """The ranks of one job, which share a store in a folder of their own."""

    def __init__(self, count: int, timeout_s: float = _ANSWER_S, environment: dict[str, str] | None = None) -> None:
        _start_server()
        self._folder = tempfile.TemporaryDirectory(prefix="sk-ranks-")
        self._pipes: list[Connection] = []
        self.processes: list[Any] = []
        for rank in range(count):
            ours, theirs = _context.Pipe()
            arguments = (theirs, rank, count, f"{self._folder.name}/store", timeout_s, environment or {})
            process = _context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def __len__(self) -> int:
        return len(self.processes)

    @property
    def folder(self) -> Path:
        """Where ranks may leave files for each other."""
        return Path(self._folder.name)

    def pid(self, rank: int) -> int:
        return int(self.processes[rank].pid)

    def send(self, ranks: Sequence[int], function: Callable[..., Any], *args: Any) -> None:
        """Begin `function(rank, *args)` on some ranks."""
        for rank in ranks:
            self._pipes[rank].send((function, args))

    def answers(self, ranks: Sequence[int], answer_s: float = _ANSWER_S) -> list[Any]:
        """What each rank answers: a result, a RankError, or Died. TimeoutError: a rank hangs."""
        found: dict[int, Any] = {}
        deadline = time.monotonic() + answer_s
        while missing := [rank for rank in ranks if rank not in found]:
            ready = wait([self._pipes[rank] for rank in missing], max(0.0, deadline - time.monotonic()))
            if not ready:
                for rank in missing:  # faulthandler prints where it hangs
                    os.kill(self.pid(rank), signal.SIGABRT)
                raise TimeoutError(f"ranks {missing} did not answer within {answer_s} s")
            for rank in missing:
                if self._pipes[rank] in ready:
                    found[rank] = self._answer(rank)
        return [found[rank] for rank in ranks]

    def _answer(self, rank: int) -> Any:
        try:
            return self._pipes[rank].recv()
        except (EOFError, ConnectionResetError):
            self.processes[rank].join()
            return Died(-(self.processes[rank].exitcode or 0))

    def outcomes(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """`function(rank, *args)` on all ranks at once, with errors as answers."""
        self.send(range(len(self)), function, *args)
        return self.answers(range(len(self)))

    def call(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """The results of `function(rank, *args)` on all ranks; an error of one fails the test."""
        answers = self.outcomes(function, *args)
        wrong = {rank: answer for rank, answer in enumerate(answers) if isinstance(answer, RankError | Died)}
        assert not wrong, "\n".join(f"rank {rank}: {answer}" for rank, answer in wrong.items())
        return answers

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid(rank), number)
        if number == signal.SIGKILL:
            self.processes[rank].join()

    def leave(self) -> list[int]:
        """All ranks end as a script does that has reached its end; their exit statuses."""
        for pipe in self._pipes:
            pipe.close()
        for process in self.processes:
            process.join(_ANSWER_S)
        return [process.exitcode for process in self.processes]

    def close(self) -> None:
        for process, pipe in zip(self.processes, self._pipes, strict=True):
            pipe.close()  # a rank that waits for a function ends now
            process.join(_LEAVE_S)
        for process in self.processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGCONT)
                process.kill()
            process.join()
        self._folder.cleanup()


@contextmanager
def rank_processes(count: int, timeout_s: float = _ANSWER_S, **environment: str) -> Iterator[RankProcesses]:
    """Ranks of a new job; when the block ends, so do they, and nothing is left in shared memory."""
    before = shared_files()
    ranks = RankProcesses(count, timeout_s, environment)
    try:
        yield ranks
        left = {name for name in shared_files() - before if not _in_use(name)}
        assert not left, f"left in shared memory: {left}"
    finally:
        ranks.close()


def shared_files() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("superkernel-*")}


def _in_use(name: str) -> bool:
    """Whether it is gone by now: another job of this machine was just making it."""
    deadline = time.monotonic() + 300
    while (Path("/dev/shm") / name).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not (Path("/dev/shm") / name).exists()


def _serve(pipe: Connection, rank: int, count: int, store: str, timeout_s: float, environment: dict[str, str]) -> None:
    """The body of a rank: until the pipe ends."""
    assert _PRELOADED in sys.modules, "the server of ranks has not imported torch: every rank would"
    faulthandler.enable()
    os.environ.update(environment)
    import torch

    torch.set_num_threads(1)
    limit = timedelta(seconds=timeout_s)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=count, timeout=limit
    )
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            answer = function(rank, *args)
        except BaseException as error:
            answer = RankError(type(error).__name__, _spelled(error))
        pipe.send(answer)


def _spelled(error: BaseException) -> str:
    inner = getattr(error, "inner_exception", None)  # of torch's BackendCompilerFailed
    return str(error if inner is None else f"{type(inner).__name__}: {inner}")
