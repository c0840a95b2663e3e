"""plan.verify.rank_order: the plans of all ranks in; what they show together out: the premises of P23.

Every rank of a group states the same collectives in the same order, and the orders of all ranks have a common one. The
run time compares the first at the first launch. The second follows from it where groups do not overlap; where they do,
it is the program's: eager torch would wait forever as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...model.collective_digest import collective_digest
from ...model.collectives import Collective
from ..plan import Plan
from .validate import Finding, Report, validate

CollectiveKey = tuple[str, tuple[int, ...], int]  # name and ranks of its group; its place among those of the group


@dataclass(frozen=True)
class RankedPlan:
    """A plan and the global rank that runs it."""

    rank: int
    plan: Plan
    keys: Mapping[str, CollectiveKey]  # by the name of a collective


def validate_ranks(plans: Sequence[Plan]) -> Report:
    """Each plan by itself, and what all of them show together; `plans` are those of all ranks of every group."""
    errors: list[Finding] = []
    reports = [validate(plan) for plan in plans]
    for place, report in enumerate(reports):
        errors += [Finding(error.property, f"plan {place}: {error.message}") for error in report.errors]
    ranked, found = match_ranks(plans)
    errors += found
    if ranked is not None:
        errors += check_orders(ranked)
    counted = [name for report in reports for name in report.statistics]
    statistics = {name: sum(report.statistics.get(name, 0) for report in reports) for name in dict.fromkeys(counted)}
    return Report(tuple(dict.fromkeys(errors)), {"ranks": len(plans), **statistics})


def match_ranks(plans: Sequence[Plan]) -> tuple[tuple[RankedPlan, ...] | None, list[Finding]]:
    """The plans with their ranks, in the order of these; None where ranks do not agree on their collectives."""
    errors: list[Finding] = []

    def fault(message: str) -> None:
        errors.append(Finding("P23", message))

    ranked: dict[int, RankedPlan] = {}
    for place, plan in enumerate(plans):
        known = {collective.group.global_rank for collective in plan.graph.collectives}
        if plan.graph.part:
            fault(f"plan {place} is a part of a longer list: the collectives of one round are needed together")
        elif len(known) != 1:
            fault(f"plan {place} is of {len(known)} ranks: {sorted(known)}; one is needed, from its collectives")
        elif (rank := known.pop()) in ranked:
            fault(f"two plans are of rank {rank}")
        else:
            ranked[rank] = RankedPlan(rank, plan, _keys(plan.graph.collectives))
    if not errors:
        _check_groups(ranked, fault)
    return None if errors else tuple(ranked[rank] for rank in sorted(ranked)), errors


def _keys(collectives: Sequence[Collective]) -> dict[str, CollectiveKey]:
    counts: dict[tuple[str, tuple[int, ...]], int] = {}
    keys = {}
    for collective in collectives:
        group = collective.group.name, collective.group.ranks
        keys[collective.name] = (*group, counts.get(group, 0))
        counts[group] = counts.get(group, 0) + 1
    return keys


def _check_groups(ranked: Mapping[int, RankedPlan], fault: Callable[[str], None]) -> None:
    """Every member of a group has a plan, and states the same collectives."""
    groups = {
        collective.group: rank_plan for rank_plan in ranked.values() for collective in rank_plan.plan.graph.collectives
    }
    for group, rank_plan in groups.items():
        stated = collective_digest(rank_plan.plan.graph, group.name)
        for member in group.ranks:
            if member not in ranked:
                fault(f"there is no plan of rank {member}, which takes part in collectives of group {group}")
                continue
            other = collective_digest(ranked[member].plan.graph, group.name)
            if rank_plan.rank < member and stated.digest != other.digest:
                where = f"ranks {rank_plan.rank} and {member} of group {group}"
                fault(f"{where} state different collectives: {stated.difference(other)}")
            elif member < rank_plan.rank and not other.listing:
                fault(f"rank {member} has no collective of group {group}, and rank {rank_plan.rank} has some")


def check_orders(ranked: Sequence[RankedPlan]) -> list[Finding]:
    """Whether the orders in which the ranks notify their collectives have a common one; needed where groups overlap."""
    after: dict[CollectiveKey, set[CollectiveKey]] = {}
    for rank_plan in ranked:
        keys = [rank_plan.keys[each.name] for each in rank_plan.plan.graph.collectives if each.group.size > 1]
        for earlier, later in pairwise(keys):
            after.setdefault(earlier, set()).add(later)
            after.setdefault(later, set())
    missing = dict.fromkeys(after, 0)
    for followers in after.values():
        for follower in followers:
            missing[follower] += 1
    ready = [key for key, count in missing.items() if not count]
    while ready:
        key = ready.pop()
        del missing[key]
        for follower in after[key]:
            missing[follower] -= 1
            if not missing[follower]:
                ready.append(follower)
    if not missing:
        return []
    names = ", ".join(sorted({f"{name} ({','.join(map(str, ranks))})" for name, ranks, _ in missing}))
    return [Finding("P23", f"the ranks notify the collectives of groups {names} in orders that form a cycle")]
