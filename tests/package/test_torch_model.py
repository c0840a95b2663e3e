"""Packages that need torch: their entries are called like others, with a stand-in for AOTInductor's code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import superkernel as sk  # noqa: E402
from superkernel.errors import BuildError, LaunchError, UnsupportedError  # noqa: E402
from superkernel.package.manifest import Manifest, PackagedEntry, PackagedShape, PackagedTensor  # noqa: E402
from superkernel.package.writer import PackageContents, write_package  # noqa: E402

X = np.arange(4, dtype=np.float32)


def tensor(name: str) -> PackagedTensor:
    return PackagedTensor(name, "float32", (4,))


def write(folder: Path, *files: str) -> Path:
    shape = PackagedShape((tensor("x"), tensor("y")), (tensor("sum"), tensor("product")), None, 0, (), ())
    manifest = Manifest("both", "0.1.0", (PackagedEntry("both", (shape,)),), needs_torch="_fft_r2c calls torch")

    def add(package: Path) -> None:
        (package / "torch").mkdir()
        for file in files:
            (package / "torch" / file).write_bytes(b"code")

    return write_package(folder / "both.sk", PackageContents(manifest, {}, add_files=add))


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def load(path: str) -> Any:
        assert Path(path).read_bytes() == b"code"
        return lambda x, y: {"sum": x + y, "product": [x * y]}

    monkeypatch.setattr(torch._inductor, "aoti_load_package", load)
    return sk.load_model(write(tmp_path, "both.pt2"))


def test_calls(loaded: Any) -> None:
    read_only = X.copy()
    read_only.flags.writeable = False
    for call in (loaded, loaded.both, lambda *values: loaded.submit(*values).result(600)):
        added, product = call(X, read_only)
        assert type(added) is np.ndarray
        np.testing.assert_array_equal(added, X + X)
        np.testing.assert_array_equal(product, X * X)
    added, _ = loaded(torch.from_numpy(X), y=X)
    assert isinstance(added, torch.Tensor)
    assert loaded.entries["both"].inputs[1].name == "y" and loaded.description.name == "both"
    assert pickle.loads(pickle.dumps(loaded))(X, X)[0].tolist() == [0, 2, 4, 6]


def test_refusals(loaded: Any) -> None:
    for error, message, use in (
        (LaunchError, "'y' was not passed", lambda: loaded(X)),
        (LaunchError, r"'x' has shape \[2\], the model takes \[4\]", lambda: loaded(X[:2], X)),
        (LaunchError, "'x' has dtype float64", lambda: loaded(X.astype(float), X)),
        (LaunchError, r"no entry 'bot' \(did you mean 'both'\?\)", lambda: loaded.bot(X)),
        (UnsupportedError, "out= is not possible", lambda: loaded(X, X, out=X)),
        (UnsupportedError, "no access to states and contexts", loaded.reset),
        (UnsupportedError, "no access to states and contexts", loaded.new_context),
    ):
        with pytest.raises(error, match=message):
            use()
    loaded.close()
    with pytest.raises(LaunchError, match="is closed"):
        loaded(X, X)


def test_code_that_is_missing_or_changed(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"torch/both\.pt2 is missing"):
        sk.load_model(write(tmp_path / "missing", "other.pt2"))
    package = write(tmp_path / "changed", "both.pt2")
    (package / "torch" / "both.pt2").write_bytes(b"odec")
    with pytest.raises(BuildError, match=r"both\.pt2 was changed: its SHA-256 is"):
        sk.load_model(package)
    package = write(tmp_path / "other", "both.pt2")
    with pytest.raises(BuildError, match="cannot load the package"):
        sk.load_model(package)
