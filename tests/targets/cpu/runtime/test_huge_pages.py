"""Memory that launches read often gets huge pages: its contents stay, and whatever is refused is no error."""

import ctypes
import mmap
from pathlib import Path

import pytest

from superkernel.targets.cpu.runtime import huge_pages as pages
from superkernel.targets.cpu.runtime.huge_pages import HUGE, settle, well_covered


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], []),
        ([(HUGE, HUGE)], [HUGE]),
        ([(HUGE, HUGE // 2)], [HUGE]),
        ([(HUGE, HUGE // 2 - 1)], []),
        ([(HUGE, HUGE // 4), (HUGE + HUGE // 2, HUGE // 4)], [HUGE]),
        ([(HUGE, HUGE // 4)] * 2, []),  # the same memory twice covers no more
        ([(HUGE + HUGE // 2, HUGE)], [HUGE, 2 * HUGE]),
        ([(HUGE + 4096, 3 * HUGE)], [HUGE, 2 * HUGE, 3 * HUGE]),
        ([(HUGE, 0)], []),
    ],
)
def test_pages_of_which_half_is_used_are_worth_it(spans: list[tuple[int, int]], expected: list[int]) -> None:
    assert well_covered(spans) == expected


SIZE = 8 << 20


@pytest.fixture
def memory() -> ctypes.Array[ctypes.c_ubyte]:
    """8 MB that have contents."""
    room = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.write(bytes(range(256)) * (SIZE // 256))
    return (ctypes.c_ubyte * SIZE).from_buffer(room)  # which keeps the room


def huge_kilobytes() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("AnonHugePages:")).split()[1])


def test_contents_stay_and_as_many_pages_as_it_says_are_huge(memory: ctypes.Array[ctypes.c_ubyte]) -> None:
    before = huge_kilobytes()
    made = settle([(ctypes.addressof(memory), SIZE)])
    assert bytes(memory) == bytes(range(256)) * (SIZE // 256)
    assert 0 <= made <= SIZE // HUGE + 1
    if before == 0:  # a system that gives huge pages unasked has nothing left to do
        assert huge_kilobytes() == made * (HUGE >> 10)


def test_little_memory_is_left_alone(memory: ctypes.Array[ctypes.c_ubyte], asked: list[int]) -> None:
    assert settle([(ctypes.addressof(memory), HUGE - 1)]) == 0
    assert asked == []


def test_the_switch(memory: ctypes.Array[ctypes.c_ubyte], asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPERKERNEL_HUGE_PAGES", "0")
    assert settle([(ctypes.addressof(memory), SIZE)]) == 0
    assert asked == []
    monkeypatch.setenv("SUPERKERNEL_HUGE_PAGES", "1")
    settle([(ctypes.addressof(memory), SIZE)])
    assert asked == well_covered([(ctypes.addressof(memory), SIZE)])


def test_memory_that_is_not_there_is_refused_by_the_system_and_no_error() -> None:
    assert settle([(64 * HUGE, 4 * HUGE)]) == 0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pages that the system is asked for."""
    found: list[int] = []

    def advise(address: int, size: int, advice: int) -> int:
        assert (size, advice) == (HUGE, 25)
        found.append(address)
        return 0

    monkeypatch.setattr(pages, "_madvise", lambda: advise)
    return found
