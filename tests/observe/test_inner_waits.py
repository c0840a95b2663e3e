"""Waits inside of sub-kernels: recorded by their core, counted as waiting, with the signal that ended them."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import superkernel as sk
from superkernel.observe import store
from superkernel.observe.core_time import inner_types, op_times
from superkernel.observe.profile import Profile
from superkernel.observe.report import ReportedRun
from superkernel.observe.report.figures import core_shares
from superkernel.observe.waits import ranked_waits
from superkernel.plan.spans import RECORDED_MEETINGS, Span
from superkernel.plan.steps import SpanKind

LATE_US = 30_000  # how long a core works while another one waits for it
# Each late core begins to count when the other core is about to wait, so that the other one blocks on any machine.
SOURCE = f"""
#include <atomic>
#include <chrono>
#include <superkernel/kernel.h>

using Clock = std::chrono::steady_clock;
static std::atomic<int> arriving[3];

static void work_after(int place) {{
    const auto limit = Clock::now() + std::chrono::seconds(20);
    while (arriving[place].exchange(0) == 0 && Clock::now() < limit) {{}}
    const auto end = Clock::now() + std::chrono::microseconds({LATE_US});
    while (Clock::now() < end) {{}}
}}

extern "C" void produce(const float* x, float* z) {{
    work_after(0);
    z[0] = x[0] + 1;
}}
extern "C" void consume(const float* x, float* z) {{
    if (sk::block_idx() == 1) arriving[0] = 1;
    sk::wait_previous();
    z[sk::block_idx()] = x[0] + sk::block_idx();
    sk::set_next();
}}
extern "C" void meet(const float* x, float* z) {{
    if (sk::block_idx() == 0) work_after(1);
    if (sk::block_idx() == 1) arriving[1] = 1;
    sk::sync_all();
    z[sk::block_idx()] = x[sk::block_idx()];
}}
extern "C" void often(const float* x, float* z) {{
    for (int i = 0; i < {RECORDED_MEETINGS + 5}; ++i) sk::sync_all();
    z[0] = x[0] + x[1];
}}
"""


@dataclass(frozen=True)
class Recorded:
    profile: Profile
    folder: Path

    @property
    def spans(self) -> tuple[Span, ...]:
        return self.profile.launches[0].spans


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    folder = tmp_path_factory.mktemp("inner")
    (folder / "kernels.cpp").write_text(SOURCE)

    def kernel(name: str, blocks: int, given: int, returned: int) -> sk.SubKernel:
        params = [f"in:x:float32[{given}]", f"out:z:float32[{returned}]"]
        return sk.SubKernel.from_source(folder / "kernels.cpp", name, block_dim=blocks, params=params)

    ops = [
        sk.Op(kernel("produce", 1, 1, 1), ["a", "b"], name="produce"),
        sk.Op(kernel("consume", 2, 1, 2), ["b", "c"], name="consume"),
        sk.Op(kernel("meet", 2, 2, 2), ["c", "d"], name="meet"),
        sk.Op(kernel("often", 1, 2, 1), ["d", "e"], name="often"),
    ]
    with sk.compile(ops, "inner", "profiling=1:feed-sync-all=1", cores=2) as k:
        with sk.profile(folder / "p") as p:
            outputs = k({"a": np.ones(1, np.float32)})
        assert outputs["e"][0] == 5  # b = 2, c = 2 and 3
    assert p.result is not None
    yield Recorded(p.result, folder / "p")


def waits(recorded: Recorded, op: str, core: int) -> list[Span]:
    return [span for span in recorded.spans if span.inside and (span.op, span.core) == (op, core)]


def test_a_wait_at_the_wait_point_is_a_span_inside_the_op(recorded: Recorded) -> None:
    (wait,) = waits(recorded, "consume", 1)
    assert wait.what is SpanKind.WAIT and wait.end_ns - wait.begin_ns > 0.5e3 * LATE_US
    assert (wait.waited_for, wait.signalled_by) == ("produce", 0)
    (op,) = [span for span in recorded.spans if (span.what, span.op, span.core) == (SpanKind.OP, "consume", 1)]
    assert op.begin_ns <= wait.begin_ns <= wait.end_ns <= op.end_ns


def test_a_wait_in_sync_all_is_one_for_the_core_that_comes_last(recorded: Recorded) -> None:
    (wait,) = waits(recorded, "meet", 1)
    assert wait.what is SpanKind.BARRIER and wait.end_ns - wait.begin_ns > 0.5e3 * LATE_US
    assert (wait.waited_for, wait.signalled_by) == ("meet", 0)
    (last,) = waits(recorded, "meet", 0)  # it came last itself
    assert last.waited_for is None


def test_a_core_that_feeds_barriers_waits(recorded: Recorded) -> None:
    spans = [span for span in recorded.spans if (span.op, span.core) == ("often", 1) and not span.inside]
    assert spans and {span.what for span in spans} <= {SpanKind.WAIT, SpanKind.BARRIER}


def test_more_calls_of_sync_all_than_are_recorded_are_told(recorded: Recorded) -> None:
    assert len(waits(recorded, "often", 0)) == RECORDED_MEETINGS
    (note,) = recorded.profile.notes
    assert "often" in note and str(RECORDED_MEETINGS) in note and "count as work" in note
    header = (Path(sk.__file__).parent / "targets/cpu/include/superkernel/state.h").read_text()
    assert re.search(rf"kRecordedMeetings = {RECORDED_MEETINGS};", header)


def test_tables_and_cores_at_work_count_it_as_waiting(recorded: Recorded) -> None:
    profile = recorded.profile
    times = op_times(profile.launches[0])
    assert times["consume"].longest_wait_ns > 0.5e3 * LATE_US
    assert times["consume"].duration_ns < times["consume"].longest_wait_ns
    elapsed = max(span.end_ns for span in recorded.spans) - min(span.begin_ns for span in recorded.spans)
    shares = core_shares(ReportedRun("r", profile))
    assert shares is not None and shares.waiting > 0.8e3 * LATE_US / (2 * elapsed)
    assert shares.working + shares.waiting <= 1.0001
    with (recorded.folder / "kernel_details.csv").open(newline="") as file:
        (row,) = [row for row in csv.DictReader(file) if row["Name"] == "consume"]
    assert float(row["Wait(us)"]) > 0.5 * LATE_US and float(row["Duration(us)"]) < float(row["Wait(us)"])
    waiting = {row.op_type: row.waiting_us for row in inner_types(profile)}
    assert waiting["consume"] > 0.5 * LATE_US and waiting["produce"] < waiting["consume"]


def test_waits_are_ranked_with_what_they_waited_for(recorded: Recorded) -> None:
    rows = ranked_waits(recorded.profile)
    assert [row.total_us for row in rows] == sorted((row.total_us for row in rows), reverse=True)
    named = {(row.op, row.where, row.waited_for) for row in rows}
    assert {("consume", "at its wait point", "produce"), ("meet", "in sync_all", "meet")} <= named
    with (recorded.folder / "waits.csv").open(newline="") as file:
        listed = list(csv.DictReader(file))
    assert len(listed) == len(rows) and {row["Super Kernel"] for row in listed} == {"inner"}


def test_an_arrow_of_the_trace_leads_from_the_signal_to_the_wait(recorded: Recorded) -> None:
    events = json.loads((recorded.folder / "trace.json").read_text())["traceEvents"]
    begins = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert begins.keys() == ends.keys()
    (number,) = [number for number, event in begins.items() if event["name"] == "produce signals consume"]
    begin, end = begins[number], ends[number]
    assert end["bp"] == "e" and begin["ts"] <= end["ts"]
    slices = [event for event in events if event["ph"] == "X"]

    def around(event: dict) -> set[str]:  # type: ignore[type-arg]
        """The slices of its track in which an event lies."""
        track = [piece for piece in slices if (piece["pid"], piece["tid"]) == (event["pid"], event["tid"])]
        return {piece["name"] for piece in track if piece["ts"] <= event["ts"] <= piece["ts"] + piece["dur"]}

    assert "produce" in around(begin) and "wait in consume" in around(end)
    assert begin["tid"] != end["tid"]


def test_a_saved_profile_has_them(recorded: Recorded) -> None:
    assert store.read(recorded.folder) == recorded.profile
