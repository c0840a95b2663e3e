"""cache: entries appear whole or not at all under concurrent builds, and only their owner can read them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import superkernel
from superkernel.cache import Cache, default_directory, digest
from superkernel.errors import BuildError

KEY = digest("a key")


def write(text: str):
    return lambda path: path.write_text(text)


def files(cache: Cache) -> list[Path]:
    return [path for path in cache.directory.rglob("*") if path.is_file()]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def test_a_key_is_built_once_and_then_served(cache: Cache) -> None:
    first = cache.make(KEY, ".o", write("one"))
    assert first == cache.make(KEY, ".o", write("two")) == cache.path(KEY, ".o") == cache.get(KEY, ".o")
    assert first.read_text() == "one"
    assert (cache.hits, cache.misses) == (2, 1)


def test_another_cache_on_the_same_directory_finds_the_entry(cache: Cache) -> None:
    entry = cache.make(KEY, ".o", write("one"))
    assert Cache(cache.directory).get(KEY, ".o") == entry


def test_keys_and_suffixes_are_kept_apart(cache: Cache) -> None:
    paths = {
        cache.make(key, suffix, write(key + suffix)) for key in (KEY, "any words", "../up") for suffix in (".o", "")
    }
    assert len(paths) == 6
    assert all(cache.directory in path.resolve().parents for path in paths)
    assert cache.get(digest("nothing"), ".o") is None


@pytest.mark.parametrize("suffix", ["o", "/x", ".o/../x", ".sha256"])
def test_a_suffix_that_could_leave_the_directory_is_refused(cache: Cache, suffix: str) -> None:
    with pytest.raises(ValueError, match="suffix"):
        cache.path(KEY, suffix)


@pytest.mark.parametrize(
    "damage", [lambda p: p.write_bytes(b""), lambda p: p.write_text("on"), lambda p: p.write_text("xyz")]
)
def test_a_damaged_entry_is_built_again_and_not_served(cache: Cache, damage) -> None:
    damage(cache.make(KEY, ".o", write("one")))
    assert cache.get(KEY, ".o") is None
    assert cache.make(KEY, ".o", write("new")).read_text() == "new"
    assert cache.get(KEY, ".o") is not None


def test_an_empty_leftover_counts_as_missing(cache: Cache) -> None:
    leftover = cache.path(KEY, ".o")
    leftover.parent.mkdir()
    leftover.touch()
    assert cache.get(KEY, ".o") is None
    assert cache.make(KEY, ".o", write("one")).read_text() == "one"


def test_a_failed_build_leaves_nothing_and_its_error_passes_through(cache: Cache) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise BuildError("no luck")

    with pytest.raises(BuildError, match="no luck"):
        cache.make(KEY, ".o", fail)
    assert files(cache) == []
    assert cache.make(KEY, ".o", write("one")).read_text() == "one"


@pytest.mark.parametrize("build", [lambda path: None, lambda path: path.unlink()])
def test_a_build_that_writes_nothing_is_an_error(cache: Cache, build) -> None:
    with pytest.raises(BuildError, match="wrote nothing"):
        cache.make(KEY, ".o", build)
    assert files(cache) == []


def test_a_full_disk_is_a_build_error_that_says_what_to_do(cache: Cache) -> None:
    def fill(path: Path) -> None:
        Path("/dev/full").write_text("x")  # the device that is always full

    with pytest.raises(BuildError, match=r"No space left.*SUPERKERNEL_CACHE"):
        cache.make(KEY, ".o", fill)
    assert files(cache) == []


def test_a_directory_that_cannot_be_written_is_a_build_error(cache: Cache) -> None:
    cache.path(KEY, ".o").parent.touch()  # a file where a directory should be: fails for root as well
    with pytest.raises(BuildError, match="SUPERKERNEL_CACHE"):
        cache.make(KEY, ".o", write("one"))


def test_the_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    new, loose = tmp_path / "deep" / "new", tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    for directory in (new, loose):
        entry = Cache(directory).make(KEY, ".o", write("one"))
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert stat.S_IMODE(entry.parent.stat().st_mode) == 0o700


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other_user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other_user)
    with pytest.raises(BuildError, match=r"another user.*SUPERKERNEL_CACHE"):
        Cache(tmp_path)


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match=r"cannot create.*SUPERKERNEL_CACHE"):
        Cache(tmp_path / "file")


def test_the_directory_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("SUPERKERNEL_CACHE", str(tmp_path / "own"))
    assert default_directory() == tmp_path / "own"
    monkeypatch.delenv("SUPERKERNEL_CACHE")
    assert default_directory() == tmp_path / "xdg" / "superkernel"
    for unusable in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert default_directory() == tmp_path / "home" / ".cache" / "superkernel"


def test_threads_that_want_one_key_build_it_once(cache: Cache) -> None:
    builds: list[int] = []
    all_started = threading.Barrier(8)

    def build(path: Path) -> None:
        builds.append(1)
        path.write_text("one")

    def work() -> None:
        all_started.wait()
        cache.make(KEY, ".o", build)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert (cache.hits, cache.misses) == (7, 1)


BUILDER = """
import sys
from superkernel.cache import Cache
def build(path):
    path.write_text(sys.argv[3] * 100000)
    print("building", flush=True)
    sys.stdin.readline()
print(Cache(sys.argv[1]).make(sys.argv[2], ".o", build))
"""


def test_two_processes_that_build_one_key_at_once_both_get_a_whole_entry(cache: Cache) -> None:
    source = str(Path(superkernel.__path__[0]).parent)
    builders = [
        subprocess.Popen(
            [sys.executable, "-c", BUILDER, str(cache.directory), KEY, "same contents "],
            env={**os.environ, "PYTHONPATH": source},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for builder in builders:
        assert builder.stdout is not None
        assert builder.stdout.readline() == "building\n"
    for builder in builders:
        printed, _ = builder.communicate("go on\n")
        assert builder.returncode == 0
        assert Path(printed.strip()).read_text() == "same contents " * 100000
    assert cache.get(KEY, ".o") is not None
    assert cache.info().entries == 1


def test_clear_removes_our_entries_and_nothing_else(cache: Cache) -> None:
    sizes = [len(cache.make(digest(str(n)), ".o", write("x" * (n + 1))).read_text()) for n in range(5)]
    foreign = [cache.directory / "notes.txt", cache.path(KEY, ".o").parent / "notes.txt"]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    assert (cache.info().directory, cache.info().entries, cache.info().bytes) == (cache.directory, 5, sum(sizes))
    assert cache.clear() == 5
    assert sorted(files(cache)) == sorted(foreign)
    assert (cache.info().entries, cache.info().bytes) == (0, 0)
    assert cache.clear() == 0


def test_clear_spares_a_build_in_progress_and_removes_an_abandoned_one(cache: Cache) -> None:
    def build(path: Path) -> None:
        abandoned = path.with_name("unfinished-crashed.o")
        abandoned.touch()
        os.utime(abandoned, (time.time() - 7200,) * 2)
        assert cache.clear() == 0
        assert not abandoned.exists()
        path.write_text("one")

    assert cache.make(KEY, ".o", build).read_text() == "one"


def test_clear_and_listing_survive_a_directory_that_is_gone(cache: Cache) -> None:
    cache.make(KEY, ".o", write("one"))
    for path in (*files(cache), cache.path(KEY, ".o").parent, cache.directory):
        path.unlink() if path.is_file() else path.rmdir()
    assert cache.info().entries == cache.clear() == 0
    assert cache.make(KEY, ".o", write("two")).read_text() == "two"
    assert stat.S_IMODE(cache.directory.stat().st_mode) == 0o700


@given(st.lists(st.text() | st.binary()), st.lists(st.text() | st.binary()))
def test_digests_are_equal_only_for_equal_parts(left: list[str | bytes], right: list[str | bytes]) -> None:
    def encoded(parts: list[str | bytes]) -> list[bytes]:
        return [part.encode() if isinstance(part, str) else part for part in parts]

    assert (digest(*left) == digest(*right)) == (encoded(left) == encoded(right))


def test_the_digest_knows_where_a_part_ends() -> None:
    assert digest("ab", "c") != digest("a", "bc") != digest("abc")
