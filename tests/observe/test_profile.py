"""sk.profile: which launches are seen, what their rows say, what stays when something goes wrong."""

from __future__ import annotations

import csv
import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from observe.kernels import buffers, kernel, twice

import superkernel as sk
from superkernel.observe import store
from superkernel.runtime import launch_events

STATISTIC = [
    "OP Type",
    "Core Type",
    "Count",
    "Total Time(us)",
    "Min Time(us)",
    "Avg Time(us)",
    "Max Time(us)",
    "Ratio(%)",
]
DETAILS = ["Name", "Type", "Block Dim", "Start(us)", "Duration(us)", "Wait(us)", "stream", "scope", "fused into"]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_super_kernel_is_one_row_and_its_ops_are_none(tmp_path: Path) -> None:
    with twice(tmp_path) as k, sk.profile(tmp_path / "p"):
        for _ in range(3):
            k(buffers())
    (row,) = rows(tmp_path / "p" / "op_statistic.csv")
    assert list(row) == STATISTIC
    assert (row["OP Type"], row["Core Type"], row["Count"], row["Ratio(%)"]) == ("SuperKernel", "any", "3", "100.000")
    least, mean, most, total = (float(row[f"{name} Time(us)"]) for name in ("Min", "Avg", "Max", "Total"))
    assert 0 < least <= mean <= most <= total
    assert abs(total - 3 * mean) < 0.01
    assert "e" not in row["Total Time(us)"].lower()


def test_unfused_every_op_is_a_launch_with_its_declared_type(tmp_path: Path) -> None:
    with twice(tmp_path) as k, sk.profile(tmp_path / "p"):
        k.unfused()(buffers())
    (row,) = rows(tmp_path / "p" / "op_statistic.csv")
    assert (row["OP Type"], row["Count"]) == ("Addition", "2")
    details = rows(tmp_path / "p" / "kernel_details.csv")
    assert [list(row) for row in details] == [DETAILS, DETAILS]
    assert [(row["Name"], row["Block Dim"], row["scope"], row["fused into"]) for row in details] == [
        ("first", "2", "twice", ""),
        ("second", "2", "twice", ""),
    ]
    starts = [float(row["Start(us)"]) for row in details]
    assert starts[1] >= starts[0] + float(details[0]["Duration(us)"]) - 0.01


def test_a_duration_is_as_long_as_the_kernel_takes(tmp_path: Path) -> None:
    rest = kernel(tmp_path, "rest", blocks=1)
    with sk.compile([sk.Op(rest, ["a", "z"])], "napping") as k, sk.profile(tmp_path / "p"):
        k({"a": buffers()["a"]})
        k.unfused()({"a": buffers()["a"]})
    fused, alone = rows(tmp_path / "p" / "kernel_details.csv")
    assert float(fused["Duration(us)"]) >= 2000
    assert float(alone["Duration(us)"]) >= 2000
    assert alone["Type"] == "rest"  # no type was declared: the kernel's name


def test_detail_adds_rows_of_sub_kernels_and_gives_the_same_bits(tmp_path: Path) -> None:
    plain, detailed = buffers(), buffers()
    with twice(tmp_path) as k:
        k(plain)
        with sk.profile(tmp_path / "p", detail=True):
            k(detailed)
        assert k.records() == ()  # the kernel itself is as it was
    assert np.array_equal(plain["c"], detailed["c"])
    launch, first, second = rows(tmp_path / "p" / "kernel_details.csv")
    assert [row["Name"] for row in (launch, first, second)] == ["twice", "first", "second"]
    assert (launch["fused into"], first["fused into"], first["Type"]) == ("", "twice", "Addition")
    end = float(launch["Start(us)"]) + float(launch["Duration(us)"])
    for op in (first, second):
        assert float(op["Start(us)"]) >= float(launch["Start(us)"]) - 0.01
        assert float(op["Start(us)"]) + float(op["Duration(us)"]) <= end + 0.01
    (row,) = rows(tmp_path / "p" / "op_statistic.csv")
    assert row["OP Type"] == "SuperKernel"


def test_a_kernel_that_records_anyway_is_shown_without_detail(tmp_path: Path) -> None:
    with twice(tmp_path, options="profiling=1") as k, sk.profile(tmp_path / "p") as p:
        k(buffers())
        assert {span.op for span in k.records()} == {None, "first", "second"}
        k.unfused()(buffers())  # by one call in C, although both ops are one binary
    assert p.result is not None
    fused, first, second = p.result.launches
    assert {span.what for span in fused.spans} >= {"kernel", "op"}
    for alone in (first, second):
        assert {span.op for span in alone.spans} == {None, alone.name}
        assert all(alone.begin_ns - 10 <= span.begin_ns <= span.end_ns <= alone.end_ns + 10 for span in alone.spans)


def test_the_trace_has_a_track_per_core_with_ops_and_waits_inside_the_launch(tmp_path: Path) -> None:
    with twice(tmp_path) as k, sk.profile(tmp_path / "p", detail=True):
        k(buffers())
    trace = json.loads((tmp_path / "p" / "trace.json").read_text())
    names = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in trace["traceEvents"]
        if e["ph"] == "M" and e["name"] == "thread_name"
    }
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    (launch,) = [e for e in slices if e["cat"] == "launch"]
    assert names[launch["pid"], launch["tid"]] == "launches of thread 0"
    for core in ("core 0", "core 1"):
        on_core = [e for e in slices if names[e["pid"], e["tid"]] == core]
        assert [e["name"] for e in on_core if e["cat"] == "op"] == ["first", "second"]
        assert any(e["cat"] in ("wait", "barrier") and "second" in e["name"] for e in on_core)
        for e in on_core:
            assert launch["ts"] - 0.01 <= e["ts"] and e["ts"] + e["dur"] <= launch["ts"] + launch["dur"] + 0.01
    assert launch["args"]["type"] == "SuperKernel"


def test_launches_of_all_threads_are_seen(tmp_path: Path) -> None:
    together = threading.Barrier(3)  # a thread that has ended may leave its id to the next one

    def work() -> None:
        together.wait()
        for _ in range(20):
            k(buffers())
        together.wait()

    with twice(tmp_path, cores=1) as k, sk.profile(tmp_path / "p", detail=True) as p:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert p.result is not None
    assert len(p.result.launches) == 60 and {launch.thread for launch in p.result.launches} == {0, 1, 2}
    for launch in p.result.launches:  # each launch has its own time stamps, not those of another thread
        assert launch.spans
        for span in launch.spans:
            assert launch.begin_ns - 10 <= span.begin_ns <= span.end_ns <= launch.end_ns + 10


def test_nested_profiles_both_see_what_runs_in_the_inner_one(tmp_path: Path) -> None:
    with twice(tmp_path) as k, sk.profile(tmp_path / "outer") as outer:
        k(buffers())
        with sk.profile(tmp_path / "inner", detail=True) as inner:
            k(buffers())
        k(buffers())
    assert outer.result is not None and inner.result is not None
    assert (len(outer.result.launches), len(inner.result.launches)) == (3, 1)
    assert inner.result.launches[0].spans


def test_two_profiles_of_one_directory_at_once_are_refused(tmp_path: Path) -> None:
    with sk.profile(tmp_path / "p"), pytest.raises(sk.OptionError, match="another profile"), sk.profile(tmp_path / "p"):
        pass
    with sk.profile(tmp_path / "p"):  # afterwards it is free again
        pass
    (tmp_path / "link").symlink_to("p")
    with sk.profile(tmp_path / "p"), pytest.raises(sk.OptionError, match="another profile"):
        sk.profile(tmp_path / "link").__enter__()


def test_an_exception_leaves_the_profile_of_what_ran(tmp_path: Path) -> None:
    with twice(tmp_path) as k, pytest.raises(ValueError, match="mine"), sk.profile(tmp_path / "p"):
        k(buffers())
        raise ValueError("mine")
    assert len(store.read(tmp_path / "p").launches) == 1
    assert not launch_events.has_listeners()


def test_a_launch_that_is_stopped_is_no_row_and_those_before_it_are(tmp_path: Path) -> None:
    add, refuse = kernel(tmp_path, "add"), kernel(tmp_path, "refuse")
    ops = [sk.Op(add, ["a", "b", "t"], name="good"), sk.Op(refuse, ["t", "c"], name="bad")]
    with sk.compile(ops, "stops") as k, sk.profile(tmp_path / "p"):
        for launch in (k, k.unfused()):
            with pytest.raises(sk.LaunchError, match="not today"):
                launch(buffers())
    assert [launch.name for launch in store.read(tmp_path / "p").launches] == ["good"]


def test_nothing_is_watched_before_and_after(tmp_path: Path) -> None:
    with twice(tmp_path) as k:
        before = k.loaded
        with sk.profile(tmp_path / "p") as p:
            assert k.loaded is not before
        assert k.loaded is before
        k(buffers())
        assert p.result is not None and not p.result.launches


def test_a_kernel_that_is_compiled_saved_and_loaded_inside_is_seen(tmp_path: Path) -> None:
    with sk.profile(tmp_path / "p", detail=True) as p, twice(tmp_path) as k:
        k(buffers())
        k.save(tmp_path / "saved")
        with sk.load(tmp_path / "saved") as loaded:
            loaded(buffers())
    assert p.result is not None
    assert [launch.name for launch in p.result.launches] == ["twice", "twice"]
    assert [bool(launch.spans) for launch in p.result.launches] == [
        True,
        False,
    ]  # a loaded kernel has no twin that records


def test_other_files_stay_and_an_earlier_profile_is_replaced(tmp_path: Path) -> None:
    place = tmp_path / "p"
    place.mkdir()
    (place / "mine.txt").write_text("mine")
    with twice(tmp_path) as k:
        for times in (1, 2):
            with sk.profile(place):
                for _ in range(times):
                    k(buffers())
    assert len(store.read(place).launches) == 2
    assert sorted(path.name for path in place.iterdir()) == sorted([*store.FILES, store.PROFILE, "mine.txt"])


@pytest.mark.parametrize("directory", [None, 7, b"x", "", "a\0b"])
def test_what_is_no_directory_is_refused(directory: object) -> None:
    with pytest.raises(sk.OptionError, match="a path is needed"):
        sk.profile(directory)  # type: ignore[arg-type]


def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(sk.BuildError, match="cannot be written"), sk.profile(tmp_path / "file" / "p"):
        pytest.fail("the body ran")


def test_nothing_ran_is_a_profile_too(tmp_path: Path) -> None:
    with sk.profile(tmp_path / "p"):
        pass
    assert (tmp_path / "p" / "op_statistic.csv").read_text() == ",".join(STATISTIC) + "\n"
    assert store.read(tmp_path / "p").launches == ()


def test_launches_are_timed_whichever_host_library_runs_them(tmp_path: Path) -> None:
    """Processes that fill an empty cache together replace each other's host library: one of them may load two."""
    with twice(tmp_path) as k, sk.profile(tmp_path / "p", detail=True) as p:
        path = k.loaded.plain.host.path
        shutil.copy2(path, copy := path.with_name("copy"))
        copy.replace(path)  # its twin with time stamps will load the copy
        k(buffers())
    assert p.result is not None
    (launch,) = p.result.launches
    assert launch.duration_us > 0 and launch.start_us >= 0
