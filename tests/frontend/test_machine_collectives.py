"""Collectives across machines are divided: what all ranks compute is what the collective computes, with equal bits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from frontend.emulated_group import WHOLE, EmulatedGroup
from torch.fx import Graph, GraphModule

from superkernel.errors import LaunchError
from superkernel.frontend.capture.fusibility import Unfusible
from superkernel.frontend.collective_match import CollectiveMatcher, is_inside_machine
from superkernel.frontend.lowering.program_trace import (
    LibraryCall,
    ProgramTrace,
    Storage,
    StorageOrigin,
    TracedTensor,
)
from superkernel.frontend.machine_groups import Machines, agree, machine_group
from superkernel.frontend.process_groups import find_process_group
from superkernel.frontend.segments import MatchedProgram, is_left_inside_machine
from superkernel.model.tensor_arg import ScratchBuffers

collective = torch.ops._c10d_functional
HOSTS = {
    "two machines in turn": "ABAB",
    "one after the other": "AABB",
    "three machines": "AABBCC",
    "in any order": "ABBACC",
    "three ranks each": "AAABBB",
}


def all_reduce(shape: tuple[int, ...], dtype: torch.dtype, reduction: str) -> Callable[[], GraphModule]:
    return lambda: _graph(shape, dtype, collective.all_reduce.default, reduction, WHOLE)


def all_gather(shape: tuple[int, ...], dtype: torch.dtype, ranks: int) -> Callable[[], GraphModule]:
    return lambda: _graph(shape, dtype, collective.all_gather_into_tensor.default, ranks, WHOLE)


def _graph(shape: tuple[int, ...], dtype: torch.dtype, target: Any, *args: Any) -> GraphModule:
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode, graph = FakeTensorMode(), Graph()
    x = graph.placeholder("x")
    x.meta["val"] = mode.from_tensor(torch.empty(shape, dtype=dtype))
    started = graph.call_function(target, (x, *args))
    with mode:
        started.meta["val"] = target(x.meta["val"], *args)
    awaited = graph.call_function(collective.wait_tensor.default, (started,))
    awaited.meta["val"] = started.meta["val"]
    graph.output((awaited,))
    return GraphModule(torch.nn.Module(), graph)


def numbers(shape: tuple[int, ...], dtype: torch.dtype, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    values = torch.randn(shape, generator=generator) * 10
    return values.to(dtype) if dtype.is_floating_point else values.abs().to(dtype)


Results = Callable[[str, Callable[[], GraphModule], list[torch.Tensor]], list[torch.Tensor]]


@pytest.fixture
def divided_results(monkeypatch: pytest.MonkeyPatch) -> Results:
    """What the divided collective gives on every rank."""

    def run(hosts: str, make: Callable[[], GraphModule], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        group = EmulatedGroup(hosts, monkeypatch)
        modules = []
        for rank in range(len(hosts)):
            divided = group.divide(rank, make())
            assert divided is not None
            modules.append(divided)
        return group.run(modules, inputs)

    return run


ALL = [(hosts, reduction) for hosts in HOSTS.values() for reduction in ("sum", "avg", "max", "min", "product")]
# every order of machines and every reduction at least once
SAMPLE = [pair for at, pair in enumerate(ALL) if pair[1] == "sum" or at % 6 == 0]


@pytest.mark.parametrize(
    ("hosts", "reduction"),
    [pytest.param(*pair, marks=() if pair in SAMPLE else pytest.mark.conformance) for pair in ALL],
)
def test_an_all_reduce_is_divided(hosts: str, reduction: str, divided_results: Results) -> None:
    """Also where the ranks of a machine do not divide the elements."""
    for shape, dtype in (((5, 3), torch.float32), ((1,), torch.bfloat16), ((2, 4), torch.float16)):
        inputs = [numbers(shape, dtype, rank) for rank in range(len(hosts))]
        results = divided_results(hosts, all_reduce(shape, dtype, reduction), inputs)
        assert all(torch.equal(result.view(torch.uint8), results[0].view(torch.uint8)) for result in results)
        stacked = torch.stack(inputs).float()
        functions = {"sum": stacked.sum(0), "avg": stacked.mean(0), "max": stacked.amax(0), "min": stacked.amin(0)}
        expected = functions.get(reduction, stacked.prod(0)).to(dtype)
        assert results[0].shape == expected.shape
        torch.testing.assert_close(results[0], expected, rtol=0.02 if dtype is not torch.float32 else 1e-5, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_integers_are_exact(dtype: torch.dtype, divided_results: Results) -> None:
    inputs = [numbers((7,), dtype, rank) for rank in range(4)]
    results = divided_results("ABAB", all_reduce((7,), dtype, "sum"), inputs)
    assert all(torch.equal(result, sum(inputs[1:], inputs[0])) for result in results)


def test_the_order_of_reduction_is_by_rank_inside_a_machine_and_then_by_machine(divided_results: Results) -> None:
    """Floats for which the order matters."""
    inputs = [torch.tensor([value], dtype=torch.float32) for value in (1e8, 1.0, -1e8, 1.0, 3.0, 1e-3)]
    results = divided_results("ABABCC", all_reduce((1,), torch.float32, "sum"), inputs)
    expected = ((inputs[0] + inputs[2]) + (inputs[1] + inputs[3])) + (inputs[4] + inputs[5])
    assert all(torch.equal(result, expected) for result in results)


def test_nan_and_infinity_reach_every_rank(divided_results: Results) -> None:
    inputs = [torch.tensor([value, 1.0]) for value in (1.0, float("nan"), float("inf"), 2.0)]
    for reduction in ("sum", "max", "min"):
        results = divided_results("AABB", all_reduce((2,), torch.float32, reduction), inputs)
        assert all(result[0].isnan() and not result[1].isnan() for result in results)


@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
def test_an_all_gather_is_divided(hosts: str, divided_results: Results) -> None:
    inputs = [numbers((2, 3), torch.float32, rank) for rank in range(len(hosts))]
    results = divided_results(hosts, all_gather((2, 3), torch.float32, len(hosts)), inputs)
    assert all(torch.equal(result, torch.cat(inputs)) for result in results)


@pytest.mark.parametrize(
    ("hosts", "make"),
    [
        ("AAAA", all_reduce((4,), torch.float32, "sum")),  # one machine
        ("ABCD", all_reduce((4,), torch.float32, "sum")),  # nothing inside a machine
        ("AAAB", all_reduce((4,), torch.float32, "sum")),  # machines of different sizes
        ("AABB", all_reduce((4,), torch.bool, "sum")),
        ("AABB", all_reduce((4,), torch.int64, "avg")),
        ("AABB", all_reduce((0,), torch.float32, "sum")),
        ("AABB", lambda: _graph((4,), torch.float32, collective.broadcast.default, 0, WHOLE)),
    ],
)
def test_what_is_not_divided(hosts: str, make: Callable[[], GraphModule], monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the segment splits, with the reason `collective across machines`, or all of it is on one machine."""
    group = EmulatedGroup(hosts, monkeypatch)
    assert [group.divide(rank, make()) for rank in range(4)] == [None] * 4


def test_the_graph_that_is_divided_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the parts cannot be lowered, the collective runs as it is."""
    module = all_reduce((4,), torch.float32, "sum")()
    before = str(module.graph)
    divided = EmulatedGroup("AABB", monkeypatch).divide(0, module)
    assert divided is not None and str(divided.graph) != before == str(module.graph)


def test_a_collective_that_something_else_than_its_wait_reads_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    module = all_reduce((4,), torch.float32, "sum")()
    started = next(node for node in module.graph.nodes if node.target is collective.all_reduce.default)
    output = next(node for node in module.graph.nodes if node.op == "output")
    output.args = ((*output.args[0], started),)
    assert EmulatedGroup("AABB", monkeypatch).divide(0, module) is None


def test_groups_of_a_machine_have_names_and_so_keys_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    emulated = EmulatedGroup("ABAB", monkeypatch)
    found = []
    for rank in range(4):
        part = machine_group(emulated.become(rank), Machines.from_hosts("ABAB", rank))
        assert part.is_alive and part.whole is find_process_group(WHOLE)
        found.append((part.group.name, part.group.ranks, part.group.rank))
    assert found == [
        ("whole on machine 0", (10, 12), 0),
        ("whole on machine 1", (11, 13), 0),
        ("whole on machine 0", (10, 12), 1),
        ("whole on machine 1", (11, 13), 1),
    ]


def test_ranks_agree_before_they_divide(monkeypatch: pytest.MonkeyPatch) -> None:
    emulated = EmulatedGroup("AABB", monkeypatch)
    found = emulated.become(3)
    with pytest.raises(LaunchError, match=r"rank 13 cannot learn how a collective is divided.* every|each rank must"):
        agree(found, emulated.support, "all_reduce sum")  # the others run it as one, and say nothing
    for number, statements in enumerate((["sum"] * 3, ["sum", "max", "sum"]), start=1):
        for rank, statement in enumerate(statements):
            emulated.store.set(f"superkernel/token/divided/{number}/{10 + rank}", statement)
    agree(found, emulated.support, "sum")
    with pytest.raises(
        LaunchError, match="ranks 13 and 11 divide them among machines differently: 'sum' here and 'max'"
    ):
        agree(found, emulated.support, "sum")


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_collective_inside_a_machine_is_of_its_ranks_and_never_left_to_torch(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch would take it for one of the whole group: what cannot be fused is lowered again, undivided."""
    emulated = EmulatedGroup("ABAB", monkeypatch)
    emulated.become(2)
    given, result = (
        TracedTensor(Storage(name, StorageOrigin.RETURNED, 4 * count, 0), 0, torch.float32, (count,), (1,))
        for name, count in (("x", 8), ("y", 8 * ranks))
    )
    call = LibraryCall(collective.all_gather_into_tensor.default, (given, ranks, WHOLE), {}, (result,))
    matched = CollectiveMatcher(emulated.support, 1).match(call)
    program = MatchedProgram(ProgramTrace({}, [call], [], [], [], []), [(call, matched)], ScratchBuffers("scratch"))
    assert is_inside_machine(call) == (ranks == 2)
    if ranks == 2:
        assert isinstance(matched, tuple)
        assert (matched[0].group.name, matched[0].group.ranks) == ("whole on machine 0", (10, 12))
        left = replace(program, calls=[(call, Unfusible("all_gather", "no kernel"))])
        assert is_left_inside_machine(left) and not is_left_inside_machine(program)
    else:
        assert isinstance(matched, Unfusible) and matched.reason == "collective across machines"
        assert not is_left_inside_machine(program)


@pytest.mark.conformance
@pytest.mark.parametrize(("ranks", "ranks_each", "fused"), [(4, 2, 8), (2, 1, 0)])
def test_ranks_on_two_machines(ranks: int, ranks_each: int, fused: int, tmp_path: Path) -> None:
    """Processes that take themselves for two machines: values, bits, `fuse=off`, and what explain says.

    With one rank on each, every collective of both splits its segment.
    """
    program = Path(__file__).with_name("machine_rank.py")
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths}
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), str(ranks), str(ranks_each), str(tmp_path / "store")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        printed = [process.communicate(timeout=800)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, text in zip(processes, printed, strict=True):
        assert process.returncode == 0, text
        assert f"fused inside: {fused}; across: True" in text
