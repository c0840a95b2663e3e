"""targets.cpu: arguments that are a place inside a buffer: every way to run an op sees base + offset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured import examples
from targets.cpu.small import Array, N, compile_ops, numbers, small

import superkernel as sk
from superkernel import GraphError, LaunchError, Op, Place, SuperKernel
from superkernel.model.graph import build_graph
from superkernel.model.params import Param
from superkernel.plan.simulate.simulate import simulate
from superkernel.plan.verify.validate import validate

pytestmark = pytest.mark.slow

PART = N * 8  # the bytes that one kernel of small.cpp touches


@dataclass(frozen=True)
class Described(Place):
    """A place that its maker knows more about."""

    note: str = "strided"


def arrays(parts: int = 3, *, seed: int = 1) -> dict[str, Array]:
    """x with `parts` parts, and y and z with one each."""
    return {"x": np.concatenate([numbers("x", seed=seed + i)["x"] for i in range(parts)]), **numbers("y", "z")}


def untyped(name: str, blocks: int = 2, **more: Any) -> sk.SubKernel:
    """A kernel of small.cpp whose parameters say nothing of sizes: the beginning of a buffer is a part like another."""
    kernel = small(name, blocks, **more)
    params = [f"{param.kind.value}:{param.name}" for param in kernel.params]
    return sk.SubKernel.from_source(kernel.binary.path, name, block_dim=blocks, params=params, **more)


def mix(x: Array, y: Array) -> Array:
    return 3 * x + y[::-1] + np.arange(N)


def part(array: Array, number: int) -> Array:
    return array[N * number : N * (number + 1)]


def ways(k: SuperKernel) -> list[Callable[[dict[str, Any]], object]]:
    return [k, k.unfused()]


@pytest.mark.parametrize("cores", (1, 2))
@pytest.mark.parametrize("options", ("", "debug-replay=1", "prefetch-weights=1:profiling=1"))
def test_parts_are_read_and_written_where_they_are(cores: int, options: str) -> None:
    """x[2] = mix(x[0], x[1]), z = mix(x[2], y): two places of one name in one op, and one written then read."""
    ops = [
        Op(untyped("mix"), [Place("x"), Place("x", PART), Place("x", 2 * PART)], name="inner"),
        Op(untyped("mix"), [Place("x", 2 * PART), "y", "z"], name="outer"),
    ]
    with compile_ops(ops, "parts", options, cores) as k:
        for run in ways(k):
            given = arrays()
            before = given["x"].copy()
            run(given)
            made = mix(part(before, 0), part(before, 1))
            np.testing.assert_array_equal(given["x"], np.concatenate([before[: 2 * N], made]))
            np.testing.assert_array_equal(given["z"], mix(made, given["y"]))


def test_a_place_of_a_class_of_its_own_is_a_place() -> None:
    ops = [Op(small("mix"), [Described("x", PART), Described("y"), "z"])]
    with compile_ops(ops, "described") as k:
        for run in ways(k):
            given = arrays(2)
            run(given)
            np.testing.assert_array_equal(given["z"], mix(part(given["x"], 1), given["y"]))
        assert isinstance(k.graph.nodes[0].op.args[0], Described)


def test_a_dynamic_op_gets_its_address_and_its_tiling_the_whole_buffer() -> None:
    seen: list[int] = []

    def tiling(inputs: dict[str, Array]) -> tuple[int, int]:
        seen.append(len(inputs["x"]))
        return (3, 2)

    dynamic = small("twice", 2, variants={2: "twice", 3: "thrice"})
    op = Op(dynamic, [Place("x", PART), Place("x", 2 * PART)], task="dynamic", tiling=tiling)
    with compile_ops([op], "dynamic_parts", "debug-watchdog=200") as k:
        for run in ways(k):
            given = arrays()
            before = given["x"].copy()
            run({"x": given["x"]})
            wanted = 3 * part(before, 1)[::-1] + part(before, 2)
            np.testing.assert_array_equal(part(given["x"], 2), wanted)
            np.testing.assert_array_equal(given["x"][: 2 * N], before[: 2 * N])
    assert seen == [3 * N, 3 * N]


def test_events_do_not_disturb_it() -> None:
    ops = [
        Op(small("scale"), [Place("x", PART), "y"], send=["begun"]),
        Op(small("scale"), ["y", Place("x", 2 * PART)], recv=["go"]),
    ]
    with compile_ops(ops, "event_parts", "debug-watchdog=200") as k:
        for run in ways(k):
            given = arrays()
            k.events["go"].set()
            run({"x": given["x"], "y": given["y"]})
            np.testing.assert_array_equal(part(given["x"], 2), 25 * part(given["x"], 1) + 6)
            k.events["begun"].clear()


def test_no_promise_of_blocks_holds_for_a_part() -> None:
    """The same two @block ops: without offsets no wait, with one on either side a wait for every block."""
    params = ["in:x@block", "out:z@block"]
    scale = sk.SubKernel.from_source(small("scale").binary.path, "scale", block_dim=4, params=params)
    for write, read, local in ((0, 0, True), (PART, 0, False), (0, PART, False), (PART, PART, False)):
        ops = [Op(scale, ["a", Place("t", write)]), Op(scale, [Place("t", read), "u"])]
        graph = build_graph(ops, "promise")
        assert graph.edges[0].block_local is local
        with compile_ops(ops, "promise") as k:
            assert (k.plan.blocking_steps == 0) is local
            assert simulate(k.plan, 3).ok


def test_half_a_part_apart_the_ops_still_wait() -> None:
    """Block i of the second op reads what block i + 1 of the first one writes."""
    half = PART // 2
    ops = [Op(untyped("late"), ["a", "t", 200_000]), Op(small("scale", 2), [Place("t", half), "u"])]
    with compile_ops(ops, "shifted") as k:
        for run in ways(k) * 3:
            given = numbers("a", "u") | {"t": np.zeros(N + N // 2, np.int64)}
            run(given)
            np.testing.assert_array_equal(given["u"], 5 * given["t"][N // 2 :] + 1)


def test_a_saved_kernel_keeps_its_offsets(tmp_path: Path) -> None:
    ops = [Op(small("mix"), [Described("x", PART), Place("x", 2 * PART), "z"])]
    with compile_ops(ops, "kept_parts") as k:
        k.save(tmp_path / "kept")
    with sk.load(tmp_path / "kept") as loaded:
        given = arrays()
        loaded({"x": given["x"], "z": given["z"]})
        np.testing.assert_array_equal(given["z"], mix(part(given["x"], 1), part(given["x"], 2)))
        assert loaded.graph.nodes[0].op.args == (Place("x", PART), Place("x", 2 * PART), "z")


def test_every_page_shows_the_offset(tmp_path: Path) -> None:
    with compile_ops([Op(small("mix"), [Place("x", PART), "y", Place("z")])], "shown") as k:
        assert "mix<2>(in x+384, in y, out z)" in str(k.graph)
        assert [str(slot).split()[-1] for slot in k.layout] == ["x+384", "y", "z"]
        assert "// 0: x+384" in k.source
        assert validate(k.plan, k.layout).ok
        k.dump(tmp_path)
        assert "x+384" in (tmp_path / "layout.txt").read_text()


def test_a_layout_with_another_offset_does_not_validate() -> None:
    ops = [[Op(small("scale"), [Place("x", offset), "z"])] for offset in (0, 8)]
    with compile_ops(ops[0], "one") as one, compile_ops(ops[1], "two") as two:
        assert [finding.property for finding in validate(one.plan, two.layout).errors] == ["P8"]


def test_a_buffer_that_ends_before_the_place_is_refused() -> None:
    with compile_ops([Op(small("scale"), [Place("x", PART), "z"])], "short") as k:
        for run in ways(k):
            with pytest.raises(LaunchError, match=r"'short': 'x' has 376 bytes, and an op takes it from byte 384 on"):
                run({"x": np.zeros(N - 1, np.int64), "z": np.zeros(N, np.int64)})
        with pytest.raises(LaunchError, match=r"'x' is read before any op writes it"):
            k({"z": np.zeros(N, np.int64)})


def test_the_bytes_of_a_typed_part_must_be_there() -> None:
    """48 numbers from byte 8 on end at byte 392."""
    with compile_ops([Op(small("scale"), [Place("x", 8), "z"])], "part") as k:
        for run in ways(k):
            with pytest.raises(
                LaunchError, match=r"'x' has 384 bytes, and a part that an op takes of it ends at byte 392"
            ):
                run({"x": np.zeros(N, np.int64), "z": np.zeros(N, np.int64)})
            run({"x": np.zeros(N + 1, np.int64), "z": np.zeros(N, np.int64)})
    ops = [Op(small("scale"), ["x", "t"]), Op(small("scale"), [Place("t", 8), "z"], name="shifted")]
    with pytest.raises(
        GraphError, match=r"op 'shifted' takes 't' up to byte 392 \(in:x:int64\[48\]@block from byte 8 on\), but it has"
    ):
        compile_ops(ops, "beyond")


@pytest.mark.parametrize(("dtype", "offset"), [("float32", 2), ("int64", 12), ("bfloat16", 1), ("complex64", 6)])
def test_a_typed_part_begins_at_a_multiple_of_its_type(dtype: str, offset: int) -> None:
    kernel = replace(small("scale", 1), params=tuple(map(Param.parse, (f"in:x:{dtype}[4]", f"out:z:{dtype}[4]"))))
    with pytest.raises(
        GraphError, match=rf"offset in 'm' is {offset}, which is no multiple of \d+: {dtype} must begin"
    ):
        Op(kernel, [Place("m", offset), "z"])
    Op(kernel, [Place("m", 16), "z"])
    Op(untyped("scale"), [Place("m", offset), "z"])  # bytes of which nothing is said


def test_a_name_that_is_only_reached_by_offsets_must_be_passed() -> None:
    with compile_ops([Op(small("scale"), ["x", Place("z", 8)])], "unsized") as k:
        with pytest.raises(LaunchError, match=r"'z' was not passed; it has no dtype\[shape\]"):
            k({"x": np.zeros(N, np.int64)})
        k({"x": np.zeros(N, np.int64), "z": np.zeros(N + 1, np.float64)})  # as if untyped


def test_a_typed_use_of_the_same_name_is_still_checked_and_allocated() -> None:
    """The whole is written with its type; a part of it is read."""
    ops = [Op(small("scale"), ["x", "t"]), Op(untyped("twice", 1), [Place("t", 8), "z"])]
    with pytest.raises(GraphError, match=r"op 'twice' takes 't' from byte 400 on, but it has 384 bytes"):
        compile_ops([ops[0], Op(untyped("twice", 1), [Place("t", 400), "z"])], "beyond")
    with sk.compile([ops[0], Op(small("scale", 1), [Place("t"), "z"])], "typed", outputs=["t", "z"]) as k:
        given = numbers("x")
        made = k(given)
        np.testing.assert_array_equal(made["z"], 5 * made["t"] + 1)
    with (
        compile_ops(ops, "typed_part") as k,
        pytest.raises(LaunchError, match="'t' has dtype float64, the ops take int64"),
    ):
        k({**numbers("x", "z"), "t": np.zeros(N)})


def test_parts_of_one_buffer_may_have_different_types() -> None:
    one = small("scale", 1)
    other = sk.SubKernel("scale", one.binary, 1, tuple(map(Param.parse, ("in:x:float32[7]", "out:z:uint8[3]"))))
    ops = [
        Op(one, [Place("m", 8), Place("m", 8 + PART)], name="first"),
        Op(other, [Place("m", 8 + PART), Place("m", 8 + PART)], name="second"),
    ]
    with compile_ops(ops, "mixed") as k:
        for run in ways(k):
            memory = np.arange(2 * N + 1, dtype=np.int64)
            run({"m": memory})
            np.testing.assert_array_equal(memory[N + 1 :], 25 * np.arange(1, N + 1) + 6)


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=6), st.integers(1, 2))
@settings(max_examples=examples(16))
def test_any_ops_on_parts_of_one_buffer(rows: list[tuple[int, int, int]], cores: int) -> None:
    """Each writes a part of x from two others; fused, unfused and numpy agree."""
    chosen = [(a, b, z) for a, b, z in rows if z not in (a, b)] or [(0, 1, 2)]
    ops = [Op(untyped("mix"), [Place("x", PART * i) for i in row]) for row in chosen]
    with compile_ops(ops, "any_parts", cores=cores) as k:
        wanted = arrays(4)["x"]
        with np.errstate(over="ignore"):
            for a, b, z in chosen:
                part(wanted, z)[:] = mix(part(wanted, a), part(wanted, b))
        for run in ways(k):
            x = arrays(4)["x"]
            run({"x": x})
            np.testing.assert_array_equal(x, wanted)
