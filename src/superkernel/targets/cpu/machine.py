"""targets.cpu.machine: a number of cores -> the machine that the planner places ops on.

The system may move threads between processors, so no two of them are closer than others: there are no groups.
"""

from __future__ import annotations

from ...plan import Costs, Machine


def machine_of(cores: int) -> Machine:
    """Costs as `superkernel bench boundary` measures them: a sync takes longer the more cores take part."""
    return Machine(cores, costs=Costs(call_ns=200.0, bytes_per_ns=8.0, sync_ns=150.0 + 10.0 * cores))
