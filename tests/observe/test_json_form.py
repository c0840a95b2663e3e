"""Profiles: their JSON form gives them back, and what is wrong is refused with its place."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observe.report import samples

from superkernel.errors import BuildError
from superkernel.observe.json_form import decode, encode
from superkernel.observe.profile import Profile, ProfiledEdge, ProfiledKernel, ProfiledLaunch, ProfiledOp
from superkernel.observe.tables import details_csv, statistic_csv
from superkernel.observe.timeline import trace_pieces
from superkernel.plan.plan import SyncKind
from superkernel.plan.spans import Span
from superkernel.plan.steps import SpanKind


def through_json(profile: Profile) -> Profile:
    return decode(Profile, json.loads(json.dumps(encode(profile), allow_nan=False)), "profile")


@pytest.mark.parametrize("make", [samples.both, samples.hostile, samples.many_spans])
def test_json_gives_the_same_profile_back(make: Any) -> None:
    for run in make().runs:
        assert through_json(run.profile) == run.profile


@given(st.text(), st.floats(0, 1e9), st.integers(0, 10**9), st.sampled_from(SpanKind))
def test_any_name_and_number_survives_json(name: str, time: float, count: int, kind: SpanKind) -> None:
    launch = ProfiledLaunch(name, name, 0, time, name, block_dim=count, spans=(Span(0, kind, name, 0, time),))
    profile = Profile((launch,), machine={name: count}, notes=(name,))
    assert through_json(profile) == profile


FUSED = samples.after().profile


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("launches", 1, "block_dim"), "two", r"profile\.launches\[1\]\.block_dim: expected a whole number, not 'two'"),
        (("launches", 1, "block_dim"), True, "expected a whole number, not True"),
        (("launches", 1, "block_dim"), 10**400, "of at most 63 bits"),
        (("launches", 0, "begin_ns"), None, "expected a number"),
        (("launches", 0, "ends_ns"), 1, "no field 'ends_ns' .did you mean 'end_ns'"),
        (("launches",), {}, r"profile\.launches: expected a list"),
        (("launches",), [[]] * 10**5, "expected an object with the fields of ProfiledLaunch"),
        (("launches", 0), 7, "expected an object with the fields of ProfiledLaunch"),
        (("launches", 0, "kernel"), 1, "'sk1' is of kernel 1, and there are 1"),
        (("launches", 0, "spans", 0, 1), "ops", "'ops' .did you mean 'op'.*; known are kernel, op, wait"),
        (("launches", 0, "spans", 2, 4), -1, "before it begins"),
        (("kernels", 0, "edges", 0, "sync"), ["local"], "known are none, local"),
        (("kernels", 0, "edges", 0, "producer"), "nobody", "names 'nobody', which is none of its ops"),
        (("machine",), [], r"machine: expected an object"),
        (("machine", "cores used"), 2.5, r"machine\.cores used: expected a whole number"),
        (("notes",), [3], r"notes\[0\]: expected a text"),
    ],
)
def test_a_mistake_is_named_by_its_place(path: tuple[str | int, ...], value: object, said: str) -> None:
    content: Any = json.loads(json.dumps(encode(FUSED)))
    place = content
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(BuildError, match=said):
        decode(Profile, content, "profile")


def test_a_missing_field_is_named() -> None:
    content = encode(FUSED)
    del content["launches"][0]["spans"]
    with pytest.raises(BuildError, match=r"profile\.launches\[0\]: the field 'spans' is missing"):
        decode(Profile, content, "profile")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 10**400])
def test_numbers_are_finite(number: float) -> None:
    """NaN would make a page whose data no browser can read."""
    for make in (
        lambda: ProfiledLaunch("l", "t", number, 1),
        lambda: ProfiledLaunch("l", "t", 0, number),
        lambda: ProfiledLaunch("l", "t", 0, 1, wait_ns=number),
        lambda: ProfiledLaunch("l", "t", 0, 1, spans=(Span(0, SpanKind.OP, "o", number, 1),)),
        lambda: ProfiledLaunch("l", "t", 0, 1, spans=(Span(0, SpanKind.OP, "o", 0, number),)),
        lambda: Profile(read_bytes_per_s=number),
    ):
        with pytest.raises(BuildError, match="no finite number"):
            make()


def test_contradictions_are_refused() -> None:
    for make, said in (
        (lambda: ProfiledLaunch("l", "t", 1, 0), "before it begins"),
        (lambda: ProfiledLaunch("l", "t", 0, 1, spans=(Span(-1, SpanKind.OP, "o", 0, 1),)), "count from 0"),
        (lambda: ProfiledOp("o", bytes_read=-1), "less than nothing"),
        (lambda: Profile(read_bytes_per_s=0), "leave it out"),
        (lambda: Profile((ProfiledLaunch("l", "t", 0, 1, kernel=-1),)), "of kernel -1"),
        (lambda: ProfiledKernel("k", ops=(ProfiledOp("o"), ProfiledOp("o"))), "same name"),
        (lambda: ProfiledKernel("k", edges=(ProfiledEdge("o", "p", SyncKind.FLAG),)), "'o'"),
    ):
        with pytest.raises(BuildError, match=said):
            make()


def _places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from _places(child, (*path, key))


PLACES = list(_places(encode(FUSED)))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from(PLACES), JSON)
def test_anything_in_any_place_is_a_profile_or_a_named_error(path: tuple[str | int, ...], value: object) -> None:
    content = encode(FUSED)
    place = content
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    try:
        profile = decode(Profile, content, "profile")
    except BuildError as error:
        assert str(error).startswith("profile")
    else:
        assert json.loads("".join(trace_pieces(profile))) and statistic_csv(profile) and details_csv(profile)
        assert through_json(profile) == profile
