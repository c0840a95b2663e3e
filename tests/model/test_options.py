"""Options: every rule of the option text, and every key's good and bad values."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from superkernel.errors import OptionError
from superkernel.model.options import (
    OPTIONS,
    EarlyStart,
    OptionRow,
    Options,
    PreloadCode,
    StrictScopeCheck,
    WatchdogAction,
)

KEYS = [row.key for row in OPTIONS]
ROWS = {row.key: row for row in OPTIONS}
FLAGS = [
    "feed-sync-all",
    "stream-fusion",
    "profiling",
    "debug-sync-all",
    "debug-dcci-all",
    "debug-check",
    "debug-replay",
]
LISTS = ["compile-options", "dcci-before-kernel-start", "dcci-after-kernel-end", "dcci-disable-on-kernel"]
INTEGERS = ["split-mode", "func-align", "prefetch-weights", "debug-aic-num", "debug-aiv-num"]

GOOD: list[tuple[str, str, object]] = [
    *[(key, text, value) for key in FLAGS for text, value in (("0", False), ("1", True))],
    *[(key, "a", ("a",)) for key in LISTS],
    *[(key, "a,b=c,d", ("a", "b=c", "d")) for key in LISTS],
    ("compile-options", "-DNAME=1", ("-DNAME=1",)),
    ("compile-options", "-DNAME=1,-g", ("-DNAME=1", "-g")),
    ("compile-options", "=", ("=",)),
    ("compile-options", "-I/my dir", ("-I/my dir",)),
    ("compile-options", '"quoted"', ('"quoted"',)),
    ("strict-scope-check", "bypass", StrictScopeCheck.BYPASS),
    ("strict-scope-check", "abort", StrictScopeCheck.ABORT),
    ("early-start", "0", EarlyStart.OFF),
    ("early-start", "1", EarlyStart.FULL),
    ("early-start", "2", EarlyStart.OUTSIDE),
    ("preload-code", "per-func", PreloadCode.PER_FUNC),
    ("preload-code", "max", PreloadCode.MAX),
    ("preload-code", "none", PreloadCode.NONE),
    ("split-mode", "1", 1),
    ("split-mode", "64", 64),
    *[("func-align", str(align), align) for align in (0, 2, 4, 8, 64, 512, 65536)],
    ("prefetch-weights", "0", 0),
    ("prefetch-weights", "1", 1),
    ("prefetch-weights", "1000", 1000),
    ("prefetch-weights", "3K", 3 * 1024),
    ("prefetch-weights", "8M", 8 * 1024**2),
    ("prefetch-weights", "2G", 2 * 1024**3),
    ("prefetch-weights", "1024G", 1024**4),
    *[(key, text, int(text)) for key in ("debug-aic-num", "debug-aiv-num") for text in ("0", "1", "24", "1000000")],
    ("debug-watchdog", "60", 60.0),
    ("debug-watchdog", "0.5", 0.5),
    ("debug-watchdog", "0.000001", 1e-6),
    ("debug-watchdog", "86400", 86400.0),
    ("debug-watchdog", "0", 0.0),
    ("debug-watchdog-action", "report", WatchdogAction.REPORT),
    ("debug-watchdog-action", "exit", WatchdogAction.EXIT),
]

NOT_PLAIN_DIGITS = ["+1", "-1", "1_0", "1 0", "1.0", "1e1", "0x8", "\u0662", "\uff18", "\u00b2", "9" * 19, "9" * 5000]
BAD: list[tuple[str, str]] = [
    *[(key, text) for key in FLAGS for text in ("2", "01", "true", "True", "yes", "on", "-1", "1.0", "\uff11")],
    *[(key, text) for key in LISTS for text in (",", "a,", ",a", "a,,b", "a, ,b", "a\0b", "a\nb", "a\ud800")],
    *[(key, text) for key in INTEGERS for text in NOT_PLAIN_DIGITS],
    *[("strict-scope-check", text) for text in ("0", "1", "unset", "none", "Abort", "BYPASS")],
    *[("early-start", text) for text in ("3", "-1", "full", "OFF", "01", "\u0662")],
    *[("preload-code", text) for text in ("per_func", "MAX", "0", "all")],
    *[("split-mode", text) for text in ("0", "65", "4K")],
    *[("func-align", text) for text in ("1", "3", "6", "100", "65535", "131072")],
    *[("prefetch-weights", text) for text in ("8m", "8MB", "8MM", "M", "8 M", "1.5M", "1025G", "8T", "-8M")],
    *[("debug-aic-num", text) for text in ("1000001", "1K")],
    *[
        ("debug-watchdog", text)
        for text in ("-1", "+1", "nan", "inf", "-inf", "1e3", "1e-3", ".5", "5.", "1.2.3", "1_0", "1s")
    ],
    *[("debug-watchdog", text) for text in ("86400.1", "9" * 400, "\u0662", "1,5")],
    *[("debug-watchdog-action", text) for text in ("0", "1", "Report", "stop")],
]


NOT_TEXT = [1, 1.0, b"profiling=1", ["profiling=1"], {"profiling": 1}, object, True, 10**5000]


def shortened(text: str) -> str:
    return ascii(text)[:24]


def type_name(value: object) -> str:
    return type(value).__name__


@pytest.mark.parametrize(("key", "text", "value"), GOOD)
def test_a_permitted_value_is_read_into_its_field_and_no_other(key: str, text: str, value: object) -> None:
    parsed = Options.parse(f"{key}={text}")
    field = ROWS[key].field
    assert getattr(parsed, field) == value
    assert type(getattr(parsed, field)) is type(value)
    assert dataclasses.replace(parsed, **{field: getattr(Options(), field)}) == Options()
    assert Options.parse(str(parsed)) == parsed


@pytest.mark.parametrize(("key", "text"), BAD, ids=shortened)
def test_a_value_outside_its_range_names_key_value_and_what_is_allowed(key: str, text: str) -> None:
    with pytest.raises(OptionError) as caught:
        Options.parse(f"{key}={text}")
    message = str(caught.value)
    assert key in message
    assert repr(text)[:200] in message
    assert ROWS[key].allowed in message
    assert len(message) < 600


def test_every_key_has_good_and_bad_values_above() -> None:
    assert {key for key, _, _ in GOOD} == {key for key, _ in BAD} | {"debug-aiv-num"} == set(KEYS)


@pytest.mark.parametrize("text", [None, "", " ", ":", "::", " : : ", '""', '":"', ' " " '])
def test_nothing_given_is_all_defaults(text: str | None) -> None:
    assert Options.parse(text) == Options()


@pytest.mark.parametrize(
    "text",
    [
        "early-start=2:profiling=1",
        "profiling=1:early-start=2",
        "early-start=2:profiling=1:",
        "::early-start=2::profiling=1",
        '"early-start=2:profiling=1"',
        ' "early-start=2:profiling=1" ',
        '""early-start=2:profiling=1""',
        "early_start=2:profiling=1",
        "\tearly-start=2 : profiling=1\n",
        "early-start =2:profiling= 1",
    ],
)
def test_spellings_of_the_same_options_parse_equal(text: str) -> None:
    assert Options.parse(text) == Options(early_start=EarlyStart.OUTSIDE, profiling=True)


def test_an_underscore_in_a_key_is_a_hyphen_everywhere_and_mixed() -> None:
    assert Options.parse("dcci_before-kernel_start=A") == Options(dcci_before_kernel_start=("A",))


def test_an_underscore_in_a_value_stays() -> None:
    assert Options.parse("compile-options=-DA_B").compile_options == ("-DA_B",)


def test_only_a_pair_of_quotes_is_stripped() -> None:
    assert Options.parse('compile-options=-DA="x"').compile_options == ('-DA="x"',)
    assert Options.parse('"compile-options=-DA="x""').compile_options == ('-DA="x"',)
    for text in ('"profiling=1', 'profiling=1"', "'profiling=1'"):
        with pytest.raises(OptionError):
            Options.parse(text)


def test_white_space_around_list_items_is_stripped() -> None:
    assert Options.parse("compile-options= -g , -O2 ").compile_options == ("-g", "-O2")


@pytest.mark.parametrize("text", NOT_TEXT, ids=type_name)
def test_input_that_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(OptionError, match="key=value"):
        Options.parse(text)


def test_options_pass_through_parse() -> None:
    options = Options(profiling=True)
    assert Options.parse(options) is options


def test_a_piece_without_equals_is_refused() -> None:
    with pytest.raises(OptionError, match=r"'early-start' has no '='.*0, 1, 2"):
        Options.parse("profiling=1:early_start")


def test_an_unknown_piece_without_equals_names_the_nearest_key() -> None:
    with pytest.raises(OptionError, match="did you mean 'early-start'"):
        Options.parse("early-strat")


@pytest.mark.parametrize("text", ["=1", " =1", "=", "profiling=1:=2"])
def test_an_empty_key_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"empty key.*early-start"):
        Options.parse(text)


@pytest.mark.parametrize("row", OPTIONS, ids=KEYS)
@pytest.mark.parametrize("blank", ["", " ", "\t"])
def test_an_empty_value_is_refused(row: OptionRow, blank: str) -> None:
    with pytest.raises(OptionError) as caught:
        Options.parse(f"{row.key}={blank}:profiling=1")
    assert row.key in str(caught.value)
    assert "''" in str(caught.value)
    assert row.allowed in str(caught.value)


@pytest.mark.parametrize("row", OPTIONS, ids=KEYS)
def test_a_key_given_twice_is_refused_in_any_spelling(row: OptionRow) -> None:
    value = next(text for key, text, _ in GOOD if key == row.key)
    for again in (row.key, row.field, f" {row.key} "):
        with pytest.raises(OptionError, match=f"'{row.key}' is given twice"):
            Options.parse(f"{row.key}={value}:{again}={value}")


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("early-strat", "early-start"),
        ("stream_fuson", "stream-fusion"),
        ("Early-Start", "early-start"),
        ("PROFILING", "profiling"),
        ("debug-aic", "debug-aic-num"),
        ("prefetch-weight", "prefetch-weights"),
    ],
)
def test_an_unknown_key_names_itself_its_value_and_the_nearest_key(key: str, near: str) -> None:
    with pytest.raises(OptionError) as caught:
        Options.parse(f"{key}=17")
    for expected in (repr(key), "'17'", f"did you mean {near!r}?"):
        assert expected in str(caught.value)


def test_a_key_like_no_other_lists_all_known() -> None:
    with pytest.raises(OptionError) as caught:
        Options.parse("xyzzy=1")
    assert all(key in str(caught.value) for key in KEYS)


def test_a_colon_ends_a_value() -> None:
    with pytest.raises(OptionError, match="unknown option 'b'"):
        Options.parse("compile-options=a:b=1")


@pytest.mark.parametrize(("cube", "vector"), [(0, 0), (1, 0), (0, 1), (24, 0), (0, 48), (24, 24), (24, 48), (1, 2)])
def test_permitted_core_ratios(cube: int, vector: int) -> None:
    options = Options.parse(f"debug-aic-num={cube}:debug-aiv-num={vector}")
    assert (options.debug_aic_num, options.debug_aiv_num) == (cube, vector)


@pytest.mark.parametrize(("cube", "vector"), [(2, 1), (1, 3), (24, 25), (24, 47), (48, 24)])
def test_other_core_ratios_are_refused(cube: int, vector: int) -> None:
    with pytest.raises(OptionError, match=f"debug-aic-num={cube}:debug-aiv-num={vector}.*1:0, 0:1, 1:1 or 1:2"):
        Options.parse(f"debug-aic-num={cube}:debug-aiv-num={vector}")
    with pytest.raises(OptionError, match="1:2"):
        Options(debug_aic_num=cube, debug_aiv_num=vector)


def test_defaults_print_as_nothing() -> None:
    assert str(Options()) == ""
    assert str(Options.parse("early-start=1:preload-code=per-func:debug-watchdog=60.0:prefetch-weights=0K")) == ""


def test_what_differs_prints_in_table_order() -> None:
    text = (
        "debug-replay=1:debug-watchdog=0.50:debug-aiv-num=2:debug-aic-num=2:dcci-disable-on-kernel=E:"
        "dcci-after-kernel-end=D:dcci-before-kernel-start=B,C:debug-dcci-all=1:debug-sync-all=1:compile-options=-g,-O2:"
        "profiling=1:prefetch-weights=8192K:func-align=0:split-mode=1:preload-code=max:early-start=0:"
        "strict-scope-check=abort:stream-fusion=1:feed-sync-all=1"
    )
    assert str(Options.parse(text)) == (
        "feed-sync-all=1:stream-fusion=1:strict-scope-check=abort:early-start=0:preload-code=max:split-mode=1:"
        "func-align=0:prefetch-weights=8M:profiling=1:compile-options=-g,-O2:debug-sync-all=1:debug-dcci-all=1:"
        "dcci-before-kernel-start=B,C:dcci-after-kernel-end=D:dcci-disable-on-kernel=E:debug-aic-num=2:"
        "debug-aiv-num=2:debug-watchdog=0.5:debug-replay=1"
    )


def test_options_are_frozen_hashable_values() -> None:
    one, same = Options.parse("early-start=2:compile-options=-g"), Options.parse("compile-options=-g:early_start=2")
    assert one == same
    assert hash(one) == hash(same)
    assert len({one, same, Options()}) == 2
    assert copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.profiling = True  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"profiling": 1}, True),
        ({"profiling": 0}, False),
        ({"early_start": 2}, EarlyStart.OUTSIDE),
        ({"preload_code": "max"}, PreloadCode.MAX),
        ({"strict_scope_check": "abort"}, StrictScopeCheck.ABORT),
        ({"compile_options": ["-g"]}, ("-g",)),
        ({"debug_watchdog": 5}, 5.0),
        ({"debug_aic_num": EarlyStart.FULL}, 1),
    ],
)
def test_construction_brings_a_value_to_its_one_form(given: dict[str, Any], kept: object) -> None:
    options = Options(**given)
    value = getattr(options, next(iter(given)))
    assert value == kept
    assert type(value) is type(kept)
    hash(options)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("profiling", 2),
        ("profiling", None),
        ("profiling", 1.0),
        ("profiling", "yes"),
        ("strict_scope_check", "unset"),
        ("strict_scope_check", PreloadCode.MAX),
        ("early_start", 3),
        ("early_start", None),
        ("early_start", 1.0),
        ("preload_code", None),
        ("preload_code", []),
        ("split_mode", 0),
        ("split_mode", 65),
        ("split_mode", True),
        ("split_mode", 4.0),
        ("split_mode", "4"),
        ("split_mode", 10**5000),
        ("func_align", 1),
        ("func_align", 3),
        ("func_align", -2),
        ("func_align", 131072),
        ("prefetch_weights", -1),
        ("prefetch_weights", None),
        ("prefetch_weights", "8M"),
        ("prefetch_weights", (1 << 40) + 1),
        ("compile_options", "-g"),
        ("compile_options", None),
        ("compile_options", (1,)),
        ("compile_options", (10**5000,)),
        ("compile_options", ("",)),
        ("compile_options", (" ",)),
        ("compile_options", (" -g",)),
        ("compile_options", ("-g ",)),
        ("compile_options", ("a:b",)),
        ("compile_options", ("-Wl,-z,now",)),
        ("compile_options", ("a\0b",)),
        ("dcci_before_kernel_start", ("A,B",)),
        ("dcci_after_kernel_end", ("A:B",)),
        ("dcci_disable_on_kernel", {"A"}),
        ("debug_aic_num", -1),
        ("debug_aiv_num", 10**5000),
        ("debug_watchdog", -1),
        ("debug_watchdog", float("nan")),
        ("debug_watchdog", float("inf")),
        ("debug_watchdog", 10**5000),
        ("debug_watchdog", True),
        ("debug_watchdog", "60"),
        ("debug_watchdog", None),
    ],
    ids=lambda given: given if isinstance(given, str) else type_name(given),
)
def test_construction_refuses_what_text_could_not_say(field: str, value: Any) -> None:
    key = field.replace("_", "-")
    with pytest.raises(OptionError) as caught:
        Options(**{field: value})
    assert repr(key) in str(caught.value)
    assert ROWS[key].allowed in str(caught.value)


def test_the_error_about_a_comma_in_an_item_says_why() -> None:
    with pytest.raises(OptionError, match=r"comma separates items.*-Wl,-z,now"):
        Options(compile_options=("-Wl,-rpath,/lib",))


def test_replace_validates_too() -> None:
    with pytest.raises(OptionError, match="'split-mode' cannot be 65"):
        dataclasses.replace(Options(), split_mode=65)
