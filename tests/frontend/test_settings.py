"""What may be given to torch.compile, what it becomes, and what a mistake is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from superkernel.errors import OptionError, UnsupportedError
from superkernel.frontend.settings import BackendSettings, BucketedDimension, Fuse
from superkernel.model.dim import Dim
from superkernel.model.options import OPTIONS, Options

BATCH = Dim("batch", (1, 4))


@pytest.fixture(autouse=True)
def no_dump_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUPERKERNEL_DUMP", raising=False)


@pytest.mark.parametrize("options", [None, {}])
def test_nothing_given_is_the_defaults(options: Any) -> None:
    assert BackendSettings.parse(options, None) == BackendSettings("cpu", None, None, None, True, "", Fuse.AUTO, None)


@pytest.mark.parametrize(
    ("key", "value", "field", "kept"),
    [
        ("target", "cpu", "target", "cpu"),
        ("cores", 3, "cores", 3),
        ("cores", None, "cores", None),
        ("cache", "/c", "cache", "/c"),
        ("cache", Path("/c"), "cache", "/c"),
        ("cache", None, "cache", None),
        ("dump", "/d", "dump", "/d"),
        ("profit_gate", 0, "profit_gate", False),
        ("profit_gate", True, "profit_gate", True),
        ("profit-gate", False, "profit_gate", False),
        ("fuse", "whole", "fuse", Fuse.WHOLE),
        ("fuse", Fuse.OFF, "fuse", Fuse.OFF),
        ("mode", "max-autotune", "mode", "max-autotune"),
        ("options", "profiling=1", "options", "profiling=1"),
        ("buckets", {"x": {0: BATCH}}, "buckets", (BucketedDimension("x", 0, BATCH),)),
        ("buckets", None, "buckets", ()),
    ],
)
def test_each_setting_is_read(key: str, value: object, field: str, kept: object) -> None:
    assert getattr(BackendSettings.parse({key: value}), field) == kept


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_each_mode_of_torch_compile_is_read(mode: str) -> None:
    assert BackendSettings.parse(None, mode).mode == mode


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cores": 0}, "'cores' cannot be 0; allowed: an integer from 1"),
        ({"cores": "4"}, "'cores' cannot be '4'; allowed"),
        ({"cores": True}, "'cores' cannot be True; allowed"),
        ({"cores": 4, "target": "ascend"}, "'cores' on target 'ascend': cores=4: .* debug-aic-num and debug-aiv-num"),
        ({"cache": False}, "'cache' cannot be False; allowed: a directory, or None"),
        ({"cache": " "}, "'cache' cannot be ' '; allowed: a directory"),
        ({"dump": 1}, "'dump' cannot be 1; allowed: a directory"),
        ({"profit_gate": 2}, "'profit_gate' cannot be 2; allowed: 0, 1"),
        ({"profit_gate": "yes"}, "'profit_gate' cannot be 'yes'; allowed: 0, 1"),
        ({"fuse": "hole"}, r"'fuse' cannot be 'hole' \(did you mean 'whole'\?\); allowed: auto, marked, whole, off"),
        ({"fuse": 1}, "'fuse' cannot be 1; allowed: auto"),
        ({"options": 1}, "'options' cannot be 1; allowed: a text"),
        ({"options": "early-start=9"}, "'early-start' cannot be '9'; allowed: 0, 1, 2"),
        ({"early_start": 9}, "'early-start' cannot be 9; allowed: 0, 1, 2"),
        ({"mode": "max-autotun"}, r"'mode' cannot be 'max-autotun' \(did you mean 'max-autotune'\?\)"),
        ({"target": "cup"}, r"unknown target 'cup' \(did you mean 'cpu'\?\)"),
        ({"target": None}, "unknown target None"),
        ({"buckets": 4}, "'buckets' cannot be 4; allowed: a dict such as"),
        ({"buckets": {}}, "'buckets' cannot be {}; allowed: a dict such as"),
        ({"buckets": {3: {0: BATCH}}}, "'buckets': 3 is no name of an argument"),
        ({"buckets": {"x": BATCH}}, "'buckets': argument 'x' has Dim"),
        ({"buckets": {"x": {}}}, "'buckets': argument 'x' has {}"),
        ({"buckets": {"x": {-1: BATCH}}}, "'buckets': argument 'x' has no dimension -1; dimensions are counted from 0"),
        ({"buckets": {"x": {"0": BATCH}}}, "'buckets': argument 'x' has no dimension '0'"),
        ({"buckets": {"x": {0: (1, 4)}}}, r"'buckets': argument 'x', dimension 0 is \(1, 4\); give a Dim"),
        (
            {"buckets": {"x": {0: BATCH}, "y": {0: Dim("batch", (2,))}}},
            r"Dim 'batch' has buckets \(1, 4\) for argument 'x' and \(2,\) for argument 'y'",
        ),
        ({"buckets": {"x": {0: BATCH, 1: BATCH}}}, "argument 'x' has Dim 'batch' twice"),
        ([("cores", 1)], r"backend options cannot be \[\('cores', 1\)\]; allowed: a dict"),
    ],
)
def test_a_bad_value_is_told_what_is_allowed(options: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        BackendSettings.parse(options)


def test_an_unknown_mode_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean 'reduce-overhead'"):
        BackendSettings.parse(None, "reduce_overhead")


def test_a_target_that_is_not_built_in_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("superkernel.targets._MODULES", {"cpu": "superkernel.targets.cpu"})
    with pytest.raises(UnsupportedError, match="ascend"):
        BackendSettings.parse({"target": "ascend"})


@pytest.mark.parametrize(("key", "near"), [("core", "cores"), ("Fuse", "fuse"), ("stream_fuson", "stream-fusion")])
def test_an_unknown_key_names_the_nearest_setting_or_scope_option(key: str, near: str) -> None:
    with pytest.raises(
        OptionError, match=rf"unknown backend option '{key}' \(did you mean '{near}'\?\); known: target"
    ):
        BackendSettings.parse({key: 1})


def test_a_key_that_is_no_text_is_unknown() -> None:
    with pytest.raises(OptionError, match="unknown backend option 3; known"):
        BackendSettings.parse({3: 1})  # type: ignore[dict-item]


def test_scope_options_join_those_in_the_text() -> None:
    parsed = BackendSettings.parse({"options": '"profiling=1"', "stream-fusion": 1, "early_start": 0})
    assert Options.parse(parsed.options) == Options.parse("profiling=1:stream-fusion=1:early-start=0")


def test_every_scope_option_is_accepted_by_its_own_name_with_its_default() -> None:
    given = {row.field: getattr(Options(), row.field) for row in OPTIONS}
    assert BackendSettings.parse(given).options == ""


@pytest.mark.parametrize(
    ("value", "text"), [(["-g", "-O2"], "compile-options=-g,-O2"), ("-g", "compile-options=-g"), ((), "")]
)
def test_a_list_option_may_be_a_list_or_a_text(value: object, text: str) -> None:
    assert BackendSettings.parse({"compile-options": value}).options == text


@pytest.mark.parametrize(
    "options",
    [
        {"stream-fusion": 1, "stream_fusion": 1},
        {"options": "stream_fusion=0", "stream-fusion": 1},
        {"options": '"early-start=1"', "early_start": 2},
        {"profit_gate": 1, "profit-gate": 1},
    ],
)
def test_a_key_given_twice_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="is given twice"):
        BackendSettings.parse(options)


def test_a_mode_given_twice_is_refused() -> None:
    with pytest.raises(OptionError, match="'mode' is given twice"):
        BackendSettings.parse({"mode": "default"}, "max-autotune")


def test_options_that_cannot_go_together_are_refused_across_text_and_names() -> None:
    with pytest.raises(OptionError, match="cannot go together"):
        BackendSettings.parse({"options": "debug-aic-num=1", "debug-aiv-num": 3})


def test_the_dump_directory_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_DUMP", "/from/environment")
    assert BackendSettings.parse({"cores": 1}).dump == "/from/environment"


def test_a_given_dump_directory_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_DUMP", "/from/environment")
    assert BackendSettings.parse({"dump": "/mine"}).dump == "/mine"


def test_equal_settings_hash_equal() -> None:
    assert len({BackendSettings.parse({"early_start": 2}), BackendSettings.parse({"options": "early-start=2"})}) == 1
