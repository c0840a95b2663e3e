"""targets.ascend.emulator: runs emitted kernels on a chip emulated on the host, and finds what would go wrong."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

from superkernel.cache import Cache
from superkernel.errors import LaunchError
from superkernel.model.graph import Graph
from superkernel.model.options import Options
from superkernel.targets.emulation.turns import Turn
from superkernel.targets.protocol import LaunchInputs

from ..core_types import CoreClass
from ..kernel_description import EmittedKernel
from .delays import Delays
from .launch import ChipEmulator, Emulation, Outside
from .modules import HostModule, build_modules
from .rank_launch import RankLaunch
from .rank_launch import emulate_ranks as _emulate_together
from .stand_in_launch import StandInEmulator
from .stand_ins import cannot_run_here

_Key = tuple[int, bool]  # id of the emitted kernel, and whether stand-ins take the place of its sub-kernels
MOST_LAUNCHES = 1000
_built: dict[_Key, tuple[ref[EmittedKernel], Mapping[CoreClass, HostModule]]] = {}

__all__ = ["Delays", "Emulation", "Outside", "RankKernel", "Turn", "emulate", "emulate_ranks", "uses_stand_ins"]


def uses_stand_ins(emitted: EmittedKernel, stand_ins: bool | None) -> bool:
    """As asked; None: where a sub-kernel cannot run here."""
    where = f"super_kernel_scope {emitted.name!r}: "
    if stand_ins is not None and not isinstance(stand_ins, bool):
        raise LaunchError(f"{where}stand_ins is {stand_ins!r}; True, False or None is needed")
    if stand_ins:
        return True
    reason = cannot_run_here(emitted)
    if reason is not None and stand_ins is False:
        raise LaunchError(
            f"{where}stand_ins=False, but {reason}: leave it out, or give every op a kernel for this machine"
        )
    return reason is not None


def emulate(
    emitted: EmittedKernel,
    graph: Graph,
    buffers: Mapping[str, Any],
    launch_inputs: LaunchInputs,
    *,
    seed: int = 0,
    delays: Delays | None = None,
    outside: Sequence[Outside] = (),
    races: bool = True,
    record: bool = True,
    stand_ins: bool | None = None,
    launches: int = 1,
    options: Options | None = None,
) -> Emulation:
    """Compile the emitted source for the host and launch it.

    The seed decides in which order cores get on, what their caches do and when agents outside act; `delays` and
    `outside` say so in detail. `races`: accesses that nothing orders are errors even if the values come out right.
    `record`: keep what every core did. What sub-kernels print goes to the standard output. `stand_ins`: see
    uses_stand_ins. `launches`: so many in a row with the same buffers, each on the words, areas and flags that the one
    before left; what the last one did is returned. `options` are those of the plan.
    """
    _check_numbers(emitted, seed, launches)
    if any(event.between_ranks for event in emitted.events):
        raise LaunchError(
            f"super_kernel_scope {emitted.name!r}: it waits for other ranks of {graph.collectives[0].group}; emulate "
            "all of them together: sk.emulate_ranks([kernel of each rank], [buffers of each rank])"
        )
    cache = Cache()
    stands_in = uses_stand_ins(emitted, stand_ins)
    modules = _modules_of(emitted, cache, stands_in)
    settings = emitted, graph, modules, cache, seed, delays, outside, races, record
    emulator = (
        StandInEmulator(*settings, launches=launches, options=options or Options())
        if stands_in
        else ChipEmulator(*settings, launches=launches)
    )
    emulation = emulator.run(buffers, launch_inputs)
    if emulation.printed:
        sys.stdout.write(emulation.printed + "\n")
    return emulation


@dataclass(frozen=True)
class RankKernel:
    """The super kernel of one rank, and what it is launched with."""

    emitted: EmittedKernel
    graph: Graph
    buffers: Mapping[str, Any]
    launch_inputs: LaunchInputs


def emulate_ranks(
    kernels: Sequence[RankKernel],
    *,
    seed: int = 0,
    delays: Delays | None = None,
    races: bool = True,
    record: bool = True,
    launches: int = 1,
) -> list[Emulation]:
    """One chip for each rank, all at the same time: see emulate."""
    cache = Cache()
    for kernel in kernels:
        _check_numbers(kernel.emitted, seed, launches)
        if (reason := cannot_run_here(kernel.emitted)) is not None:
            raise LaunchError(
                f"super_kernel_scope {kernel.emitted.name!r}: {reason}; for ranks that are emulated together every op "
                "needs a kernel for this machine"
            )
    ranks = [
        RankLaunch(
            kernel.emitted,
            kernel.graph,
            _modules_of(kernel.emitted, cache, False),
            kernel.buffers,
            kernel.launch_inputs,
        )
        for kernel in kernels
    ]
    emulations = _emulate_together(
        ranks, cache, seed=seed, delays=delays, races=races, record=record, launches=launches
    )
    for emulation in emulations:
        if emulation.printed:
            sys.stdout.write(emulation.printed + "\n")
    return emulations


def _check_numbers(emitted: EmittedKernel, seed: int, launches: int) -> None:
    where = f"super_kernel_scope {emitted.name!r}: "
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**64:
        raise LaunchError(f"{where}seed is {seed!r}; a whole number from 0 is needed")
    if not isinstance(launches, int) or isinstance(launches, bool) or not 1 <= launches <= MOST_LAUNCHES:
        raise LaunchError(f"{where}launches is {launches!r}; a whole number from 1 to {MOST_LAUNCHES} is needed")


def _modules_of(emitted: EmittedKernel, cache: Cache, stands_in: bool) -> Mapping[CoreClass, HostModule]:
    """Built once per emitted kernel: many seeds of one kernel are the usual case."""
    known = _built.get((id(emitted), stands_in))
    if known is None or known[0]() is not emitted:
        gone = [key for key, (reference, _) in _built.items() if reference() is None]
        for key in gone:
            del _built[key]
        known = _built[id(emitted), stands_in] = (ref(emitted), build_modules([emitted], cache, stands_in))
    return known[1]
