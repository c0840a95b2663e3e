"""Ranks make a shared area together: the same memory on all, or the same error on all, and nothing is left behind."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.cpu.ranks.rank_threads import FolderStore, as_ranks, group_of, make_area

from superkernel.errors import LaunchError, UnsupportedError
from superkernel.model import window_layout as layout
from superkernel.targets.cpu.runtime.ranks import shared_area
from superkernel.targets.cpu.runtime.ranks.shared_area import SharedArea
from superkernel.targets.ranks import shared_file
from superkernel.targets.ranks.shared_file import SharedFile

SHARED = Path("/dev/shm")


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("superkernel-*")}


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder in shared memory for this test alone: others, which run at the same time, make files beside it."""
    with tempfile.TemporaryDirectory(dir=SHARED) as folder:
        yield Path(folder)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


@pytest.fixture(autouse=True)
def first_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_area, "_areas_made", {})


def areas(store: Any, windows: dict[str, int], ranks: int = 2, **more: Any) -> list[SharedArea]:
    made = as_ranks(ranks, lambda rank: make_area(rank, ranks, store, windows, **more))
    for area in made:
        assert isinstance(area, SharedArea), area
    return made


def messages(errors: list[Any], kind: type[Exception] = LaunchError) -> list[str]:
    assert all(type(error) is kind for error in errors), errors
    return [str(error) for error in errors]


def test_all_ranks_see_the_same_slots_and_the_name_is_gone(store: FolderStore, shared: Path) -> None:
    made = areas(store, {"small": 40, "large": 10_000}, ranks=3, folder=shared, timeout_s=700)
    assert not files(shared)
    for window, nbytes in (("small", 40), ("large", 10_000)):
        placed = layout.WindowLayout(3, nbytes)
        assert {area.buffers[window].nbytes for area in made} == {placed.nbytes}
        for rank, area in enumerate(made):
            at = placed.slot(1, rank)
            area.buffers[window][at : at + nbytes] = rank + 1
            assert area.address(window) == area.buffers[window].ctypes.data
        for area in made:
            found = [int(area.buffers[window][placed.slot(1, rank) + nbytes - 1]) for rank in range(3)]
            assert found == [1, 2, 3]
    words = made[0].buffers["large"][: 3 * layout.RANK_LINE].view(np.uint32).reshape(3, -1)
    assert list(words[:, layout.GLOBAL_RANK // 4]) == [4, 5, 6]
    assert set(words[:, layout.STRIDE // 4]) == {layout.WindowLayout(3, 10_000).stride}
    assert set(words[:, layout.PATIENCE_MS // 4]) == {700_000}
    for area in made:
        area.close()


def test_a_round_is_written_for_this_rank_in_every_window(store: FolderStore) -> None:
    made = areas(store, {"first": 8, "second": 8})
    made[0].begin_round()
    made[0].end_round()
    made[0].begin_round()
    for window in ("first", "second"):
        words = made[1].buffers[window][: 2 * layout.RANK_LINE].view(np.uint32).reshape(2, -1)
        assert list(words[:, layout.ROUND // 4]) == [2, 0]


def test_only_this_user_may_open_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    try:
        shared = SharedFile.create(4096)
    finally:
        os.umask(before)
    try:
        assert stat.S_IMODE(shared.path.stat().st_mode) == 0o600
        shared.path.chmod(0o644)
        with pytest.raises(LaunchError, match=r"of user .* alone"):
            SharedFile.open(shared.path.name, 4096)
        shared.path.chmod(0o600)
        with pytest.raises(LaunchError, match="4096 bytes"):
            SharedFile.open(shared.path.name, 8192)
        monkeypatch.setattr(os, "getuid", lambda: shared.path.stat().st_uid + 1)
        with pytest.raises(LaunchError, match="found user"):
            SharedFile.open(shared.path.name, 4096)
    finally:
        shared.release_name()
        shared.close()
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(LaunchError, match="cannot be opened"):
        SharedFile.open("link", 4096, tmp_path)


def test_what_a_crash_leaves_is_swept_and_what_lives_stays(shared: Path) -> None:
    """A process that holds the lock of a file is started; a second file has no process any more."""
    program = """
import sys
from pathlib import Path
from superkernel.targets.ranks.shared_file import SharedFile
shared = SharedFile.create(4096, Path(sys.argv[1]))
print(shared.path.name, flush=True)
sys.stdin.readline()
"""
    command = [sys.executable, "-c", program, str(shared)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdin is not None and holder.stdout is not None
    living = holder.stdout.readline().strip()
    left = shared / f"superkernel-{os.getuid()}-leftofatest"
    left.touch(0o600)
    first = SharedFile.create(4096, shared)  # sweeps
    second = SharedFile.create(4096, shared)
    assert not left.exists() and (shared / living).exists() and first.path.exists()
    assert second.is_locked(0) is False
    for own in (first, second):
        own.release_name()
        own.close()
    holder.stdin.close()
    holder.wait(600)
    shared_file._sweep(shared)
    assert living not in files(shared)


def test_a_sweep_keeps_the_locks_of_a_file_whose_name_the_creator_has_not_yet_removed(tmp_path: Path) -> None:
    """A rank that goes on to the next area sweeps; closing a second descriptor of the first would release its lock."""
    program = """
import sys
from pathlib import Path
from superkernel.targets.ranks.shared_file import SharedFile
creator = SharedFile.create(4096, Path(sys.argv[1]))
print(creator.path.name, flush=True)
sys.stdin.readline()
print(creator.is_locked(1), flush=True)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as creator:
        assert creator.stdin is not None and creator.stdout is not None
        opened = SharedFile.open(creator.stdout.readline().strip(), 4096, tmp_path)
        opened.lock(1)
        opened.release_name()
        following = SharedFile.create(4096, tmp_path)
        creator.stdin.close()
        assert creator.stdout.readline() == "True\n"
    for shared in (opened, following):
        shared.release_name()
        shared.close()


DIFFERENT = {
    "shapes": (
        ["all_reduce sum of float32[8]"],
        ["all_reduce sum of float32[9]"],
        r"number 0 .*float32\[8\].*float32\[9\]",
    ),
    "dtypes": (["a", "all_gather of int32[8]"], ["a", "all_gather of int64[8]"], "number 1 .*int32.*int64"),
    "order": (["a", "b"], ["b", "a"], "number 0 is 'a' on rank 4 and 'b' on rank 5"),
    "graphs": (["a", "b"], ["a"], "rank 4 has 2 and rank 5 has 1; the first that one lacks is 'b'"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_different_collectives_are_refused_on_every_rank(store: FolderStore, shared: Path, what: str) -> None:
    *listings, pattern = DIFFERENT[what]

    def different(rank: int) -> SharedArea:
        listing = listings[rank]
        return make_area(rank, 2, store, {"w": 8}, digest=str(listing), listing=listing, folder=shared)

    errors = as_ranks(2, different)
    first, second = messages(errors)
    assert first == second and "Nothing was run" in first and "tp (4,5)" in first
    with pytest.raises(LaunchError, match=pattern):
        raise errors[0]
    assert not files(shared)


def test_ranks_without_common_memory_are_on_two_machines(store: FolderStore, tmp_path: Path) -> None:
    folders = (SHARED, tmp_path)
    if SHARED.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("the folder of tests is in shared memory")
    errors = as_ranks(2, lambda rank: make_area(rank, 2, store, {"w": 8}, folder=folders[rank]))
    assert all("collective across machines" in text for text in messages(errors, UnsupportedError))


@pytest.mark.parametrize("places", [(0,), (1,), (0, 1)])
def test_shared_memory_that_is_missing_is_an_error_on_every_rank(
    store: FolderStore, tmp_path: Path, places: tuple[int, ...]
) -> None:
    folders = [tmp_path / "missing" if rank in places else SHARED for rank in range(2)]
    errors = as_ranks(2, lambda rank: make_area(rank, 2, store, {"w": 8}, folder=folders[rank]))
    assert all("missing" in text and "Mount a tmpfs" in text for text in messages(errors))


def test_shared_memory_that_is_too_small_is_an_error_on_every_rank_before_anything_runs(
    store: FolderStore, shared: Path
) -> None:
    errors = as_ranks(2, lambda rank: make_area(rank, 2, store, {"w": 1 << 46}, folder=shared))
    assert all("no room" in text and "--shm-size" in text for text in messages(errors))
    assert not files(shared)


def test_a_store_that_cannot_be_reached_is_named() -> None:
    class Unreachable:
        def set(self, key: str, value: Any) -> None:
            raise RuntimeError("Broken pipe")

        get = check = set

    with pytest.raises(LaunchError, match=r"store of group tp \(4,5\) cannot be reached: Broken pipe"):
        make_area(0, 2, Unreachable(), {"w": 8})


def test_a_rank_that_never_comes_is_named_after_the_time_limit(store: FolderStore) -> None:
    with pytest.raises(LaunchError, match=r"rank 5 of group tp \(4,5\) did not come within 0.2 s"):
        make_area(0, 2, store, {"w": 8}, timeout_s=0.2)


def test_a_rank_that_has_died_while_the_others_wait_for_it_is_named(store: FolderStore) -> None:
    """It introduces itself and ends; the other does not wait for the time limit."""
    program = """
import os, sys
from pathlib import Path
from targets.cpu.ranks import rank_threads as ranks
from superkernel.targets.cpu.runtime.ranks.shared_area import SharedArea
SharedArea._open = lambda *arguments: os._exit(7)
ranks.make_area(1, 2, ranks.FolderStore(Path(sys.argv[1])), {"w": 8})
"""
    tests = Path(__file__).parents[3]
    paths = os.pathsep.join([str(tests.parent / "src"), str(tests)])
    environment = {**os.environ, "PYTHONPATH": paths}
    other = subprocess.Popen([sys.executable, "-c", program, str(store._folder)], env=environment)
    with pytest.raises(LaunchError, match=rf"rank 5 \(pid {other.pid}\) has ended"):
        make_area(0, 2, store, {"w": 8}, timeout_s=600)
    assert other.wait(600) == 7


def test_two_jobs_and_two_areas_of_a_group_do_not_meet(tmp_path: Path) -> None:
    """Two jobs have two stores and equal names; a job makes one area after the other."""
    first, second = (areas(FolderStore(tmp_path / f"job{job}"), {"w": 8}) for job in (0, 1))
    again = areas(FolderStore(tmp_path / "job0"), {"w": 8})
    for number, (left, right) in enumerate((first, second, again)):
        left.buffers["w"][-1] = number + 1
        assert right.buffers["w"][-1] == number + 1
    assert first[0].buffers["w"][-1] == 1


def test_after_a_failure_every_rank_refuses_and_quotes_it(store: FolderStore) -> None:
    made = areas(store, {"w": 8}, ranks=3)
    with pytest.raises(ZeroDivisionError), made[1].round():
        raise ZeroDivisionError
    words = made[0].buffers["w"][: 3 * layout.RANK_LINE].view(np.uint32).reshape(3, -1)
    assert list(words[:, layout.ARRIVED // 4]) == [0, layout.FAILED, 0]
    with pytest.raises(LaunchError, match="an earlier launch failed"):
        made[1].begin_round()
    with pytest.raises(LaunchError, match=r"rank 5 has failed: ZeroDivisionError in the middle of a launch. Create"):
        made[2].begin_round()


def test_a_launch_error_is_completed_with_what_the_other_rank_says(store: FolderStore) -> None:
    made = areas(store, {"w": 8})

    def stop() -> None:
        made[1].fail("its disk is full")
        raise LaunchError("op 'collect' waits for rank 5")

    with pytest.raises(LaunchError, match=r"op 'collect' waits for rank 5\n.*rank 5 has failed: its disk is full"):  # noqa: SIM117
        with made[0].round():
            stop()


def test_the_reason_of_a_failure_is_told_once_however_many_groups_a_launch_has(store: FolderStore) -> None:
    """Each group has an area; a rank of all of them quotes what another one has written."""
    made = [areas(store, {"w": 8}) for _ in range(3)]
    with pytest.raises(LaunchError) as raised, ExitStack() as rounds:
        for mine, _ in made:
            rounds.enter_context(mine.round())
        for _, other in made:
            other.fail("its disk is full")
        raise LaunchError("op 'collect' waits for rank 5")
    assert str(raised.value).count("its disk is full") == 1
    for _, other in made:
        with pytest.raises(LaunchError, match="its disk is full"):
            other.begin_round()
        assert other._records.reason(0) == "op 'collect' waits for rank 5"


def test_a_closed_area_a_destroyed_group_a_second_thread_and_a_fork_are_refused(store: FolderStore) -> None:
    exists = [True]
    made = as_ranks(2, lambda rank: make_area(rank, 2, store, {"w": 8}, group_exists=lambda: exists[0]))
    area = made[0]
    area.begin_round()
    refused = as_ranks(1, lambda _: area.begin_round())
    assert "another thread is in the middle of a round" in messages(refused)[0]
    area.end_round()
    thread = threading.Thread(target=lambda: (area.begin_round(), area.end_round()))  # one after the other is fine
    thread.start()
    thread.join()
    assert area.begin_round() == 3
    area.end_round()
    child = os.fork()
    if child == 0:
        try:
            area.begin_round()
        except LaunchError as error:
            os._exit(3 if "forked" in str(error) and "spawn" in str(error) else 4)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    exists[0] = False
    with pytest.raises(LaunchError, match="process group was destroyed"):
        area.begin_round()
    exists[0] = True
    area.close()
    with pytest.raises(LaunchError, match="was closed"):
        area.begin_round()


def test_slots_of_different_sizes_take_the_largest(store: FolderStore) -> None:
    sizes = (100, 5000)
    made = as_ranks(2, lambda rank: make_area(rank, 2, store, {"w": sizes[rank]}))
    assert {area.buffers["w"].nbytes for area in made} == {layout.WindowLayout(2, 5000).nbytes}


def test_the_stores_of_torch_serve() -> None:
    """TCPStore as torchrun has it; when its server has gone, the error says so."""
    distributed = pytest.importorskip("torch.distributed")
    from datetime import timedelta

    server = distributed.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    client = distributed.TCPStore("127.0.0.1", server.port, 2, is_master=False, timeout=timedelta(seconds=600))
    stores = [distributed.PrefixStore("group", each) for each in (server, client)]
    made = as_ranks(2, lambda rank: make_area(rank, 2, stores[rank], {"w": 8}))
    made[0].buffers["w"][-1] = 9
    assert made[1].buffers["w"][-1] == 9
    del server, stores[0]
    with pytest.raises(LaunchError, match=r"store of group .* cannot be reached"):
        make_area(1, 2, client, {"w": 8}, timeout_s=600)


def test_group_of_numbers_its_ranks() -> None:
    assert group_of(1, 3).global_rank == 5
