"""The dependency edges of a graph: every hazard has its edge, and no edge is there without a hazard."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, find, given, settings
from plan.strategies import Case, cases, kernel

from superkernel.errors import GraphError
from superkernel.model.graph import Graph, build_graph
from superkernel.model.hazards import Hazard
from superkernel.model.op import Op, Place
from superkernel.model.params import Param
from superkernel.model.subkernel import SubKernel

READ, WRITE, UPDATE = kernel("read", 2, "in:x"), kernel("write", 2, "out:x"), kernel("update", 2, "inout:x")
SCRATCH = kernel("scratch", 2, "workspace:x")
RAW, WAR, WAW = Hazard.READ_AFTER_WRITE, Hazard.WRITE_AFTER_READ, Hazard.WRITE_AFTER_WRITE


def graph_of(*kernels: SubKernel) -> Graph:
    """All on one buffer."""
    return build_graph([Op(used, ["a"]) for used in kernels])


def edges(graph: Graph) -> dict[tuple[int, int], set[Hazard]]:
    return {(edge.producer, edge.consumer): {reason.hazard for reason in edge.reasons} for edge in graph.edges}


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ((WRITE, READ), {(0, 1): {RAW}}),
        ((READ, WRITE), {(0, 1): {WAR}}),
        ((WRITE, WRITE), {(0, 1): {WAW}}),
        ((READ, READ), {}),
        ((UPDATE, UPDATE), {(0, 1): {RAW, WAW}}),
        ((WRITE, UPDATE), {(0, 1): {RAW, WAW}}),
        ((READ, UPDATE), {(0, 1): {WAR}}),
        ((UPDATE, READ), {(0, 1): {RAW}}),
        ((SCRATCH, SCRATCH), {(0, 1): {WAW}}),
        ((WRITE, READ, WRITE), {(0, 1): {RAW}, (1, 2): {WAR}}),
        ((WRITE, READ, READ, WRITE), {(0, 1): {RAW}, (0, 2): {RAW}, (1, 3): {WAR}, (2, 3): {WAR}}),
        ((WRITE, WRITE, READ), {(0, 1): {WAW}, (1, 2): {RAW}}),
    ],
)
def test_hazards_on_one_buffer(kernels: tuple[SubKernel, ...], expected: dict[tuple[int, int], set[Hazard]]) -> None:
    assert edges(graph_of(*kernels)) == expected


def test_different_buffers_have_no_hazard() -> None:
    assert not build_graph([Op(WRITE, ["a"]), Op(READ, ["b"]), Op(WRITE, ["c"])]).edges


def test_a_workspace_is_written() -> None:
    assert edges(graph_of(SCRATCH, READ)) == {(0, 1): {RAW}}
    assert edges(graph_of(READ, SCRATCH)) == {(0, 1): {WAR}}


def test_scalars_are_no_memory() -> None:
    counted = kernel("counted", 1, "scalar:n", "out:x")
    assert not build_graph([Op(counted, ["n", "a"]), Op(counted, ["n", "b"])]).edges
    with pytest.raises(GraphError, match="scalar in one place and memory in another"):
        build_graph([Op(counted, ["n", "a"]), Op(counted, ["a", "b"])])


@pytest.mark.parametrize(
    ("first", "second", "local"),
    [
        ("out:x@block", "in:x@block", True),
        ("out:x:float32[8]@block", "in:x:float32[8]@block", True),
        ("out:x@block", "in:x", False),
        ("out:x", "in:x@block", False),
        ("out:x:float32[8]@block", "in:x:float32[2,4]@block", False),
        ("in:x@block", "out:x@block", True),
        ("inout:x@block", "inout:x@block", True),
    ],
)
def test_block_local_needs_the_promise_on_both_sides(first: str, second: str, local: bool) -> None:
    (edge,) = graph_of(kernel("first", 2, first), kernel("second", 2, second)).edges
    assert edge.block_local is local


def test_block_local_needs_equal_block_counts_and_no_dynamic_op() -> None:
    wide, narrow = kernel("wide", 4, "out:x@block"), kernel("narrow", 2, "in:x@block")
    assert not graph_of(wide, narrow).edges[0].block_local
    ops = [Op(kernel("a", 2, "out:x@block"), ["a"]), Op(narrow, ["a"], task="dynamic")]
    assert not build_graph(ops).edges[0].block_local
    (edge,) = build_graph([*ops[1:], Op(kernel("a", 2, "out:x@block"), ["a"])]).edges
    assert not edge.block_local


@pytest.mark.parametrize(
    ("first", "second", "blocks", "ranged"),
    [
        ("out:x:float32[8]@block", "in:x:float32[8]@block", (4, 2), True),
        ("in:x:float32[8]@block", "inout:x:float32[8]@block", (1, 8), True),
        ("out:x:float32[12]@block", "out:x:float32[12]@block", (4, 6), True),
        ("out:x:float32[8]@block", "in:x:float32[8]@block", (2, 2), False),
        ("out:x:float32[8]@block", "in:x:float32[8]", (4, 2), False),
        ("out:x:float32[8]", "in:x:float32[8]@block", (4, 2), False),
        ("out:x:float32[8]@block", "in:x:float32[2,4]@block", (4, 2), False),
        ("out:x@block", "in:x@block", (4, 2), False),
        ("out:x:float32[8]@block", "in:x@block", (4, 2), False),
    ],
)
def test_ranged_needs_equal_parts_of_one_shape(first: str, second: str, blocks: tuple[int, int], ranged: bool) -> None:
    (edge,) = graph_of(kernel("first", blocks[0], first), kernel("second", blocks[1], second)).edges
    assert {reason.ranged for reason in edge.reasons} == {ranged}
    assert edge.block_local is (blocks == (2, 2))


def test_a_dynamic_op_or_a_place_inside_the_buffer_is_not_ranged() -> None:
    write, read = kernel("write", 4, "out:x:float32[8]@block"), kernel("read", 2, "in:x:float32[8]@block")
    for ops in (
        [Op(write, ["a"]), Op(read, ["a"], task="dynamic")],
        [Op(write, ["a"], task="dynamic"), Op(read, ["a"])],
        [Op(write, ["a"]), Op(kernel("part", 2, "in:x:float32[4]@block"), [Place("a", 4)])],
    ):
        assert not build_graph(ops).edges[0].reasons[0].ranged


def test_places_of_one_name_are_one_buffer_without_a_promise() -> None:
    write, read = kernel("write", 2, "out:x:float32[8]@block"), kernel("read", 2, "in:x:float32[8]@block")
    write_part, read_part = kernel("write", 2, "out:x:float32[2]@block"), kernel("read", 2, "in:x:float32[2]@block")
    for ops in (
        [Op(write, ["a"]), Op(read_part, [Place("a", 4)])],
        [Op(write_part, [Place("a", 4)]), Op(read, ["a"])],
        [Op(write_part, [Place("a", 4)]), Op(read_part, [Place("a", 8)])],
    ):
        graph = build_graph(ops)
        assert edges(graph) == {(0, 1): {RAW}}
        assert not graph.edges[0].block_local
    assert build_graph([Op(write, ["a"]), Op(read, [Place("a")])]).edges[0].block_local


def test_a_part_says_nothing_of_the_whole() -> None:
    write, read = kernel("write", 1, "out:x:int8[3]"), kernel("read", 1, "in:x:float64[9]")
    buffer = build_graph([Op(write, [Place("a", 16)]), Op(read, [Place("a", 24)])]).buffers["a"]
    assert (buffer.dtype, buffer.shape, buffer.reach, buffer.needs_value) == (None, None, 24, False)
    with pytest.raises(GraphError, match="says dtype float64 for 'a', an earlier op says int8"):
        build_graph([Op(write, ["a"]), Op(read, [Place("a", 0)])])


def test_a_parameter_read_before_the_wait_marks_its_edge() -> None:
    early = kernel("early", 2, "in:x", "in:w", "out:y", waits_inside=True, early_start=("w",))
    graph = build_graph([Op(WRITE, ["a"]), Op(WRITE, ["b"]), Op(early, ["a", "b", "c"])])
    assert [edge.before_wait for edge in graph.incoming[2]] == [False, True]


def test_events_are_edges_and_keep_their_hazards() -> None:
    graph = build_graph(
        [Op(WRITE, ["a"], send=4), Op(READ, ["a"], stream=1, recv=4), Op(READ, ["b"], stream=1, recv=4)]
    )
    assert edges(graph) == {(0, 1): {RAW, Hazard.EVENT}, (0, 2): {Hazard.EVENT}}
    assert all(edge.whole_stream for edge in graph.edges)


def test_stream_order_alone_is_no_edge() -> None:
    assert not build_graph([Op(WRITE, ["a"]), Op(WRITE, ["b"])]).edges


# Brute force, block by block.


def touches(op: Op) -> dict[str, tuple[bool, bool, Param | None]]:
    """Buffer -> reads, writes, and the parameter that says which part of it a block touches (None: any)."""
    found: dict[str, list[Param]] = {}
    for param, arg in zip(op.kernel.params, op.args, strict=True):
        if isinstance(arg, Place):
            found.setdefault(arg.name, []).append(replace(param, block=False))
        elif isinstance(arg, str):
            found.setdefault(arg, []).append(param)
    return {
        name: (
            any(p.kind.reads for p in params),
            any(p.kind.writes for p in params),
            params[0] if all(p.block and p.shape == params[0].shape for p in params) else None,
        )
        for name, params in found.items()
    }


def share(part: Param, blocks: int, block: int) -> range:
    """The elements that a block promises to stay in."""
    assert part.elements is not None and part.elements % blocks == 0
    size = part.elements // blocks
    return range(block * size, (block + 1) * size)


def conflict(first: Op, block: int, second: Op, other: int, on: set[str] | None = None) -> bool:
    """May the two blocks touch the same memory (if given: of the buffers `on`), one of them writing?"""
    theirs = touches(second)
    for name, (_, writes, part) in touches(first).items():
        if name not in theirs or (on is not None and name not in on) or not (writes or theirs[name][1]):
            continue
        partner = theirs[name][2]
        if part is None or partner is None or part.shape != partner.shape or first.dynamic or second.dynamic:
            return True
        if first.kernel.block_dim == second.kernel.block_dim:
            if block == other:
                return True
        elif part.shape is None:
            return True
        else:
            mine, others = share(part, first.kernel.block_dim, block), share(part, second.kernel.block_dim, other)
            if max(mine.start, others.start) < min(mine.stop, others.stop):
                return True
    return False


def blocks_before(graph: Graph) -> dict[tuple[int, int], set[tuple[int, int]]]:
    """Per block, all blocks that the edges put before it."""
    before: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for op in graph.order:
        for block in range(graph.nodes[op].blocks):
            reached = before.setdefault((op, block), set())
            for edge in graph.incoming[op]:
                for other in range(graph.nodes[edge.producer].blocks):
                    if not edge.block_local or other == block:
                        reached |= {(edge.producer, other)} | before[edge.producer, other]
    return before


@given(cases())
def test_every_conflict_of_two_blocks_is_ordered(case: Case) -> None:
    graph, before = case.graph, blocks_before(case.graph)
    for at, later in enumerate(graph.order):
        for earlier in graph.order[:at]:
            first, second = case.ops[earlier], case.ops[later]
            for block in range(second.kernel.block_dim):
                for other in range(first.kernel.block_dim):
                    if conflict(first, other, second, block):
                        assert (earlier, other) in before[later, block]


@given(cases())
def test_every_edge_has_a_cause(case: Case) -> None:
    for edge in case.graph.edges:
        first, second = case.ops[edge.producer], case.ops[edge.consumer]
        causes = {reason.hazard for reason in edge.reasons}
        assert (Hazard.EVENT in causes) == bool(set(first.send) & set(second.recv))
        on = {reason.on for reason in edge.reasons if reason.hazard is not Hazard.EVENT}
        pairs = [(i, j) for i in range(first.kernel.block_dim) for j in range(second.kernel.block_dim)]
        clashes = [(i, j) for i, j in pairs if conflict(first, i, second, j, on)]
        assert bool(clashes) == bool(on)
        assert not edge.block_local or all(i == j for i, j in clashes)


def test_random_cases_have_edges_of_each_extent() -> None:
    """The properties below would hold for graphs without such edges as well."""
    for wanted in (lambda reason: reason.ranged, lambda reason: reason.block_local, lambda reason: reason.on):
        find(
            cases(),
            lambda case, wanted=wanted: any(wanted(reason) for edge in case.graph.edges for reason in edge.reasons),
            settings=settings(phases=[Phase.generate]),
        )


@given(cases())
def test_a_ranged_reason_names_the_blocks_that_conflict(case: Case) -> None:
    for edge in case.graph.edges:
        first, second = case.ops[edge.producer], case.ops[edge.consumer]
        produced, consumed = first.kernel.block_dim, second.kernel.block_dim
        for reason in edge.reasons:
            if reason.ranged:
                assert not reason.block_local
                for block in range(consumed):
                    needed = [p for p in range(produced) if conflict(first, p, second, block, {reason.on})]
                    last = -(-(block + 1) * produced // consumed) - 1
                    assert needed == list(range(block * produced // consumed, last + 1))


def test_edges_know_what_a_kernel_reads_before_its_wait_once_that_is_found() -> None:
    """A target may find wait points in the binary, after the graph was built."""
    mix = kernel("mix", 1, "in:w", "in:x", "out:y")
    graph = build_graph([Op(mix, ["a", "b", "w"]), Op(mix, ["w", "b", "c"]), Op(mix, ["b", "c", "d"])])
    assert not any(edge.before_wait for edge in graph.edges)
    found = graph.with_kernels({mix: replace(mix, early_start=("w",), waits_inside=True)})
    assert [(edge.producer, edge.consumer, edge.before_wait) for edge in found.edges] == [(0, 1, True), (1, 2, False)]
    assert not any(edge.before_wait for edge in found.with_kernels({node.kernel: mix for node in found.nodes}).edges)
