"""runtime.emulate_ranks: super kernels of all ranks of a group -> launches on emulated machines that share memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import LaunchError, UnsupportedError, shown
from ..model.plain_values import whole_number
from ..targets.protocol import RankLaunch
from .super_kernel import SuperKernel


def emulate_ranks(
    kernels: Sequence[SuperKernel], buffers: Sequence[Mapping[str, Any]], *, seed: int = 0, **more: Any
) -> list[dict[str, Any]]:
    """As `k.emulate` for super kernels with collectives: one for each rank, all at the same time.

    Windows are made here, and are not passed. Returns the outputs of each rank, in the order of `kernels`.
    """
    for kernel in kernels:
        if not isinstance(kernel, SuperKernel):
            raise LaunchError(f"emulate_ranks takes a list of super kernels, one for each rank, not {shown(kernel)}")
    if not kernels or len(kernels) != len(buffers):
        raise LaunchError(f"emulate_ranks: {len(kernels)} super kernels and {len(buffers)} dicts of buffers")
    if (order := whole_number(seed)) is None:
        raise LaunchError(f"emulate_ranks: seed is {shown(seed)}; it must be a whole number")
    for kernel in kernels:
        if kernel.options.debug_replay:
            raise UnsupportedError(
                f"super_kernel_scope {shown(kernel.name)}: debug-replay=1 runs every op alone, and a collective does "
                "not run op by op: leave the option out"
            )
    targets = {kernel.target.name for kernel in kernels}
    if len(targets) > 1:
        raise LaunchError(f"emulate_ranks: the super kernels are of the targets {', '.join(sorted(targets))}; use one")
    emulator = kernels[0].target.emulator
    if emulator is None:
        raise UnsupportedError(
            f"target {kernels[0].target.name!r} has no emulator: launch the kernels, one per process"
        )
    ranks = [
        RankLaunch(kernel.executable, given, kernel.emulator_inputs())
        for kernel, given in zip(kernels, buffers, strict=True)
    ]
    emulated = emulator.emulate_ranks(ranks, seed=order, **more)
    for kernel, launch in zip(kernels, emulated, strict=True):
        kernel.emulated = launch
    return [launch.outputs for launch in emulated]
