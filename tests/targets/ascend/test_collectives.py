"""Collectives of the Ascend target: in op lists, in plans (P23), saved, and where they are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.ascend.device_lists import DeviceKernel, Entry, write_list
from targets.ascend.random_lists import kernel

import superkernel as sk
from superkernel.errors import GraphError, UnsupportedError
from superkernel.model.graph import build_graph
from superkernel.model.options import Options
from superkernel.model.ranks import RankGroup, RankSync
from superkernel.plan.steps import AwaitEvent, Notify
from superkernel.targets.ascend import TARGET
from superkernel.targets.ascend.chips import find_chip
from superkernel.targets.ascend.core_types import KernelType
from superkernel.targets.ascend.plan import AscendPlan, make_ascend_plan
from superkernel.targets.ascend.rank_events import with_rank_events
from superkernel.targets.ascend.runtime.launcher import AscendLauncher
from superkernel.targets.ascend.validate import validate
from superkernel.targets.ascend.weights import weights_by_reader
from superkernel.tools.emulate_list import emulate_list

COUNT = 64
Fields = dict[str, Any]


def group(rank: int) -> Fields:
    return {"name": "tp", "ranks": [4, 7], "rank": rank}


def entries(rank: int) -> list[Fields]:
    """The four collectives that seed a scope: each reads what the one before made."""
    reduced = {"type": f"float32[{COUNT // 2}]"}
    whole = {"type": f"float32[{COUNT}]", "group": group(rank)}
    return [
        {"op_type": "AllReduce", "args": ["x", "y"], **whole},
        {"op_type": "AlltoAll", "args": ["y", "z"], **whole, "name": "swap"},
        {"op_type": "ReduceScatter", "args": ["z", "p"], **whole, "reduction": "max", "stream_id": -1},
        {"op_type": "AllGather", "args": ["p", "w"], **whole, **reduced},
    ]


def write(path: Path, listed: list[Fields], name: str = "lists") -> Path:
    path.write_text(json.dumps({"name": name, "op_list": listed}))
    return path


def compiled(folder: Path, rank: int) -> sk.SuperKernel:
    described = TARGET.read_ops(write(folder / f"rank{rank}.json", entries(rank), f"rank{rank}"))
    return sk.compile(described.ops, described.name, described.options, "ascend")


def test_the_four_collectives_are_ops_of_a_list(tmp_path: Path) -> None:
    kernels = [compiled(tmp_path, rank) for rank in range(2)]
    assert [node.kernel.op_type for node in kernels[0].graph.nodes[::2]] == [
        "AllReduce", "AlltoAll", "ReduceScatter", "AllGather",
    ]  # fmt: skip
    assert "there is no compiled kernel of AllReduce" in kernels[0].executable.remarks[0]
    x = [np.arange(COUNT, dtype=np.float32) * (rank + 1) for rank in range(2)]
    outputs = sk.emulate_ranks(kernels, [{"x": each} for each in x], seed=1, launches=2)
    halves = np.split(x[0] + x[1], 2)  # swap gives rank r the r-th half of both ranks, which have the same
    larger = [np.maximum(*[np.split(np.tile(half, 2), 2)[rank] for half in halves]) for rank in range(2)]
    for output in outputs:
        assert np.array_equal(output["w"], np.concatenate(larger))
    folder = tmp_path / "saved"
    for kernel_of_rank in kernels:
        kernel_of_rank.save(folder / kernel_of_rank.name)
    loaded = [sk.load(folder / f"rank{rank}") for rank in range(2)]
    again = sk.emulate_ranks(loaded, [{"x": each} for each in x], seed=1, launches=2)
    assert all(np.array_equal(one["w"], other["w"]) for one, other in zip(again, outputs, strict=True))


def test_a_broadcast_and_parts_of_different_sizes_are_ops_of_a_list(tmp_path: Path) -> None:
    splits = [[5, 40], [3, 0]]
    kernels = []
    for rank in range(2):
        whole = {"type": f"int32[{sum(splits[rank])}]", "group": group(rank)}
        listed = [
            {"op_type": "AlltoAll", "args": ["x", "y"], **whole, "splits": splits},
            {"op_type": "Broadcast", "args": ["v", "z"], **whole, "type": "int32[9]", "root": 1},
        ]
        described = TARGET.read_ops(write(tmp_path / f"rank{rank}.json", listed, f"rank{rank}"))
        kernels.append(sk.compile(described.ops, described.name, described.options, "ascend"))
    x = [np.arange(45, dtype=np.int32), np.arange(100, 103, dtype=np.int32)]
    v = [np.arange(9, dtype=np.int32), np.arange(50, 59, dtype=np.int32)]
    for seed in range(6):
        given = [{"x": x[rank], "v": v[rank]} for rank in range(2)]
        outputs = sk.emulate_ranks(kernels, given, seed=seed, launches=3)
        assert np.array_equal(outputs[0]["y"], np.concatenate([x[0][:5], x[1]]))
        assert np.array_equal(outputs[1]["y"], x[0][5:])
        assert all(np.array_equal(output["z"], v[1]) for output in outputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"root": 0}, r"op_list\[0\]\.root: only Broadcast has the field 'root'"),
        ({"splits": [[1]]}, r"op_list\[0\]\.splits: only AlltoAll has the field 'splits'"),
        ({"op_type": "Broadcast", "root": 2}, r"op_list\[0\]: .*root is 2; it is a place in the group, from 0 to 1"),
        ({"op_type": "AlltoAll", "splits": [[64]]}, r"op_list\[0\]: .*a list of 2 numbers for each of the 2 ranks"),
        ({"op_type": "AlltoAll", "splits": [[65, -1], [0, 1]]}, r"op_list\[0\]: .*numbers of elements, from 0"),
        ({"op_type": "AlltoAll", "splits": [[1, 2], [3, 4]]}, r"op_list\[0\]: .*this rank sends 3 elements and rec"),
        ({"op_type": "AllRduce"}, r"op_list\[0\]\.op_type: .*AllReduce"),
        ({"type": "float32"}, r"op_list\[0\]\.type: 'float32' has no shape"),
        ({"type": "float64[8]"}, r"op_list\[0\]: .*there are kernels for"),
        ({"args": ["x"]}, r"op_list\[0\]\.args: 1 arguments; a collective has two"),
        ({"group": {"name": "tp", "ranks": [0, 1]}}, r"op_list\[0\]\.group: the field 'rank' is missing"),
        ({"group": {"name": "tp", "ranks": [0, 1], "rank": 2}}, r"op_list\[0\]\.group: .*place of this process"),
        ({"reduction": "mean"}, r"op_list\[0\]\.reduction"),
        ({"stream_id": -2}, r"op_list\[0\]\.stream_id: -2 is out of range"),
    ],
)
def test_a_wrong_field_of_a_collective_is_named(tmp_path: Path, change: Fields, message: str) -> None:
    path = write(tmp_path / "ops.json", [{**entries(0)[0], **change}])
    with pytest.raises((GraphError, UnsupportedError), match=rf"ops\.json: {message}"):
        TARGET.read_ops(path)


def test_entries_with_compiled_kernels_say_how_they_synchronise(tmp_path: Path) -> None:
    """Kernels that publish and read a window; an entry without args keeps its place in the stream."""
    send = DeviceKernel("send", KernelType.AIV_ONLY, 4, ("in:x", "out:window"))
    read = DeviceKernel("read", KernelType.AIV_ONLY, 4, ("in:window", "out:y"))
    path = write_list(tmp_path, (Entry(send, ("x", "w")), Entry(read), Entry(read, ("w", "y"))), "")
    listed = json.loads(path.read_text())
    ops = listed["op_list"] if isinstance(listed, dict) else listed
    sync = {"collective": "sum", "group": group(1), "window": "w"}
    ops[0]["ranks"], ops[2]["ranks"] = [{**sync, "sends": True}], [{**sync, "sends": False}]
    ops.append(entries(1)[0])
    path.write_text(json.dumps(listed))
    read_back = TARGET.read_ops(path).ops
    assert [len(op.ranks) for op in read_back] == [1, 0, 1, 1, 1]
    assert list(read_back[1].recv) == list(read_back[0].send) and list(read_back[2].recv) == list(read_back[1].send)
    with sk.compile(read_back, "mixed", target="ascend") as made:
        assert "arrival at sum, 1 to 0" in made.source and "arrival at sum, 0 to 1" in made.source


# plans: P23


def plan(change: Callable[[AscendPlan], AscendPlan] = lambda made: made) -> AscendPlan:
    ranks = RankGroup("world", (0, 1, 2), 1)
    send = kernel("send", KernelType.AIV_ONLY, 4, "in:x", "out:w")
    read = kernel("read", KernelType.MIX_AIC_1_2, 2, "in:w", "out:y")
    ops = []
    for name in ("one", "two"):
        ops.append(sk.Op(send, ["x", f"w_{name}"], f"send_{name}", ranks=RankSync(name, ranks, f"w_{name}", True)))
    for name in ("one", "two"):
        ops.append(sk.Op(read, [f"w_{name}", name], f"read_{name}", ranks=RankSync(name, ranks, f"w_{name}", False)))
    return change(make_ascend_plan(with_rank_events(build_graph(ops, "ranks")), Options(), find_chip("a3")))


def messages(made: AscendPlan) -> list[str]:
    return [str(finding) for finding in validate(made).errors]


def test_every_rank_is_notified_and_awaited() -> None:
    made = plan()
    assert not messages(made)
    notified = [step.event for step in made.steps if isinstance(step, Notify)]
    assert notified == [f"arrival at {name}, 1 to {other}" for name in ("one", "two") for other in (0, 2)]
    awaited = [step.event for step in made.steps if isinstance(step, AwaitEvent)]
    assert awaited == [f"arrival at {name}, {other} to 1" for name in ("one", "two") for other in (0, 2)]


def test_the_plan_names_the_ranks_and_their_events() -> None:
    assert "  collectives: 2 with the ranks of world (0,1,2); 8 events between ranks" in plan().summary


def test_other_ranks_announce_no_weights() -> None:
    """Behind a wait for ranks, inputs that no op writes are weights still; behind an event of the host they are not."""
    ranks = RankGroup("world", (0, 1), 0)
    send = kernel("send", KernelType.AIV_ONLY, 4, "in:x", "out:w")
    read = kernel("read", KernelType.AIV_ONLY, 4, "in:w", "in:weight", "out:y")
    ops = [
        sk.Op(send, ["x", "w"], "send", ranks=RankSync("one", ranks, "w", True)),
        sk.Op(read, ["w", "weight", "y"], "read", ranks=RankSync("one", ranks, "w", False)),
    ]
    graph = with_rank_events(build_graph(ops, "weights"))
    assert weights_by_reader(graph, graph.order) == {0: ("x",), 1: ("weight",)}
    announced = with_rank_events(build_graph([ops[0], replace(ops[1], recv=["go"])], "weights"))
    assert weights_by_reader(announced, announced.order) == {0: ("x",)}


def without_step(kind: type[Notify] | type[AwaitEvent], event: str) -> Callable[[AscendPlan], AscendPlan]:
    def change(made: AscendPlan) -> AscendPlan:
        left = tuple(step for step in made.steps if not (isinstance(step, kind) and step.event == event))
        assert len(left) == len(made.steps) - 1
        return replace(made, steps=left)

    return change


def test_a_plan_without_a_notify_or_a_wait_is_refused() -> None:
    found = messages(plan(without_step(Notify, "arrival at one, 1 to 2")))
    assert any("P7" in text and "arrival at one, 1 to 2 is notified 0 times" in text for text in found)
    found = messages(plan(without_step(AwaitEvent, "arrival at two, 2 to 1")))
    assert any("P6" in text and "before event arrival at two, 2 to 1 was seen" in text for text in found)


def test_another_order_of_notifies_is_refused() -> None:
    def change(made: AscendPlan) -> AscendPlan:
        steps = list(made.steps)
        places = [at for at, step in enumerate(steps) if isinstance(step, Notify)]
        for first, second in zip(places[:2], places[2:], strict=True):
            steps[first], steps[second] = steps[second], steps[first]
        return replace(made, steps=tuple(steps))

    wanted = "P23: collectives are notified in the order ['two', 'one']; the other ranks expect ['one', 'two']"
    assert wanted in messages(plan(change))


def test_an_op_without_its_events_is_refused() -> None:
    def change(made: AscendPlan) -> AscendPlan:
        nodes = tuple(
            replace(node, awaits=()) if node.name == "read_two" else replace(node, notifies=node.notifies[:1])
            for node in made.graph.nodes
        )
        return replace(made, graph=replace(made.graph, nodes=nodes))

    found = messages(plan(change))
    assert any("P23" in text and "'read_two' has no part in arrival at two, 0 to 1" in text for text in found)
    assert any("P23" in text and "'send_one' has no part in arrival at one, 1 to 2" in text for text in found)


# refused


def test_an_event_cannot_be_called_like_one_between_ranks() -> None:
    ranks = RankGroup("world", (0, 1), 0)
    send = kernel("send", KernelType.AIV_ONLY, 4, "in:x", "out:w")
    read = kernel("read", KernelType.AIV_ONLY, 4, "in:w", "out:y")
    ops = [
        sk.Op(send, ["x", "w"], send=["arrival at one, 0 to 1"], ranks=RankSync("one", ranks, "w", True)),
        sk.Op(read, ["w", "y"], ranks=RankSync("one", ranks, "w", False)),
    ]
    with pytest.raises(GraphError, match="is called like one between ranks"):
        with_rank_events(build_graph(ops, "clash"))
    with pytest.raises(UnsupportedError, match="inside one super kernel, not op by op"):
        with_rank_events(build_graph([replace(ops[0], send=())], "alone", part=True))


def test_the_shell_emulates_no_rank_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", entries(0))
    with pytest.raises(UnsupportedError, match=r"rank0.json: collective 'AllReduce_0' waits .* sk\.emulate_ranks"):
        emulate_list(path, [0], "ascend", "", None, None)


def test_no_launch_on_an_npu_waits_for_other_npus(tmp_path: Path) -> None:
    with compiled(tmp_path, 0) as made:
        windows = {name: np.zeros(b.shape or (), b.dtype) for name, b in made.graph.buffers.items() if b.window}
        loaded = AscendLauncher(tmp_path / "libacl_rt.so").load(made.executable)  # type: ignore[arg-type]
        x = np.ones(COUNT, np.float32)
        inputs = made.emulator_inputs()
        with pytest.raises(UnsupportedError, match=r"launches on several NPUs are not connected: run it with sk\.emul"):
            loaded.launch({"x": x, **windows}, inputs)
