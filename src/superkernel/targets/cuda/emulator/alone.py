"""targets.cuda.emulator.alone: a PTX entry as its compiler wrote it -> launched by itself on the emulated GPU.

That is the unfused launch: what a super kernel must give, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from superkernel.cache import Cache

from ....errors import LaunchError
from ..ptx import Entry, Module, PtxParam, ThreadCount
from ..reader import read_ptx
from .decode import decode
from .emulated_memory import EmulatedMemory
from .execution import GpuLaunch, execute
from .library import load_emulator
from .program import DecodedProgram
from .schedule import WarpSchedule

_RESIDENT_WARPS = 64  # of one launch alone


def launch_entry(
    module: Module,
    name: str,
    arguments: Sequence[Any],
    *,
    grid: ThreadCount,
    threads: ThreadCount,
    shared: int = 0,
    seed: int = 0,
    races: bool = True,
    resident: int | None = None,
    constants: Mapping[str, bytes] | None = None,
) -> None:
    """Run an entry with arrays, which it changes in place, and numbers as arguments.

    `resident`: so many blocks at the same time; by default all of them up to 64 warps.
    """
    library = load_emulator(Cache())
    program = decoded(module.text, module.origin, name)
    entry = module.entry(name)
    assert entry is not None
    memory = EmulatedMemory()
    memory.add_variables(program.variables)
    params = parameter_block(entry, program, arguments, memory)
    launch = GpuLaunch(
        grid,
        threads,
        shared,
        resident_blocks(threads, resident),
        params,
        constants or {},
        seed,
        WarpSchedule.of_seed(seed),
        races,
        f"{name}, emulated with seed={seed}: ",
        (name,),
    )
    execute(library, program, memory, launch)


def resident_blocks(threads: ThreadCount, wanted: int | None) -> int:
    """How many blocks run at the same time."""
    return wanted or max(1, _RESIDENT_WARPS // -(-prod(threads) // 32))


_MOST_PROGRAMS = 64
_programs: dict[tuple[str, str], DecodedProgram] = {}


def decoded(text: str, origin: str, name: str) -> DecodedProgram:
    """An entry of a PTX text, decoded once: many seeds of one kernel are the usual case."""
    known = _programs.get((text, name))
    if known is None:
        if len(_programs) >= _MOST_PROGRAMS:
            del _programs[next(iter(_programs))]
        known = _programs[text, name] = decode(read_ptx(text, origin), name, load_emulator(Cache()).handlers)
    return known


def parameter_block(entry: Entry, program: DecodedProgram, arguments: Sequence[Any], memory: EmulatedMemory) -> bytes:
    """The bytes of the parameters: addresses of arrays, which become ranges of memory, and numbers."""
    if len(arguments) != len(entry.params):
        raise LaunchError(f"{entry.name} has {len(entry.params)} parameters, {len(arguments)} arguments were given")
    block = bytearray(program.param_bytes)
    for place, (param, argument) in enumerate(zip(entry.params, arguments, strict=True)):
        offset, nbytes = program.params[param.name]
        if isinstance(argument, np.ndarray):
            content = argument.reshape(-1).view(np.uint8)
            address = memory.add(f"argument {place} ({param.name})", content).address
            raw = address.to_bytes(8, "little")
        else:
            raw = _number_bytes(param, argument)
        block[offset : offset + nbytes] = raw[:nbytes].ljust(nbytes, b"\0")
    return bytes(block)


def _number_bytes(param: PtxParam, value: Any) -> bytes:
    if isinstance(value, np.generic):
        return value.tobytes()
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        return np.array(value, {2: np.float16, 4: np.float32, 8: np.float64}[param.nbytes]).tobytes()
    return int(value % 2 ** (8 * param.nbytes)).to_bytes(param.nbytes, "little")
