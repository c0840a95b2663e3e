"""targets.ascend.kernel_description: an emitted super kernel as plain data: source, launch, slots, ops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...model.argument_layout import Layout
from ...model.options import PreloadCode
from ...model.subkernel import SubKernel
from .chips import Chip
from .core_types import CoreClass, KernelType
from .launch_shape import LaunchShape


@dataclass(frozen=True)
class Variant:
    """The functions of one tiling key, or the only ones of a static op: per copy, copy 0 first."""

    key: int
    functions: tuple[str, ...]


@dataclass(frozen=True)
class EmittedOp:
    """One op of the super kernel as its entry calls it."""

    index: int  # in the user's list
    name: str
    kernel: SubKernel
    kernel_type: KernelType
    blocks: int  # for a dynamic op: the most
    stream: int
    dynamic: bool
    first_slot: int  # index of its first slot: what it is called with
    variants: Mapping[CoreClass, tuple[Variant, ...]] = field(hash=False)  # per class it runs on
    symbols: Mapping[CoreClass, Mapping[int, str]] = field(hash=False)  # tiling key -> name in its own object
    copies: int = 1  # core c calls copy c mod copies


@dataclass(frozen=True)
class EventWord:
    """An external event: a 64-bit word whose address stands in `slot`."""

    label: str
    slot: int
    op: str
    sent: bool  # the kernel sets it to 1; else the kernel waits for 1 and resets it to 0
    between_ranks: bool = False  # its other side is the kernel of another rank


@dataclass(frozen=True)
class Prefetch:
    """Weights that a copy engine brings closer: it waits for 1 in `go`, sets it back to 0 and copies. No core waits."""

    op: str
    go_slot: int
    buffers: tuple[str, ...]
    budget: int  # most bytes


@dataclass(frozen=True)
class TilingWords:
    """The three slots of a dynamic op; each holds the address of a 64-bit word.

    lock: 0 no request; 2 the kernel asks; 1 the agent has answered in key and block count.
    """

    op: str
    key_slot: int
    blocks_slot: int
    lock_slot: int


@dataclass(frozen=True)
class DumpArea:
    """Where sub-kernels print: one equal part per core, in the workspace."""

    offset: int
    bytes: int
    bytes_per_core: int
    options: tuple[str, ...]  # union of the ops' debugOptions


@dataclass(frozen=True)
class MarkPoint:
    """What one time stamp stands for: records name it by its place in `ProfilingArea.marks`."""

    what: str  # kernel, op, wait or notify
    op: str | None
    begin: bool


@dataclass(frozen=True)
class ProfilingArea:
    """Per core `bytes_per_core` bytes: a line that holds the number of records, then records of two words."""

    bytes_per_core: int
    header_bytes: int
    marks: tuple[MarkPoint, ...]


@dataclass(frozen=True)
class EmittedKernel:
    name: str
    entry: str  # the function each core calls
    source: str  # of <name>_kernel.cpp
    chip: Chip
    launch: LaunchShape
    layout: Layout
    ops: tuple[EmittedOp, ...]  # in the user's order
    events: tuple[EventWord, ...] = ()
    tilings: tuple[TilingWords, ...] = ()
    prefetches: tuple[Prefetch, ...] = ()
    workspace_slot: int | None = None
    workspace_bytes: int = 0
    feed_bytes: int = 0  # control words of feed-sync-all, at the beginning of the workspace
    dump: DumpArea | None = None
    profiling_slot: int | None = None
    task_id_slot: int | None = None
    profiling: ProfilingArea | None = None
    preload_code: PreloadCode = PreloadCode.NONE  # what cores ask for before they call
    watchdog_s: float = 60.0  # 0: off
    watchdog_exits: bool = False
    defines: Mapping[CoreClass, tuple[str, ...]] = field(default_factory=dict, hash=False)  # compile once per class
    cann_defines: tuple[str, ...] = ()  # under which CANN compiles sub-kernels and entry
