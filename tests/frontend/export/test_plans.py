"""Plans of a package for several numbers of cores: the same memory is right for all of them, and so are the bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import superkernel as sk
from superkernel.package.manifest import read_manifest


class Branches(nn.Module):
    """Many intermediates with overlapping lifetimes, more blocks than cores, a state, and a view as output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))
        self.register_buffer("last", torch.zeros(4, width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values = [torch.tanh(layer(x)) for layer in self.layers]
        mixed = torch.softmax(values[0] * values[3] + values[1], -1) @ values[4].T @ values[2]
        change = mixed - self.last
        self.last.copy_(mixed)
        return change, (values[5] * mixed).T


@pytest.mark.conformance
@pytest.mark.parametrize("options", ["", "stream-fusion=1", "early-start=2"])
def test_every_number_of_threads_gives_the_same_bits(tmp_path: Path, options: str) -> None:
    model, x = Branches(256), torch.randn(4, 256)
    package = sk.export(model, (x,), tmp_path / "x.sk", options=options, cores=4)
    (launch,) = read_manifest(package).entries[0].shapes[0].launches
    assert [plan.cores for plan in launch.plans] == [4, 2, 1]
    results = []
    for threads in (1, 2, 3, 4):
        with sk.load_model(package, threads=threads) as loaded:
            results.append([value for _ in range(20) for value in loaded(x)])
    with torch.no_grad():
        expected = model(x)
    torch.testing.assert_close(results[0][:2], list(expected))
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))
