"""Repetitions in a sequence are found, printed once, and lose nothing."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from superkernel.frontend.fold_repeats import Repeat, fold_alike, fold_repeats


def fold(letters: Sequence[str]) -> list[str | Repeat[str]]:
    return fold_repeats(letters, str)


def unfold(folded: Sequence[str | Repeat[str]]) -> list[str]:
    letters: list[str] = []
    for item in folded:
        letters += unfold(item.items) * item.count if isinstance(item, Repeat) else [item]
    return letters


def test_the_layers_of_a_model_are_one_repetition() -> None:
    layer = ["norm", "matmul", "matmul", "matmul", "attention", "mlp"]
    folded = fold(["embedding", *layer * 12, "head"])
    assert folded[0] == "embedding" and folded[-1] == "head" and len(folded) == 3
    assert folded[1] == Repeat(12, ("norm", Repeat(3, ("matmul",)), "attention", "mlp"))
    assert isinstance(folded[1], Repeat) and folded[1].length == 6


def test_the_longest_cover_wins_over_a_short_repetition_at_its_beginning() -> None:
    assert fold(list("aab" * 5)) == [Repeat(5, (Repeat(2, ("a",)), "b"))]


def test_nothing_repeats() -> None:
    assert fold(list("abc")) == list("abc") and fold([]) == []


@given(st.text("ab", max_size=40))
def test_unfolding_gives_the_sequence(text: str) -> None:
    assert unfold(fold(list(text))) == list(text)


def test_layers_that_are_alike_are_told_from_identical_ones() -> None:
    letters = list("x" + "aBcB" + "aDcD" + "aBcB" + "zz")
    folded = fold_alike(letters, str, lambda letter: letter if letter.islower() else "", 3)
    assert folded == ["x", Repeat(3, ("a", "B", "c", "B"), is_exact=False), Repeat(2, ("z",))]
    same = fold_alike(list("aBcaBc"), str, str.lower, 3)
    assert same == [Repeat(2, ("a", "B", "c"), is_exact=True)]
    assert fold_alike(list("aAaA"), str, str.lower, 3) == [Repeat(2, ("a", "A"))]  # too short to be a layer


@given(st.text("aAbB", max_size=40))
def test_what_is_alike_covers_as_many_items(text: str) -> None:
    assert len(unfold(fold_alike(list(text), str, str.lower, 2))) == len(text)
