"""Options under random values and random text: everything round-trips, and nothing but OptionError is raised."""

from __future__ import annotations

from dataclasses import fields
from decimal import localcontext
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from superkernel.errors import OptionError
from superkernel.model.options import (
    OPTIONS,
    TARGETS,
    EarlyStart,
    Options,
    PreloadCode,
    StrictScopeCheck,
    WatchdogAction,
)

CORES = st.one_of(
    st.tuples(st.integers(0, 1_000_000), st.just(0)),
    st.tuples(st.just(0), st.integers(0, 1_000_000)),
    st.integers(0, 1_000_000).map(lambda cube: (cube, cube)),
    st.integers(0, 500_000).map(lambda cube: (cube, 2 * cube)),
)
ITEM = st.text(st.characters(exclude_characters=",:", exclude_categories=("C", "Z")) | st.just(" "), min_size=1)
ITEMS = st.lists(ITEM.map(str.strip).filter(bool), max_size=4).map(tuple)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "feed_sync_all": st.booleans(),
    "stream_fusion": st.booleans(),
    "strict_scope_check": st.none() | st.sampled_from(StrictScopeCheck),
    "early_start": st.sampled_from(EarlyStart),
    "preload_code": st.sampled_from(PreloadCode),
    "split_mode": st.none() | st.integers(1, 64),
    "func_align": st.none() | st.just(0) | st.integers(1, 16).map(lambda bit: 1 << bit),
    "prefetch_weights": st.integers(0, 1 << 40) | st.integers(0, 40).map(lambda bit: 1 << bit),
    "profiling": st.booleans(),
    "compile_options": ITEMS,
    "debug_sync_all": st.booleans(),
    "debug_dcci_all": st.booleans(),
    "dcci_before_kernel_start": ITEMS,
    "dcci_after_kernel_end": ITEMS,
    "dcci_disable_on_kernel": ITEMS,
    "debug_watchdog": st.floats(0, 86400) | st.integers(0, 86400),
    "debug_watchdog_action": st.sampled_from(WatchdogAction),
    "debug_check": st.booleans(),
    "debug_replay": st.booleans(),
}


@st.composite
def options(draw: st.DrawFn) -> Options:
    """Any valid Options: each field is left at its default or drawn."""
    chosen = {name: draw(strategy) for name, strategy in FIELDS.items() if draw(st.booleans())}
    cube, vector = draw(CORES)
    return Options(**chosen, debug_aic_num=cube, debug_aiv_num=vector)


# Almost-right text: known and near keys, good and odd values, all separators.
KEY = st.sampled_from([row.key for row in OPTIONS] + [row.field for row in OPTIONS]) | st.text("ady-_=", max_size=6)
WORD = st.sampled_from(
    [
        "0",
        "1",
        "2",
        "4",
        "64",
        "65",
        "512",
        "8M",
        "3K",
        "0.5",
        "1e3",
        "nan",
        "max",
        "none",
        "abort",
        "-g",
        "-DA=1",
        '"x"',
    ]
)
VALUE = WORD | st.lists(WORD, max_size=3).map(",".join) | st.text(max_size=6)
PIECE = st.builds("{}={}".format, KEY, VALUE) | st.text(max_size=6) | st.just("")
NEAR_TEXT = st.builds(
    "{1}{0}{2}".format, st.lists(PIECE, max_size=4).map(":".join), *[st.sampled_from(["", '"', " "])] * 2
)


def test_every_field_is_drawn() -> None:
    assert FIELDS.keys() | {"debug_aic_num", "debug_aiv_num"} == {field.name for field in fields(Options)}


@given(options())
def test_every_options_value_survives_its_text(value: Options) -> None:
    text = str(value)
    assert Options.parse(text) == value
    assert hash(Options.parse(text)) == hash(value)
    assert str(Options.parse(text)) == text


@settings(max_examples=50)
@given(options(), st.randoms(use_true_random=False))
def test_order_quotes_blanks_and_underscores_change_nothing(value: Options, random: Any) -> None:
    pieces = [piece.partition("=") for piece in str(value).split(":") if piece]
    random.shuffle(pieces)
    respelled = " : ".join(f"{key.replace('-', '_')} = {rest}" for key, _, rest in pieces)
    assert Options.parse(f'"{respelled} ::"') == value


@settings(max_examples=50)
@given(options())
def test_only_what_differs_from_the_defaults_is_printed(value: Options) -> None:
    printed = [piece.partition("=")[0] for piece in str(value).split(":") if piece]
    assert printed == [row.key for row in OPTIONS if getattr(value, row.field) != getattr(Options(), row.field)]


@settings(max_examples=50)
@given(options(), st.sampled_from(TARGETS))
def test_for_target_leaves_no_target_default_open_and_changes_nothing_else(value: Options, target: str) -> None:
    filled = value.for_target(target)
    assert filled.for_target(target) == filled
    assert filled.without_effect(target) == value.without_effect(target)
    for row in OPTIONS:
        before, after = getattr(value, row.field), getattr(filled, row.field)
        assert after == (row.target_defaults[target] if before is None and row.target_defaults else before)


@given(FIELDS["debug_watchdog"])
def test_seconds_do_not_depend_on_the_decimal_context(seconds: float) -> None:
    value = Options(debug_watchdog=seconds)
    with localcontext() as context:
        context.prec = 1
        assert Options.parse(str(value)) == value


@given(NEAR_TEXT | st.text())
@example("debug-watchdog=" + "9" * 5000)
@example("split-mode=" + "9" * 5000)
@example("compile-options=\ud800")
@example("compile-options=\x1c-g\x1f")
@example("debug-watchdog=0." + "0" * 323 + "5")
def test_any_text_parses_and_round_trips_or_is_an_option_error(text: str) -> None:
    try:
        parsed = Options.parse(text)
    except OptionError as refused:
        assert str(refused)
        return
    assert Options.parse(str(parsed)) == parsed


@given(
    st.sampled_from([field.name for field in fields(Options)]),
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=2)
    | st.lists(st.text(max_size=5) | st.integers(), max_size=3)
    | st.tuples(st.text(max_size=5))
    | st.sampled_from([*StrictScopeCheck, *EarlyStart, *PreloadCode]),
)
def test_any_constructed_value_round_trips_or_is_an_option_error(name: str, value: Any) -> None:
    try:
        built = Options(**{name: value})
    except OptionError as refused:
        assert name.replace("_", "-") in str(refused)
        return
    assert Options.parse(str(built)) == built


@given(st.text(min_size=1))
def test_a_text_that_is_no_key_is_never_accepted_as_one(key: str) -> None:
    assume(key.strip().strip('"') and ":" not in key and "=" not in key)
    assume(key.strip().replace("_", "-") not in {row.key for row in OPTIONS})
    with pytest.raises(OptionError):
        Options.parse(f"{key}=1")
