"""targets.ascend.plan: a graph and options -> an AscendPlan: launch, order, steps, slots, workspace; printable.

Steps, assembly and property checks are those of every plan. Here cores come in two classes whose flags are collective
and carry no labels, so the syncs of an edge are encoded as arrivals and meetings, with one clock per class.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ...errors import PlanError, counted
from ...model.argument_layout import Layout
from ...model.gc_pause import without_collection
from ...model.graph import Graph
from ...model.node import Node
from ...model.options import EarlyStart, Options
from ...plan.memory import MemoryPlan
from ...plan.plan import BasePlan
from .argument_layout import ArgumentSlots, number_arguments
from .assemble import Assembler
from .chips import Chip
from .core_types import CoreClass
from .facts import facts_of
from .issue_order import IssueOrder, choose_order
from .launch_shape import LaunchShape, OpSize, launch_of
from .pairs import Action, Pair, barrier_of
from .rank_events import rank_labels
from .schedule import Scheduler
from .steps import Arrive, ClassCall, Classes, InsideSync, Meet, WholeBarrier
from .weights import weights_by_reader
from .workspace_layout import WorkspaceLayout, lay_out_workspace, prints

WEIGHT_BUDGET = 8 << 20  # bytes per op that prefetch-weights=1 asks the copy engine for


@dataclass(frozen=True)
class AscendPlan(BasePlan):
    """Its options hold the target's defaults."""

    chip: Chip
    launch: LaunchShape
    order: IssueOrder
    pairs: tuple[tuple[int, Pair], ...]
    slots: ArgumentSlots
    workspace: WorkspaceLayout
    copies: tuple[int, ...]  # per op

    @property
    def layout(self) -> Layout:
        return self.slots.layout

    @property
    def memory(self) -> MemoryPlan:
        """Nothing is placed here: the host that launches the kernel allocates every name."""
        return MemoryPlan()

    @property
    def issue_order(self) -> tuple[int, ...]:
        return self.order.ops

    @property
    def cores(self) -> int:
        return self.launch.cubes + self.launch.vectors

    @property
    def notes(self) -> tuple[str, ...]:
        unchecked = "debug-check: the emulator does not compare accesses with declarations; the cpu target does"
        return tuple(filter(None, (self.order.note, unchecked if self.options.debug_check else "")))

    @property
    def lanes(self) -> tuple[Classes, ...]:
        """One list of steps for all cores, or one per class."""
        classes = self.launch.classes
        return tuple((core_class,) for core_class in classes) if self.order.lanes else (classes,)

    @property
    def pair_counts(self) -> dict[str, int]:
        """Syncs by the row of the pair table that they follow."""
        counts = Counter(f"{pair.producer.word}-{pair.consumer.word}" for _, pair in self.pairs)
        return dict(sorted(counts.items()))

    @property
    def barriers(self) -> int:
        """Barriers over everything launched, without those of debug options."""
        return sum(isinstance(step, WholeBarrier) for step in self.steps)

    @property
    def _inside_syncs(self) -> list[InsideSync]:
        return [inside for step in self.steps if isinstance(step, ClassCall) for inside in step.inside]

    @property
    def blocking_steps(self) -> int:
        """Steps at which a core may have to wait for another core."""
        meetings = [set(step.actions) - {Action.SIGNAL} for step in self.steps if isinstance(step, Meet)]
        barriers = sum(len(step.cores) for step in self.steps if isinstance(step, WholeBarrier))
        return barriers + sum(map(bool, meetings)) + sum(bool(inside.actions) for inside in self._inside_syncs)

    @property
    def flag_actions(self) -> int:
        """Arrivals, signals and waits: what the syncs cost. A barrier over both classes costs six."""
        arrivals = sum(isinstance(step, Arrive) for step in self.steps)
        meetings = sum(len(step.actions) for step in self.steps if isinstance(step, Meet))
        whole = [step for step in self.steps if isinstance(step, WholeBarrier)]
        barriers = sum(len(step.actions(core_class)) for step in whole for core_class in step.cores)
        return (
            arrivals + meetings + barriers + sum(len(inside.actions) + inside.arrives for inside in self._inside_syncs)
        )

    @property
    def full_barrier_actions(self) -> int:
        """What a barrier over everything launched costs."""
        actions = barrier_of(self.launch.classes)
        return sum(len(actions[core_class]) for core_class in self.launch.classes)

    @property
    def summary(self) -> tuple[str, ...]:
        barriers = {"barrier": self.barriers} if self.barriers else {}
        counts = ", ".join(f"{n} {kind}" for kind, n in (self.pair_counts | barriers).items()) or "none"
        return (
            f"plan {self.graph.name}: {counted(len(self.graph.nodes), 'op')} on chip {self.chip.name}, {self.launch}",
            f"  options {self.options}",
            f"  dependency edges: {len(self.graph.edges)}; syncs: {counts}; {self.flag_actions} flag actions",
            *([self._ranks_in_words()] if self.graph.collectives else []),
            *(f"  {note}" for note in self.notes),
        )

    def _ranks_in_words(self) -> str:
        groups = ", ".join(dict.fromkeys(str(collective.group) for collective in self.graph.collectives))
        events = len(rank_labels(self.graph))
        return f"  collectives: {len(self.graph.collectives)} with the ranks of {groups}; {events} events between ranks"

    def __str__(self) -> str:
        lines = [*self.summary]
        for classes in self.lanes:
            name = " and ".join(core_class.value for core_class in classes)
            lines.append(f"  {name} {'lane' if self.order.lanes else 'cores'}:")
            for step in self.steps:
                here = [core_class for core_class in step.cores if core_class in classes]
                if here:
                    who = "both" if len(here) == 2 else here[0].value
                    lines.append(f"    [{who:>6}] {self.describe(step)}")
        return "\n".join(lines)


@without_collection
def make_ascend_plan(graph: Graph, options: Options, chip: Chip) -> AscendPlan:
    """Everything that is decided; a plan that cannot be right is refused here, before anything is compiled."""
    where = f"super_kernel_scope {graph.name!r}: "
    chosen = options.for_target("ascend")
    sized = [OpSize(node.name, facts_of(node.kernel).type, node.blocks) for node in graph.nodes]
    launch = launch_of(sized, chip, options.debug_aic_num, options.debug_aiv_num, where)
    order = choose_order(graph, launch, options.stream_fusion)
    copies = tuple(_copies(node, options, chosen, where) for node in graph.nodes)
    for node in graph.nodes:
        _check_early_start(node, options, order, where)
    fed = {node.index: classes for node in graph.nodes if (classes := _fed(node, launch, options, where))}
    schedule = Scheduler(graph, launch, chip, chosen, order).run()
    steps = tuple(Assembler(graph, launch, chosen, schedule, fed, prints(graph)).steps())
    workspace = lay_out_workspace(graph, launch, chip, bool(fed), steps)
    prefetched = frozenset(weights_by_reader(graph, order.ops) if options.prefetch_weights else ())
    slots = number_arguments(graph, prefetched, workspace.bytes > 0, options.profiling)
    syncs, pairs = schedule.syncs, schedule.pairs
    return AscendPlan(graph, chosen, steps, syncs, chip, launch, order, pairs, slots, workspace, copies)


def cores_of(node: Node, core_class: CoreClass) -> int:
    """How many cores of a class have a block of the op."""
    cubes, vectors = facts_of(node.kernel).type.cores(node.blocks)
    return cubes if core_class is CoreClass.CUBE else vectors


def _copies(node: Node, options: Options, chosen: Options, where: str) -> int:
    """split-mode, unless the sub-kernel comes in copies already."""
    facts = facts_of(node.kernel)
    if facts.split_mode is None:
        return chosen.split_mode or 1
    if options.split_mode is not None and options.split_mode != facts.split_mode:
        raise PlanError(
            f"{where}op {node.name!r}: split-mode={options.split_mode}, but {facts.origin} says "
            f"split_mode {facts.split_mode}: leave the option out, or compile the sub-kernel again"
        )
    return facts.split_mode


def _check_early_start(node: Node, options: Options, order: IssueOrder, where: str) -> None:
    facts, kernel = facts_of(node.kernel), node.kernel
    if not facts.flags_declared or not (kernel.waits_inside or kernel.signals_inside):
        return
    if order.lanes:
        why, instead = "stream-fusion=1 switches early start off", "stream-fusion=0"
    elif options.early_start is not EarlyStart.FULL:
        why = f"early-start={options.early_start.value} leaves waits and signals to the super kernel"
        instead = "early-start=1"
    else:
        return
    flags = (("set", kernel.signals_inside), ("wait", kernel.waits_inside))
    fields = " and ".join(f"sub_operator_early_start_{which}_flag" for which, given in flags if given)
    raise PlanError(
        f"{where}op {node.name!r}: {facts.origin} says {fields}: it sets or waits for early-start flags itself, "
        f"but {why}: use {instead}, or compile the sub-kernel without its flags"
    )


def _fed(node: Node, launch: LaunchShape, options: Options, where: str) -> Classes:
    """The classes of a sync_all op that have cores without a block of it."""
    if not node.kernel.sync_all:
        return ()
    classes = facts_of(node.kernel).op_class.classes
    idle = tuple(c for c in classes if node.dynamic or cores_of(node, c) < launch.cores(c))
    if idle and not options.feed_sync_all:
        idle_names = [core_class.value for core_class in idle]
        blocks = f"up to {node.blocks}" if node.dynamic else str(node.blocks)
        origin = facts_of(node.kernel).origin
        op = f"op {node.name!r} ({origin})" if origin else f"op {node.name!r}"
        raise PlanError(
            f"{where}{op} calls sync_all with {blocks} blocks in a launch of {launch.cubes} cube and "
            f"{launch.vectors} vector cores: the idle {' and '.join(idle_names)} cores would never arrive. "
            f"Set feed-sync-all=1{_filling(node, launch)}"
        )
    return idle


def _filling(node: Node, launch: LaunchShape) -> str:
    """The advice to give an op a block for every core, where that is possible."""
    classes = facts_of(node.kernel).op_class.classes
    blocks = launch.cores(classes[0]) if len(classes) == 1 else launch.blocks
    cores = dict(zip(CoreClass, facts_of(node.kernel).type.cores(blocks), strict=True))
    fills = not node.dynamic and all(cores[core_class] == launch.cores(core_class) for core_class in classes)
    return f", or block_dim={blocks}" if fills else ""
