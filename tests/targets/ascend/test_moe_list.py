"""A layer of sixty ops in CANN's form, emulated with stand-ins on all cores: how long a seed takes, what syncs cost."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from measured import least, processor_seconds
from targets.ascend.device_lists import write_list
from targets.ascend.moe_list import CUBES, VECTORS, moe_list

import superkernel as sk
from superkernel.targets.ascend import TARGET

MOST_SECONDS, MOST_SHARE = 1.0, 0.33


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sk.SuperKernel]:
    described = TARGET.read_ops(write_list(tmp_path_factory.mktemp("moe"), moe_list(), name="layer"))
    with sk.compile(described.ops, described.name, described.options, "ascend") as kernel:
        yield kernel


def test_its_syncs_cost_at_most_a_third_of_one_full_barrier_per_op(layer: sk.SuperKernel) -> None:
    assert TARGET.emulator is not None
    machine = TARGET.emulator.machine(layer.executable)
    assert len(layer.graph.nodes) == 60 and len(machine.core_names) == CUBES + VECTORS == 72
    assert machine.barrier_actions == 60 * 6
    assert machine.sync_actions <= MOST_SHARE * machine.barrier_actions, f"{machine.sync_actions} flag actions"


@pytest.mark.conformance
def test_a_seed_takes_at_most_a_second(layer: sk.SuperKernel) -> None:
    """Of the processor: cores are threads that take turns, so that other processes on the machine do not count."""
    layer.emulate({}, seed=0)  # compiles

    def seconds() -> float:
        return max(processor_seconds(partial(layer.emulate, {}, seed=seed)) for seed in (1, 2, 3))

    assert least(seconds, limit=MOST_SECONDS) < MOST_SECONDS
