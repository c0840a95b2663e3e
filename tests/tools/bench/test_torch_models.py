"""The torch suite in small: peers stay apart, results are checked, first calls are fresh. No time is asserted."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from superkernel.errors import BuildError, UnsupportedError  # noqa: E402
from superkernel.tools import bench  # noqa: E402
from superkernel.tools.bench import bandwidth, peers, torch_models  # noqa: E402
from superkernel.tools.bench.first_call import CALLS, blocks, close  # noqa: E402
from superkernel.tools.bench.measure import Result  # noqa: E402
from superkernel.tools.bench.peers import (  # noqa: E402
    CACHES,
    EAGER,
    FROZEN,
    INDUCTOR,
    OURS,
    PEERS,
    TUNED,
    Runner,
    fresh_caches,
    prepare,
    threads,
    with_new_code,
)
from superkernel.tools.bench.workloads import Workload, chain_of_three, eight_inputs, four_blocks, others  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def eager_backend(module: Any, inputs: Any) -> Any:
    """Dynamo with nothing behind it."""
    return module.forward


def small() -> Workload:
    return Workload("three ops", chain_of_three, (torch.randn(64),))


# peers


def test_the_peers_are_the_four_that_are_promised() -> None:
    assert [peer.name for peer in PEERS] == ["eager", "inductor", "frozen", "max-autotune"]
    assert INDUCTOR.inductor == {}
    assert {"freezing": True, "cpp_wrapper": True}.items() <= FROZEN.inductor.items()
    assert {"max_autotune": True, "freezing": True, "cpp_wrapper": True}.items() <= TUNED.inductor.items()


def test_settings_hold_while_a_peer_compiles_and_no_longer() -> None:
    seen = []

    def backend(module: Any, inputs: Any) -> Any:
        seen.append((torch._inductor.config.freezing, torch._inductor.config.cpp_wrapper))
        return module.forward

    before = torch._inductor.config.freezing
    prepare(Runner("noted", "", backend, inductor=FROZEN.inductor), chain_of_three, small().inputs)
    assert (seen, torch._inductor.config.freezing) == ([(True, True)], before)


def test_frozen_weights_are_no_inputs() -> None:
    """What a peer is called must be what it does: Dynamo hands over weights as attributes, not as arguments."""
    counts = {}

    def backend(name: str) -> Any:
        def count(module: Any, inputs: Any) -> Any:
            counts[name] = len(inputs)
            return module.forward

        return count

    model, inputs = torch.nn.Linear(4, 4), (torch.randn(1, 4),)
    prepare(Runner("plain", "", backend("plain")), model, inputs)
    prepare(Runner("frozen", "", backend("frozen"), inductor=FROZEN.inductor), model, inputs)
    assert counts == {"plain": 3, "frozen": 1}


def test_every_runner_has_a_code_object_and_weights_of_its_own() -> None:
    first, second = with_new_code(chain_of_three), with_new_code(chain_of_three)
    assert first.__code__ is not second.__code__
    model = torch.nn.Linear(4, 4)
    inputs = (torch.ones(1, 4),)
    call, _ = prepare(EAGER, model, inputs)
    before = call()
    model.weight.zero_()
    assert torch.equal(call(), before)


def test_many_runners_of_one_model_stay_compiled() -> None:
    """More than Dynamo keeps for one code object."""
    compiled = []

    def backend(module: Any, inputs: Any) -> Any:
        compiled.append(module)
        return module.forward

    calls = [prepare(Runner("counted", "", backend), chain_of_three, small().inputs)[0] for _ in range(12)]
    for call in calls:
        call()
    assert len(compiled) == 12


def test_caches_are_empty_and_then_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHES[0], "/somewhere")
    monkeypatch.delenv(CACHES[1], raising=False)
    with fresh_caches():
        inside = [os.environ[name] for name in CACHES]
        assert not any(os.path.exists(path) for path in inside)
    assert [os.environ.get(name) for name in CACHES] == ["/somewhere", None]


def test_the_number_of_threads_comes_back() -> None:
    before = torch.get_num_threads()
    with threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


# workloads


def test_workloads_are_as_described() -> None:
    assert four_blocks(4).inputs[0].shape == (4, 256)
    assert four_blocks(4).weight_bytes == 4 * 4 * (2 * 256 * 512 + 512 + 256 + 2 * 256)
    assert len(eight_inputs().inputs) == 8
    for workload in others():
        assert torch.isfinite(workload.model(*workload.inputs)).all(), workload.name


def test_written_out_attention_is_attention() -> None:
    attention = next(workload for workload in others() if workload.name.startswith("attention"))
    model, (x,) = attention.model, attention.inputs
    query, key, value = (model._heads(project(x)) for project in (model.query, model.key, model.value))
    mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    assert close(model(x), model.out(mixed.transpose(1, 2).reshape(x.shape)))


def test_close_knows_wrong_from_rounded() -> None:
    right = torch.tensor([1.0, 100.0])
    assert close(right + 1e-5, right)
    assert not close(right + 1, right)
    assert not close(right * torch.nan, right)
    assert not close(right[:1], right)
    assert not close(right.double(), right)


# measuring


def test_a_workload_is_compared_with_its_peers() -> None:
    result = Result("torch", {"cores_used": 2})
    found = peers.compare(result, small(), (EAGER, Runner("dynamo", "", eager_backend)), rounds=2)
    assert found.columns == ("us", "superkernel", "fuse=off", "eager", "dynamo")
    assert result.checks == dict.fromkeys((f"three ops: {who}" for who in ("superkernel", "fuse=off", "dynamo")), True)
    assert [figure.name for figure in result.figures] == ["three ops: time with fuse=off to ours"]
    assert result.notes == ["three ops: segment 1: ops 1, fused"]
    assert found.share is None


def test_a_wrong_peer_is_found() -> None:
    result = Result("torch", {"cores_used": 2})

    def wrong(module: Any, inputs: Any) -> Any:
        return lambda *args: (args[0] + 7,)

    peers.compare(result, small(), (EAGER, Runner("wrong", "", wrong)), rounds=2)
    assert not result.ok and not result.checks["three ops: wrong"]


def test_the_floor_reads_every_weight() -> None:
    kernel, buffers = bandwidth.reader(4 * 1024 * 256, 2)
    with kernel:
        kernel(buffers)
    assert buffers["sums"].sum() == 1024 * 256


def test_the_host_cost_is_that_of_one_super_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_models, "INDUCTOR", Runner("inductor", "", eager_backend))
    result = Result("torch", {"cores_used": 2})
    torch_models.host_cost(result, rounds=2)
    assert result.ok and result.checks["a call with 8 inputs: one super kernel"]
    assert [figure.name for figure in result.figures] == ["host cost of a call beyond Dynamo"]
    assert len(result.timings) == 7


def test_first_results_come_from_fresh_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_models, "OURS", Runner("ours", "", "eager"))
    monkeypatch.setattr(torch_models, "INDUCTOR", Runner("theirs", "", "eager"))
    asked = []

    def fake_first_call(backend: str, folder: str, cores: int) -> dict[str, Any]:
        asked.append(folder)
        return {"first": 1.0, "settled": 2.0, "right": True}

    monkeypatch.setattr(torch_models, "first_call_of", fake_first_call)
    result = Result("torch", {"cores_used": 2})
    torch_models.first_calls(result, rounds=1)
    assert asked[0] == asked[1] != asked[2] == asked[3]  # what is warm is what this back end left
    assert [c.name for c in result.comparisons][:2] == ["first result, caches empty", f"{CALLS} results, caches empty"]
    assert [figure.met for figure in result.figures] == [True, True]


@pytest.mark.conformance
def test_the_script_says_how_long_it_took(tmp_path: Any) -> None:
    outcome = torch_models.first_call_of("eager", str(tmp_path), 2)
    assert outcome["right"] and 0 < outcome["first"] <= outcome["settled"]


@pytest.mark.conformance
def test_a_first_call_that_fails_says_why(tmp_path: Any) -> None:
    with pytest.raises(BuildError, match="no_such_back_end"):
        torch_models.first_call_of("no_such_back_end", str(tmp_path), 2)


def test_blocks_are_four() -> None:
    assert len(list(blocks().children())) == 4


def test_without_torch_the_suite_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("superkernel.tools.bench.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnsupportedError, match="needs torch"):
        bench.run("torch")


def test_ours_is_the_back_end_with_its_default_options() -> None:
    assert (OURS.backend, dict(OURS.options), dict(OURS.inductor)) == ("superkernel", {}, {})
