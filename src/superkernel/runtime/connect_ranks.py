"""runtime.connect_ranks: the super kernel of this rank and a store -> its launches wait for those of other ranks."""

from __future__ import annotations

import math
from typing import Any

from ..errors import LaunchError, UnsupportedError, shown
from .super_kernel import SuperKernel

DEFAULT_TIMEOUT_S = 1800.0  # that of torch.distributed's process groups


def connect_ranks(kernel: SuperKernel, store: Any, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
    """Waits for all ranks of every group of the kernel, which call this as well; windows are made here.

    `store` has the methods set, get and check of torch.distributed's stores, and is the same for all ranks. A rank that
    does not come within `timeout_s` seconds, here or in a launch, is an error on all of them.
    """
    if not isinstance(kernel, SuperKernel):
        raise LaunchError(f"connect_ranks takes a super kernel and a store, not {shown(kernel)}")
    where = f"super_kernel_scope {shown(kernel.name)}: "
    if not kernel.graph.collectives:
        raise LaunchError(f"{where}it has no collective, and waits for no other process: launch it as it is")
    if any(not callable(getattr(store, method, None)) for method in ("set", "get", "check")):
        raise LaunchError(
            f"{where}the store is {shown(store)}; pass one of torch.distributed, such as FileStore(path, ranks) or "
            "TCPStore(...)"
        )
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < math.inf:
        raise LaunchError(f"{where}timeout_s is {shown(timeout_s)}; a number of seconds above 0 is needed")
    launcher = kernel.target.launcher
    if launcher is None:
        raise UnsupportedError(
            f"{where}target {kernel.target.name!r} launches nothing from here: run it with sk.emulate_ranks"
        )
    launcher.connect_ranks(kernel.loaded, store, float(timeout_s))
