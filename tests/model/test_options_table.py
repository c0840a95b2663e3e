"""The option table, what each target makes of it, and the page written from it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from superkernel.errors import OptionError
from superkernel.model.options import OPTIONS, TARGETS, OptionRow, Options, Support

KEYS = [row.key for row in OPTIONS]


def test_the_table_has_one_row_per_field_in_field_order() -> None:
    assert [row.field for row in OPTIONS] == [field.name for field in dataclasses.fields(Options)]


@pytest.mark.parametrize("row", OPTIONS, ids=KEYS)
def test_a_row_is_complete(row: OptionRow) -> None:
    assert tuple(row.support) == TARGETS
    assert row.what.endswith(".") and ". " not in row.what, "one sentence"
    assert row.allowed and row.default
    assert all(support.note for support in row.support.values() if support.level is Support.NO)
    assert "|" not in row.allowed + row.what, "it goes into a table"


@pytest.mark.parametrize("row", OPTIONS, ids=KEYS)
def test_the_default_text_is_the_default_of_the_field(row: OptionRow) -> None:
    default = getattr(Options(), row.field)
    if row.target_defaults:
        others = {row.target_defaults[target] for target in ("cpu", "cuda")}
        assert default is None
        assert row.default == f"{row.target_defaults['ascend']} on ascend, else {others.pop()}"
        assert not others
    elif default is None:
        assert row.default == "unset"
    elif default == ():
        assert row.default == "none"
    else:
        assert row.read(row.default) == default


def test_a_row_shows_what_it_reads() -> None:
    prefetch = next(row for row in OPTIONS if row.key == "prefetch-weights")
    shown = [prefetch.show(value) for value in (0, 1, 1000, 1024, 1536, 8 << 20, 3 << 30)]
    assert [text.removeprefix("prefetch-weights=") for text in shown] == ["0", "1", "1000", "1K", "1536", "8M", "3G"]


def test_support_is_what_the_specification_says() -> None:
    levels = {row.key: tuple(support.level.value for support in row.support.values()) for row in OPTIONS}
    assert {key: level for key, level in levels.items() if level != ("yes", "yes", "yes")} == {
        "strict-scope-check": ("front end", "front end", "front end"),
        "preload-code": ("yes", "no", "yes"),
        "split-mode": ("yes", "no", "yes"),
        "func-align": ("yes", "no", "yes"),
        "debug-dcci-all": ("fence", "fence", "yes"),
        "dcci-before-kernel-start": ("fence", "fence", "yes"),
        "dcci-after-kernel-end": ("fence", "fence", "yes"),
        "dcci-disable-on-kernel": ("fence", "fence", "yes"),
        "debug-watchdog": ("yes", "yes", "emulator"),
        "debug-watchdog-action": ("yes", "yes", "emulator"),
        "debug-check": ("yes", "emulator", "emulator"),
        "debug-replay": ("yes", "yes", "emulator"),
    }


# Targets


@pytest.mark.parametrize(("target", "copies", "align"), [("cpu", 1, 64), ("cuda", 1, 64), ("ascend", 4, 512)])
def test_for_target_fills_in_what_was_left_open(target: str, copies: int, align: int) -> None:
    assert Options().for_target(target) == Options(split_mode=copies, func_align=align)


@pytest.mark.parametrize("target", TARGETS)
def test_for_target_keeps_what_was_asked_for(target: str) -> None:
    asked = Options.parse("split-mode=7:func-align=0:strict-scope-check=abort:profiling=1")
    assert asked.for_target(target) == asked
    assert Options(profiling=True).for_target(target).strict_scope_check is None


EVERYTHING = Options.parse(
    "feed-sync-all=1:stream-fusion=1:strict-scope-check=abort:early-start=0:preload-code=max:split-mode=9:func-align=8:"
    "prefetch-weights=8M:profiling=1:compile-options=-g:debug-sync-all=1:debug-dcci-all=1:dcci-before-kernel-start=A:"
    "dcci-after-kernel-end=A:dcci-disable-on-kernel=A:debug-aic-num=2:debug-aiv-num=2:debug-watchdog=5:"
    "debug-watchdog-action=exit:debug-check=1:debug-replay=1"
)


@pytest.mark.parametrize("target", TARGETS)
def test_every_set_option_without_effect_has_one_sentence(target: str) -> None:
    assert str(EVERYTHING).count(":") == len(OPTIONS) - 1
    sentences = EVERYTHING.without_effect(target)
    ignored = [row for row in OPTIONS if row.support[target].level is Support.NO]
    assert len(sentences) == len(ignored)
    for row, sentence in zip(ignored, sentences, strict=True):
        assert row.key in sentence
        assert target in sentence
        assert row.support[target].note in sentence


def test_a_sentence_shows_the_option_as_it_would_be_written() -> None:
    (sentence,) = Options(split_mode=8).without_effect("cuda")
    assert sentence.startswith("option split-mode=8 has no effect on target cuda: ")


@pytest.mark.parametrize("target", TARGETS)
def test_an_option_nobody_set_has_no_sentence(target: str) -> None:
    assert Options().without_effect(target) == ()
    assert Options().for_target(target).without_effect(target) == ()


@pytest.mark.parametrize("target", ["gpu", "CUDA", "", None, 3])
def test_an_unknown_target_names_the_known_ones(target: Any) -> None:
    for call in (Options().for_target, Options().without_effect):
        with pytest.raises(OptionError, match=r"unknown target.*cpu, cuda, ascend"):
            call(target)


def test_an_unknown_target_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean 'ascend'"):
        Options().for_target("ascent")
