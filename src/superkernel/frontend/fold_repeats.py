"""frontend.fold_repeats: a sequence of items -> the same sequence, runs of equal items once, with their count."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Repeat(Generic[Item]):
    """Items that follow one another `count` times; the items are those of the first time, which may repeat inside."""

    count: int
    items: tuple[Item | Repeat[Item], ...]
    is_exact: bool = True  # False: the repetitions are alike, not identical

    @property
    def length(self) -> int:
        """Items of one repetition."""
        return sum(item.count * item.length if isinstance(item, Repeat) else 1 for item in self.items)


Folded = list[Item | Repeat[Item]]


def fold_repeats(items: Sequence[Item], key: Callable[[Item], Hashable]) -> Folded[Item]:
    """From the left, always the repetition that covers most items; of those that cover equally many, the shortest."""
    folded: Folded[Item] = []
    for at, length, count in _repetitions(items, key, 1):
        if count == 1:
            folded += items[at : at + length]
        else:
            inner = fold_repeats(items[at : at + length], key) if length > 1 else [items[at]]
            folded.append(Repeat(count, tuple(inner)))
    return folded


def fold_alike(
    items: Sequence[Item], key: Callable[[Item], Hashable], coarse_key: Callable[[Item], Hashable], least: int
) -> Folded[Item]:
    """Repetitions of `least` items and more that are equal by `coarse_key`; inside and between them, by `key`."""
    folded: Folded[Item] = []
    rest: list[Item] = []  # what no repetition covers
    for at, length, count in _repetitions(items, coarse_key, least):
        if count == 1:
            rest += items[at : at + length]
            continue
        keys = [key(item) for item in items[at : at + length * count]]
        is_exact = keys == keys[:length] * count
        folded += fold_repeats(rest, key)
        folded.append(Repeat(count, tuple(fold_repeats(items[at : at + length], key)), is_exact))
        rest = []
    return folded + fold_repeats(rest, key)


def _repetitions(items: Sequence[Item], key: Callable[[Item], Hashable], least: int) -> Iterator[tuple[int, int, int]]:
    """Beginning, length and count of each repetition, which together cover the items; the count may be 1."""
    numbers: dict[Hashable, int] = {}
    keys = [numbers.setdefault(key(item), len(numbers)) for item in items]
    at = 0
    while at < len(items):
        length, count = _longest_repetition(keys, at, least)
        yield at, length, count
        at += length * count


def _longest_repetition(keys: Sequence[int], at: int, least: int) -> tuple[int, int]:
    """The length and the count of the repetition that begins at `at`; (1, 1): nothing repeats there."""
    best = (1, 1)
    for length in range(least, (len(keys) - at) // 2 + 1):
        if keys[at] != keys[at + length]:
            continue
        first, count = keys[at : at + length], 1
        while keys[at + count * length : at + (count + 1) * length] == first:
            count += 1
        if count > 1 and length * count > best[0] * best[1]:
            best = (length, count)
    return best
