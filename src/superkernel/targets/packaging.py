"""targets.packaging: what a target offers for packages: instruction sets, objects without torch, launch facts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..model.op import Op

if TYPE_CHECKING:
    from .protocol import Target


@dataclass(frozen=True)
class LaunchFacts:
    """What the run time must know of a plan beside its code. Slots are 64-bit words of the entry's argument array."""

    cores: int
    entry: str  # the symbol of the plan
    slot_source: tuple[int, ...]  # per slot: the index of its name among the buffers; negative: a literal or a tiling
    slot_literal: tuple[int, ...]  # per slot: the bits of a literal, or what is added to the value of its name
    rendezvous: int
    counters: int
    copies_bytes: int  # private copies of the outputs of replicated ops
    needs_team: bool  # some op calls sync_all
    arena_bytes: int  # of buffers that a launch allocates for itself
    source_offset: tuple[int, ...]  # per name: its place in that arena; negative: it has none
    source_bytes: tuple[int, ...]  # per name that has a place: its size
    blocking_steps: int
    steps: tuple[str, ...]  # texts, for reports
    stamp_room: int


@dataclass(frozen=True)
class InstructionSet:
    """An instruction set that objects of a package are compiled for."""

    name: str  # in file names and in the manifest
    march: str  # as `for_march` takes it, or the name of another architecture
    architecture: str  # as `uname -m` prints it


@dataclass(frozen=True)
class WeightPanels:
    """What ops read of a weight of float32: a matrix in panels of `width` columns, row after row, then zeros."""

    offset: int  # bytes from the beginning of the weight
    columns: int
    depth: int  # elements of a column, which lie side by side
    column_stride: int  # elements
    width: int

    @property
    def nbytes(self) -> int:
        return -(-self.columns // self.width) * self.width * self.depth * 4


class PackageSupport(Protocol):
    """How a target compiles super kernels that are loaded without torch and without this package."""

    def instruction_sets(self, names: Sequence[str]) -> Sequence[InstructionSet]:
        """The sets by name, the most demanding first; an OptionError for an unknown name."""

    def for_instruction_set(self, instruction_set: InstructionSet) -> Target:
        """The target whose Builder links against nothing but the system and the library of packages."""

    def needed_features(self, executable: Any, instruction_set: InstructionSet) -> Sequence[str]:
        """What the processor must have to run the code, as /proc/cpuinfo names it."""

    def launch_facts(self, executable: Any) -> LaunchFacts: ...

    def with_weight_panels(
        self, ops: Sequence[Op], weights: Collection[str]
    ) -> tuple[list[Op], Mapping[str, WeightPanels]]:
        """The ops with kernels that read some of the weights in panels, with the same bits; and those weights by name.

        An op reads nothing else of such a weight.
        """
