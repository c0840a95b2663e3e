"""Random super kernels launched through AscendCL: every buffer as the ops one after the other leave it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from targets.ascend.conformance.cases import random_case
from targets.ascend.conformance.oracle import expected
from targets.ascend.runtime.emulated_npu import EmulatedNpu
from targets.ascend.sampling import first_of

import superkernel as sk
from superkernel.targets.ascend.emulator import Outside

NUMBERS = (1, 0, 2, *range(100, 160))


def launched(npu: EmulatedNpu, number: int) -> None:
    """Twice, with the events and tilings that it wants, in the order of another seed of the device."""
    case, _, graph = random_case(number)
    with sk.compile(case.ops(), name=case.name, options=case.options, target="ascend") as k:
        for seed in (0, 1 + number):
            npu.seed = seed
            buffers = case.buffers(seed)
            wanted = expected(case, graph, buffers)
            events = {event.label: sk.Event(event.label) for event in k.graph.events}
            threads = [threading.Thread(target=_act, args=(agent, events)) for agent in case.outside]
            for thread in threads:
                thread.start()
            k(buffers, events=events, tiling=case.tilings())
            for thread in threads:
                thread.join()
            for name, array in buffers.items():
                assert np.array_equal(array, wanted[name]), f"{case}, seed {seed}: buffer {name} is wrong"
            sent = {event for node in k.graph.nodes for event in node.notifies}
            assert all(event.is_set() == (label in sent) for label, event in events.items())


def _act(agent: Outside, events: dict[str, sk.Event]) -> None:
    if agent.after is None or events[agent.after].wait(600):
        events[agent.sets].set()


@pytest.mark.parametrize("number", first_of(NUMBERS, 1))
def test_random_cases(npu: EmulatedNpu, number: int) -> None:
    launched(npu, number)
