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
Text = tuple[str, str]  # what is included; functions whose names no other text defines


@dataclass(frozen=True)
class StepTime:
    """One time stamp of one core: a step of the plan and when it was reached (monotonic nanoseconds)."""

    core: int
    step: int
    ns: float


class Recording(Protocol):
    """What the marks of one launch left; read when it is wanted."""

    def step_times(self) -> Sequence[StepTime]: ...


@dataclass(frozen=True)
class LaunchWishes:
    """What a caller may add to the buffers of a launch."""

    events: Mapping[str, Event]
    tilings: Mapping[str, TilingFunction]


@dataclass(frozen=True)
class KnownAs:
    """What errors call a launch that is one op of something larger."""

    scope: str
    op: str


class Executable(Protocol):
    """A built super kernel.

    Values are addresses and scalar bits, sizes are bytes: ctypes arrays in the order of the graph's buffers.
    """

    source: str
    binary: Path
    commands: Sequence[str]

    def launch(self, buffers: Mapping[str, Any], wishes: LaunchWishes) -> dict[str, Any]: ...
    def blank(self) -> tuple[Any, Any]: ...  # values and sizes to be filled in
    def launch_values(self, values: Any, sizes: Any) -> None: ...  # no checks; not with events or dynamic ops
    def launch_addresses(
        self,
        values: Sequence[int],
        sizes: Sequence[int],
        wishes: LaunchWishes,
        named: Mapping[str, Any],
        known_as: KnownAs | None = None,
    ) -> None: ...  # no checks; with events and dynamic ops
    def running(self) -> int: ...  # launches in progress
    def step_times(self) -> Sequence[StepTime]: ...  # of the last launch, if the plan has marks
    def recording(self) -> Recording | None: ...  # of the calling thread's last launch
    def time_launches(self, wanted: bool) -> None: ...  # all that share its run time
    def last_launch(self) -> tuple[int, int]: ...  # of the calling thread: dispatch and completion, if it was timed
    def save(self, directory: Path) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Origin:
    """Where a launch of a series takes a value from: a value of the series plus `addend`; or the addend alone."""

    place: int | None
    addend: int = 0


@dataclass(frozen=True)
class Leg:
    """One launch of a series: an executable, what errors call it, and where each of its values comes from."""

    executable: Executable
    known_as: KnownAs
    origins: tuple[Origin, ...]


class Series(Protocol):
    """Launches that follow each other, started by one call."""

    def launch_values(self, values: Any, sizes: Any) -> None: ...
    def launch_timed(self, values: Any, sizes: Any, moments: list[tuple[int, int]]) -> None:
        """The same; dispatch and completion of each launch are appended, also when a later one is stopped."""


class Prepared(Protocol):
    """Sub-kernels that a target has compiled and looked into."""

    kernels: Mapping[SubKernel, SubKernel]  # as given -> with all facts

    def build(self, plan: Plan) -> Executable: ...
    def line_up(self, legs: Sequence[Leg]) -> Series: ...


class Target(Protocol):
    name: str
    device: str  # torch's word for where its tensors lie

    def core_count(self) -> int: ...
    def prepare(self, kernels: Sequence[SubKernel], progress: Progress | None) -> Prepared: ...
    def restore(self, plan: Plan, directory: Path) -> Executable: ...
    def warm_up(self) -> None: ...  # begin with what every compilation needs
    def register_kernels(self) -> None: ...  # those that come with the target, for torch's operators
    def settle(
        self, spans: Sequence[tuple[int, int]]
    ) -> int: ...  # memory (address, bytes) that launches will read often
    def compile_texts(self, texts: Sequence[Text], flags: Sequence[str]) -> list[Path]: ...  # one object per text


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
