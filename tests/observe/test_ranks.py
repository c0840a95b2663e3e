"""Profiles of ranks: a folder for each, one time line for all, and which rank waited for which."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from observe.kernels import buffers, twice
from typer.testing import CliRunner

import superkernel as sk
from superkernel.errors import OptionError
from superkernel.observe import report, store
from superkernel.observe.profile import Profile, ProfiledCollective, ProfiledKernel, ProfiledLaunch, ProfiledOp
from superkernel.observe.profile import ProfiledRank as Rank
from superkernel.observe.rank_comparison import RankComparison, find_ranks, rank_folders
from superkernel.observe.rank_waits import rank_waits
from superkernel.observe.waits import ranked_waits
from superkernel.plan.spans import Span
from superkernel.plan.steps import SpanKind
from superkernel.tools.cli import app

MS = 1e6
shell = CliRunner()


def rank_profile(rank: int, sent: Sequence[float], waited: Sequence[tuple[float, float]], ranks: int = 2) -> Profile:
    """Launches in which a rank sends until some time, and waits for all others; each profile begins 1 ms later."""
    collective = ProfiledCollective("all_reduce_0", tuple(range(ranks)), "publish", ("reduce",))
    kernel = ProfiledKernel("step", ops=(ProfiledOp("publish"), ProfiledOp("reduce")), collectives=(collective,))
    launches = [
        ProfiledLaunch(
            "step", "SuperKernel", end - 100, until + 100, kernel=0,
            spans=(
                Span(0, SpanKind.OP, "publish", end - 50, end),
                Span(0, SpanKind.RANKS, "reduce", begin, until, waited_for="others"),
                Span(0, SpanKind.OP, "reduce", until, until + 50),
            ),
        )
        for end, (begin, until) in zip(sent, waited, strict=True)
    ]  # fmt: skip
    where = Rank(rank, ranks, "boot", int((1 + rank) * MS))
    return Profile(tuple(launches), (kernel,), detail=True, rank=where, began_ns=int(rank * MS))


def two_ranks() -> dict[int, Profile]:
    """Rank 1 comes 5000 ns late; its times count from 1 ms later, so that they look early."""
    first = rank_profile(0, [2_000_000], [(2_000_010, 2_005_200)])
    second = rank_profile(1, [1_005_000], [(1_005_010, 1_005_110)])
    return {0: first, 1: second}


def written(folder: Path, profiles: dict[int, Profile]) -> list[Path]:
    paths = [folder / f"rank{rank}" for rank in profiles]
    for path, profile in zip(paths, profiles.values(), strict=True):
        path.mkdir(parents=True)
        store.write(path, profile)
    return paths


def test_a_wait_is_for_the_rank_that_arrived_last() -> None:
    waits = rank_waits(two_ranks())
    assert [(wait.rank, wait.last and wait.last.rank, wait.us) for wait in waits] == [(0, 1, 5.19), (1, None, 0.1)]
    first = rank_profile(0, [3_000_000], [(3_000_010, 3_009_100)], ranks=3)
    second = rank_profile(1, [2_004_000], [(2_004_010, 2_009_100)], ranks=3)
    third = rank_profile(2, [1_009_000], [(1_009_010, 1_009_020)], ranks=3)
    assert [wait.last and wait.last.rank for wait in rank_waits({0: first, 1: second, 2: third})] == [2, 2, None]


def test_the_same_collective_of_another_launch_is_not_what_was_waited_for() -> None:
    first = rank_profile(0, [2_000_000, 2_100_000], [(2_000_010, 2_005_200), (2_100_010, 2_100_020)])
    second = rank_profile(1, [1_005_000, 1_050_000], [(1_005_010, 1_005_110), (1_050_010, 2_100_100)])
    waits = rank_waits({0: first, 1: second})
    assert [wait.last and wait.last.ns for wait in waits if wait.rank == 0] == [3_005_000, None]
    assert [wait.last and wait.last.rank for wait in waits if wait.rank == 1] == [None, 0]


def test_the_shell_says_who_waited_and_puts_all_ranks_on_one_time_line(tmp_path: Path) -> None:
    folders = written(tmp_path, two_ranks())
    for words in ([str(tmp_path)], [str(folder) for folder in reversed(folders)]):
        (tmp_path / "trace.json").unlink(missing_ok=True)
        done = shell.invoke(app, ["compare", *words])
        assert done.exit_code == 0, done.output
        assert "rank 0 waited 5.19 us for other ranks" in done.output and "5.19 us of" in done.output
        assert "rank 1 waited" not in done.output
    trace = json.loads((tmp_path / "trace.json").read_text())
    events: list[dict[str, Any]] = trace["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(names.values()) == ["rank 0", "rank 1"]
    begins = {names[event["pid"]]: event["ts"] for event in events if event["name"] == "publish"}
    assert begins["rank 1"] - begins["rank 0"] == pytest.approx(5)  # microseconds
    sent, taken = (event for event in events if event.get("cat") == "ranks")
    assert (names[sent["pid"]], names[taken["pid"]]) == ("rank 1", "rank 0")
    assert sent["ts"] < taken["ts"] and sent["id"] == taken["id"]
    tracks = {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"}
    assert {(event["pid"], event["tid"]) for event in (sent, taken)} <= tracks
    as_json = json.loads(shell.invoke(app, ["compare", str(tmp_path), "--json"]).output)
    assert as_json["ranks"][0]["waited_us"] == {"1": 5.19} and as_json["ranks"][1]["waited_us"] == {}


def test_runs_are_still_runs(tmp_path: Path) -> None:
    profiles = two_ranks()
    before, after = written(tmp_path / "a", profiles), written(tmp_path / "b", profiles)
    assert find_ranks([before[0], after[0]]) is None  # one rank before and after
    done = shell.invoke(app, ["compare", str(before[1]), str(after[1])])
    assert done.exit_code == 0 and "benefit" in done.output
    for words, message in (
        ([*before, after[0]], "these are 3 profiles"),
        ([before[0]], "has no folders rank0, rank1"),
        ([before[0], after[0], "--trace", tmp_path / "t.json"], "--trace belongs to ranks"),
        ([*before, "--html", tmp_path / "t.html"], "ranks of one run"),
    ):
        done = shell.invoke(app, ["compare", *map(str, words), "--json"])
        assert done.exit_code != 0 and message in done.output


def test_what_ranks_cannot_tell_is_said(tmp_path: Path) -> None:
    profiles = two_ranks()
    assert profiles[1].rank is not None
    elsewhere = replace(profiles[1], rank=replace(profiles[1].rank, boot="another"))
    with pytest.raises(OptionError, match="their clocks differ"):
        find_ranks(written(tmp_path / "machines", {0: profiles[0], 1: elsewhere}))
    later = replace(profiles[1], rank=replace(profiles[1].rank, monotonic_ns=10**12), detail=False)
    folders = {0: tmp_path, 1: tmp_path}
    notes = RankComparison({0: profiles[0], 1: later}, folders).notes
    assert any("do not overlap in time" in note for note in notes)
    assert any("with detail=True" in note for note in notes)
    alone = rank_profile(0, [3_000_000], [(3_000_010, 3_000_020)], ranks=3)
    (note,) = RankComparison({0: alone, 2: rank_profile(2, [900], [(910, 920)], ranks=3)}, folders).notes
    assert "without rank 1 of 3" in note


def test_ranks_are_sorted_by_number(tmp_path: Path) -> None:
    for name in ("rank10", "rank2", "rank0", "ranking"):
        (tmp_path / name).mkdir()
    assert [path.name for path in rank_folders([tmp_path])] == ["rank0", "rank2", "rank10"]


def test_each_rank_records_into_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with twice(tmp_path) as k, sk.profile(tmp_path / "profile") as recorded:
        k(buffers())
    assert recorded.directory == tmp_path / "profile" / "rank3"
    found = store.read(recorded.directory)
    assert found.rank is not None and (found.rank.rank, found.rank.ranks) == (3, 4) and found.rank.monotonic_ns > 0
    monkeypatch.setenv("WORLD_SIZE", "1")
    with sk.profile(tmp_path / "alone") as alone:
        pass
    assert alone.directory == tmp_path / "alone" and alone.result is not None and alone.result.rank is None


def test_waits_for_ranks_are_waits() -> None:
    (row,) = ranked_waits(two_ranks()[0])
    assert (row.op, row.where, row.waited_for, row.total_us) == ("reduce", "for other ranks before it", "others", 5.19)


def test_the_report_draws_every_kind_of_span() -> None:
    script = (Path(report.__file__).parent / "assets" / "timeline.js").read_text()
    (drawn,) = re.findall(r"for \(const kind of \[(.*?)\]\)", script)
    recorded = {kind.value for kind in SpanKind}
    assert set(json.loads(f"[{drawn}]")) == recorded
