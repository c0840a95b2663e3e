"""plan.simulate.actors: the cores and agents of a simulated launch: each a generator of moves, picked at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from ..steps import Step

GUESSES = 4
BURSTS = (1, 1, 2, 3, 8, 40, 400)  # how many moves an actor makes before another may get its turn
TURNS = (1, 5, 25, 100)  # how many actors of some teams are picked before other teams may get their turn


@dataclass(frozen=True)
class Blocked:
    """What an actor yields when it cannot go on before `until` is true; it yields None when another may move."""

    until: Callable[[], bool]
    why: Step | str


Moves = Generator[Blocked | None, None, None]


class Actor:
    """A core or an agent: its moves, and what it is blocked on. serves: it is never over, and waits for others."""

    def __init__(self, name: str, moves: Moves, *, serves: bool = False) -> None:
        self.name, self.moves, self.serves = name, moves, serves
        self.blocked: Blocked | None = None
        self.over = False

    def ready(self) -> bool:
        return self.blocked is None or self.blocked.until()

    def move(self) -> None:
        try:
            self.blocked = next(self.moves)
        except StopIteration:
            self.over, self.blocked = True, None


def pick(alive: list[Actor], rng: random.Random) -> int | None:
    """A random actor that can move: a few guesses, then the first one behind a random place."""
    for _ in range(GUESSES):
        at = rng.randrange(len(alive))
        if alive[at].ready():
            return at
    first = rng.randrange(len(alive))
    around = (*range(first, len(alive)), *range(first))
    return next((at for at in around if alive[at].ready()), None)


def interleave(teams: Sequence[Sequence[Actor]], rng: random.Random, stopped: Callable[[], bool]) -> list[Actor]:
    """Move the actors in random order until all are over, or `stopped`; returns those that would wait forever.

    Of several teams only some move for a while, as if the others were stopped, unless all of these are blocked.
    """
    waiting_for = sum(not actor.serves for team in teams for actor in team)
    moving, turns = [actor for team in teams for actor in team], 0
    while waiting_for and not stopped():
        if len(teams) > 1 and turns <= 0:
            turns = rng.choice(TURNS)
            some = rng.sample(range(len(teams)), rng.randint(1, len(teams)))
            moving = [actor for team in some for actor in teams[team] if not actor.over]
        turns -= 1
        at = pick(moving, rng) if moving else None
        if at is None and len(teams) > 1:
            moving = [actor for team in teams for actor in team if not actor.over]
            at = pick(moving, rng)
        if at is None:
            return [actor for actor in moving if not actor.serves]
        actor = moving[at]
        for _ in range(BURSTS[rng.randrange(len(BURSTS))]):
            actor.move()
            if actor.over or stopped() or (actor.blocked is not None and not actor.blocked.until()):
                break
        if actor.over:
            waiting_for -= 1
            moving[at] = moving[-1]
            moving.pop()
    return []
