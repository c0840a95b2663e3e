"""cache: what another user owns or could write is built again, never served; a read-only cache serves what it has."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from superkernel.cache import Cache, cache_in, default_directory, digest
from superkernel.errors import BuildError

KEY, OTHER_KEY = digest("a key"), digest("another key")
ANOTHER_USER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


def write(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


def plant(directory: Path, key: str = KEY, text: str = "planted") -> Path:
    """A well-sealed entry, written without the cache."""
    entry = directory / key[:2] / f"{key}.o"
    entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    entry.write_text(text)
    seal = Path(f"{entry}.sha256")
    seal.write_text(hashlib.sha256(text.encode()).hexdigest())
    for path in (entry, seal):
        path.chmod(0o600)
    return entry


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def rebuilt(cache: Cache) -> None:
    """The planted entry is not served; what is built instead is, and is private."""
    assert cache.get(KEY, ".o") is None
    entry = cache.make(KEY, ".o", write("built"))
    assert entry.read_text() == "built" and not entry.is_symlink() and entry == cache.get(KEY, ".o")
    for path in (entry, Path(f"{entry}.sha256"), entry.parent, cache.directory):
        assert path.stat().st_uid == os.geteuid() and not stat.S_IMODE(path.stat().st_mode) & 0o077


def test_an_entry_that_only_its_owner_can_have_written_is_served(cache: Cache) -> None:
    assert cache.get(KEY, ".o") is None
    entry = plant(cache.directory)
    assert cache.get(KEY, ".o") == entry


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
@pytest.mark.parametrize("which", ["entry", "seal"])
def test_a_file_that_others_can_write_is_built_again(cache: Cache, mode: int, which: str) -> None:
    entry = plant(cache.directory)
    (entry if which == "entry" else Path(f"{entry}.sha256")).chmod(mode)
    rebuilt(cache)


@as_root
@pytest.mark.parametrize("which", ["entry", "seal", "shard"])
def test_what_another_user_owns_is_built_again(cache: Cache, which: str) -> None:
    entry = plant(cache.directory)
    os.chown({"entry": entry, "seal": Path(f"{entry}.sha256"), "shard": entry.parent}[which], ANOTHER_USER, -1)
    rebuilt(cache)


@pytest.mark.parametrize("which", ["entry", "seal", "shard"])
def test_a_link_is_not_followed(cache: Cache, tmp_path: Path, which: str) -> None:
    entry = plant(cache.directory)
    path = {"entry": entry, "seal": Path(f"{entry}.sha256"), "shard": entry.parent}[which]
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    rebuilt(cache)
    assert elsewhere.exists()


@pytest.mark.parametrize("which", ["entry", "seal"])
def test_what_is_no_file_is_not_read(cache: Cache, which: str) -> None:
    entry = plant(cache.directory)
    path = entry if which == "entry" else Path(f"{entry}.sha256")
    path.unlink()
    os.mkfifo(path, 0o600)
    rebuilt(cache)


def test_a_shard_that_others_can_write_is_emptied(cache: Cache) -> None:
    entry = plant(cache.directory)
    neighbour = plant(cache.directory, KEY[:2] + OTHER_KEY[2:])
    entry.parent.chmod(0o777)
    rebuilt(cache)
    assert not neighbour.exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_directory_that_others_could_write_holds_nothing_that_is_trusted(tmp_path: Path, mode: int) -> None:
    entry = plant(tmp_path / "cache")
    (tmp_path / "cache" / "notes.txt").write_text("mine")
    (tmp_path / "cache").chmod(mode)
    cache = Cache(tmp_path / "cache")
    assert not entry.exists()
    rebuilt(cache)
    assert (tmp_path / "cache" / "notes.txt").read_text() == "mine"


def test_a_directory_that_becomes_writable_for_others_is_not_read_any_more(cache: Cache) -> None:
    entry = cache.make(KEY, ".o", write("one"))
    cache.directory.chmod(0o777)
    assert cache.get(KEY, ".o") is None
    assert cache.make(KEY, ".o", write("two")) == entry and entry.read_text() == "two"


def test_a_directory_that_others_can_read_keeps_its_entries(cache: Cache) -> None:
    entry = cache.make(KEY, ".o", write("one"))
    cache.directory.chmod(0o755)
    assert Cache(cache.directory).get(KEY, ".o") == entry
    assert stat.S_IMODE(cache.directory.stat().st_mode) == 0o700


def test_a_directory_for_all_users_is_refused_and_left_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(BuildError, match=r"all users.*SUPERKERNEL_CACHE"):
        Cache(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777


def test_entries_are_private_under_any_umask(cache: Cache) -> None:
    before = os.umask(0)
    try:

        def build(path: Path) -> None:
            path.unlink()  # as linkers do
            path.write_text("one")

        entry = cache.make(KEY, ".o", build)
    finally:
        os.umask(before)
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    assert cache.get(KEY, ".o") == entry


# --- read-only


def listing(directory: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_mtime_ns for path in [directory, *directory.rglob("*")]}


@pytest.fixture
def read_only(tmp_path: Path) -> Path:
    directory = tmp_path / "read_only"
    cache = Cache(directory)
    cache.make(KEY, ".o", write("kept"))
    shard = cache.path(KEY, ".o").parent
    for folder in (shard, directory):
        folder.chmod(0o555)
    return directory


def test_a_read_only_cache_serves_what_it_has_and_is_not_written(read_only: Path) -> None:
    before = listing(read_only)
    cache = Cache(read_only)
    assert cache.make(KEY, ".o", write("new")).read_text() == "kept"
    cache.write_text(OTHER_KEY, ".txt", "text")
    assert listing(read_only) == before
    assert stat.S_IMODE(read_only.stat().st_mode) == 0o555


def test_what_a_read_only_cache_lacks_is_built_elsewhere_and_said_once(
    read_only: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = listing(read_only)
    with caplog.at_level(logging.WARNING, "superkernel"):
        made = [Cache(read_only).make(key, ".o", write(key)) for key in (OTHER_KEY, digest("third"), OTHER_KEY)]
    assert made[0] == made[2] and made[0].read_text() == OTHER_KEY
    assert read_only not in made[0].parents
    assert Cache(read_only).get(OTHER_KEY, ".o") == made[0]
    assert stat.S_IMODE(made[0].parents[1].stat().st_mode) == 0o700
    (message,) = caplog.messages
    assert str(read_only) in message and "SUPERKERNEL_CACHE" in message
    assert listing(read_only) == before


def test_a_read_only_cache_that_others_can_write_serves_nothing(
    read_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_only.chmod(0o777)
    monkeypatch.setattr(os, "access", lambda *_: False)  # as on a file system that is mounted read-only
    assert Cache(read_only).get(KEY, ".o") is None


@as_root
def test_a_read_only_cache_of_root_serves_every_user(read_only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: ANOTHER_USER)
    assert Cache(read_only).get(KEY, ".o") is not None


# --- paths


@pytest.mark.parametrize(
    "path",
    ["/tmp/\udcff/cache", "/tmp/a\0b", 5, b"/tmp/x", object()],
    ids=["not UTF-8", "NUL", "int", "bytes", "object"],
)
def test_a_directory_that_is_no_usable_path_is_refused(path: object) -> None:
    with pytest.raises(BuildError, match=r"cache directory.*SUPERKERNEL_CACHE"):
        Cache(path)  # type: ignore[arg-type]
    with pytest.raises(BuildError, match="cache directory"), cache_in(path):  # type: ignore[arg-type]
        pass


def test_a_directory_of_the_environment_that_is_not_utf8_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environb, b"SUPERKERNEL_CACHE", bytes(tmp_path) + b"/\xff")
    with pytest.raises(BuildError, match="not UTF-8"):
        default_directory()
