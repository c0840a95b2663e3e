"""plan.verify.validate: a plan in; a proof, or what is wrong with it, out. Knows nothing of how plans are made."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...errors import PlanError
from ...model.argument_layout import Layout
from ...model.gc_pause import without_collection
from ..plan import Plan
from ..steps import Barrier, Signal, Wait
from . import dependencies, ranks, sharing, staging, structure
from .agents import stream_ends
from .vector_clocks import ClassAgents, walk


@dataclass(frozen=True)
class Finding:
    """One of the properties P1 to P24 that does not hold, and where."""

    property: str
    message: str

    def __str__(self) -> str:
        return f"{self.property}: {self.message}"


@dataclass(frozen=True)
class Report:
    errors: tuple[Finding, ...]
    statistics: dict[str, int] = field(hash=False)

    @property
    def ok(self) -> bool:
        return not self.errors

    def require_ok(self, name: str) -> None:
        if self.errors:
            where = f"super_kernel_scope {name!r}"
            raise PlanError(f"{where}: the plan does not validate, which is a defect of ours:\n{self}")

    def __str__(self) -> str:
        head = "valid" if self.ok else f"{len(self.errors)} errors"
        counts = ", ".join(f"{value} {name}" for name, value in self.statistics.items())
        return "\n".join([f"{head}: {counts}", *(f"  {error}" for error in self.errors)])


@without_collection
def validate(plan: Plan, layout: Layout | None = None) -> Report:
    """Every property that one plan alone can show; P8 as well if its argument layout is given."""
    errors: dict[Finding, None] = {}

    def fault(which: str, message: str) -> None:
        errors[Finding(which, message)] = None

    statistics = _statistics(plan)
    if structure.check_launch_size(plan, fault):
        agents = ClassAgents(plan)
        clocks = walk(plan, agents, fault)
        ends = stream_ends(plan, clocks, agents)
        structure.check_calls(plan, fault)
        statistics["core classes"] = len(agents.classes)
        statistics["clocks compared"] = dependencies.check_edges(plan, clocks, agents, ends, fault)
        dependencies.check_issue_order(plan, agents, fault)
        dependencies.check_events(plan, clocks, agents, ends, fault)
        dependencies.check_event_words(plan, agents, fault)
        structure.check_preloads(plan, agents, fault)
        dependencies.check_barriers(plan, clocks, agents, ends, fault)
        structure.check_debug(plan, tuple(range(plan.cores)), plan.placements, plan.cores > 1, fault)
        structure.check_records(plan, agents, fault)
        dependencies.check_dynamic(plan, clocks, agents, ends, fault)
        ranks.check_ranks(plan, clocks, agents, fault)
        staging.check_staging(plan, fault)
        statistics["buffers in the arena"] = len(plan.memory.buffers)
        sharing.check_memory(plan, clocks, agents, fault)
    if layout is not None:
        structure.check_layout(plan, layout, fault)
    return Report(tuple(errors), statistics)


def _statistics(plan: Plan) -> dict[str, int]:
    waits = [step for step in plan.steps if isinstance(step, Wait)]
    ranks = {"collectives": len(plan.graph.collectives), "waits for ranks": plan.rank_syncs}
    return {
        "ops": len(plan.graph.nodes),
        "cores": plan.cores,
        "steps": len(plan.steps),
        "edges": len(plan.graph.edges),
        "waits": len(waits),
        "marks awaited": sum(len(wait.needs) for wait in waits),
        "barriers": sum(isinstance(step, Barrier) and not step.debug for step in plan.steps),
        "signals": sum(isinstance(step, Signal) for step in plan.steps),
        **(ranks if plan.graph.collectives else {}),
    }
