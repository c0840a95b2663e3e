"""plan: a graph, options and a number of cores in; a Plan out: ordered, placed, synchronised, proven."""

from __future__ import annotations

from ..errors import PlanError, shown
from ..model.gc_pause import without_collection
from ..model.graph import Graph
from ..model.options import Options
from ..model.plain_values import whole_number
from .assemble import assemble
from .classes import Partners
from .lifetimes import with_memory
from .machine import Costs, Machine
from .placement import place
from .plan import Lane, Plan, Sync, SyncKind
from .simulate.ranks import RankOutcome, simulate_ranks
from .simulate.simulate import Outcome, simulate
from .sync import SyncChooser
from .verify.rank_order import validate_ranks
from .verify.validate import Report, validate
from .work import CoreChoice, choose_cores

MOST_CORES = 4096  # of one launch

__all__ = [
    "MOST_CORES",
    "CoreChoice",
    "Costs",
    "Lane",
    "Machine",
    "Outcome",
    "Plan",
    "RankOutcome",
    "Report",
    "Sync",
    "SyncKind",
    "checked_plan",
    "choose_cores",
    "forced_cores",
    "make_plan",
    "simulate",
    "simulate_ranks",
    "validate",
    "validate_ranks",
]


@without_collection
def make_plan(graph: Graph, options: Options, machine: Machine | int) -> Plan:
    """Place the ops, choose the cheapest sync for every edge, lay out the steps and the memory.

    A machine that is a number: as many equal cores.
    """
    machine = Machine(machine) if isinstance(machine, int) else machine
    placed = place(graph, options, machine)
    partners = Partners(graph, placed.of, placed.copies, machine.near_groups)
    chooser = SyncChooser(graph, placed, options, machine, partners)
    synced = chooser.run()
    steps = assemble(graph, placed, synced, options, chooser.classes, machine)
    syncs, of = synced.syncs, placed.of
    plan = Plan(
        graph,
        options,
        steps,
        syncs,
        placed.cores,
        of,
        placed.lanes,
        placed.notes,
        placed.copies,
        near_groups=machine.near_groups,
        teams=placed.core_teams,
    )
    return with_memory(plan)


def checked_plan(graph: Graph, options: Options, machine: Machine | int) -> Plan:
    """A plan that does not validate never reaches a target."""
    plan = make_plan(graph, options, machine)
    validate(plan, plan.layout).require_ok(graph.name)
    return plan


def forced_cores(options: Options, cores: int | None, available: int, name: str) -> int | None:
    """How many cores were asked for, if any; debug-aic-num and debug-aiv-num win."""
    given, cores = cores, whole_number(cores)
    if given is not None and (cores is None or not 1 <= cores <= MOST_CORES):
        raise PlanError(
            f"super_kernel_scope {shown(name)}: cores={shown(given)}; it must be a whole number from 1 to {MOST_CORES}"
        )
    asked = max(options.debug_aic_num, options.debug_aiv_num)
    if not asked:
        return cores
    if asked > (cores or available):
        raise PlanError(
            f"super_kernel_scope {shown(name)}: debug-aic-num={options.debug_aic_num} and "
            f"debug-aiv-num={options.debug_aiv_num} ask for {asked} cores, there are {cores or available}"
        )
    return asked
