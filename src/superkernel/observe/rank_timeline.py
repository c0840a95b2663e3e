"""observe.rank_timeline: the profiles of ranks and their waits -> one trace: a process for each rank, and arrows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .profile import Profile
from .rank_waits import RankWait, zero_ns
from .timeline import CORES, core_track, events_of

_FIRST_RANK = 2_000_001  # process numbers, larger than those of any system
_FIRST_CORE = 1_000_000  # track numbers: launches above, cores below
_FLOWS_OF_RANK = 1_000_000_000  # arrows are numbered; those between ranks come behind those of all ranks
_INSIDE_US = 0.006  # both ends of an arrow lie inside the slices that they join


def rank_trace(profiles: Mapping[int, Profile], waits: Sequence[RankWait]) -> dict[str, Any]:
    """Times count from the beginning of the first profile."""
    start = min(zero_ns(profile) for profile in profiles.values())
    events = [event for rank, profile in profiles.items() for event in _rank_events(rank, profile, start)]
    events += _arrows(profiles, waits, start)
    began = min(profile.began_ns for profile in profiles.values())
    return {"displayTimeUnit": "ns", "baseTimeNanoseconds": began, "traceEvents": events}


def _rank_events(rank: int, profile: Profile, start: float) -> Iterator[dict[str, Any]]:
    shift_us = (zero_ns(profile) - start) / 1000
    yield _process(rank, "process_name", name=f"rank {rank}")
    yield _process(rank, "process_sort_index", sort_index=rank)
    for event in events_of(profile):
        if event["name"] in ("process_name", "process_sort_index"):
            continue
        tid = event["tid"] + (_FIRST_CORE if event["pid"] == CORES else 0)
        moved = {**event, "pid": _FIRST_RANK + rank, "tid": tid}
        if "ts" in event:
            moved["ts"] = round(event["ts"] + shift_us, 3)
        if "id" in event:
            moved["id"] = event["id"] + _FLOWS_OF_RANK * rank
        yield moved


def _process(rank: int, what: str, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": _FIRST_RANK + rank, "tid": 0, "args": args}


def _arrows(profiles: Mapping[int, Profile], waits: Sequence[RankWait], start: float) -> Iterator[dict[str, Any]]:
    """From the op of the rank that arrived last to the wait that it ended."""
    number = _FLOWS_OF_RANK * (max(profiles) + 1)
    for wait in waits:
        if wait.last is None:
            continue
        number += 1
        name = f"rank {wait.last.rank} arrives for {wait.span.op} of rank {wait.rank}"
        flow = {"cat": "ranks", "name": name, "id": number}
        given_us = (wait.last.ns - start) / 1000 - _INSIDE_US
        ended_us = (zero_ns(profiles[wait.rank]) + wait.span.end_ns - start) / 1000 - _INSIDE_US
        sender = {
            "pid": _FIRST_RANK + wait.last.rank,
            "tid": _FIRST_CORE + core_track(wait.last.thread, wait.last.core),
        }
        waiter = {"pid": _FIRST_RANK + wait.rank, "tid": _FIRST_CORE + core_track(wait.thread, wait.span.core)}
        yield {**flow, **sender, "ph": "s", "ts": round(given_us, 3)}
        yield {**flow, **waiter, "ph": "f", "bp": "e", "ts": round(max(given_us, ended_us), 3)}
