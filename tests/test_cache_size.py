"""cache: it keeps to its size limit, least recently used entries first; what dead builds left is swept."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from superkernel.cache import Cache, cache, digest
from superkernel.cache.files import unfinished_name
from superkernel.errors import OptionError

KEYS = [digest(str(number)) for number in range(10)]
LIMIT = "SUPERKERNEL_CACHE_LIMIT"


def write(size: int) -> Callable[[Path], object]:
    return lambda path: path.write_text("x" * size)


def entries(store: Cache) -> list[int]:
    """The numbers of the keys that are there; looking does not count as a use."""
    return [number for number, key in enumerate(KEYS) if store.path(key, ".o").exists()]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """As of a process that begins: it uses no entry, and has not looked at the size."""
    for name in ("_in_use", "_sizes"):
        monkeypatch.setattr(cache, name, type(getattr(cache, name))())
    return Cache(tmp_path / "cache")


def fill(store: Cache, numbers: range, size: int = 1000) -> None:
    """Entries of an earlier process, used in this order."""
    for number in numbers:
        entry = store.make(KEYS[number], ".o", write(size))
        os.utime(entry, (1000.0 + number, 1000.0))
    cache._in_use.clear()
    cache._sizes.clear()


def total(store: Cache) -> int:
    return sum(path.stat().st_size for path in store.directory.rglob("*") if path.is_file())


def test_the_least_recently_used_entries_go_first(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, range(6))
    assert store.get(KEYS[0], ".o") is not None  # a use: now the most recent
    cache._in_use.clear()
    monkeypatch.setenv(LIMIT, "4K")
    store.make(KEYS[6], ".o", write(1000))
    assert entries(store) == [0, 5, 6]
    assert total(store) <= 4096
    assert len(list(store.directory.glob("*/*.sha256"))) == 3


def test_entries_that_this_process_uses_stay(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, range(3))
    assert store.get(KEYS[0], ".o") is not None
    os.utime(store.path(KEYS[0], ".o"), (1.0, 1.0))
    monkeypatch.setenv(LIMIT, "1K")
    for number in (3, 4):
        store.make(KEYS[number], ".o", write(1000))
    assert entries(store) == [0, 3, 4]


def test_entries_that_another_process_has_just_used_stay(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, range(4))
    os.utime(store.path(KEYS[0], ".o"))
    monkeypatch.setenv(LIMIT, "1K")
    store.make(KEYS[4], ".o", write(1000))
    assert entries(store) == [0, 4]


def test_a_process_that_builds_much_looks_again(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, "5K")
    for number in range(8):
        os.utime(store.make(KEYS[number], ".o", write(1000)), (1000.0 + number, 1000.0))
        cache._in_use.clear()
        assert total(store) <= 5 * 1024
    assert entries(store) == [4, 5, 6, 7]


def test_a_library_that_is_loaded_may_be_evicted(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    def build(path: Path) -> None:
        command = ["g++", "-x", "c", "-shared", "-fPIC", "-o", str(path), "-"]
        subprocess.run(command, input=b"int answer(void) { return 42; }", check=True)

    entry = store.make(KEYS[0], ".o", build)
    library = ctypes.CDLL(str(entry))
    os.utime(entry, (1000.0, 1000.0))
    cache._in_use.clear()
    monkeypatch.setenv(LIMIT, "1K")
    store.make(KEYS[1], ".o", write(100))
    assert entries(store) == [1]
    assert library.answer() == 42


def test_no_limit(store: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT, "0")
    fill(store, range(3))
    store.make(KEYS[3], ".o", write(10))
    assert entries(store) == [0, 1, 2, 3]
    assert store.info().limit is None


@pytest.mark.parametrize(
    ("text", "size"), [("", 8 * 2**30), ("123", 123), ("2k", 2048), ("3M", 3 * 2**20), ("1G", 2**30), ("1T", 2**40)]
)
def test_sizes(store: Cache, monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    monkeypatch.setenv(LIMIT, text)
    assert store.info().limit == size


@pytest.mark.parametrize("text", ["-1", "1.5G", "lots", "1 GB", "G", "9" * 40])
def test_what_is_no_size(store: Cache, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(LIMIT, text)
    with pytest.raises(OptionError, match=r"SUPERKERNEL_CACHE_LIMIT.*2G"):
        store.info()


def test_unfinished_files_of_dead_processes_are_swept(store: Cache) -> None:
    shard = store.make(KEYS[0], ".o", write(10)).parent
    command = [
        sys.executable,
        "-c",
        "from superkernel.cache.files import unfinished_name; print(unfinished_name('.o'))",
    ]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, check=True
    )
    of_dead, of_living = shard / done.stdout.decode().strip(), shard / unfinished_name(".o")
    of_elsewhere, of_long_ago = shard / "unfinished-00000000-1-abc.o", shard / "unfinished-00000000-1-old.o"
    for path in (of_dead, of_living, of_elsewhere, of_long_ago):
        path.write_text("half")
    os.utime(of_long_ago, (time.time() - 7200,) * 2)
    cache._sizes.clear()
    store.make(KEYS[1], ".o", write(10))
    assert sorted(shard.glob("unfinished-*")) == sorted([of_living, of_elsewhere])
    assert entries(store) == [0, 1]
