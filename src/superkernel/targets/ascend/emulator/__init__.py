"""targets.ascend.emulator: runs emitted kernels on a chip emulated on the host, and finds what would go wrong."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import ref

from superkernel.cache import Cache
from superkernel.errors import LaunchError
from superkernel.model.graph import Graph
from superkernel.targets.protocol import LaunchInputs

from ..core_types import CoreClass
from ..kernel_description import EmittedKernel
from .delays import Delays, Turn
from .launch import ChipEmulator, Emulation, Outside
from .modules import Module, build_modules

_built: dict[int, tuple[ref[EmittedKernel], Mapping[CoreClass, Module]]] = {}

__all__ = ["Delays", "Emulation", "Outside", "Turn", "emulate"]


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
) -> Emulation:
    """Compile the emitted source for the host and launch it once.

    The seed decides in which order cores get on, what their caches do and when agents outside act; `delays` and
    `outside` say so in detail. `races`: accesses that nothing orders are errors even if the values come out right.
    `record`: keep what every core did. What sub-kernels print goes to the standard output.
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**64:
        raise LaunchError(f"super_kernel_scope {emitted.name!r}: seed is {seed!r}; a whole number from 0 is needed")
    cache = Cache()
    modules = _modules_of(emitted, cache)
    emulator = ChipEmulator(emitted, graph, modules, cache, seed, delays, outside, races, record)
    emulation = emulator.run(buffers, launch_inputs)
    if emulation.printed:
        sys.stdout.write(emulation.printed + "\n")
    return emulation


def _modules_of(emitted: EmittedKernel, cache: Cache) -> Mapping[CoreClass, Module]:
    """Built once per emitted kernel: many seeds of one kernel are the usual case."""
    known = _built.get(id(emitted))
    if known is None or known[0]() is not emitted:
        gone = [key for key, (reference, _) in _built.items() if reference() is None]
        for key in gone:
            del _built[key]
        known = _built[id(emitted)] = (ref(emitted), build_modules([emitted], cache))
    return known[1]
