"""Ranks of a process group meet: the same token on all, also where an earlier group has left its words in the store."""

from __future__ import annotations

from pathlib import Path

import pytest
from targets.cpu.ranks.rank_threads import FolderStore, as_ranks, group_of, make_area

from superkernel.errors import LaunchError
from superkernel.targets.ranks import process_identity
from superkernel.targets.ranks.process_identity import ProcessIdentity
from superkernel.targets.ranks.rank_session import RankSession, meet


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def sessions(store: FolderStore, ranks: int = 2) -> list[RankSession]:
    return as_ranks(ranks, lambda rank: meet(store, group_of(rank, ranks), 600))


def test_a_group_that_follows_another_of_its_name_has_another_token(store: FolderStore) -> None:
    tokens = [{session.token for session in sessions(store, 3)} for _ in range(3)]
    assert all(len(each) == 1 for each in tokens) and len(set.union(*tokens)) == 3


def test_areas_of_an_earlier_group_are_not_found(store: FolderStore) -> None:
    """One rank has counted further than the other when the first group ends."""
    first = sessions(store)
    as_ranks(2, lambda rank: make_area(rank, 2, store, {"w": 8}, session=first[rank]))
    with pytest.raises(LaunchError, match="did not come"):
        make_area(0, 2, store, {"w": 8}, session=first[0], timeout_s=0.1)
    second = sessions(store)
    made = as_ranks(2, lambda rank: make_area(rank, 2, store, {"w": 8}, session=second[rank]))
    made[0].buffers["w"][-1] = 7
    assert made[1].buffers["w"][-1] == 7


def test_a_rank_that_comes_too_late_joins_the_next_attempt(store: FolderStore) -> None:
    met = sessions(store)
    with pytest.raises(LaunchError, match=r"rank 5 of group .* did not come within 0.1 s"):
        make_area(0, 2, store, {"w": 8}, session=met[0], timeout_s=0.1)
    made = as_ranks(2, lambda rank: make_area(rank, 2, store, {"w": 8}, session=met[rank]))
    made[0].buffers["w"][-1] = 7
    assert made[1].buffers["w"][-1] == 7


def test_a_rank_that_does_not_meet_the_others_is_named(store: FolderStore) -> None:
    sessions(store)
    with pytest.raises(LaunchError, match=r"rank 5 of group .* did not come within 0.1 s"):
        meet(store, group_of(0, 2), 0.1)


def test_a_rank_without_shared_memory_is_an_error_on_all(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def missing_for_the_first() -> str:
        asked.append(1)
        if len(asked) == 1:
            raise LaunchError("shared memory between ranks: none. Mount a tmpfs")
        return "host"

    monkeypatch.setattr(process_identity, "host_id", missing_for_the_first)

    def meeting(rank: int) -> str:
        with pytest.raises(LaunchError) as raised:
            meet(store, group_of(rank, 2), 600)
        return str(raised.value)

    first, second = as_ranks(2, meeting)
    assert first == second and "rank " in first and "Mount a tmpfs" in first


def test_a_process_of_another_machine_is_never_taken_for_ended() -> None:
    here = ProcessIdentity.current()
    assert ProcessIdentity(2**22 + 1, "1", here.namespace).has_ended()
    assert not ProcessIdentity(2**22 + 1, "1", f"another-boot:{here.namespace.partition(':')[2]}").has_ended()
