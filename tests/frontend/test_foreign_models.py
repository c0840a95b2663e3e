"""What foreign models are made of is part of one super kernel: quantised layers, recurrent layers, complex numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from frontend.fused import assert_close, check, compiled, run
from torch import Tensor, nn

from superkernel.frontend.capture.recurrent import MOST_STEPS
from superkernel.frontend.report import collecting

pytestmark = pytest.mark.slow


def fused_whole(model: Any, *inputs: Any) -> list[str]:
    """One segment, in which nothing is left to torch; the kernels of its ops."""
    with torch.no_grad():
        found = run(model, *inputs)
        assert_close(found.outputs, model(*inputs), 1e-4)
    (scope,) = found.report.scopes
    (segment,) = scope.segments
    assert not scope.unfusible, [str(reason) for reason in scope.unfusible]
    return [op.kernel for op in segment.ops]


def linears_and_tables(
    x: Tensor, int8: Tensor, scales: Tensor, int4: Tensor, pairs: Tensor, whole: Tensor, index: Tensor, strided: Tensor
) -> Any:
    """Quantised layers as torchao writes them, and operators that Inductor leaves to libraries."""
    rows = x.reshape(-1, x.shape[-1])
    converted = torch.mm(rows, int8.t().to(x.dtype)) * scales.flatten()
    scaled = F.linear(x, int8.to(x.dtype)) * scales
    packed = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, int4, 32, pairs)
    in_graph = torch.ops.aten._convert_weight_to_int4pack_for_cpu(whole, 1)
    again = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, in_graph, 32, pairs)
    bags = F.embedding_bag(index, rows, index[:1] * 0, mode="mean")
    system = rows[:2, :2].tril() + 4 * torch.eye(2)
    solved = torch.linalg.solve_triangular(system, rows, upper=False)
    scattered = scaled.masked_scatter(scaled > 0, packed)
    return (
        converted.reshape(*x.shape[:-1], -1),
        scattered,
        again,
        bags,
        solved,
        strided.permute(4, 0, 3, 1, 2).cumsum(1),
    )


def test_quantised_layers_and_library_operators_are_one_super_kernel() -> None:
    int8, whole = torch.randint(-128, 128, (48, 64), dtype=torch.int8), torch.randint(0, 16, (48, 64)).int()
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(whole, 1)
    quantised = torch.randn(1, 2, 64), int8, torch.rand(48) / 100, packed, torch.randn(2, 48, 2) / 10, whole
    strided = torch.randn(3, 4, 3, 4, 6)[:, ::2, :, ::2, ::2]
    kernels = fused_whole(linears_and_tables, *quantised, torch.tensor([1, 0, 1]), strided)
    assert kernels.count("weight_int8") == 2 and kernels.count("weight_int4") == 2  # weights are read in place
    assert not any(name.startswith("matmul") for name in kernels)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float64, torch.bfloat16])
def test_int8_weights_are_converted_where_no_kernel_takes_them(dtype: torch.dtype) -> None:
    """Sums of integers, and results of another type than the scales'."""

    def scaled(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
        return F.linear(x, weight.to(x.dtype)) * scales

    x, weight = torch.randint(-9, 9, (4, 32)).to(dtype), torch.randint(-9, 9, (8, 32), dtype=torch.int8)
    with torch.no_grad():
        check(scaled, x, weight, torch.rand(8, dtype=torch.promote_types(dtype, torch.float32)), tolerance=1e-2)


class Sequences(nn.Module):
    """Recurrent layers of few steps, an encoder layer, and rotary embeddings by complex products."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.gru = nn.GRU(8, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")

    def forward(self, x: Tensor, padded: Tensor, table: Tensor) -> Any:
        steps, (_, cell) = self.lstm(x)
        last, _ = self.gru(cell)
        return rotary(self.encoder(steps, src_key_padding_mask=padded), table), last


def rotary(x: Tensor, table: Tensor) -> Any:
    """By angles that are computed here and by a complex table; the second result is complex."""
    frequency = 10000.0 ** (-torch.arange(0, 8, 2) / 8)
    turn = torch.polar(torch.ones(2, 4), torch.outer(torch.arange(2.0), frequency))
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turned = pairs * turn * table[:2].unsqueeze(0).conj()
    return torch.view_as_real(turned).flatten(2).type_as(x), turned


def test_recurrent_layers_encoder_layers_and_complex_numbers_are_one_super_kernel() -> None:
    padded = torch.tensor([[False, True], [True, True]])  # a query without keys is NaN
    table = torch.polar(torch.ones(9, 4), torch.randn(9, 4))
    fused_whole(Sequences().eval(), torch.randn(2, 2, 8), padded, table)


def test_what_is_left_to_torch_has_the_true_reason() -> None:
    """A long recurrent layer, Fourier transforms, and a complex operator without a rule."""
    gru = nn.GRU(4, 4).eval()

    def model(x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.tan(torch.fft.rfft(gru(x)[0])))

    with torch.no_grad():
        found = run(model, x := torch.randn(MOST_STEPS + 1, 1, 4))
        assert_close(found.outputs, model(x), 1e-4)
    (scope,) = found.report.scopes
    reasons = {entry.op: entry.reason for entry in scope.unfusible}
    assert list(reasons) == ["superkernel::recurrent_layers", "aten::_fft_r2c", "aten::tan", "aten::_fft_c2r"]
    assert "many steps" in reasons["superkernel::recurrent_layers"] and "complex numbers" in reasons["aten::tan"]
    assert "Fourier transforms are left to torch's library" in reasons["aten::_fft_r2c"]
    assert "Fourier transforms are left to torch's library" in str(found.report)


def test_other_back_ends_and_gradients_meet_recurrent_layers_as_before() -> None:
    gru, x = nn.GRU(4, 4).eval(), torch.randn(2, 1, 4)
    graphs: list[Any] = []

    def other(module: Any, inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    compiled(gru)  # the back end is known to Dynamo
    with torch.no_grad():
        torch.compile(lambda x: gru(x)[0] + 1, backend=other)(x)
    with collecting() as report:
        compiled(lambda x: gru(x)[0])(x).sum().backward()
    assert not any("gru" in str(module.graph) for module in graphs) and report.graphs == 0
    assert not torch._dynamo.config.allow_rnn


@pytest.mark.conformance
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masked", ["not", "keys", "causal"])
def test_every_kind_of_encoder_layer(norm_first: bool, masked: str) -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first).eval()
    masks = {
        "not": {},
        "keys": {"src_key_padding_mask": torch.tensor([[False] * 6, [False] * 4 + [True] * 2, [True] * 6])},
        "causal": {"src_mask": nn.Transformer.generate_square_subsequent_mask(6)},
    }[masked]
    fused_whole(lambda x: layer(x, **masks), torch.randn(3, 6, 32))


@pytest.mark.conformance
@pytest.mark.parametrize(
    "layer",
    [
        nn.LSTM(8, 16, num_layers=2, bidirectional=True, proj_size=4),
        nn.GRU(8, 16, num_layers=2, bias=False, batch_first=True),
        nn.RNN(8, 16, nonlinearity="relu"),
    ],
    ids=["lstm", "gru", "rnn"],
)
@pytest.mark.parametrize("steps", [5, MOST_STEPS + 1])
def test_every_kind_of_recurrent_layer(layer: nn.Module, steps: int) -> None:
    with torch.no_grad():
        check(lambda x: layer.eval()(x * 2), torch.randn(steps, 3, 8), tolerance=1e-4)
