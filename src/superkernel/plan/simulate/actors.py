"""plan.simulate.actors: the cores and agents of a simulated launch: each a generator of moves, picked at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass

from ..steps import Step

GUESSES = 4


@dataclass(frozen=True)
class Blocked:
    """What an actor yields when it cannot go on before `until` is true; it yields None when another may move."""

    until: Callable[[], bool]
    why: Step | str


Moves = Generator[Blocked | None, None, None]


class Actor:
    """A core or an agent: its moves, and what it is blocked on."""

    def __init__(self, name: str, moves: Moves) -> None:
        self.name, self.moves = name, moves
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
