"""plan: a graph, options and a number of cores in; a Plan out: ordered, placed, synchronised, proven."""

from __future__ import annotations

from ..collector import without_collection
from ..graph import Graph
from ..options import Options
from .assemble import assemble
from .placement import place
from .plan import Lane, Plan, Sync, SyncKind
from .simulate import Outcome, simulate
from .sync import choose_syncs
from .validate import Report, validate

__all__ = ["Lane", "Outcome", "Plan", "Report", "Sync", "SyncKind", "make_plan", "simulate", "validate"]


@without_collection
def make_plan(graph: Graph, options: Options, cores: int) -> Plan:
    """Place the ops, choose the cheapest sync for every edge, and lay out the steps."""
    placement = place(graph, options, cores)
    synced = choose_syncs(graph, placement, options)
    steps = assemble(graph, placement, synced, options)
    notes = (placement.note,) if placement.note else ()
    return Plan(graph, options, placement.cores, placement.of, placement.lanes, steps, synced.syncs, notes)
