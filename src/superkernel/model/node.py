"""node: one op of a graph, with its name, its events and what it says of each buffer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .op import Op, Place, place_of
from .params import Kind, Param
from .ranks import RankSync
from .subkernel import SubKernel
from .tiling import CompiledTiling, TilingFunction


@dataclass(frozen=True)
class Node:
    """An op of the graph, with its name and the labels of its events."""

    index: int  # position in the user's list
    name: str
    op: Op
    kernel: SubKernel
    sends: tuple[str, ...]  # labels of all its events
    receives: tuple[str, ...]
    notifies: tuple[str, ...]  # those that are external
    awaits: tuple[str, ...]

    @property
    def stream(self) -> int:
        return self.op.stream

    @property
    def ranks(self) -> tuple[RankSync, ...]:
        """How it synchronises with other ranks; those of groups of one rank as well."""
        return tuple(self.op.ranks)

    @cached_property
    def sends_to_ranks(self) -> tuple[RankSync, ...]:
        """The collectives at which this rank has arrived when the op is done; a group of one rank needs no sync."""
        return tuple(sync for sync in self.ranks if sync.sends and sync.group.size > 1)

    @cached_property
    def waits_for_ranks(self) -> tuple[RankSync, ...]:
        """The collectives at which all ranks must have arrived before the op begins."""
        return tuple(sync for sync in self.ranks if not sync.sends and sync.group.size > 1)

    @property
    def dynamic(self) -> bool:
        return self.op.dynamic

    @property
    def compiled_tiling(self) -> CompiledTiling | None:
        """The C function that chooses its tiling. None: the op is not dynamic, or a Python function chooses."""
        return self.op.tiling if isinstance(self.op.tiling, CompiledTiling) else None

    @property
    def tiling_function(self) -> TilingFunction | None:
        """The Python function that its Op was given."""
        return None if isinstance(self.op.tiling, CompiledTiling) else self.op.tiling

    @property
    def asks_agent(self) -> bool:
        """Whether a control agent chooses its tiling, by a Python function."""
        return self.dynamic and self.compiled_tiling is None

    @property
    def blocks(self) -> int:
        """The largest block count it may run with."""
        return self.kernel.block_dim

    @cached_property
    def _places(self) -> tuple[tuple[Param, Place], ...]:
        arguments = zip(self.kernel.params, self.op.args, strict=True)
        return tuple((param, place_of(arg)) for param, arg in arguments if isinstance(arg, str | Place))

    @cached_property
    def _arguments(self) -> tuple[tuple[Param, str], ...]:
        return tuple(
            (place.seen_as(param), place.name) for param, place in self._places if param.kind is not Kind.SCALAR
        )

    def places(self) -> tuple[tuple[Param, Place], ...]:
        """Parameters whose argument is no number, with the place that it means."""
        return self._places

    def arguments(self) -> tuple[tuple[Param, str], ...]:
        """Parameters that stand for memory, as what they say of the buffer, with the buffer's name."""
        return self._arguments
