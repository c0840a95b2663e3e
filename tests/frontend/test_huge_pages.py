"""What every call reads is shown to the target once, before the first launch."""

import pytest
import torch

from superkernel.targets.cpu.target import CpuModelSupport


def test_weights_are_settled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[tuple[int, int]]] = []
    monkeypatch.setattr(CpuModelSupport, "settle", lambda self, spans: seen.append(list(spans)) or 0)
    layer = torch.nn.Linear(64, 48)
    compiled = torch.compile(layer, backend="superkernel", options={"profit_gate": 0})
    x = torch.randn(3, 64)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), layer(x))
    (spans,) = seen
    assert (layer.weight.data_ptr(), layer.weight.nbytes) in spans
