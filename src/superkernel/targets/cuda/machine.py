"""targets.cuda.machine: a device, and what the sub-kernels of a graph need -> slots, cores, and the planner's Machine.

A core is a slot: the threads of one SM that run one block at a time. Core c is slot c // sms of SM c % sms, so that the
first cores are on different SMs. The slots of one SM are a group, among which a sync is a word in shared memory; or the
SMs of one cluster are, which raise words in each other's shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from ...errors import PlanError, shown
from ...model.graph import Graph
from ...model.options import Options
from ...model.subkernel import SubKernel
from ...plan import Machine
from ...plan.steps import Cores
from .device import CLUSTER_SIZES, DeviceDescription
from .facts import KernelFacts, facts_of
from .numbering import SlotGrid
from .ring_shape import STAGING_THREADS, ring_of
from .slot_shape import WARP, SlotShape
from .task_layout import MOST_SLOTS, SLOT_ALIGNMENT

FEWER_THREADS = 512  # of an SM: four slots of 128 threads, with up to 120 registers a thread
MOST_REGISTERS = 255  # of a thread
_PARTS = 4  # of an SM, among which its warps and registers are divided
_COSTED_SLOTS = 4  # of an SM, in the costs of a device
_QUICKLY_ASSEMBLED = 8  # kernels
_SURE_SHARE = 0.75  # of the SMs, that clusters of more than two can use: some SMs have no neighbours left
_WORDS_KEPT = 1024  # words of shared memory for counters that a plan can count on


def slot_threads(kernels: Sequence[SubKernel]) -> int:
    """The threads of a slot: those of the widest sub-kernel, in whole warps."""
    return -(-max(prod(kernel.threads) for kernel in kernels) // WARP) * WARP


def slot_shared(kernels: Sequence[SubKernel]) -> int:
    """Bytes of shared memory of a slot: those of the sub-kernel that needs most."""
    return max(_rounded(_shared(facts_of(kernel))) for kernel in kernels)


def _shared(facts: KernelFacts) -> int:
    return facts.dynamic_shared + facts.static_shared


def _rounded(size: int) -> int:
    return -(-size // SLOT_ALIGNMENT) * SLOT_ALIGNMENT


def most_registers(device: DeviceDescription, block_threads: int) -> int:
    """Registers that a thread may have: 120 of four slots of 128 threads, 96 with one warp more.

    An SM has four parts with a quarter of the registers each: of 9 warps, one part runs 3.
    """
    threads = block_threads + WARP if block_threads <= FEWER_THREADS else block_threads
    of_parts = -(-block_threads // (_PARTS * WARP)) * _PARTS * WARP
    return min(MOST_REGISTERS, device.registers // max(threads, of_parts) // 8 * 8)


def fitting_slots(graph: Graph, device: DeviceDescription, *, streams: bool = False) -> int:
    """How many slots an SM has room for, by threads, shared memory, and registers alone.

    `streams`: beside the warp that asks for the inputs of later ops.
    """
    kernels = [node.kernel for node in graph.nodes]
    threads, shared = slot_threads(kernels), slot_shared(kernels)
    widest = max(graph.nodes, key=lambda node: prod(node.kernel.threads))
    largest = max(graph.nodes, key=lambda node: _shared(facts_of(node.kernel)))
    where = f"super_kernel_scope {shown(graph.name)}: "
    if threads > device.threads:
        raise PlanError(
            f"{where}op {widest.name!r} has blocks of {threads} threads; {device.name} runs {device.threads}"
        )
    if SlotShape(1, threads, shared).total_shared(0) > device.shared_bytes:
        raise PlanError(
            f"{where}op {largest.name!r} needs {_shared(facts_of(largest.kernel))} bytes of shared memory; a block has "
            f"{device.shared_bytes} on {device.name}, and the super kernel needs some of them for its counters"
        )
    needed = max((facts_of(kernel).registers or 0 for kernel in kernels), default=0)
    narrow = any(prod(kernel.threads) < threads for kernel in kernels)
    extra = WARP if streams else 0
    if threads + extra > device.threads:
        raise PlanError(
            f"{where}op {widest.name!r} has blocks of {threads} threads, and prefetch-weights needs {WARP} more; "
            f"{device.name} runs {device.threads}: leave prefetch-weights out"
        )
    slots = max(1, min(MOST_SLOTS // 2 if narrow else MOST_SLOTS, (device.threads - extra) // threads))
    while slots > 1 and SlotShape(slots, threads, shared).total_shared(_WORDS_KEPT) > device.shared_bytes:
        slots -= 1
    while slots > 1 and most_registers(device, slots * threads + extra) < needed:
        slots = next_slots(slots, threads)
    return slots


def fits_ring(graph: Graph, staged: frozenset[SubKernel], device: DeviceDescription, *, streams: bool) -> bool:
    """Whether an SM has room for a ring of weights beside the shared memory of the other sub-kernels, for the
    threads that fill it, and for the usual number of counters."""
    kernels = [node.kernel for node in graph.nodes]
    ring = ring_of(kernel for kernel in kernels if kernel in staged)
    if ring is None or slot_threads(kernels) + STAGING_THREADS + (WARP if streams else 0) > device.threads:
        return False
    sizes = [_shared(facts_of(kernel)) + (0 if kernel in staged else ring.nbytes) for kernel in kernels]
    return SlotShape(1, slot_threads(kernels), _rounded(max(sizes))).total_shared(_WORDS_KEPT) <= device.shared_bytes


def next_slots(slots: int, threads: int, kernels: int = 1) -> int:
    """What is tried where so many slots leave too few registers for a thread; of many kernels not every number."""
    if kernels > _QUICKLY_ASSEMBLED and slots * threads > FEWER_THREADS >= threads:
        return FEWER_THREADS // threads
    return slots - 1


def memory_rate(device: DeviceDescription) -> float:
    """Bytes per nanosecond that the memory delivers to all SMs."""
    return device.costs.bytes_per_ns * _COSTED_SLOTS * device.sms


def shape_of(cores: int, slots: int, device: DeviceDescription, sms: int | None = None) -> SlotGrid:
    """A few cores are slots of one SM; otherwise there is one core on each of many SMs, before any has a second.

    `sms`: of a launch that uses fewer SMs than the device has.
    """
    if cores <= slots:
        return SlotGrid(cores, 1, cores)
    sms = sms or min(cores, device.sms)
    return SlotGrid(cores, sms, -(-cores // sms))


def prefetch_window(options: Options, device: DeviceDescription) -> int:
    """Bytes in the L2 cache ahead of the ops that read them."""
    return device.l2_bytes // 2 if options.prefetch_weights == 1 else min(options.prefetch_weights, device.l2_bytes)


def machine_of(cores: int, slots: int, device: DeviceDescription, *, team_slots: int = 0, window: int = 0) -> Machine:
    """The machine of up to `cores` cores with so many slots per SM.

    With `team_slots` slots on every SM there are teams: the first slot of each, for the ops between those that start
    early, and the others.
    """
    costs = device.costs
    if cores <= slots:
        near = replace(costs, sync_ns=costs.near_sync_ns)
        return Machine(cores, costs=near, feeds_sync_all=False, prefetch_window=window)
    # what the memory delivers is shared by all cores; the costs are those of four slots per SM
    costs = replace(costs, bytes_per_ns=memory_rate(device) / cores)
    sms = shape_of(cores, slots, device).sms
    divided: tuple[Cores, ...] = ()
    if team_slots > 1 and 2 * sms > device.sms:
        cores = max(cores, sms * team_slots)
        divided = tuple(range(sms)), tuple(range(sms, cores))
    groups = tuple(tuple(range(sm, cores, sms)) for sm in range(sms))
    return Machine(
        cores,
        groups,
        costs,
        early_loads=True,
        small_ops_last=True,
        near_needs=True,
        teams=divided,
        prefetch_window=window,
        feeds_sync_all=False,
    )


def cluster_shapes(shape: SlotGrid, device: DeviceDescription) -> Iterator[SlotGrid]:
    """The same launch in whole clusters of 2, 4, ... SMs, where so many fit on the device; the last may have SMs
    without cores."""
    for size in CLUSTER_SIZES[1:]:
        sms = -(-shape.sms // size) * size
        fits = sms <= device.sms if size == 2 else sms <= _SURE_SHARE * device.sms
        if size <= device.largest_cluster and size < 2 * shape.sms and fits:
            yield replace(shape, sms=sms, cluster=size)


def cluster_machine(machine: Machine, shape: SlotGrid, device: DeviceDescription) -> Machine:
    """A machine whose groups are the SMs of one cluster, in the place of the slots of one SM."""
    near = replace(machine.costs, near_sync_ns=device.cluster_sync_ns)
    clusters: dict[int, list[int]] = {}
    for core in range(machine.cores):
        clusters.setdefault(shape.sm(core) // shape.cluster, []).append(core)
    groups = tuple(map(tuple, clusters.values()))
    if len(groups) == 1:
        groups, near = (), replace(near, sync_ns=device.cluster_sync_ns)
    return replace(machine, groups=groups, costs=near, near_needs=False, replicates=False, teams=())


def most_cores(graph: Graph, options: Options, available: int) -> int:
    """Cores that can have a block at the same time."""
    blocks = [node.blocks for node in graph.nodes]
    return min(available, sum(blocks) if options.stream_fusion else max(blocks))
