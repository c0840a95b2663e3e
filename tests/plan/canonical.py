"""A plan without its names: ops by rank; cores, buffers and events by first appearance. Equal forms: isomorphic."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields

from superkernel.plan import Plan
from superkernel.plan.steps import Call, Mark, Need, Step


class _Names:
    def __init__(self, plan: Plan) -> None:
        self.rank = {op: rank for rank, op in enumerate(plan.graph.order)}
        self.numbers: dict[tuple[str, object], int] = {}

    def number(self, kind: str, name: object) -> int:
        return self.numbers.setdefault((kind, name), sum(k == kind for k, _ in self.numbers))

    def value(self, step: Step, field: str) -> Hashable:
        found = getattr(step, field)
        if field in ("cores", "team"):
            cores = [self.number("core", core) for core in found]
            return tuple(cores if isinstance(step, Call) else sorted(cores))
        if field == "op":
            return self.rank.get(found)
        if field == "ops":
            return tuple(sorted(self.rank[op] for op in found))
        if field == "event":
            return self.number("event", found)
        if field == "names":
            return tuple(self.number("buffer", name) for name in found)
        if field == "mark":
            return self.mark(found)
        if field == "needs":
            return frozenset(map(self.need, found))
        return found

    def mark(self, mark: Mark) -> Hashable:
        return self.rank[mark.op], mark.point

    def need(self, need: Need) -> Hashable:
        return self.mark(need.mark), tuple(sorted(self.number("core", core) for core in need.cores))


def canonical(plan: Plan) -> Hashable:
    """Equal for plans that differ in names only."""
    names = _Names(plan)
    steps = [(type(s).__name__, *((f.name, names.value(s, f.name)) for f in fields(s))) for s in plan.steps]
    return plan.cores, tuple(steps)
