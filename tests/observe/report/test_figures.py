"""The numbers of a report, and where the ops of its graph stand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from observe.report import samples
from observe.report.samples import kernel_run, launch, span

from superkernel.observe.profile import Profile, ProfiledEdge, ProfiledKernel, ProfiledOp
from superkernel.observe.report import ReportedRun
from superkernel.observe.report.figures import by_type, core_shares, op_rows
from superkernel.observe.report.graph_layout import ACROSS, DOWN, lay_out
from superkernel.observe.report.units import bytes_text, change_text, rate_text, time_text
from superkernel.plan.plan import SyncKind
from superkernel.plan.steps import SpanKind


def test_launches_are_added_up_by_type_and_the_longest_comes_first() -> None:
    rows = by_type(samples.both())
    assert [(row.type, row.time_us, row.count) for row in rows] == [
        ("SuperKernel", (0, 62), (0, 1)),
        ("MatMul", (60, 0), (2, 0)),
        ("Cast", (30, 30), (1, 1)),
        ("Softmax", (30, 0), (1, 0)),
    ]


def test_an_ops_time_is_from_the_first_cores_begin_to_the_last_cores_end() -> None:
    rows = {row.name: row for row in op_rows(samples.after())}
    assert rows["matmul_0"].time_us == 21  # 3 to 24, over two cores
    assert rows["matmul_0"].bytes_moved == 404_000
    assert rows["matmul_0"].bytes_per_s == pytest.approx(404_000 / 21e-6)
    assert rows["matmul_0"].share == pytest.approx(404_000 / 21e-6 / samples.READ_RATE)
    assert rows["matmul_1"].bytes_moved == 200_000  # what is known counts
    assert (rows["print"].bytes_moved, rows["print"].bytes_per_s, rows["print"].share) == (None, None, None)


def test_of_several_launches_the_median_is_taken() -> None:
    launches = tuple(
        launch(
            "k", "SuperKernel", at, 10, kernel=0, spans=tuple(span(c, "a", SpanKind.OP, at, at + us) for c in (0, 1))
        )
        for at, us in ((0, 9), (100, 1), (200, 2))
    )
    (row,) = op_rows(ReportedRun("r", Profile(launches, (ProfiledKernel("k", ops=(ProfiledOp("a"),)),))))
    assert (row.runs, row.time_us) == (3, 2.0)


def test_an_op_too_short_for_the_clock_has_no_speed() -> None:
    (row,) = op_rows(kernel_run([span(0, "a", SpanKind.OP, 1, 1)], [ProfiledOp("a", bytes_read=8)]))
    assert (row.time_us, row.bytes_per_s) == (0, None)


def test_ops_of_the_same_name_in_two_kernels_are_two_ops() -> None:
    kernels = tuple(ProfiledKernel("k", ops=(ProfiledOp("a"),)) for _ in range(2))
    launches = tuple(
        launch("k", "SuperKernel", 0, 4, kernel=number, spans=(span(0, "a", SpanKind.OP, 0, us),))
        for number, us in enumerate((1, 2))
    )
    rows = op_rows(ReportedRun("r", Profile(launches, kernels)))
    assert [(row.kernel, row.time_us) for row in rows] == [("k", 1), ("k (2)", 2)]


def test_a_wait_inside_an_op_is_waiting() -> None:
    spans = (
        span(0, "a", SpanKind.OP, 0, 10),
        span(0, "a", SpanKind.WAIT, 2, 4),
        span(1, "", SpanKind.KERNEL, 0, 10),
        span(1, "a", SpanKind.BARRIER, 0, 5),
    )
    shares = core_shares(kernel_run(spans))
    assert shares is not None
    assert (shares.cores, shares.elapsed_us, shares.working, shares.waiting) == (2, 10, 8 / 20, 7 / 20)


def test_time_between_launches_is_not_the_cores() -> None:
    shares = core_shares(kernel_run([span(0, "a", SpanKind.OP, begin, begin + 5) for begin in (0, 1000)]))
    assert shares is not None
    assert (shares.elapsed_us, shares.working) == (10, 1)


def test_without_spans_there_are_no_shares() -> None:
    assert core_shares(kernel_run()) is None
    assert core_shares(kernel_run([span(0, "a", SpanKind.OP, 1, 1)])) is None
    assert core_shares(kernel_run([span(0, "", SpanKind.KERNEL, 0, 1)])) is None


def test_producers_stand_above_consumers_and_no_two_ops_in_one_place() -> None:
    names = [f"op{number}" for number in range(6)]
    edges = [
        ProfiledEdge(names[a], names[b], SyncKind.FLAG) for a, b in ((0, 2), (1, 2), (2, 3), (2, 4), (0, 5), (4, 5))
    ]
    points = dict(zip(names, lay_out(names, edges).points, strict=True))
    assert all(points[edge.producer][1] < points[edge.consumer][1] for edge in edges)
    assert len(set(points.values())) == len(names)
    assert {y // DOWN for _, y in points.values()} == {0, 1, 2, 3}


def test_ops_stand_near_what_they_depend_on() -> None:
    """Two chains whose second layer is listed the other way round do not cross."""
    edges = [ProfiledEdge("a", "after a", SyncKind.FLAG), ProfiledEdge("b", "after b", SyncKind.FLAG)]
    a, b, after_b, after_a = (x for x, _ in lay_out(["a", "b", "after b", "after a"], edges).points)
    assert (a < b) == (after_a < after_b)


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.tuples(*[st.integers(0, n - 1)] * 2)))))
def test_any_edges_get_a_place_even_cycles(drawn: tuple[int, list[tuple[int, int]]]) -> None:
    count, pairs = drawn
    names = [str(number) for number in range(count)]
    found = lay_out(names, [ProfiledEdge(names[a], names[b], SyncKind.NONE) for a, b in pairs])
    assert len(found.points) == len(set(found.points)) == count and len(found.ways) == len(pairs)
    by_layer: dict[float, list[float]] = {}
    for x, y in found.points:
        by_layer.setdefault(y, []).append(x)
    for layer in map(sorted, by_layer.values()):  # no op stands on another
        assert all(right - left >= ACROSS - 1 for left, right in pairwise(layer))


def test_an_edge_that_passes_layers_goes_beside_the_ops_there() -> None:
    names = ["a", "b", "c", "d"]
    chain = [ProfiledEdge(upper, lower, SyncKind.FLAG) for upper, lower in pairwise(names)]
    found = lay_out(
        names,
        [
            *chain,
            ProfiledEdge("a", "d", SyncKind.FLAG),
            ProfiledEdge("a", "c", SyncKind.FLAG),
            ProfiledEdge("b", "d", SyncKind.LOCAL),
        ],
    )
    assert [len(way) for way in found.ways] == [0, 0, 0, 2, 1, 1]
    assert found.ways[4] == found.ways[3][:1]  # they go the same way for a while
    assert found.ways[5][0] not in found.ways[3]  # kept otherwise: a line of its own
    for way, depth in ((found.ways[3], 1), (found.ways[5], 2)):
        for step, place in enumerate(way):
            x, y = found.passed[place]
            op_x, op_y = found.points[depth + step]
            assert y == op_y and abs(x - op_x) >= ACROSS / 2


def test_a_dense_graph_is_laid_out_all_the_same() -> None:
    names = [str(number) for number in range(200)]
    edges = [ProfiledEdge(names[a], names[b], SyncKind.NONE) for b in range(200) for a in range(b)]
    found = lay_out(names, edges)
    assert len(found.ways) == len(edges) and 0 < len(found.passed) <= 3000


def test_numbers_have_units() -> None:
    assert [time_text(us) for us in (None, 0, 0.0005, 0.25, 1, 12.34, 1234, 2.5e6, -3)] == [
        "–",  # noqa: RUF001
        "0",
        "0.50 ns",
        "250 ns",
        "1.00 µs",
        "12.3 µs",
        "1.23 ms",
        "2.50 s",
        "-3.00 µs",
    ]
    assert [bytes_text(count) for count in (1, 999, 4096, 5e6)] == ["1 B", "999 B", "4.10 kB", "5.00 MB"]
    assert rate_text(20e9) == "20.0 GB/s"
    assert [change_text(percent) for percent in (25.0, -3.21, 0.01)] == ["25.0 % less", "3.2 % more", "unchanged"]
