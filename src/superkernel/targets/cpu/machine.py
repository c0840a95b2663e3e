"""targets.cpu.machine: a number of cores -> the machine that the planner places ops on.

The system may move threads between processors, so no two of them are closer than others: there are no groups.
"""

from __future__ import annotations

from ...plan import Costs, Machine


def machine_of(cores: int) -> Machine:
    """Costs as measured on 2 to 16 cores: a sync takes longer the more cores take part, and so does fetching what
    another core has just stored when all cores want it (`benchmarks/replication.py`). A team starts in 1 to 3
    microseconds while its threads spin, and in some tens of them when they sleep.
    """
    costs = Costs(sync_ns=150.0 + 10.0 * cores, team_ns=2500.0 + 50.0 * cores, shared_bytes_per_ns=16.0 / cores)
    return Machine(cores, costs=costs)
