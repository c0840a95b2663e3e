"""Cores by work: tiny graphs get one core, large ones all, and what an estimate cannot tell is left to measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from superkernel.model.binary import Binary, Form
from superkernel.model.graph import Graph, build_graph
from superkernel.model.op import Op
from superkernel.model.options import Options
from superkernel.model.params import Param
from superkernel.model.subkernel import SubKernel
from superkernel.plan import CoreChoice, Costs, Machine, choose_cores, make_plan, validate


def machine(cores: int) -> Machine:
    return Machine(cores, costs=Costs(sync_ns=150.0 + 10.0 * cores, team_ns=2500.0 + 50.0 * cores))


def chain(elements: int | None, length: int = 1, blocks: int = 64, **more: Any) -> Graph:
    typed = "" if elements is None else f":float32[{elements}]"
    params = tuple(Param.parse(text) for text in (f"in:x{typed}", f"out:y{typed}"))
    kernel = SubKernel("k", Binary(Form.SOURCE, Path("k.cpp")), blocks, params, **more)
    return build_graph([Op(kernel, [f"t{i}", f"t{i + 1}"]) for i in range(length)], "graph")


def chosen(graph: Graph, available: int = 2, options: str = "") -> CoreChoice:
    return choose_cores(graph, Options.parse(options), machine, available)


def test_a_net_of_a_few_microseconds_gets_one_core() -> None:
    choice = chosen(chain(64, blocks=2))
    assert (choice.cores, choice.measures_alone) == (1, False)
    assert choice.reason == "estimated 0.1 to 0.9 us on 1 core: a team costs more"


def test_large_work_gets_all_cores_without_a_measurement() -> None:
    for available in (2, 5, 16):
        choice = chosen(chain(1 << 22), available)
        assert (choice.cores, choice.measures_alone) == (available, False)
        assert f"us on {available}" in choice.reason


def test_many_tiny_ops_are_measured_because_their_arithmetic_is_unknown() -> None:
    choice = chosen(chain(128, 50, blocks=2))
    assert (choice.cores, choice.measures_alone) == (2, True) and "measure both" in choice.reason


def test_medium_work_gets_some_of_many_cores() -> None:
    choice = chosen(chain(4096), 64)
    assert 1 < choice.cores < 64
    assert chosen(chain(1 << 14), 64).cores >= choice.cores


def test_ops_side_by_side_count_all_their_blocks() -> None:
    kernel = chain(64, blocks=1).nodes[0].kernel
    large = chain(1 << 22, blocks=1).nodes[0].kernel
    for given, cores in ((kernel, 1), (large, 2)):
        ops = [Op(given, ["a", "b"], stream=0), Op(given, ["c", "d"], stream=1)]
        assert chosen(build_graph(ops, "graph", stream_fusion=True), 8, "stream-fusion=1").cores == cores


def test_no_more_cores_than_blocks() -> None:
    assert chosen(chain(1 << 22, blocks=3), 64).cores == 3
    assert chosen(chain(1 << 22, blocks=1), 64).reason == ""


@pytest.mark.parametrize(
    ("graph", "reason"),
    [(chain(None), "untyped"), (chain(64, blocks=4, sync_all=True), ""), (chain(64, sync_all=True), "")],
    ids=["untyped", "meeting", "crowded meeting"],
)
def test_what_cannot_be_estimated_or_changed_gets_all_cores(graph: Graph, reason: str) -> None:
    choice = chosen(graph, 4)
    assert (choice.cores, choice.measures_alone) == (4, False) and reason in choice.reason


def test_events_take_unknown_time() -> None:
    graph = chain(64)
    ops = [Op(graph.nodes[0].kernel, ["a", "b"]), Op(graph.nodes[0].kernel, ["b", "c"], recv=["go"])]
    choice = chosen(build_graph(ops, "graph"), 4)
    assert choice.cores == 4 and "events" in choice.reason


@pytest.mark.parametrize("options", ["", "stream-fusion=1"])
@pytest.mark.parametrize("elements", [1, 64, 4096, 1 << 20])
@pytest.mark.parametrize("available", [1, 2, 7, 64])
def test_every_choice_gives_a_valid_plan(options: str, elements: int, available: int) -> None:
    graph, parsed = chain(elements, 3), Options.parse(options)
    choice = chosen(graph, available, options)
    assert 1 <= choice.cores <= available and choice == chosen(graph, available, options)
    plan = make_plan(graph, parsed, machine(choice.cores))
    assert validate(plan, plan.layout).ok and plan.cores <= choice.cores
