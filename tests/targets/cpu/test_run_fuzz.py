"""targets.cpu: random graphs, random delays in the real waits: every launch equals numpy and the unfused run."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from measured import examples
from targets.cpu.small import Array, compared, compile_ops, expected, launched, numbers, small

from superkernel import Event, Op, SuperKernel
from superkernel.model.params import Kind
from superkernel.targets.cpu import emit
from superkernel.targets.cpu.runtime.launch import DELAYS

pytestmark = pytest.mark.slow

EXAMPLES = examples(14)
BUFFERS = "abcde"


def choose(inputs: dict[str, Array]) -> tuple[int, int]:
    """The tiling of the dynamic op, from what it will read."""
    number = abs(int(next(iter(inputs.values()))[0]))
    return 2 + number % 2, number % 5


POOL = (
    small("mix", 4),
    small("scale", 4),
    small("fold", 2),
    small("chain", 1),
    small("early", 4, early_start=("w",)),
    small("seldom", 6),
    small("hasty", 3),
    small("shy", 2),
    small("blend", 3),
    small("total", 2),
    small("twice", 4, variants={2: "twice", 3: "thrice"}),
)
OPTIONS = ("", "early-start=0", "early-start=2")


@pytest.fixture(autouse=True, scope="module")
def delays() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DELAYS, "11")
        yield


@dataclass(frozen=True)
class Row:
    kernel: int
    buffers: int
    stream: int
    event: int


ROWS = st.builds(
    Row, st.integers(0, len(POOL) - 1), st.integers(0, 5**3 - 1), st.integers(0, 2), st.sampled_from((0, 0, 0, 1, 2, 3))
)


def op_of(i: int, row: Row, sends: list[str], receives: list[str]) -> Op:
    """What is written has a name of its own within the op: no kernel allows more."""
    kernel = POOL[row.kernel]
    free, args = list(BUFFERS), list[str | int]()
    for param in sorted(kernel.params, key=lambda p: not p.kind.writes):
        if param.kind in (Kind.WORKSPACE, Kind.SCALAR):
            args.append(f"ws{row.buffers % 2}" if param.kind is Kind.WORKSPACE else row.buffers % 2)
            continue
        name = free[row.buffers // 5 ** len(args) % len(free)]
        args.append(name)
        if param.kind.writes:
            free.remove(name)
    order = sorted(range(len(kernel.params)), key=lambda at: not kernel.params[at].kind.writes)
    placed = [args[order.index(at)] for at in range(len(kernel.params))]
    dynamic = bool(kernel.variants)
    task, tiling = ("dynamic", choose) if dynamic else ("normal", None)
    return Op(kernel, placed, f"op{i}", row.stream, sends, receives, task, tiling)


def ops_of(rows: list[Row]) -> list[Op]:
    """Event 1: sent to the world. 2: awaited from it. 3: sent by the op before, whatever its stream."""
    sends: list[list[str]] = [[f"out{i}"] if row.event == 1 else [] for i, row in enumerate(rows)]
    receives: list[list[str]] = [[f"in{i}"] if row.event == 2 and i else [] for i, row in enumerate(rows)]
    for i, row in enumerate(rows):
        if row.event == 3 and i:
            sends[i - 1].append(f"inner{i}")
            receives[i].append(f"inner{i}")
    return [op_of(i, row, sends[i], receives[i]) for i, row in enumerate(rows)]


def launch(kernel: SuperKernel, arrays: dict[str, Array]) -> dict[str, Array]:
    """One launch with events of its own; afterwards the words are as they must be."""
    events = {label: Event(label) for label in kernel.events}
    for label, event in events.items():
        if label.startswith("in"):
            event.set()
    memory = {name: arrays[name].copy() for name in kernel.graph.buffers}
    kernel(memory, events=events)
    assert all(event.is_set() == label.startswith("out") for label, event in events.items())
    return memory


def check(rows: list[Row], options: str, cores: int) -> None:
    ops = ops_of(rows)
    with compile_ops(ops, "fuzz", f"{options}:feed-sync-all=1:debug-watchdog=200", cores) as k:
        arrays = numbers(*BUFFERS, "ws0", "ws1", seed=len(rows))
        wanted = expected(k, arrays)
        found = [launch(k, arrays), launch(k, arrays)]
        with ThreadPoolExecutor(2) as pool:  # two launches at once: more threads than cores
            found += pool.map(launch, [k] * 4, [arrays] * 4)
        for event in k.events.values():
            event.set()
        found.append(launched(k.unfused(), k, arrays))
        for memory in found:
            for name in compared(k):
                np.testing.assert_array_equal(memory[name], wanted[name], err_msg=f"{name}\n{k.graph}\n{k.plan}")


@pytest.mark.parametrize("stream_fusion", (0, 1))
@settings(max_examples=EXAMPLES, phases=(Phase.explicit, Phase.generate))  # a shrunk race is another race
@given(st.lists(ROWS, min_size=2, max_size=7), st.sampled_from(OPTIONS), st.sampled_from((2, 4)), st.booleans())
def test_random_graphs(stream_fusion: int, rows: list[Row], options: str, cores: int, tables: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emit, "TABLES_FROM", 0 if tables else 10**9)
        check(rows, f"{options}:stream-fusion={stream_fusion}", cores)
