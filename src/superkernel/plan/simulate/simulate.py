"""plan.simulate.simulate: a plan and a seed -> what one random interleaving of its cores does to memory and events."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from ..plan import Plan
from ..steps import Step
from ..verify.validate import Finding
from ..verify.vector_clocks import ClassAgents
from .launch import Launch
from .memory import Memory


@dataclass(frozen=True)
class FoundErrors:
    """What a simulation has found."""

    errors: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.errors

    def __str__(self) -> str:
        head = "ok" if self.ok else f"{len(self.errors)} errors"
        return "\n".join([head, *(f"  {error}" for error in self.errors)])


@dataclass(frozen=True)
class Outcome(FoundErrors):
    """What happened; all launches together in `errors` and `traces`, the last one in the rest."""

    deadlock: tuple[str, ...]  # which core waits for what
    trapped: tuple[int, int] | None  # dynamic op, unknown tiling key
    memory: dict[str, tuple[int, ...]] = field(hash=False)
    words: dict[str, int] = field(hash=False)  # external events
    joins: tuple[dict[int, int], ...] = field(hash=False)  # per core: op -> sync_all barriers joined
    traces: tuple[tuple[Step, ...], ...]  # per core: steps in the order they ended


def simulate(
    plan: Plan, seed: int = 0, *, launches: int = 2, answering: bool = False, unknown_key: int | None = None
) -> Outcome:
    """Run `plan` on all cores, interleaved at random, `launches` times on the same state.

    Of a plan with collectives this is one rank, and all others arrive when it does; simulate_ranks runs all of them.
    answering: the sender of the received events sets them only after the notifies of all earlier ops.
    unknown_key: the control agent answers this dynamic op with a tiling key that it does not have.
    """
    rng = random.Random(seed)
    model, classes = Memory(plan), ClassAgents(plan).classes
    rows = model.fresh()
    words = {event.label: 0 for event in plan.graph.events}
    errors: dict[Finding, None] = {}
    traces: list[list[Step]] = [[] for _ in range(plan.cores)]
    for number in range(launches):
        for node in plan.graph.nodes:
            words.update(dict.fromkeys(node.notifies, 0))  # their receivers have seen them
        launch = Launch(plan, classes, rng, model, rows, words, number, answering, unknown_key)
        launch.run()
        errors |= dict.fromkeys(launch.errors)
        for core, trace in enumerate(launch.traces):
            traces[core] += trace
        if launch.deadlock or launch.trapped:
            break
    return Outcome(
        tuple(errors),
        launch.deadlock,
        launch.trapped,
        {name: tuple(rows[name].cells) for name in model.lengths},
        words,
        tuple({op: n for (c, op), n in launch.joins.items() if c == core} for core in range(plan.cores)),
        tuple(map(tuple, traces)),
    )
