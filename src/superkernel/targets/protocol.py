"""targets.protocol: the parts that a target may offer: Planner, Builder, Launcher, ModelSupport, Emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..model.argument_layout import Layout
from ..model.events import Event
from ..model.graph import Graph
from ..model.opsfile import OpsFile
from ..model.options import Options
from ..model.subkernel import SubKernel
from ..model.tensor_arg import KernelFunction
from ..model.tiling import CompiledTiling, TilingFunction
from ..plan import CoreChoice, Machine, Plan
from ..plan.memory import MemoryPlan
from ..plan.plan import Sync
from ..plan.spans import Span, TimeStamps
from .buffers import HOST_MEMORY, ArgumentMemory
from .checks import Check
from .collectives import CollectiveSupport
from .operator_library import OperatorLibrary
from .packaging import PackageSupport
from .tensor_spans import OverlapCheck, TensorSpan

Progress = Callable[[str], None]
RawValue = tuple[int, int]  # of an argument: an address or the bits of a scalar, and bytes
GeneratedText = tuple[str, str]  # includes; functions, whose names no other text defines
AddressWriter = Callable[[tuple[Any, ...], Any], None]  # (tensors, values of a launch)
Allocator = Callable[[Any, Any, Any], Any]  # (size, stride, dtype) -> an uninitialised tensor
Outputs = dict[str, Any]  # of a launch, by name
ChipChoice = str | Path | Mapping[str, Any]  # a name, a file that describes a chip, or the fields of such a file


class LaunchPlan(Protocol):
    """The plan of one launch. Its steps are the target's; these properties exist for every target."""

    @property
    def graph(self) -> Graph: ...
    @property
    def options(self) -> Options: ...
    @property
    def cores(self) -> int: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def memory(self) -> MemoryPlan: ...  # of the buffers that a launch allocates for itself
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def summary(self) -> tuple[str, ...]: ...  # the first lines of str(plan)
    @property
    def syncs(self) -> tuple[Sync, ...]: ...  # of every edge of the graph
    @property
    def sync_counts(self) -> dict[str, int]: ...
    @property
    def blocking_steps(self) -> int: ...


class Planner(Protocol):
    """Plans a graph for the cores of a target."""

    def core_count(self) -> int: ...  # available to a new plan: threads, affinity, CPU quota
    def launch_limit(self) -> int: ...  # the most cores that a launch may use now; asked by every launch
    def machine(self, cores: int) -> Machine:
        """`cores` of this target's cores: the groups among them, and what things cost."""

    def forced_cores(self, options: Options, cores: int | None, name: str) -> int | None:
        """The number of cores that the caller or an option demands; None: the work decides."""

    def choose_cores(self, graph: Graph, options: Options, available: int) -> CoreChoice:
        """As many of the available cores as the estimated work deserves."""

    def plan(self, graph: Graph, options: Options, cores: int, note: str = "") -> LaunchPlan:
        """A validated plan, or a PlanError. Its page shows the note."""

    def smaller_teams(self, plan: Any) -> Sequence[int]:
        """For which numbers of cores a plan is also saved, the largest first."""

    def validate(self, plan: Any) -> object:
        """The report of all checks; str() of it is a page."""


class Executable(Protocol):
    """A built super kernel: emitted source, binary, and how it was built."""

    @property
    def source(self) -> str: ...
    @property
    def binary(self) -> Path: ...
    @property
    def commands(self) -> Sequence[str]: ...
    @property
    def remarks(self) -> Sequence[str]: ...  # for the user, such as what could not be built on this machine

    def save(self, directory: Path) -> None: ...


class Prepared(Protocol):
    """Compiled and inspected sub-kernels, ready to be linked."""

    @property
    def kernels(self) -> Mapping[SubKernel, SubKernel]: ...  # as given -> with every fact filled in

    def build(self, plans: Sequence[Any]) -> Sequence[Executable]:
        """Emit and link one entry per plan; the plans have equal options and different names."""


class Builder(Protocol):
    """Compiles sub-kernels, emits the entry of a plan and links both."""

    def prepare(
        self, kernels: Sequence[SubKernel], tilings: Sequence[CompiledTiling], progress: Progress | None
    ) -> Prepared: ...
    def restore(self, plan: Any, directory: Path) -> Executable: ...  # what Executable.save wrote
    def facts_to_json(self, kernel: SubKernel) -> Any: ...  # SubKernel.target_facts, for a saved super kernel
    def facts_from_json(self, fields: Any) -> Any: ...


@dataclass(frozen=True)
class LaunchInputs:
    """What a launch takes beside its buffers: events by label, tiling functions by op."""

    events: Mapping[str, Event]
    tilings: Mapping[str, TilingFunction]


@dataclass(frozen=True)
class OpLabel:
    """The scope and op that error messages name, for a launch that is one op of a larger graph."""

    scope: str
    op: str


@dataclass(frozen=True)
class BoundArguments:
    """The arguments of a launch, checked. An owner that exchanges one checks it first."""

    values: Any  # ctypes arrays: addresses and scalar bits, then the addresses of events
    sizes: Any
    outputs: dict[str, Any]  # that were allocated, by name
    named: dict[str, Any]  # every argument; holding it keeps the memory alive
    memory: ArgumentMemory = HOST_MEMORY  # that arguments lie in
    again: Callable[[], bool] | None = None  # launches at once as the last launch did; False: take launch_bound


class LoadedKernel(Protocol):
    """A super kernel loaded into this process, ready to launch.

    Values are addresses and scalar bits, sizes are bytes: ctypes arrays in the order of the graph's buffers.
    """

    @property
    def plan(self) -> Plan: ...
    def launch(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> dict[str, Any]:
        """Check and bind the buffers, launch once; returns the outputs that were allocated."""

    def bind(self, buffers: Mapping[str, Any], launch_inputs: LaunchInputs) -> BoundArguments:
        """Check as `launch` does, and launch nothing."""

    def launch_bound(self, arguments: BoundArguments, launch_inputs: LaunchInputs) -> None: ...  # no checks
    def argument_arrays(self) -> tuple[Any, Any]: ...  # values and sizes, to be filled in
    def launch_values(self, values: Any, sizes: Any) -> None: ...  # no checks; no events, no dynamic ops
    def launch_addresses(
        self, arguments: Sequence[RawValue], launch_inputs: LaunchInputs, named: Mapping[str, Any], op_label: OpLabel
    ) -> None: ...  # no checks; events and dynamic ops allowed
    def running(self) -> int: ...  # launches in progress
    def synchronize(self) -> None:
        """Wait for launches that a call has started and left running; raises the error of one that failed."""

    def spans(self) -> tuple[Span, ...]: ...  # of the last launch, if it was recorded
    def time_stamps(self) -> TimeStamps | None: ...  # of the calling thread's last launch
    def last_launch(self) -> tuple[int, int]: ...  # of the calling thread: dispatch and completion, if timed
    def close(self) -> None: ...


@dataclass(frozen=True)
class ValueSource:
    """Where a launch of a sequence takes a value from: `values[place] + addend`, or the addend alone."""

    place: int | None
    addend: int = 0


@dataclass(frozen=True)
class SequencedLaunch:
    """One launch of a sequence: a kernel, its name in errors, and the source of each of its values."""

    kernel: LoadedKernel
    op_label: OpLabel
    sources: tuple[ValueSource, ...]


TimedLaunch = tuple[
    int, int, TimeStamps | None
]  # dispatch and completion in monotonic nanoseconds; what cores recorded


class LaunchSequence(Protocol):
    """Launches in a fixed order, started by one call."""

    def launch_values(self, values: Any, sizes: Any) -> None: ...
    def launch_timed(self, values: Any, sizes: Any, times: list[TimedLaunch]) -> None:
        """Also appends dispatch, completion and time stamps of each launch, even if a later launch fails."""


class Launcher(Protocol):
    """Loads and launches what the Builder built."""

    def load(self, executable: Any) -> LoadedKernel: ...
    def load_alone(self, executable: Any) -> LoadedKernel | None:
        """The same binary, its whole plan run by the calling thread, without a team; None: its ops need their team."""

    def load_original(self, plan: Any) -> LoadedKernel | None:
        """The sub-kernel of a plan of one op as it was compiled, launched as its own framework would launch it.

        None: on this target a sub-kernel runs only as part of a super kernel.
        """

    @property
    def memory(self) -> ArgumentMemory: ...  # that the buffers of launches lie in
    def deferred(self, call: Callable[[], Outputs]) -> Callable[[], Outputs]:
        """A function for another thread, whose launches follow those of the calling thread."""

    def sequence(self, launches: Sequence[SequencedLaunch]) -> LaunchSequence: ...
    def connect_ranks(self, kernel: Any, store: Any, timeout_s: float) -> None:
        """Launches of a loaded kernel wait for those of other processes from now on; see runtime.connect_ranks."""

    def time_launches(self, enabled: bool) -> None: ...  # of every loaded kernel
    def crowded(self) -> bool: ...  # others keep the processors busy: a team is no faster than one core now


class ModelSupport(Protocol):
    """What the torch front end needs of a target."""

    @property
    def device(self) -> str: ...  # torch's name of where the tensors are

    @property
    def kernel_language(self) -> str: ...  # of the generated kernel texts that compile_generated takes

    @property
    def march(self) -> str: ...  # the processor that generated kernels are compiled for; native: this machine's
    def machine_key(self) -> str: ...  # what of this machine decides compiled code, such as instruction sets
    @property
    def operators(self) -> OperatorLibrary | None: ...  # None: its kernels are generated
    @property
    def collectives(self) -> CollectiveSupport | None: ...  # None: torch runs them

    def shipped_kernels(self) -> Mapping[str, str | KernelFunction]:
        """Torch operator -> the function that makes its ops, or "module:function"."""

    def why_no_kernel(self, operator: str) -> str: ...  # the reason that reports give for an operator without one
    def warm_up(self) -> None: ...  # start building in the background what every compilation needs
    def compile_kernels(self, kernels: Sequence[SubKernel]) -> Sequence[tuple[Path, str]]:
        """For each sub-kernel its object, and the symbol of its function there."""

    def compile_generated(self, texts: Sequence[GeneratedText], flags: Sequence[str]) -> Sequence[Path]:
        """One object per text."""

    def allocator(self) -> Allocator: ...
    def address_writer(self, inputs: Sequence[tuple[int, int]], address_function: int) -> AddressWriter:
        """A function that writes the addresses of tensors into the values of a launch.

        `inputs` are pairs (place in the values, index of the tensor); `address_function` is the address of torch's C
        function that returns the address of a tensor's memory.
        """

    def overlap_check(self, spans: Sequence[TensorSpan], address_function: int | None) -> OverlapCheck:
        """A function of a tuple of tensors: whether the spans of two overlap, one of which is written."""

    def settle(self, spans: Sequence[tuple[int, int]]) -> int:
        """Improve the mapping of memory (address, bytes) that every launch reads; returns how many pages changed."""

    def clock(self) -> int:
        """Monotonic nanoseconds, read after everything launched so far has completed."""


class EmulatedLaunch(Protocol):
    """One emulated launch."""

    @property
    def outputs(self) -> dict[str, Any]: ...  # the outputs that were allocated
    @property
    def spans(self) -> Sequence[Span]: ...
    @property
    def notes(self) -> Sequence[str]: ...  # for the user


@dataclass(frozen=True)
class EmulatedMachine:
    """What a super kernel is emulated on, and what its syncs cost there."""

    name: str  # such as the name of a chip
    core_names: tuple[str, ...]  # in the order in which spans number the cores
    syncs: int
    sync_actions: int  # what cores do at flags, once per class of cores
    barrier_actions: int  # what they would do if a barrier over all cores stood in front of every op


@dataclass(frozen=True)
class RankLaunch:
    """What one rank launches."""

    executable: Any
    buffers: Mapping[str, Any]
    launch_inputs: LaunchInputs


class Emulator(Protocol):
    """Runs a built super kernel on a model of the target's cores."""

    def emulate(
        self, executable: Any, buffers: Mapping[str, Any], launch_inputs: LaunchInputs, *, seed: int, **more: Any
    ) -> EmulatedLaunch: ...
    def emulate_ranks(self, ranks: Sequence[RankLaunch], *, seed: int, **more: Any) -> Sequence[EmulatedLaunch]:
        """The super kernels of all ranks of their groups at the same time, on memory that they share."""

    def machine(self, executable: Any) -> EmulatedMachine: ...
    def has_reference(self, executable: Any, **more: Any) -> bool:
        """Whether launches with these arguments are compared with a reference: a replay would add nothing."""


class Target(Protocol):
    """A kind of machine that super kernels are built for. A part that is None is not offered."""

    @property
    def name(self) -> str: ...
    @property
    def planner(self) -> Planner: ...
    @property
    def builder(self) -> Builder: ...
    @property
    def launcher(self) -> Launcher | None: ...
    @property
    def why_no_launcher(self) -> str: ...  # what a launch needs instead; empty where there is a launcher
    @property
    def model_support(self) -> ModelSupport | None: ...
    @property
    def emulator(self) -> Emulator | None: ...
    @property
    def package_support(self) -> PackageSupport | None: ...

    def for_chip(self, chip: ChipChoice | None) -> Target: ...
    def for_march(self, march: str | None) -> Target: ...  # a processor to compile for; None: the target's default
    def chip_fields(self, plan: Any = None) -> Mapping[str, Any] | None:
        """As for_chip takes them, with what was measured there for the plan; None: there are no chips."""

    def read_ops(self, path: Path) -> OpsFile: ...  # ops.json, or the metadata of the target's own tools
    def checks(self) -> Sequence[Check]: ...  # of this machine: what the target needs
