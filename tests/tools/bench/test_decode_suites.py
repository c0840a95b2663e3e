"""The suites moe, decode and attention in small: models are right, figures are those that are promised."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from frontend.fused import run  # noqa: E402

from superkernel.tools import bench  # noqa: E402
from superkernel.tools.bench import attention, convolution, decode, moe, peers, workloads  # noqa: E402
from superkernel.tools.bench.convolution_nets import convolution_nets  # noqa: E402
from superkernel.tools.bench.measure import Comparison, Result, Timing  # noqa: E402
from superkernel.tools.bench.peers import EAGER, PEERS  # noqa: E402
from superkernel.tools.bench.workloads import decode_step, expert_layers  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def test_the_models_have_the_weights_of_the_published_table() -> None:
    sizes = [round(decode_step(width).weight_bytes / 1e6) for width in (288, 512)]
    assert sizes == [29, 84]
    assert round(expert_layers(128, 4).weight_bytes / 1e6, 1) == 9.5
    decode, experts = decode_step(288), expert_layers(128, 4)
    assert decode.read_bytes == decode.weight_bytes + 6 * 2 * 256 * 288 * 4  # keys and values of six layers
    assert experts.read_bytes == experts.weight_bytes
    assert round(expert_layers(256, 1).weight_bytes / 1e6) == 38


def test_a_decode_step_writes_to_its_cache_and_gives_what_eager_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "LAYERS", 1)
    step = decode_step(288)
    layer = step.model.layers[0]
    before = layer.keys.clone()
    expected = step.model(*step.inputs)
    changed = (layer.keys != before).any(-1).any(1).flatten()
    assert changed.nonzero().flatten().tolist() == [130]
    found = run(step.model, *step.inputs)
    torch.testing.assert_close(found.outputs, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.conformance
def test_experts_give_what_eager_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "LAYERS", 1)
    layers = expert_layers(128, 4)
    found = run(layers.model, *layers.inputs)
    torch.testing.assert_close(found.outputs, layers.model(*layers.inputs), rtol=1e-3, atol=1e-3)


def test_matmuls_are_checked_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "DEPTH", 64)
    monkeypatch.setattr(decode, "COLUMNS", 128)
    result = Result("decode", {"cores_used": 2})
    with peers.threads(peers.CORES):
        decode.skinny_matmul(result, 2, rounds=2)
        decode.square_matmul(result, 512, rounds=2)
    assert result.ok and len(result.checks) == 2
    assert [(figure.limit, figure.unit) for figure in result.figures] == [(90, "%"), (0.95, "x")]


def test_quantised_ops_are_checked_and_compared() -> None:
    result = Result("moe", {"cores_used": 2})
    with peers.threads(peers.CORES):
        moe.quantised_ops(result, (8, 64, 32), rounds=2)
    assert result.ok and len(result.checks) == 3
    assert [figure.limit for figure in result.figures] == [0.98, 2]
    assert moe.SIZES == (864, 7168, 4096)


@pytest.mark.conformance
def test_attention_is_compared() -> None:
    result = Result("attention", {"cores_used": 2})
    found = peers.compare(result, attention.decode(16), (EAGER,), rounds=2)
    assert result.ok and found.name.startswith("one query")
    causal = attention.prompt(16)
    torch.testing.assert_close(run(causal.model, *causal.inputs).outputs, causal.model(*causal.inputs))


def test_convolution_nets_are_those_that_were_published_and_compared_with_variable_weights() -> None:
    small, resnet, mobilenet = convolution_nets()
    assert [round(net.weight_bytes / 4e6, 2) for net in (resnet, mobilenet)] == [11.69, 5.48]
    assert small.model(*small.inputs).shape == (1, 10)
    times = {"superkernel": 10.0, "eager": 30.0, "inductor": 20.0, "frozen": 5.0}
    ours, *theirs = (Timing(name, time, time, time) for name, time in times.items())
    figure = convolution.not_slower(Comparison("net", ours, tuple(theirs)))
    assert (figure.value, figure.limit, figure.at_least) == (2.0, 0.98, True)


def test_every_suite_can_be_named_and_promises_what_it_should() -> None:
    assert list(bench.SUITES) == [
        "boundary",
        "torch",
        "moe",
        "decode",
        "quantized",
        "attention",
        "convolution",
        "loaded",
        "package",
        "collectives",
    ]
    assert decode.STEPS == {288: 2.5, 512: 1.4, 1024: 1.0}
    assert moe.LAYERS == {(128, 4): 2.5, (256, 1): 2.5, (512, 1): 2.0}
    assert len(PEERS) == 4
