"""observe.store: large files are compressed, and read back as they were."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from observe.report import samples

from superkernel.errors import OptionError
from superkernel.observe import store
from superkernel.observe.profile import Profile
from superkernel.observe.timeline import merge_files, trace, trace_pieces


def test_a_large_profile_is_compressed_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = samples.many_spans(2000).runs[0].profile
    plain = store.write(tmp_path, profile)
    assert {"trace.json", "profile.json"} <= set(plain)
    size = (tmp_path / "trace.json").stat().st_size
    monkeypatch.setattr(store, "LARGE", 10_000)
    names = store.write(tmp_path, profile)
    assert {"trace.json.gz", "profile.json.gz", "op_statistic.csv"} <= set(names)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)  # the uncompressed ones are gone
    assert (tmp_path / "trace.json.gz").stat().st_size < size / 4
    assert store.read(tmp_path) == profile
    assert json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes())) == json.loads(
        json.dumps(trace(profile))
    )
    (tmp_path / "torch.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}'))
    both = merge_files(tmp_path, tmp_path / "torch.json.gz", tmp_path / "both.json.gz")
    assert len(json.loads(gzip.decompress(both.read_bytes()))["traceEvents"]) == len(trace(profile)["traceEvents"])
    (tmp_path / "profile.json.gz").write_bytes((tmp_path / "profile.json.gz").read_bytes()[:-200])
    with pytest.raises(OptionError, match="cannot be read"):
        store.read(tmp_path)
    monkeypatch.undo()
    store.write(tmp_path, Profile())
    assert not list(tmp_path.glob("*.csv.gz")) and store.read(tmp_path) == Profile()


def test_the_trace_in_pieces_is_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("superkernel.observe.timeline._PIECE", 7)
    for profile in (samples.after().profile, Profile()):
        assert json.loads("".join(trace_pieces(profile))) == json.loads(json.dumps(trace(profile)))
