"""targets.protocol: what a target implements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..model.argument_layout import Layout
from ..model.events import Event
from ..model.graph import Graph
from ..model.op import TilingFunction
from ..model.options import Options
from ..model.subkernel import SubKernel
from ..plan.spans import Span, TimeStamps

if TYPE_CHECKING:
    from ..model.opsfile import OpsFile

Progress = Callable[[str], None]
Text = tuple[str, str]  # what is included; functions whose names no other text defines
AddressWriter = Callable[[tuple[Any, ...], Any], None]  # tensors, values


@dataclass(frozen=True)
class LaunchInputs:
    """What a caller may add to the buffers of a launch."""

    events: Mapping[str, Event]
    tilings: Mapping[str, TilingFunction]


@dataclass(frozen=True)
class OpLabel:
    """What errors call a launch that is one op of something larger."""

    scope: str
    op: str


class LaunchPlan(Protocol):
    """What a target decided about a graph. Its steps are the target's own; this much every one can say."""

    @property
    def graph(self) -> Graph: ...
    @property
    def options(self) -> Options: ...
    @property
    def cores(self) -> int: ...  # of the launch
    @property
    def layout(self) -> Layout: ...  # of the arguments
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def summary(self) -> tuple[str, ...]: ...  # the first lines of its page
    @property
    def sync_counts(self) -> dict[str, int]: ...
    @property
    def blocking_steps(self) -> int: ...


class Executable(Protocol):
    """A built super kernel.

    Values are addresses and scalar bits, sizes are bytes: ctypes arrays in the order of the graph's buffers.
    """

    source: str
    binary: Path
    commands: Sequence[str]
    remarks: Sequence[str]  # what whoever compiled it should know, such as what could not be built here

    def launch(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> dict[str, Any]: ...
    def argument_arrays(self) -> tuple[Any, Any]: ...  # values and sizes to be filled in
    def launch_values(self, values: Any, sizes: Any) -> None: ...  # no checks; not with events or dynamic ops
    def launch_addresses(
        self,
        values: Sequence[int],
        sizes: Sequence[int],
        launch_inputs: LaunchInputs,
        named: Mapping[str, Any],
        op_label: OpLabel | None = None,
    ) -> None: ...  # no checks; with events and dynamic ops
    def running(self) -> int: ...  # launches in progress
    def spans(self) -> tuple[Span, ...]: ...  # what each core did in the last launch, if it was recorded
    def recording(self) -> TimeStamps | None: ...  # of the calling thread's last launch
    def time_launches(self, wanted: bool) -> None: ...  # all that share its run time
    def last_launch(self) -> tuple[int, int]: ...  # of the calling thread: dispatch and completion, if it was timed
    def save(self, directory: Path) -> None: ...
    def close(self) -> None: ...


@runtime_checkable
class Emulated(Protocol):
    """An executable whose launch can also be tried on a model of the target's cores."""

    def emulate(
        self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs, *, seed: int, **more: Any
    ) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Origin:
    """Where a launch of a series takes a value from: a value of the series plus `addend`; or the addend alone."""

    place: int | None
    addend: int = 0


@dataclass(frozen=True)
class SequencedLaunch:
    """One launch of a series: an executable, what errors call it, and where each of its values comes from."""

    executable: Executable
    op_label: OpLabel
    origins: tuple[Origin, ...]


class LaunchSequence(Protocol):
    """Launches that follow each other, started by one call."""

    def launch_values(self, values: Any, sizes: Any) -> None: ...
    def launch_timed(self, values: Any, sizes: Any, moments: list[tuple[int, int]]) -> None:
        """The same; dispatch and completion of each launch are appended, also when a later one is stopped."""


class Prepared(Protocol):
    """Sub-kernels that a target has compiled and looked into."""

    kernels: Mapping[SubKernel, SubKernel]  # as given -> with all facts

    def build(self, plan: Any) -> Executable: ...  # of a plan that the target made
    def build_together(self, plans: Sequence[Any]) -> Sequence[Executable]: ...  # with the same options, other names
    def launch_sequence(self, legs: Sequence[SequencedLaunch]) -> LaunchSequence: ...


class Target(Protocol):
    name: str
    device: str  # torch's word for where its tensors lie
    takes_models: bool  # there is a compiler for the kernels that a model needs
    launches: bool  # this process can launch what it builds

    def for_chip(
        self, chip: str | Path | Mapping[str, Any] | None
    ) -> Target: ...  # for another part, where there are several
    def chip_fields(self) -> Mapping[str, Any] | None: ...  # the part, as `on` takes it; None: there is only one
    def read_ops(self, path: Path) -> OpsFile: ...  # ops.json, or what the target's own tools write instead
    def core_count(self) -> int: ...
    def forced_cores(self, options: Options, cores: int | None, name: str) -> int | None: ...  # if any are asked for
    def plan(self, graph: Graph, options: Options, cores: int) -> LaunchPlan: ...  # proven, or a PlanError
    def validate(self, plan: Any) -> object: ...  # the proof, as text
    def facts_to_json(self, kernel: SubKernel) -> Any: ...  # what only the target knows of a sub-kernel, to save it
    def facts_from_json(self, fields: Any) -> Any: ...
    def prepare(self, kernels: Sequence[SubKernel], progress: Progress | None) -> Prepared: ...
    def restore(self, plan: Any, directory: Path) -> Executable: ...
    def warm_up(self) -> None: ...  # begin with what every compilation needs
    def shipped_kernels(self) -> Mapping[str, str]: ...  # torch operator -> "module:function" of a KernelFunction
    def settle(
        self, spans: Sequence[tuple[int, int]]
    ) -> int: ...  # memory (address, bytes) that launches will read often
    # what writes the addresses of tensors (place, index) into the values of a launch; torch's function is at `address`
    def address_writer(self, inputs: Sequence[tuple[int, int]], address: int) -> AddressWriter: ...
    def compile_texts(self, texts: Sequence[Text], flags: Sequence[str]) -> list[Path]: ...  # one object per text
