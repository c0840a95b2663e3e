"""torch.compiler.save_cache_artifacts carries our cache: with an empty cache, a loaded model compiles nothing."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from caches import with_host_library
from frontend.fused import await_builds

torch = pytest.importorskip("torch")

from torch.compiler._cache import CacheArtifactManager  # noqa: E402

import superkernel as sk  # noqa: E402
from superkernel.cache import Cache, split_name, totals  # noqa: E402
from superkernel.cache.cache import _in_use  # noqa: E402
from superkernel.frontend import cache_artifacts  # noqa: E402
from superkernel.frontend.cache_artifacts import CacheEntryArtifact  # noqa: E402


@pytest.fixture(autouse=True)
def alone() -> None:
    await_builds()


def model(x: torch.Tensor) -> torch.Tensor:
    with sk.super_kernel("sums"):
        return (x.relu() + 1).cumsum(0)


def compiled() -> torch.Tensor:
    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(model, backend="superkernel", options={"profit_gate": 0})(torch.ones(8, 8))


def test_a_model_is_found_in_another_cache(tmp_path: Path) -> None:
    with CacheArtifactManager.with_fresh_cache():
        with sk.config.patch(cache=with_host_library(tmp_path / "first")):
            expected = compiled()
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None
        data, info = saved
    entries = info.artifacts[cache_artifacts.TYPE]
    assert any(name.endswith(".so") for name in entries) and all(map(split_name, entries))
    with sk.config.patch(cache=tmp_path / "second"):
        before = totals["misses"]
        loaded = torch.compiler.load_cache_artifacts(data)
        assert loaded is not None and set(loaded.artifacts[cache_artifacts.TYPE]) == set(entries)
        assert torch.equal(compiled(), expected)
        assert totals["misses"] == before
        assert all(Cache().get(*name) for name in map(split_name, entries) if name)


def test_an_entry_that_is_there_stays_and_a_damaged_one_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = "0" * 64
    with sk.config.patch(cache=tmp_path):
        Cache().make(key, ".txt", lambda path: path.write_text("here"))
        content = CacheEntryArtifact.encode(_sealed(b"other"))
        CacheEntryArtifact(f"{key}.txt", content).populate_cache()
        assert Cache().read_text(key, ".txt") == "here"
        with caplog.at_level(logging.WARNING, "superkernel"):
            CacheEntryArtifact(f"{'1' * 64}.txt", content[:-1]).populate_cache()
            CacheEntryArtifact("../../1.txt", content).populate_cache()
        assert caplog.text.count("is damaged and was left out") == 2
        assert Cache().info().entries == 1


def test_entries_of_any_size_but_precompiled_headers_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_artifacts, "MOST_BYTES", 4)
    with CacheArtifactManager.with_fresh_cache(), sk.config.patch(cache=tmp_path):
        for text in ("four", "seven77"):
            entry = Cache().make(
                text.encode().hex().rjust(64, "0"), ".txt", lambda path, text=text: path.write_text(text)
            )
            assert entry in _in_use
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None and len(saved[1].artifacts[cache_artifacts.TYPE]) == 1


def _sealed(contents: bytes) -> bytes:
    import hashlib

    return hashlib.sha256(contents).digest() + contents
