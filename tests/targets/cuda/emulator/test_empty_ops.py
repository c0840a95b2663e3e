"""Plans whose ops do nothing, as they are timed: on the emulator they end under every order and touch no buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.cuda.emulator.cluster_kernels import random_spreads, spread_chain
from targets.cuda.emulator.graph_kernels import buffers, chain, kernels
from targets.cuda.emulator.test_clusters import CHIP

import superkernel as sk
from superkernel.cache import Cache
from superkernel.targets.cuda.build import build
from superkernel.targets.cuda.device import find_device
from superkernel.targets.cuda.emulator import CudaEmulator
from superkernel.targets.cuda.emulator.alone import decoded
from superkernel.targets.cuda.emulator.emulated_memory import EmulatedMemory
from superkernel.targets.cuda.emulator.execution import GpuLaunch, execute
from superkernel.targets.cuda.emulator.library import load_emulator
from superkernel.targets.cuda.emulator.schedule import WarpSchedule
from superkernel.targets.cuda.executable import CudaExecutable
from superkernel.targets.cuda.runtime.calibrate import _CLUSTER_PTX
from superkernel.targets.protocol import LaunchInputs


def check_empty(ops: list[sk.Op], options: str = "", seeds: int = 6, **chip: Any) -> CudaExecutable:
    """Launches in a row leave the sync state as those with work do, and every buffer as it was."""
    fields = CHIP | chip
    with sk.compile(ops, name="empty", target="cuda", chip=fields, options=options) as kernel:
        executable = build(kernel.plan, find_device(fields), empty=True)
        full = kernel.executable
    assert isinstance(full, CudaExecutable)
    assert executable.shared_bytes == full.shared_bytes and len(executable.table.data) == len(full.table.data)
    assert executable.state_bytes == full.state_bytes and executable.shape == full.shape
    given = buffers(ops, len(ops))
    for seed in range(seeds):
        live = {name: array.copy() for name, array in given.items()}
        CudaEmulator().emulate(executable, live, LaunchInputs({}, {}), seed=seed, launches=2)
        assert all(np.array_equal(live[name], given[name]) for name in live), f"seed {seed}"
    return executable


@pytest.mark.parametrize("largest", [1, 2, 4, 8, 16])
def test_a_chain_in_clusters_of_each_size(tmp_path: Path, largest: int) -> None:
    executable = check_empty(spread_chain(tmp_path, [16, 4, 8, 1, 16, 3]), largest_cluster=largest)
    assert executable.shape.cluster <= largest


@pytest.mark.parametrize("options", ["early-start=0", "stream-fusion=1", "profiling=1", "debug-sync-all=1"])
def test_options(tmp_path: Path, options: str) -> None:
    check_empty(spread_chain(tmp_path, [4, 4, 2, 4, 1, 4]), options)


@pytest.mark.parametrize("number", range(4))
def test_random_graphs(tmp_path: Path, number: int) -> None:
    chip = {"sms": (24, 32, 8)[number % 3], "shared_bytes": (6000, 9000, 13_000)[number % 3]}
    check_empty(random_spreads(tmp_path, number, 10), ("", "stream-fusion=1")[number % 2], **chip)


def test_sub_kernels_that_wait_inside_and_slots_of_different_widths(tmp_path: Path) -> None:
    ops = chain(kernels(tmp_path), ["mix", "turn", "total", "mix"])
    check_empty(ops, sms=4, shared_bytes=40_000, largest_cluster=1)


def test_kernels_of_equal_shapes_share_one_text(tmp_path: Path) -> None:
    first = check_empty(spread_chain(tmp_path, [4, 4, 4]), seeds=1)
    second = check_empty(spread_chain(tmp_path, [4, 2, 4, 3]), seeds=1)
    assert first.ptx == second.ptx and first.table.data != second.table.data


@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("seed", range(4))
def test_the_calibration_of_clusters_ends(size: int, seed: int) -> None:
    program = decoded(_CLUSTER_PTX.decode().rstrip("\0"), "calibration.ptx", "sk_cluster_rounds")
    rounds = 5
    launch = GpuLaunch(
        (size, 1, 1),
        (64, 1, 1),
        0,
        size,
        np.array([0, rounds], np.uint64).tobytes(),
        {},
        seed,
        WarpSchedule.of_seed(seed),
        True,
        "calibration: ",
        cluster=size,
    )
    execute(load_emulator(Cache()), program, EmulatedMemory(), launch)
