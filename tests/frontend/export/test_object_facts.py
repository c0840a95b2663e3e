"""What the code of a package says of its arguments: a manifest with smaller ones is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from handmade_package import change_manifest
from torch import nn

import superkernel as sk
from superkernel.errors import BuildError
from superkernel.package.manifest import PlaceKind, read_manifest


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 40)
        self.register_buffer("total", torch.zeros(1, 40))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.total += self.linear(x).sum(0, keepdim=True)
        return self.total.softmax(-1), self.total + 1


def grow(package: Path, argument: int, step: int) -> None:
    def change(fields: dict[str, Any]) -> None:
        fields["entries"][0]["shapes"][0]["launches"][0]["arguments"][argument]["bytes"] += step

    change_manifest(package, change)


@pytest.mark.parametrize("rows", [1, 12], ids=["plain weights", "weights in panels"])
def test_every_argument_has_at_least_the_size_that_the_code_was_compiled_for(tmp_path: Path, rows: int) -> None:
    package = sk.export(Counted().eval(), (torch.ones(rows, 8),), tmp_path / "counted.sk", cores=1)
    places = read_manifest(package).entries[0].shapes[0].launches[0].arguments
    assert {PlaceKind.INPUT, PlaceKind.OUTPUT, PlaceKind.WEIGHT, PlaceKind.STATE} <= {place.kind for place in places}
    for argument in range(len(places)):
        grow(package, argument, -4)
        with pytest.raises(BuildError, match=r"the sizes of arguments of 'sk_segment.*' differ"):
            sk.load_model(package)
        grow(package, argument, 4)
    with sk.load_model(package) as model:
        assert model(torch.ones(rows, 8))[0].shape == (1, 40)
