"""Collectives of a graph: what ops say of other ranks, what is refused, and the digest that ranks compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan.strategies import kernel

from superkernel.errors import GraphError, LaunchError
from superkernel.model.collective_digest import CollectiveDigest, collective_digest, collectives_stated
from superkernel.model.graph import build_graph
from superkernel.model.op import Op, Place
from superkernel.model.opsfile import read_ops
from superkernel.model.ranks import RankGroup, RankSync, ranks_to_json
from superkernel.model.window_layout import FAILED, WindowLayout, next_round
from superkernel.targets.buffers import bind

GROUP = RankGroup("tp", (4, 6), 1)
PUBLISH = kernel("publish", 2, "in:x:float32[8]", "out:w:uint8[512]")
COLLECT = kernel("collect", 2, "in:w:uint8[512]", "out:y:float32[8]")
REUSE = kernel("reuse", 1, "in:w:uint8[512]", "out:v:uint8[512]")


def sends(collective: str = "c", window: str = "w", group: RankGroup = GROUP, terms: str = "") -> RankSync:
    return RankSync(collective, group, window, True, terms)


def awaits(collective: str = "c", window: str = "w", group: RankGroup = GROUP, terms: str = "") -> RankSync:
    return RankSync(collective, group, window, False, terms)


def publish(window: str = "w", **sync: Any) -> Op:
    return Op(PUBLISH, ["x", window], ranks=[sends(window=window, **sync)])


def collect(window: str = "w", **sync: Any) -> Op:
    return Op(COLLECT, [window, f"y_{window}"], ranks=[awaits(window=window, **sync)])


def test_collectives_stand_in_the_order_of_their_senders() -> None:
    second = {"collective": "d", "window": "v"}
    graph = build_graph([publish(), publish(**second), collect(**second), collect()])
    assert [(c.name, c.window, c.sender, c.receivers) for c in graph.collectives] == [
        ("c", "w", 0, (3,)),
        ("d", "v", 1, (2,)),
    ]
    assert "notifies the ranks of tp (4,6)" in str(graph) and "waits for the ranks of tp (4,6)" in str(graph)
    assert (GROUP.size, GROUP.global_rank) == (2, 6)


def test_a_window_is_never_allocated_by_a_launch() -> None:
    graph = build_graph([publish(), collect()])
    assert graph.buffers["w"].window and not graph.buffers["w"].can_allocate and "w" not in graph.inner
    with pytest.raises(LaunchError, match="'w' is a window that all ranks of a group share, and was not passed"):
        bind(graph, {"x": np.zeros(8, "float32")})


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([publish()], "no op waits for it"),
        ([collect()], "which no op sends"),
        ([collect(), publish()], "before op 'publish' has sent it"),
        ([publish(), publish(), collect()], "two senders"),
        ([publish(), publish(collective="d"), collect(), collect(collective="d")], "each needs a window of its own"),
        ([publish(), Op(COLLECT, ["w", "y"], ranks=[awaits(window="v")])], "'v' is no argument of the op"),
        ([Op(PUBLISH, ["w", "v"], ranks=[sends()])], "must be an `out` argument"),
        ([Op(PUBLISH, ["x", Place("w", 64)], ranks=[sends()])], "from its beginning"),
        ([publish(), collect(group=RankGroup("tp", (4, 7), 1))], r"its group is tp \(4,6\)"),
        ([publish(terms="sum"), collect(terms="max")], "its terms are 'sum'"),
        ([publish(), collect(), Op(REUSE, ["w", "v"])], "'reuse' reads 'w', the window of collective 'c'"),
        (
            [publish(), Op(PUBLISH, ["x", "w"]), collect()],
            "'publish_1' writes 'w', the window of collective 'c'",
        ),
        (
            [
                publish(),
                collect(),
                *(make("v", collective="d", group=RankGroup("tp", (4,), 0)) for make in (publish, collect)),
            ],
            "two groups of ranks are called 'tp'",
        ),
    ],
)
def test_contradictions_are_refused(ops: list[Op], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        build_graph(ops)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RankGroup("tp", (0, 0), 0), "different ranks"),
        (lambda: RankGroup("tp", (), 0), "different ranks"),
        (lambda: RankGroup("tp", (0, -1), 0), "whole number from 0"),
        (lambda: RankGroup("tp", (0, 1), 2), "from 0 to 1"),
        (lambda: RankGroup("tp", 3, 0), "list of whole numbers"),
        (lambda: RankGroup("", (0, 1), 0), "name of a group"),
        (lambda: RankSync("c", "tp", "w", True), "RankGroup is needed"),
        (lambda: RankSync("c", GROUP, "w", 2), "True or False"),
        (lambda: RankSync("c", GROUP, "w", True, 3), "terms"),
        (lambda: Op(PUBLISH, ["x", "w"], ranks=["c"]), "no RankSync"),
        (lambda: Op(PUBLISH, ["x", "w"], ranks=3), "list of RankSync"),
        (lambda: Op(PUBLISH, ["x", "w"], ranks=[sends(), sends()]), "a collective twice"),
    ],
)
def test_bad_groups_and_syncs_are_refused(make: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make()


def test_the_digest_begins_with_the_terms_and_leaves_out_what_is_unknown() -> None:
    sender = Op(kernel("publish", 1, "in:x", "out:w"), ["x", "w"], ranks=[sends(terms="all_reduce sum of float32[8]")])
    receiver = Op(kernel("reduce", 1, "in:w", "out:y"), ["w", "y"], ranks=[awaits()])
    stated = collective_digest(build_graph([sender, receiver]))
    assert stated.listing == ("all_reduce sum of float32[8]: publish -> reduce, ranks tp (4,6)",)


def test_the_digest_says_what_ranks_must_have_in_common() -> None:
    def digest(*ops: Op, group: str | None = None) -> CollectiveDigest:
        return collective_digest(build_graph(ops), group)

    plain = digest(publish(), collect())
    assert (
        plain.listing == ("publish(in float32) -> collect(out float32), a window of 512 bytes, ranks tp (4,6)",)
        and len(plain.digest) == 64
    )
    other_rank = RankGroup("tp", (4, 6), 0)
    assert digest(publish(group=other_rank), collect(group=other_rank)) == plain
    named = Op(PUBLISH, ["x", "w"], name="my_publish", ranks=[sends()])
    assert digest(named, collect()) == plain
    terms = digest(publish(terms="sum"), collect())
    assert plain.difference(terms) == f"collective 0 is {plain.listing[0]!r} here and {terms.listing[0]!r} there"
    narrow = kernel("publish", 2, "in:x:float32[8]", "out:w:uint8[256]")
    untyped = kernel("collect", 2, "in:w", "out:y:float32[8]")
    other_size = digest(Op(narrow, ["x", "w"], ranks=[sends()]), Op(untyped, ["w", "y"], ranks=[awaits()]))
    assert "256 bytes" in other_size.listing[0] and other_size.digest != plain.digest
    data_parallel = RankGroup("dp", (6, 8), 0)
    both = (publish(), publish("v", collective="d", group=data_parallel))
    both += (collect(), collect("v", collective="d", group=data_parallel))
    assert digest(*both).difference(plain) == "2 collectives here and 1 there"
    assert digest(*both, group="tp") == plain and digest(*both, group="dp") != plain
    swapped = (both[1], both[0], both[3], both[2])
    assert digest(*both).digest != digest(*swapped).digest


def test_what_groups_of_several_machines_compare_leaves_out_names_and_other_groups() -> None:
    """A group of torch inside each machine may hold the same ranks: its name differs from machine to machine."""
    statements = set()
    for number, ranks in enumerate(((4, 6), (5, 7))):
        inside, other = RankGroup(f"all on machine {number}", ranks, 0), RankGroup(f"tp{number}", ranks, 0)
        ops = [publish(group=inside), publish("v", collective="d", group=other)]
        ops += [collect(group=inside), collect("v", collective="d", group=other)]
        statements.add(collectives_stated(build_graph(ops), inside))
    assert statements == {"publish(in float32) -> collect(out float32), a window of 512 bytes"}


def test_ops_json_says_how_an_op_synchronises_with_ranks(tmp_path: Path) -> None:
    (tmp_path / "k.cpp").write_text('extern "C" void publish(const void*, void*) {}\n')
    kernels = {
        "publish": {"source": "k.cpp", "params": ["in:x", "out:w"], "block_dim": 1},
        "collect": {"source": "k.cpp", "symbol": "publish", "params": ["in:w", "out:y"], "block_dim": 1},
    }
    ops: list[dict[str, Any]] = [
        {"kernel": "publish", "args": ["x", "w"], "ranks": ranks_to_json([sends(terms="sum")])},
        {"kernel": "collect", "args": ["w", "y"], "ranks": ranks_to_json([awaits()])},
    ]
    file = tmp_path / "ops.json"
    file.write_text(json.dumps({"kernels": kernels, "ops": ops}))
    read = read_ops(file).ops
    assert [tuple(op.ranks) for op in read] == [(sends(terms="sum"),), (awaits(),)]
    ops[1]["ranks"][0]["group"]["rank"] = 2
    file.write_text(json.dumps({"kernels": kernels, "ops": ops}))
    with pytest.raises(GraphError, match=r"ops\[1\].ranks\[0\].group.*from 0 to 1"):
        read_ops(file)
    del ops[1]["ranks"][0]["window"]
    file.write_text(json.dumps({"kernels": kernels, "ops": ops}))
    with pytest.raises(GraphError, match=r"ops\[1\].ranks\[0\].*'window' is missing"):
        read_ops(file)


GOOD: dict[str, Any] = {
    "collective": "c",
    "group": {"name": "tp", "ranks": [4, 6], "rank": 1},
    "window": "w",
    "sends": True,
}


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ({"collective": "c"}, r"ops\[0\]\.ranks.* a list"),
        (["c"], r"ops\[0\]\.ranks\[0\].* an object"),
        ([{**GOOD, "collectiv": "c"}], r"ranks\[0\]\.collectiv: unknown field .did you mean 'collective'"),
        ([{key: value for key, value in GOOD.items() if key != "sends"}], "'sends' is missing"),
        ([{**GOOD, "sends": 1}], r"ranks\[0\]\.sends.*true or false"),
        ([{**GOOD, "sends": "yes"}], r"ranks\[0\]\.sends.*true or false"),
        ([{**GOOD, "terms": 3}], r"ranks\[0\]\.terms"),
        ([{**GOOD, "window": ""}], r"ranks\[0\]\.window"),
        ([{**GOOD, "group": "tp"}], r"ranks\[0\]\.group.* an object"),
        ([{**GOOD, "group": {**GOOD["group"], "size": 2}}], r"group\.size: unknown field"),
        ([{**GOOD, "group": {**GOOD["group"], "ranks": [4, "6"]}}], r"group\.ranks\[1\]"),
        ([{**GOOD, "group": {**GOOD["group"], "ranks": [4, 4]}}], "different ranks"),
        ([{**GOOD, "group": {**GOOD["group"], "ranks": []}}], "different ranks"),
        ([{**GOOD, "group": {**GOOD["group"], "ranks": [4, -6]}}], "whole number from 0"),
        ([{**GOOD, "group": {**GOOD["group"], "rank": 1.5}}], r"group\.rank"),
        ([GOOD, GOOD], "names a collective twice"),
    ],
)
def test_bad_ranks_of_ops_json_are_refused_by_their_field(tmp_path: Path, ranks: Any, message: str) -> None:
    (tmp_path / "k.cpp").write_text('extern "C" void publish(const void*, void*) {}\n')
    kernels = {"publish": {"source": "k.cpp", "params": ["in:x", "out:w"], "block_dim": 1}}
    file = tmp_path / "ops.json"
    ops = [{"kernel": "publish", "args": ["x", "w"], "ranks": ranks}]
    file.write_text(json.dumps({"kernels": kernels, "ops": ops}))
    with pytest.raises(GraphError, match=message):
        read_ops(file)


def test_null_ranks_of_ops_json_are_none(tmp_path: Path) -> None:
    (tmp_path / "k.cpp").write_text('extern "C" void publish(const void*, void*) {}\n')
    kernels = {"publish": {"source": "k.cpp", "params": ["in:x", "out:w"], "block_dim": 1}}
    file = tmp_path / "ops.json"
    for ranks in (None, []):
        ops = [{"kernel": "publish", "args": ["x", "w"], "ranks": ranks}]
        file.write_text(json.dumps({"kernels": kernels, "ops": ops}))
        assert read_ops(file).ops[0].ranks == ()


@pytest.mark.parametrize(("ranks", "slot_bytes"), [(1, 0), (2, 4), (3, 64), (2, 4096), (5, 4097), (8, 1 << 20)])
def test_slots_of_a_window_lie_apart(ranks: int, slot_bytes: int) -> None:
    layout = WindowLayout(ranks, slot_bytes)
    begins = [layout.slot(parity, rank) for parity in (0, 1) for rank in range(ranks)]
    unit = 4096 if slot_bytes > 4096 else 64
    assert all(begin % unit == 0 for begin in begins)
    assert begins[0] >= layout.line(ranks - 1) + 128
    ends = [*begins[1:], layout.nbytes]
    assert all(end - begin >= max(slot_bytes, 1) for begin, end in zip(begins, ends, strict=True))
    assert layout.slot(7, 0) == layout.slot(1, 0) != layout.slot(6, 0)


def test_rounds_in_a_row_differ_in_parity_and_are_never_the_mark_of_a_failure() -> None:
    current = FAILED - 9
    for _ in range(20):
        following = next_round(current)
        assert (following ^ current) & 1 and following not in (0, FAILED)
        assert 0 < (following - current) & 0xFFFFFFFF < 8
        current = following
