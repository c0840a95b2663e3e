"""targets.cuda.triton_driver: the name of an architecture -> what Triton compiles for, also where there is no GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ...errors import UnsupportedError, shown

_WARP = 32
_ARCHITECTURE = re.compile(r"sm_(\d{2,3})[af]?")


@dataclass(frozen=True)
class TritonTarget:
    """An architecture of NVIDIA GPUs; Triton chooses the suffix of its name."""

    number: int  # 90: sm_90a


@dataclass(frozen=True)
class TritonModules:
    """What a capture uses of Triton."""

    JITFunction: Any
    Autotuner: Any
    drivers: Any  # with the active driver
    GPUTarget: Any


def find_triton() -> TritonModules:
    """Triton, imported; an UnsupportedError says what to install."""
    try:
        import torch  # noqa: F401
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.driver import driver as drivers
        from triton.runtime.jit import JITFunction
    except ImportError as reason:
        raise UnsupportedError(
            f"sk.capture records launches of Triton kernels on torch tensors, and {reason.name or 'triton'} is not "
            "installed: pip install torch triton"
        ) from reason
    if triton.knobs.runtime.interpret:
        raise UnsupportedError(
            "sk.capture: TRITON_INTERPRET is set: interpreted kernels are not compiled; unset it for captures"
        )
    return TritonModules(JITFunction, Autotuner, drivers, GPUTarget)


def parse_target(name: object) -> TritonTarget:
    found = _ARCHITECTURE.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        raise UnsupportedError(f"sk.capture: target {shown(name)}: name an architecture of NVIDIA GPUs, such as sm_90a")
    return TritonTarget(int(found[1]))


def current_target(triton: TritonModules) -> TritonTarget | None:
    """The architecture of the current GPU; None: there is none."""
    import torch

    if not torch.cuda.is_available() or torch.version.hip is not None:
        return None
    return TritonTarget(int(triton.drivers.active.get_current_target().arch))


class RecordingDriver:
    """In place of Triton's driver: compiles for an architecture whose GPU need not be there, and launches nothing."""

    def __init__(self, triton: TritonModules, target: TritonTarget) -> None:
        self._drivers = triton.drivers
        self._target = triton.GPUTarget("cuda", target.number, _WARP)
        self._device = f"superkernel sm_{target.number}"  # the key of Triton's cache of compiled kernels

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> str:
        return self._device

    def get_current_stream(self, device: object) -> int:
        return 0

    @contextmanager
    def active(self) -> Iterator[None]:
        before = self._drivers._active
        self._drivers.set_active(self)
        try:
            yield
        finally:
            self._drivers._active = before
