"""targets: the protocol that a target implements, and the table of targets: nothing outside names one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from ..errors import OptionError, UnsupportedError, nearest
from ..events import Event
from ..plan import Plan
from ..subkernel import SubKernel, TilingFunction

Progress = Callable[[str], None]


@dataclass(frozen=True)
class StepTime:
    """One time stamp of one core: a step of the plan and when it was reached (monotonic nanoseconds)."""

    core: int
    step: int
    ns: float


@dataclass(frozen=True)
class LaunchWishes:
    """What a caller may add to the buffers of a launch."""

    events: Mapping[str, Event]
    tilings: Mapping[str, TilingFunction]


class Executable(Protocol):
    """A built super kernel."""

    source: str
    binary: Path
    commands: Sequence[str]

    def launch(self, buffers: Mapping[str, Any], wishes: LaunchWishes) -> dict[str, Any]: ...
    def launch_addresses(
        self, values: Sequence[int], sizes: Sequence[int], wishes: LaunchWishes, named: Mapping[str, Any]
    ) -> None: ...  # arguments that have been checked
    def running(self) -> int: ...  # launches in progress
    def step_times(self) -> Sequence[StepTime]: ...
    def save(self, directory: Path) -> None: ...
    def close(self) -> None: ...


class Prepared(Protocol):
    """Sub-kernels that a target has compiled and looked into."""

    kernels: Mapping[SubKernel, SubKernel]  # as given -> with all facts

    def build(self, plan: Plan) -> Executable: ...


class Target(Protocol):
    name: str

    def core_count(self) -> int: ...
    def prepare(self, kernels: Sequence[SubKernel], progress: Progress | None) -> Prepared: ...
    def restore(self, plan: Plan, directory: Path) -> Executable: ...


# name -> module with a TARGET
_MODULES = {"cpu": "superkernel.targets.cpu"}
KNOWN = ("cpu", "cuda", "ascend")


def find_target(name: str) -> Target:
    if name not in KNOWN:
        raise OptionError(f"unknown target {name!r}{nearest(str(name), KNOWN)}; targets are {', '.join(KNOWN)}")
    if name not in _MODULES:
        raise UnsupportedError(f"target {name!r} is not part of this version; available: {', '.join(_MODULES)}")
    target: Target = import_module(_MODULES[name]).TARGET
    return target
