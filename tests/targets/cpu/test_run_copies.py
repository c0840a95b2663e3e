"""Replicated ops and counters on real cores: every launch equals numpy, and the unfused run bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from measured import sample

from superkernel import Op, SubKernel, SuperKernel
from superkernel import compile as compile_ops
from superkernel.targets.cpu import machine, numbering
from superkernel.targets.cpu.runtime.launch import DELAYS

SOURCE = """
#include <superkernel/kernel.h>
extern "C" void wide(const float* x, float* y) {  // every block reads all of x
    const int part = 64 / sk::block_num();
    for (int i = sk::block_idx() * part; i < (sk::block_idx() + 1) * part; ++i) {
        float sum = 0;
        for (int j = 0; j < 64; ++j) sum += x[(i + j) % 64] * float(j % 3);
        y[i] = sum / 64;
    }
}
extern "C" void norm(const float* x, const float* g, float* y) {
    const int part = 64 / sk::block_num();
    float sum = 0;
    for (int i = 0; i < 64; ++i) sum += x[i] * x[i];
    for (int i = sk::block_idx() * part; i < (sk::block_idx() + 1) * part; ++i) y[i] = x[i] * g[i] / (1 + sum);
}
"""
VECTOR = "float32[64]"
LAYERS = 3


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("copies") / "layers.cpp"
    path.write_text(SOURCE)
    return path


def layers(source: Path, cores: int, norm_blocks: int = 1, pure: bool = True) -> list[Op]:
    wide = SubKernel.from_source(source, "wide", block_dim=cores, params=[f"in:x:{VECTOR}", f"out:y:{VECTOR}"])
    norm = SubKernel.from_source(
        source, "norm", block_dim=norm_blocks, params=[f"in:x:{VECTOR}", f"in:g:{VECTOR}", f"out:y:{VECTOR}"], pure=pure
    )
    ops = []
    for i in range(LAYERS):
        ops += [Op(wide, [f"x{i}", f"w{i}"], f"wide{i}"), Op(norm, [f"w{i}", "g", f"x{i + 1}"], f"norm{i}")]
    return [*ops, Op(wide, [f"x{LAYERS}", "y"], "last")]


def check(kernel: SuperKernel, launches: int = 30) -> None:
    """Every launch against the same ops one by one."""
    rng = np.random.default_rng(3)
    for _ in range(launches):
        x, g = rng.standard_normal((2, 64), np.float32)
        fused, alone = np.empty(64, np.float32), np.empty(64, np.float32)
        kernel({"x0": x, "g": g, "y": fused})
        kernel.unfused()({"x0": x, "g": g, "y": alone})
        assert np.array_equal(fused, alone)


@pytest.fixture
def dear_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which copies pay."""
    costs = machine.Costs(sync_ns=5000.0)
    monkeypatch.setattr("superkernel.targets.cpu.target.machine_of", lambda cores: machine.Machine(cores, costs=costs))


@pytest.mark.usefixtures("dear_syncs")
@pytest.mark.parametrize("cores", sample([4, 2, 8]))
@pytest.mark.parametrize("delay", ["", "7"])
def test_copies_give_the_bits_of_the_unfused_run(
    source: Path, cores: int, delay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DELAYS, delay)
    with compile_ops(layers(source, cores), cores=cores) as kernel:
        assert len(kernel.plan.copies) == LAYERS
        assert "core.copy(slot[at::wide1_x], core.id()" in kernel.source
        check(kernel)


def test_a_copy_for_a_group_of_cores(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = machine.machine_of

    def grouped(cores: int) -> machine.Machine:
        groups = (tuple(range(cores // 2)), tuple(range(cores // 2, cores)))
        return machine.Machine(cores, groups, machine.Costs(sync_ns=5000.0, near_sync_ns=50.0))

    monkeypatch.setattr("superkernel.targets.cpu.target.machine_of", grouped)
    with compile_ops(layers(source, 4, norm_blocks=2), cores=4) as kernel:
        assert [copy.readers for copy in next(iter(kernel.plan.copies.values()))] == [(0, 1), (2, 3)]
        assert "static const int copy_of_1[] = {0, 0, 1, 1};" in kernel.source
        check(kernel)
    assert plain(4).groups == ()


@pytest.mark.usefixtures("dear_syncs")
def test_only_what_is_said_to_be_pure_is_replicated(source: Path) -> None:
    with compile_ops(layers(source, 4, pure=False), cores=4) as kernel:
        assert not kernel.plan.copies
        check(kernel, launches=3)


def test_the_plan_says_where_copies_would_not_pay(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cheap = machine.Machine(4, costs=machine.Costs(sync_ns=20.0))
    monkeypatch.setattr("superkernel.targets.cpu.target.machine_of", lambda cores: cheap)
    with compile_ops(layers(source, 4), cores=4) as kernel:
        assert not kernel.plan.copies
        assert f"none of {LAYERS} small ops" in str(kernel.plan)


@pytest.mark.parametrize("options", ["", "early-start=2", "stream-fusion=1"])
@pytest.mark.parametrize("delay", sample(["5", ""]))
def test_counters_in_the_place_of_stamps(
    source: Path, options: str, delay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DELAYS, delay)
    monkeypatch.setattr(numbering, "COUNTER_FROM", 2)
    with compile_ops(layers(source, 4), cores=4, options=options) as kernel:
        assert "core.wait_all(" in kernel.source
        check(kernel)
