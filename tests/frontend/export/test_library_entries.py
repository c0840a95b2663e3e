"""allow="library": a model with operators that have no sub-kernel is compiled by AOTInductor, and needs torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import superkernel as sk
from superkernel.errors import UnsupportedError
from superkernel.package.manifest import read_manifest


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(9))

    def power(self, x: Tensor) -> dict[str, Tensor]:
        return {"power": torch.fft.rfft(torch.relu(x)).abs()}

    def change(self, x: Tensor) -> Tensor:
        power = torch.fft.rfft(x).abs()
        changed = power - self.last
        self.last.copy_(power)
        return changed


def test_states_and_several_shapes_are_refused(tmp_path: Path) -> None:
    x = torch.ones(16)
    with pytest.raises(UnsupportedError, match="entries share no state, and the model writes last"):
        sk.export(Spectrum(), {"power": (x,), "change": (x,)}, tmp_path / "x.sk", allow="library")
    with pytest.raises(UnsupportedError, match="an entry has one shape"):
        sk.export(Spectrum(), {"power": [(x,), (torch.ones(8),)]}, tmp_path / "x.sk", allow="library")
    assert not list(tmp_path.iterdir())


def test_what_a_package_cannot_return_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="output 'output_0' has elements of type complex64"):
        sk.export(torch.fft.rfft, (torch.ones(8),), tmp_path / "x.sk", allow="library")


def test_a_named_tuple_of_torch_is_refused_or_returned_as_a_tuple(tmp_path: Path) -> None:
    """Newer versions of torch export it."""
    x = 2 * torch.eye(3)
    try:
        package = sk.export(torch.linalg.svd, (x,), tmp_path / "x.sk", allow="library")
    except UnsupportedError as refused:
        assert "cannot return a torch.return_types.linalg_svd: return a plain tuple" in str(refused)
    else:
        found = sk.load_model(package)(x)
        assert all(torch.allclose(*pair) for pair in zip(found, torch.linalg.svd(x), strict=True))


def test_a_model_that_fuses_needs_no_library(tmp_path: Path) -> None:
    package = sk.export(torch.relu, (torch.ones(1, 8),), tmp_path / "x.sk", allow="library")  # it has no signature
    assert read_manifest(package).needs_torch == ""
    assert not (package / "torch").exists()


@pytest.mark.conformance
def test_the_manifest_says_which_operators_need_torch(tmp_path: Path) -> None:
    x = torch.randn(16)
    package = sk.export(Spectrum(), {"power": (x,)}, tmp_path / "x.sk", allow="library")
    manifest = read_manifest(package)
    assert "aten::_fft_r2c" in manifest.needs_torch and "torch.fft.rfft" in manifest.needs_torch
    (shape,) = manifest.entries[0].shapes
    assert [(t.name, t.shape) for t in (*shape.inputs, *shape.outputs)] == [("x", (16,)), ("power", (9,))]
    assert not shape.launches and not manifest.objects
    compiled = torch._inductor.aoti_load_package(str(package / "torch" / "power.pt2"))
    torch.testing.assert_close(compiled(x)["power"], Spectrum().power(x)["power"])
    with sk.load_model(package) as model:
        torch.testing.assert_close(model(x)["power"], Spectrum().power(x)["power"])
        torch.testing.assert_close(torch.from_numpy(model.power(x=x.numpy())["power"]), Spectrum().power(x)["power"])
