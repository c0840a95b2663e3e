"""targets.cuda.plan: a graph and a device -> a validated plan with the shape of its launch.

Where a sub-kernel can ask for weights before it needs what other ops store, its wait sinks to the first access to a
buffer that the launch writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from ...cache import digest
from ...model.graph import Graph
from ...model.options import EarlyStart, Options
from ...model.subkernel import SubKernel
from ...plan import Machine, Plan, checked_plan
from ...plan.cost import estimate_near
from ...plan.placement import fits_group
from ...plan.staging import staged_kernels
from ...plan.steps import PrefetchWeights, StageWeights, Wait
from .cluster_choice import WITHOUT, ClusterEstimate, SyncTimes, choose_cluster, worth_timing
from .device import DeviceDescription
from .facts import facts_of
from .machine import (
    cluster_machine,
    cluster_shapes,
    fits_ring,
    fitting_slots,
    machine_of,
    memory_rate,
    most_cores,
    prefetch_window,
    shape_of,
)
from .numbering import ONE_CORE, SlotGrid
from .task_layout import STREAM_BYTES

MOST_NEAR_MARKS = 768  # of the words of shared memory that a plan can count on
ASKED_SHARE = 0.75  # of the memory's rate, for inputs of later ops
LEAST_EARLY_BYTES = 1024  # that a block asks for before its wait; a wait inside for less costs more than it hides


@dataclass(frozen=True)
class CudaPlan(Plan):
    """A plan for the slots of a GPU."""

    shape: SlotGrid = ONE_CORE
    pace_ns: int = 0  # between two requests of an SM for inputs of later ops
    sync_times: SyncTimes | None = None  # by which the size of clusters was chosen; None: there was no choice
    staging_spills: int = 0  # bytes that the super kernel would spill if it staged weights, which it therefore does not

    @property
    def summary(self) -> tuple[str, ...]:
        first, *others = super().summary
        sms, slots = self.shape.sms, self.shape.slots
        launch = f"  launch: {sms} SM{'s' if sms > 1 else ''}, {slots} slot{'s' if slots > 1 else ''} each"
        if self.shape.cluster > 1:
            launch += f", in clusters of {self.shape.cluster}"
        return (first, launch, *others)


# the same ops without clusters and in clusters of several sizes -> what their syncs take
SyncTimer = Callable[[Sequence[CudaPlan]], SyncTimes]


def make_cuda_plan(
    graph: Graph,
    options: Options,
    cores: int,
    device: DeviceDescription,
    note: str,
    time_syncs: SyncTimer | None = None,
) -> CudaPlan:
    """A validated plan, or a PlanError. No more cores than the sub-kernels leave room for.

    `time_syncs` measures on the device; without it, estimates decide whether SMs form clusters.
    """
    sunk, remarks = sink_waits(graph, options)
    if device.sync_times is not None:
        time_syncs = _recorded(device.sync_times)
    plan = _plan(graph, sunk, options, cores, device, time_syncs)
    waiting = waiting_kernels(plan)
    unused = {node.kernel: given.kernel for node, given in zip(sunk.nodes, graph.nodes, strict=True)}
    unused = {kernel: given for kernel, given in unused.items() if kernel not in waiting and kernel != given}
    if unused:  # their ops have nothing to wait for, so that the syncs are the same
        known = plan.sync_times or SyncTimes()
        plan = _plan(graph, sunk.with_kernels(unused), options, cores, device, lambda _: known)
    spilled = device.staging_spills or 0
    if spilled:
        remarks = (*remarks, f"weights are not staged: the super kernel would spill {spilled} bytes")
    notes = (*plan.notes, *([note] if note else []), *remarks)
    return replace(plan, notes=notes, staging_spills=spilled)


def waiting_kernels(plan: Plan) -> frozenset[SubKernel]:
    """The sub-kernels that wait inside in some op; in others a wait would only take time and registers."""
    return frozenset(plan.graph.nodes[step.op].kernel for step in plan.steps if isinstance(step, Wait) and step.inside)


def streams_inputs(plan: Plan) -> bool:
    """Whether a warp of every SM asks for the inputs of later ops."""
    return any(isinstance(step, PrefetchWeights) for step in plan.steps)


def staging_kernels(plan: Plan) -> frozenset[SubKernel]:
    """The sub-kernels that take weights from the ring of their SM."""
    return frozenset(plan.graph.nodes[step.op].kernel for step in plan.steps if isinstance(step, StageWeights))


def _recorded(known: SyncTimes) -> SyncTimer:
    """What was measured of a plan when it was saved; of another plan nothing is known."""
    return lambda plans: known if known.plan and known.plan == digest(str(plans[0])) else SyncTimes()


def _plan(
    graph: Graph,
    sunk: Graph,
    options: Options,
    cores: int,
    device: DeviceDescription,
    time_syncs: SyncTimer | None,
) -> CudaPlan:
    window = prefetch_window(options, device)
    slots = min(fitting_slots(graph, device, streams=window > 0), max(1, -(-cores // device.sms)))
    room = min(slots, cores // device.sms)  # slots that every SM can have
    wanted = min(cores, slots * device.sms)
    machine = machine_of(most_cores(sunk, options, wanted), slots, device, window=window)
    if not all(fits_group(node, machine) for node in graph.nodes):
        slots = max(1, -(-machine.cores // device.sms))  # on several SMs, one slot each
        machine = machine_of(machine.cores, slots, device, window=window)
    if machine.groups and not options.stream_fusion:
        machine = machine_of(machine.cores, slots, device, team_slots=room, window=window)
    if slots == 1 and not device.staging_spills and fits_ring(graph, staged_kernels(sunk), device, streams=window > 0):
        machine = replace(machine, stages=True)
    plan = checked_plan(sunk, options, machine)
    near = {need.mark for step in plan.steps if isinstance(step, Wait) for need in step.needs if need.near}
    if len(near) > MOST_NEAR_MARKS:  # shared memory has no word for each
        plan = checked_plan(sunk, options, replace(machine, near_needs=False, replicates=False, teams=()))
    sms = len(machine.groups) if machine.teams else None
    shape = shape_of(plan.cores, slots, device, sms)
    shaped = _shaped(plan, shape, _pace(shape.sms, device) if window else 0)
    apart = window or near or plan.copies or plan.teams or graph.collectives or staging_kernels(plan)
    if machine.groups and not apart:
        clusters = [clustered for clustered in cluster_shapes(shape, device) if clustered.sms <= cores]
        return _in_clusters(shaped, clusters, machine, device, time_syncs)
    return shaped


def _shaped(plan: Plan, shape: SlotGrid, pace_ns: int = 0) -> CudaPlan:
    known = {field.name: getattr(plan, field.name) for field in fields(plan)}
    return CudaPlan(**known, shape=shape, pace_ns=pace_ns)


def _in_clusters(
    plain: CudaPlan,
    clusters: Sequence[SlotGrid],
    machine: Machine,
    device: DeviceDescription,
    time_syncs: SyncTimer | None,
) -> CudaPlan:
    """The same ops on SMs in clusters, where that is faster: as measured or, where nothing is, as estimated."""
    plans, estimates = {WITHOUT: plain}, [_estimated(plain, machine)]
    for clustered in clusters:
        near = cluster_machine(replace(machine, cores=plain.cores), clustered, device)
        found = checked_plan(plain.graph, plain.options, near)
        if found.cores == plain.cores:
            plans[clustered.cluster] = _shaped(found, clustered)
            # with the two barriers of a cluster, when it begins and when it ends
            estimates.append(_estimated(plans[clustered.cluster], near, 2 * device.cluster_sync_ns))
    sizes = worth_timing(estimates)
    times = None
    if time_syncs is not None and sizes:
        times = time_syncs([plans[size] for size in sizes])
        if times != SyncTimes():
            times = replace(times, plan=digest(str(plain)))
    size, note = choose_cluster(estimates, times)
    return replace(plans[size], notes=(*plans[size].notes, *([note] if note else [])), sync_times=times)


def _estimated(plan: CudaPlan, machine: Machine, more_ns: float = 0.0) -> ClusterEstimate:
    graph, placements = plan.graph, plan.placements
    took_ns = estimate_near(graph, placements, machine, plan.cores)
    free = replace(machine, costs=replace(machine.costs, sync_ns=0.0, near_sync_ns=0.0))
    work_ns = estimate_near(graph, placements, free, plan.cores)
    return ClusterEstimate(plan.shape.cluster, took_ns + more_ns, work_ns)


def _pace(sms: int, device: DeviceDescription) -> int:
    """All SMs together ask for a part of what the memory delivers: all of it would delay other loads, and signals."""
    return max(1, round(STREAM_BYTES * sms / (ASKED_SHARE * memory_rate(device))))


def written_parameters(graph: Graph, kernel: SubKernel) -> tuple[int, ...]:
    """The parameters of a sub-kernel whose buffers the launch writes, in any of its ops."""
    place = {param.name: index for index, param in enumerate(kernel.params)}
    found: set[int] = set()
    for node in graph.nodes:
        if node.kernel == kernel:
            found.update(place[param.name] for param, name in node.arguments() if graph.buffers[name].written)
    return tuple(sorted(found))


def sink_waits(graph: Graph, options: Options) -> tuple[Graph, tuple[str, ...]]:
    """The graph with sub-kernels that wait inside where that hides something; and what is said of each."""
    if options.early_start is not EarlyStart.FULL:
        return graph, ()
    resolved: dict[SubKernel, SubKernel] = {}
    remarks = []
    for kernel in dict.fromkeys(node.kernel for node in graph.nodes):
        facts = facts_of(kernel)
        written = written_parameters(graph, kernel)
        if facts.wait_point is not None:
            asked = facts.wait_point.bytes_before * facts.thread_count
            copied = ", ".join(kernel.params[index].name for index in facts.wait_point.reads_before)
            what = f"parts of {copied}" if copied and not asked else f"{asked} bytes per block"  # of copies unknown
            remarks.append(f"early start: {kernel.name} has {what} in flight at its wait")
            continue
        if not any(graph.incoming[node.index] for node in graph.nodes if node.kernel == kernel):
            continue
        point = facts.sunk_wait(tuple(kernel.params[index].name for index in written))
        asked = point.bytes_before * facts.thread_count
        if asked < LEAST_EARLY_BYTES or kernel.sync_all:
            what = f"{asked} bytes" if asked else "nothing"
            remarks.append(f"early start: {kernel.name} has {what} in flight before it needs what other ops store")
            continue
        remarks.append(f"early start: {kernel.name} has {asked} bytes per block in flight at its wait")
        names = tuple(kernel.params[index].name for index in point.reads_before)
        facts = replace(facts, wait_point=point)
        resolved[kernel] = replace(kernel, waits_inside=True, early_start=names, target_facts=facts)
    return (graph.with_kernels(resolved) if resolved else graph), tuple(remarks)
