"""A rank on the fake GPU, in a process of its own: `-m targets.cuda.runtime.fake_rank PROGRAM RANK FOLDER`.

Prints one line of JSON for each thing that happened. Launches run in a thread, as on a GPU: they read and write windows
that the other process has open, and look at the abort word while they wait.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
from targets.cuda.emulator.rank_kernels import Sums
from targets.cuda.runtime.fake_driver import FakeDeviceArray, FakeDriver

import superkernel as sk
from superkernel.errors import SuperKernelError
from superkernel.model.window_layout import ARRIVED, RANK_LINE, WindowLayout, has_arrived
from superkernel.targets.cuda.runtime import driver
from superkernel.targets.cuda.task_layout import LONG_WAIT, StateOffset

CHIP = {"name": "fake", "architecture": "sm_90a", "sms": 3}
SUMS = Sums(200)


class FileStore:
    """The part of torch.distributed's FileStore that ranks use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / key.replace("/", "%")

    def set(self, key: str, value: str) -> None:
        written = self._folder / f".{os.getpid()}"
        written.write_text(value)
        written.replace(self._path(key))

    def get(self, key: str) -> bytes:
        return self._path(key).read_bytes()

    def check(self, keys: list[str]) -> bool:
        return all(self._path(key).exists() for key in keys)


class PlayedSums:
    """Plays the launches of a kernel of `Sums`, one after the other."""

    def __init__(self, fake: FakeDriver, sums: Sums, rank: int, names: list[str], cores: int) -> None:
        self._sums, self._rank, self._names, self._cores = sums, rank, names, cores
        self._layout = WindowLayout(sums.ranks, 4 * sums.count)
        self._queue: Queue[tuple[list[int], int]] = Queue()
        fake.played = self._take
        threading.Thread(target=self._run, daemon=True).start()

    def _take(self, values: Any, state: int) -> None:
        """The driver copies the parameters of a launch."""
        self._queue.put((list((ctypes.c_uint64 * len(self._names)).from_address(values)), state))

    def _run(self) -> None:
        while True:
            values, state = self._queue.get()
            self._play(dict(zip(self._names, values, strict=True)), state)

    def _play(self, addresses: dict[str, int], state: int) -> None:
        epoch = ctypes.c_uint32.from_address(state + StateOffset.EPOCH)
        self._progress(state, 1)
        source = self._array(addresses["x"])
        for stage in range(self._sums.stages):
            result = self._sum(addresses[f"w{stage}"], 2 * source + 1, epoch.value + 1, state)
            if result is None:
                ctypes.c_uint32.from_address(state + StateOffset.FAILURE).value = 1
                break
            source = self._array(addresses[f"y{stage}"])
            source[:] = result
        self._progress(state, 0)
        epoch.value += 1

    def _sum(self, window: int, given: Any, launch: int, state: int) -> Any:
        """None: the launch was aborted."""
        line = ctypes.c_uint32.from_address(window + RANK_LINE * self._rank + ARRIVED)
        assert line.value == launch - 1, "a window and the state of its launches count alike"
        self._array(window + self._layout.slot(launch, self._rank))[:] = given
        line.value = launch
        for rank in range(self._sums.ranks):
            arrived = ctypes.c_uint32.from_address(window + RANK_LINE * rank + ARRIVED)
            while not has_arrived(arrived.value, launch):
                self._progress(state, 1 | LONG_WAIT)
                if ctypes.c_uint32.from_address(ctypes.c_uint64.from_address(state + StateOffset.CONTROL).value).value:
                    return None
                time.sleep(0.0005)
        slots = [self._array(window + self._layout.slot(launch, rank)) for rank in range(self._sums.ranks)]
        return np.sum(slots, axis=0, dtype=np.int32)

    def _array(self, address: int) -> Any:
        return np.ctypeslib.as_array((ctypes.c_int32 * self._sums.count).from_address(address))

    def _progress(self, state: int, word: int) -> None:
        for core in range(self._cores):
            ctypes.c_uint32.from_address(state + StateOffset.PROGRESS + 4 * core).value = word


class Rank:
    """The kernel of this rank, on a fake GPU of its process."""

    def __init__(self, rank: int, folder: Path, sums: Sums = SUMS, options: str = "") -> None:
        self.rank, self.sums = rank, sums
        self.fake = FakeDriver()
        driver.LIBRARY = self.fake.path
        written = folder / f"ptx{rank}"
        written.mkdir()
        self.kernel = sk.compile(sums.ops(written, rank), f"rank{rank}", options, "cuda", chip=CHIP)
        self.store = FileStore(folder / "store")
        names, cores = list(self.kernel.graph.buffers), self.kernel.executable.shape.cores  # type: ignore[attr-defined]
        self.played = PlayedSums(self.fake, sums, rank, names, cores)

    def connect(self, timeout_s: float = 600.0) -> None:
        sk.connect_ranks(self.kernel, self.store, timeout_s=timeout_s)

    def launch(self, seed: int) -> bool:
        """Whether the sums are right."""
        inputs = self.sums.inputs(seed)
        x, y = FakeDeviceArray(inputs[self.rank]["x"]), FakeDeviceArray(np.zeros(self.sums.count, np.int32))
        self.kernel({"x": x, self.sums.last: y})
        self.kernel.synchronize()
        return bool(np.array_equal(y.array, self.sums.expected(inputs)))

    def await_key(self, key: str) -> None:
        while not self.store.check([key]):
            time.sleep(0.01)

    def end(self) -> None:
        self.kernel.close()
        say(violations=self.fake.violations, opened=self.fake.get("opened"))


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def refused(call: Callable[[], object]) -> None:
    begin = time.monotonic()
    try:
        call()
    except SuperKernelError as error:
        say(error=str(error), kind=type(error).__name__, seconds=time.monotonic() - begin)
    else:
        say(error="")


def sums(rank: int, folder: Path) -> None:
    """Launch after launch, each rank in its own time."""
    here = Rank(rank, folder)
    here.connect()
    choice = random.Random(rank)
    right = 0
    for seed in range(40):
        time.sleep(choice.random() * 0.004)
        right += here.launch(seed)
    say(right=right)
    here.end()


def killed(rank: int, folder: Path) -> None:
    """Rank 1 ends while rank 0 waits for it."""
    here = Rank(rank, folder)
    here.connect()
    say(right=here.launch(0))
    if rank == 1:
        here.await_key("launched")
        os._exit(9)
    x = FakeDeviceArray(np.ones(SUMS.count, np.int32))
    here.kernel({"x": x})
    here.store.set("launched", "")
    refused(here.kernel.synchronize)
    refused(lambda: here.launch(2))
    here.end()


def late(rank: int, folder: Path) -> None:
    """Rank 1 launches when rank 0 has given up."""
    here = Rank(rank, folder)
    here.store.set(f"compiled {rank}", "")
    here.await_key(f"compiled {1 - rank}")  # the time limit is short
    here.connect(timeout_s=10.0)
    if rank == 1:
        here.await_key("given up")
    refused(lambda: here.launch(0))
    if rank == 0:
        here.store.set("given up", "")
    refused(lambda: here.launch(0))
    here.end()


def different(rank: int, folder: Path) -> None:
    here = Rank(rank, folder, Sums(200, stages=2 - rank))
    refused(here.connect)
    here.end()


def other_gpu(rank: int, folder: Path) -> None:
    here = Rank(rank, folder)
    here.fake.set("uuid", 50 + rank)
    refused(here.connect)
    here.end()


def unshared(rank: int, folder: Path) -> None:
    """The driver refuses to open memory of another process."""
    here = Rank(rank, folder)
    here.fake.plant("cuIpcOpenMemHandle_v2", 801)
    refused(here.connect)
    here.end()


def crowded(rank: int, folder: Path) -> None:
    """Under MPS each of the two takes all SMs."""
    here = Rank(rank, folder)
    here.fake.set("mps", 1)
    here.fake.set("affinity_sms", here.kernel.executable.sms)  # type: ignore[attr-defined]
    refused(here.connect)
    here.end()


def missing(rank: int, folder: Path) -> None:
    """Rank 1 never connects."""
    if rank == 0:
        here = Rank(rank, folder)
        refused(lambda: here.connect(timeout_s=1.0))
        here.end()


def refusals(rank: int, folder: Path) -> None:
    """What is refused when ranks connect, one after the other."""
    for number, program in enumerate((different, other_gpu, unshared, crowded)):
        place = folder / str(number)
        place.mkdir(exist_ok=True)
        program(rank, place)


PROGRAMS = (sums, killed, late, refusals, missing)

if __name__ == "__main__":
    program, number, given = sys.argv[1:]
    {each.__name__: each for each in PROGRAMS}[program](int(number), Path(given))
