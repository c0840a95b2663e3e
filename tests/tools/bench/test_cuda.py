"""The cuda suites without a GPU: what they promise, what they say here, and their chains in small."""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

import superkernel as sk  # noqa: E402
from superkernel.errors import OptionError, UnsupportedError  # noqa: E402
from superkernel.targets.cuda.facts import complete  # noqa: E402
from superkernel.tools import bench  # noqa: E402
from superkernel.tools.bench import (  # noqa: E402
    cuda,
    cuda_chains,
    cuda_clusters,
    cuda_decode,
    cuda_launches,
    cuda_workloads,
)
from superkernel.tools.bench.cuda_chains import GRAPH, OURS, OURS_WAITING, PDL_GRAPH, STREAM  # noqa: E402
from superkernel.tools.bench.cuda_workloads import CudaChain, GemvConfig  # noqa: E402
from superkernel.tools.bench.measure import Result, Timing  # noqa: E402
from superkernel.tools.cli import app  # noqa: E402

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")


def timings(**medians: float) -> dict[str, Timing]:
    names = {"ours": OURS, "waiting": OURS_WAITING, "stream": STREAM, "graph": GRAPH, "pdl": PDL_GRAPH}
    return {names[key]: Timing(names[key], value, value, value) for key, value in medians.items()}


def test_every_suite_can_be_named() -> None:
    assert tuple(cuda.RUNNERS) == bench.CUDA_SUITES == ("boundary", "chain", "gemv", "chain-decode")


def test_the_promised_ratios_are_those_of_the_table() -> None:
    assert {size: floors for size, (_, floors) in cuda._SMALL.items()} == {
        2048: {GRAPH: (1.6, 2.0), PDL_GRAPH: (1.3, 1.6)},
        8192: {GRAPH: (1.5, 1.8), PDL_GRAPH: (1.3, 1.6)},
    }


@no_gpu
def test_without_a_gpu_the_command_says_what_is_missing() -> None:
    done = CliRunner().invoke(app, ["bench", "cuda", "--suite", "gemv", "--json"])
    assert done.exit_code != 0
    answer = json.loads(done.stdout)
    assert not answer["ok"] and "needs an NVIDIA GPU" in json.dumps(answer)
    with pytest.raises(UnsupportedError, match="superkernel doctor"):
        bench.run_on_device("cuda", "chain")


def test_mistakes_are_named() -> None:
    with pytest.raises(OptionError, match=r"unknown suite .chains. of cuda .did you mean .chain."):
        bench.run_on_device("cuda", "chains")
    for words, message in (
        (["boundary", "--suite", "chain"], "--suite belongs to cuda"),
        (["cuda", "--cores", "2"], "--cores has no meaning for cuda"),
    ):
        done = CliRunner().invoke(app, ["bench", *words, "--json"])
        assert done.exit_code != 0 and message in done.stdout


def test_figures_compare_the_faster_super_kernel_with_each_peer() -> None:
    result = Result("cuda chain", {"cores_used": 132})
    found = timings(ours=50, waiting=40, stream=400, graph=100, pdl=48)
    cuda_chains.add_figures(result, "64 kernels", found, {GRAPH: (1.6, 2.0), PDL_GRAPH: (1.3, 1.6)})
    assert [(round(figure.value, 2), figure.limit, figure.met) for figure in result.figures] == [
        (2.5, 1.6, True),
        (1.2, 1.3, False),
    ]


def test_the_share_is_that_of_the_measured_bandwidth() -> None:
    result = Result("cuda gemv", {"cores_used": 132})
    chain = CudaChain("gemv", [], [], {}, (), None, 0.0, weight_bytes=4_000_000)
    cuda_chains.add_comparison(result, chain, timings(ours=2.0, waiting=1.25, graph=3.0), 4e12)
    (comparison,) = result.comparisons
    assert comparison.share == pytest.approx(0.8) and comparison.ratio == pytest.approx(2.4)
    assert [peer.name for peer in comparison.peers] == [GRAPH] and len(result.timings) == 3


def test_launch_attributes_have_the_layout_of_the_driver() -> None:
    config, attribute = cuda_launches.SeparateLaunchConfig, cuda_launches.SeparateLaunchAttribute
    assert (ctypes.sizeof(config), ctypes.sizeof(attribute)) == (56, 72)
    assert (config.stream.offset, config.attributes.offset, config.attribute_count.offset) == (32, 40, 48)
    assert attribute.value.offset == 8


@pytest.fixture
def without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains of tensors that have no memory: their launches can be captured all the same."""
    pytest.importorskip("triton")
    monkeypatch.setattr(cuda_workloads, "DEVICE", "meta")
    monkeypatch.setattr(cuda_workloads, "sm_count", lambda: 132)


@pytest.mark.slow
def test_the_decode_chain_is_the_one_that_was_published(without_memory: None) -> None:
    configs = {columns: GemvConfig(8, 512, 4) for columns in (2048, 8192)}
    chain = cuda_decode.decode_chain(torch, configs)
    assert len(chain.ops) == len(chain.waiting) == 144
    assert len({op.kernel.binary.path for op in chain.ops}) == 6  # GEMVs differ by their number of columns
    assert chain.weight_bytes == pytest.approx(2.0e9, rel=0.03)
    assert chain.outputs[-1] == "change" and len(chain.state) == 32
    assert not any(op.kernel.pure for op in chain.ops if op.kernel.name == "rotate_and_append")
    ring = cuda_workloads.RingConfig(128, 112, 32, 48, leaves_out=True)
    for make, config, idle in (
        (cuda_workloads.with_streaming_gemv, ring, [0, 0, 0, 0]),
        (cuda_workloads.for_super_kernel, cuda.DECODE_RINGS[0], [0, 0, 0, 0]),
        (cuda_workloads.for_super_kernel, ring, [1, 32, 1, 8]),  # after a norm, the attention, a norm, SiLU
    ):
        ours = [op for op in make(chain, config).ops if op.kernel.op_type == "StreamingGemv"]
        places = [[param.name for param in op.kernel.params].index("idle") for op in ours]
        assert [op.args[place] for op, place in zip(ours, places, strict=True)] == idle * 16


@pytest.mark.slow
def test_chains_have_the_sizes_of_the_figures(without_memory: None) -> None:
    small = cuda_workloads.small_chain(torch, 2048)
    assert [op.kernel.name for op in small.ops] == ["rms_norm", "add"] * 32
    wide = cuda_workloads.wide_chain(torch, GemvConfig(8, 512, 4))
    assert [op.kernel.block_dim for op in wide.ops] == [1, 256] * 64 and wide.weight_bytes == 64 * 2048 * 2048 * 2
    assert len({op.args[2] for op in wide.ops if op.kernel.name == "rms_norm"}) == 64  # each may be replicated
    gemvs = cuda_workloads.gemv_chain(torch, GemvConfig(8, 512, 4))
    assert len(gemvs.ops) == 64 and gemvs.weight_bytes == 64 * 4096 * 4096 * 2
    for chain in (small, wide, gemvs):  # every kernel of the peer waits, and reads its weights before that
        kernels = {op.kernel.name: complete(op.kernel) for op in chain.waiting}
        assert all(kernel.waits_inside for kernel in kernels.values())
        read_before = {name: kernel.read_before_wait for name, kernel in kernels.items()}
        assert all(read_before[name] == names for name, names in _WEIGHTS_FIRST.items() if name in read_before)


@pytest.mark.slow
def test_kernels_of_few_blocks_run_in_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(cuda_workloads, "DEVICE", "cpu")
    for blocks in cuda_clusters.BLOCKS:
        chain = cuda_workloads.few_blocks_chain(torch, blocks, 6)
        for ops in (chain.ops, chain.waiting):
            with sk.compile(ops, name="few", target="cuda", chip="h200") as kernel:
                assert f"{blocks} SMs, 1 slot each, in clusters of {blocks}" in str(kernel.plan)
                kernel.emulate(chain.buffers, seed=blocks)
                assert torch.equal(chain.buffers[chain.outputs[-1]].double(), chain.expected)


_WEIGHTS_FIRST = {"rms_norm": ("weight",), "gemv": ("w",), "add": ()}


@pytest.mark.conformance
def test_a_small_decode_step_is_right_on_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(cuda_workloads, "DEVICE", "cpu")
    monkeypatch.setattr(cuda_workloads, "sm_count", lambda: 4)
    sizes = {"HIDDEN": 128, "INNER": 256, "HEADS": 4, "GROUPS": 2, "WIDTH": 32, "TOKENS": 16, "POSITION": 5}
    for name, value in {**sizes, "SILU_BLOCK": 128}.items():
        monkeypatch.setattr(cuda_decode, name, value)
    chain = cuda_decode.decode_chain(torch, {columns: GemvConfig(4, 64, 4) for columns in (128, 256)}, layers=1)
    last = chain.buffers[chain.outputs[-1]]
    ring = cuda_workloads.RingConfig(64, 48, 32, 48, leaves_out=True)
    for variant in (
        chain,
        cuda_workloads.with_streaming_gemv(chain, ring),
        cuda_workloads.for_super_kernel(chain, ring),
    ):
        for ops, options in cuda_chains.super_kernels_of(variant).values():
            with sk.compile(ops, name="decode", target="cuda", cores=8, options=options) as k:
                for seed in range(2):
                    last.fill_(float("nan"))
                    k.emulate(variant.buffers, seed=seed)
                    assert (last.double() - chain.expected).abs().max() <= 1e-5 * chain.expected.abs().max()


def test_every_way_is_compared_with_its_own_best_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of a chain by its shape; the figures compare the least of each way."""
    times = {
        "triton": timings(ours=14, waiting=13, graph=11, pdl=9),
        "(192,": timings(ours=8.2, waiting=8.5, graph=11, pdl=10),
        "(160,": timings(ours=8, waiting=8.5, graph=11, pdl=10),
        "(128,": timings(ours=10, waiting=9, graph=12, pdl=8.8),
    }
    timed: list[str] = []

    def fake_time(result: Result, chain: CudaChain, *_: object, **__: object) -> dict[str, Timing]:
        timed.append(chain.name)
        return next(found for name, found in times.items() if name in chain.name)

    plain = CudaChain("triton", [], [], {}, (), None, 0.0, weight_bytes=36_000_000)
    monkeypatch.setattr(cuda, "time_chain", fake_time)
    monkeypatch.setattr(cuda, "best_config", lambda *_: GemvConfig(2, 2048, 4))
    monkeypatch.setattr(cuda, "time_few_blocks", lambda *_: None)
    for name in ("gemv_chain", "decode_chain", "wide_chain", "small_chain"):
        monkeypatch.setattr(cuda, name, lambda *_, **__: plain)
    for name in ("with_streaming_gemv", "for_super_kernel"):
        monkeypatch.setattr(cuda, name, lambda chain, config: replace(chain, name=f"({config.ring}, ours"))
    found = {}
    for suite in ("gemv", "chain-decode", "chain"):
        result = Result(f"cuda {suite}", {"cores_used": 132})
        cuda.RUNNERS[suite](torch, result, 1, 5e12)
        found[suite] = [(figure.name.partition(" (goal")[0], round(figure.value, 3)) for figure in result.figures]
    assert found["gemv"] == [
        ("GEMV chain, share of measured HBM", 90.0),
        ("GEMV chain, against graph + PDL of our GEMV", 1.1),
    ]
    assert found["chain-decode"] == [
        ("144 unmodified Triton kernels, against graph", 0.846),
        ("the same with our GEMV, against graph + PDL of our GEMV", 1.073),
    ]
    assert found["chain"][-1] == ("64 layers of RMSNorm and GEMV, against graph + PDL", 0.978)
    assert len(timed) == 1 + len(cuda.GEMV_RINGS) + 2 + len(cuda.DECODE_RINGS) + 4 + 3 + len(cuda.WIDE_RINGS)
