"""What ranks do in the tests of faults: they keep models by name, call them, and look at the memory they share."""

from __future__ import annotations

import gc
import os
import random
import resource
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from superkernel.errors import LaunchError
from superkernel.frontend import process_groups
from superkernel.model import window_layout
from superkernel.targets.cpu.runtime.ranks.shared_area import SharedArea

_models: dict[str, Callable[..., Any]] = {}
_POLL_S, _LONGEST_S = 0.001, 600.0


def _world() -> Any:
    return dist.group.WORLD


def chained(x: torch.Tensor) -> torch.Tensor:
    """Two collectives; the second needs the first."""
    first = functional.all_reduce(x * 2, "sum", _world())
    return functional.all_reduce(first + 1, "sum", _world()) * 2


def single(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x * 2, "sum", _world()) + 1


def gathered(x: torch.Tensor) -> torch.Tensor:
    return functional.all_gather_single(x * 2, 0, _world()) + 1


def maxima(x: torch.Tensor) -> torch.Tensor:
    return functional.all_reduce(x * 2, "max", _world()) + 1


def gathered_then_single(x: torch.Tensor) -> torch.Tensor:
    return gathered(x).sum() + single(x)


def single_then_gathered(x: torch.Tensor) -> torch.Tensor:
    return single(x) + gathered(x).sum()


FUNCTIONS = {
    function.__name__: function
    for function in (chained, single, gathered, maxima, gathered_then_single, single_then_gathered)
}


def load(rank: int, name: str, function: str) -> None:
    """A model for the calls that follow; it is compiled by the first."""
    _models[name] = torch.compile(FUNCTIONS[function], backend="superkernel", dynamic=False)


def call(rank: int, name: str, count: int = 8, dtype: torch.dtype = torch.float32) -> list[float]:
    return _models[name](torch.arange(count).to(dtype) + 10 * rank).tolist()


def load_and_call(
    rank: int, name: str, function: str, count: int = 8, dtype: torch.dtype = torch.float32
) -> list[float]:
    load(rank, name, function)
    return call(rank, name, count, dtype)


def expected(function: str, ranks: int, count: int = 8) -> list[float]:
    """What `call` returns on every rank, for the functions that only add."""
    inputs = [torch.arange(count).float() + 10 * rank for rank in range(ranks)]
    total = 2 * sum(inputs)
    assert isinstance(total, torch.Tensor)
    return ((total + 1) if function == "single" else ranks * (total + 1) * 2).tolist()


def areas() -> list[SharedArea]:
    return [found for found in gc.get_objects() if type(found) is SharedArea]  # isinstance would ask proxies


def await_arrival(rank: int, other: int) -> None:
    """Returns when another rank has arrived in a round that this rank has not begun: then it waits for this rank."""
    deadline = time.monotonic() + _LONGEST_S
    while time.monotonic() < deadline:
        for area in areas():
            lines = area._lines[0]
            arrived = int(lines[area.group.ranks.index(other), window_layout.ARRIVED // 4])
            if arrived == area._round + 1:
                return
        time.sleep(_POLL_S)
    raise TimeoutError(f"rank {other} has not arrived")


def count_areas(rank: int) -> int:
    gc.collect()
    return len(areas())


def descriptors(rank: int) -> int:
    return len(os.listdir("/proc/self/fd"))


def forget_models(rank: int) -> None:
    _models.clear()
    torch.compiler.reset()
    gc.collect()


def raise_here(rank: int) -> None:
    raise ValueError(f"rank {rank} has an error of its own")


def destroy(rank: int) -> None:
    dist.destroy_process_group()


def call_and_destroy(rank: int, name: str) -> list[float]:
    """The last call of a script, whose other ranks may be behind."""
    result = call(rank, name)
    dist.destroy_process_group()
    return result


def initialise(rank: int, store: str, count: int, timeout_s: float) -> None:
    """A process group anew."""
    limit = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count, timeout=limit)


def call_in_child(rank: int, name: str) -> str:
    """What a call in a forked child raises."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = f"no error: {call(rank, name)}"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


def call_often(rank: int, name: str, calls: int, longest_pause_s: float) -> int:
    """Calls with random pauses; how many results were wrong."""
    generator = random.Random(rank)
    wrong = 0
    size = dist.get_world_size()
    for number in range(calls):
        if generator.random() < 0.1:
            time.sleep(generator.random() * longest_pause_s)
        found = _models[name](torch.arange(8).float() + 10 * rank + number)
        total = sum(2 * (torch.arange(8).float() + 10 * place + number) for place in range(size))
        wrong += not torch.equal(found, size * (total + 1) * 2)
    return wrong


def of_second_group(x: torch.Tensor) -> torch.Tensor:
    """The process group is an object that the model keeps."""
    return functional.all_reduce(x * 2, "sum", _kept["group"]) + 1


_kept: dict[str, Any] = {}
FUNCTIONS["of_second_group"] = of_second_group


def make_second_group(rank: int, timeout_s: float = 3600.0) -> None:
    _kept["group"] = dist.new_group(list(range(dist.get_world_size())), timeout=timedelta(seconds=timeout_s))


def in_a_ring(x: torch.Tensor) -> torch.Tensor:
    """First with the next rank, then with the one before: every rank waits for the next one."""
    first = functional.all_reduce(x * 2, "sum", _kept["next"])
    return functional.all_reduce(first + 1, "sum", _kept["before"])


FUNCTIONS["in_a_ring"] = in_a_ring


def left_out_on_the_last_rank(x: torch.Tensor) -> torch.Tensor:
    """Only this rank has the broadcast, whose root is no place in its group: torch runs all of its graph."""
    total = single(x)
    return total + functional.broadcast(x, 1, _kept["alone"]) if "alone" in _kept else total


FUNCTIONS["left_out_on_the_last_rank"] = left_out_on_the_last_rank


def make_group_of_last_rank(rank: int) -> None:
    last = dist.get_world_size() - 1
    group = dist.new_group([last])
    if rank == last:
        _kept["alone"] = group


def make_ring(rank: int) -> None:
    """A group of each rank and the next one."""
    ranks = dist.get_world_size()
    for first in range(ranks):
        group = dist.new_group(sorted((first, (first + 1) % ranks)))
        if rank == first:
            _kept["next"] = group
        elif rank == (first + 1) % ranks:
            _kept["before"] = group


def destroy_second_group(rank: int) -> None:
    dist.destroy_process_group(_kept["group"])


def interleave(rank: int, names: list[str], calls: int) -> list[list[float]]:
    """Models in turn; those of one group do not disturb each other."""
    return [call(rank, names[number % len(names)]) for number in range(calls)]


def call_while_in_a_round(rank: int, name: str) -> str:
    """What a call raises while another thread of this process waits for other ranks in the same model."""
    (area,) = areas()
    thread = threading.Thread(target=call, args=(rank, name))
    thread.start()
    deadline = time.monotonic() + _LONGEST_S
    while not area._thread and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    try:
        call(rank, name)
    except LaunchError as error:
        text = str(error)
    else:
        text = "no error"
    thread.join()
    return text


def limit_file_size(rank: int, nbytes: int) -> None:
    """Files cannot grow further, as if shared memory were full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))


def host_store(rank: int, port_file: str) -> None:
    """A process group whose store lives in rank 0."""
    dist.destroy_process_group()
    limit = timedelta(seconds=20)
    if rank == 0:
        _kept["store"] = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False, timeout=limit)
        draft = Path(f"{port_file}.draft")
        draft.write_text(str(_kept["store"].port))
        draft.rename(port_file)
    else:
        while not Path(port_file).exists():
            time.sleep(_POLL_S)
        port = int(Path(port_file).read_text())
        _kept["store"] = dist.TCPStore("127.0.0.1", port, 2, is_master=False, timeout=limit)
    dist.init_process_group("gloo", store=_kept["store"], rank=rank, world_size=2, timeout=limit)


def modes_of_files(rank: int) -> list[int]:
    """The permissions of every file in shared memory that this process has open."""
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    found = [link.stat().st_mode for link in links if _is_shared(link)]
    return [stat.S_IMODE(mode) for mode in found]


def _is_shared(link: Path) -> bool:
    try:
        return "/dev/shm/superkernel-" in os.readlink(link)
    except OSError:
        return False


def set_patience(rank: int, seconds: float) -> None:
    """How long this rank waits for others from now on, in new areas and in those that it has.

    A time limit of the group would be as short for ranks that compile on a busy machine.
    """
    for area in areas():
        for lines in area._lines:
            lines[area.group.rank, window_layout.PATIENCE_MS // 4] = int(1000 * seconds)
    for name, found in process_groups._known.items():
        process_groups._known[name] = replace(found, timeout_s=seconds)
