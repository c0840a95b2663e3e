"""What a launch returns, and the arena in which it keeps everything else that it allocates."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from runtime.given import ADD, SCOPE, VECTOR, compiled, kernel, vector

import superkernel as sk
from superkernel import GraphError, LaunchError, Op

OPS = (
    Op(ADD, ["a", "b", "t"]),
    Op(ADD, ["t", "b", "u"]),
    Op(ADD, ["u", "b", "v"]),
    Op(ADD, ["v", "b", "c"]),
)


@pytest.fixture(scope="module")
def chain() -> Iterator[sk.SuperKernel]:
    """t, u, v and c: each is the one before plus b."""
    with compiled(*OPS) as k:
        yield k


def inputs(a: float = 1.0) -> dict[str, np.ndarray]:
    return {"a": vector(a), "b": vector(2)}


def additions(count: int, size: int) -> list[Op]:
    """From a over t0, t1, ... to c: each is the one before plus b."""
    numbers = f"float32[{size}]"
    add = kernel("add_many", f"in:x:{numbers}", f"in:y:{numbers}", f"out:z:{numbers}", "scalar:count")
    names = ["a", *(f"t{i}" for i in range(count)), "c"]
    return [Op(add, [before, "b", after, size]) for before, after in pairwise(names)]


# --- outputs


def test_by_default_a_launch_returns_what_no_op_reads(chain: sk.SuperKernel) -> None:
    made = chain(inputs())
    assert isinstance(made, dict) and list(made) == ["c"] and (made["c"] == 9).all()
    assert chain.graph.outputs == ("c",)


def test_the_last_value_of_a_name_counts() -> None:
    """By hand: two names in turn. The last op that writes one of them computes an output."""
    with compiled(Op(ADD, ["a", "b", "x"]), Op(ADD, ["x", "b", "y"]), Op(ADD, ["y", "b", "x"])) as k:
        made = k(inputs())
        assert list(made) == ["x"] and (made["x"] == 7).all()


def test_a_name_that_is_changed_in_place_last_is_an_output() -> None:
    in_place = kernel("mark", "inout:ran:int64[1]")
    zero = kernel("touch", "in:x:int64[1]", "out:y:int64[1]")
    with compiled(Op(zero, ["x", "n"]), Op(in_place, ["n"])) as k:
        assert list(k({"x": np.zeros(1, np.int64)})) == ["n"]


@pytest.mark.parametrize(("outputs", "wanted"), [(["u"], ["u"]), (("c", "t", "c"), ["t", "c"]), ([], [])])
def test_outputs_say_what_is_returned(outputs: list[str], wanted: list[str]) -> None:
    with compiled(*OPS, outputs=outputs) as k:
        made = k(inputs())
        assert sorted(made) == sorted(wanted)
        values = {"t": 3, "u": 5, "v": 7, "c": 9}
        assert all((made[name] == values[name]).all() for name in wanted)
        assert not {*wanted} & {*k.memory.offsets}
        assert sorted(k.unfused()(inputs())) == sorted(wanted)


def test_a_key_error_says_how_to_get_the_name(chain: sk.SuperKernel) -> None:
    made = chain(inputs())
    for name, words in {
        "t": ("inner name", "outputs=['c', 't']"),
        "a": ("no op writes 'a'",),
        "cc": ("no op uses the name 'cc'", "did you mean 'c'?"),
    }.items():
        with pytest.raises(KeyError) as caught:
            made[name]
        assert all(word in str(caught.value) for word in (SCOPE, *words))
    assert made.get("t") is None and "t" not in made
    passed = chain({**inputs(), "c": vector(0)})
    with pytest.raises(KeyError, match="'c' was passed"):
        passed["c"]


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (["cc"], "no op uses the name 'cc' (did you mean 'c'?)"),
        (["a"], "no op writes the name 'a'"),
        ("c", "pass a list of names"),
        (3, "pass a list of names"),
        ([3], "no op uses the name 3"),
    ],
)
def test_wrong_outputs_are_refused(outputs: object, words: str) -> None:
    with pytest.raises(GraphError) as caught:
        compiled(*OPS, outputs=outputs)
    assert words in str(caught.value) and SCOPE in str(caught.value)


def test_an_inner_name_that_is_passed_is_used_as_passed(chain: sk.SuperKernel) -> None:
    t, v = vector(0), torch.zeros(12)
    assert (chain({**inputs(), "t": t})["c"] == 9).all() and (t == 3).all()
    assert (chain({**inputs(), "t": t, "v": v})["c"] == 9).all() and (v == 7).all()


def test_tensors_in_give_tensors_out(chain: sk.SuperKernel) -> None:
    made = chain({"a": torch.ones(12), "b": torch.full((12,), 2.0)})
    assert isinstance(made["c"], torch.Tensor) and (made["c"] == 9).all()


def test_names_in_ops_json(tmp_path: Path) -> None:
    import json

    from superkernel.model.opsfile import read_ops

    source = {"source": "add.cpp", "block_dim": 1, "params": [f"in:x:{VECTOR}", f"out:y:{VECTOR}"]}
    described = {"kernels": {"k": source}, "ops": [{"kernel": "k", "args": ["a", "b"]}], "outputs": ["b"]}
    (tmp_path / "add.cpp").write_text("")
    (tmp_path / "ops.json").write_text(json.dumps(described))
    assert read_ops(tmp_path / "ops.json").outputs == ("b",)
    del described["outputs"]
    (tmp_path / "ops.json").write_text(json.dumps(described))
    assert read_ops(tmp_path / "ops.json").outputs is None


# --- the arena


def test_memory_says_what_is_kept_and_what_would_be_needed(chain: sk.SuperKernel) -> None:
    memory = chain.memory
    assert (memory.arena, memory.peak, memory.without_reuse) == (128, 128, 3 * 48)
    assert memory == chain.plan.memory
    assert str(memory) == "3 buffers in an arena of 128 bytes, peak 128 bytes, 144 bytes without reuse"
    assert f"memory: {memory}" in str(chain.plan)


def test_outputs_are_never_reused(chain: sk.SuperKernel) -> None:
    results = [chain(inputs(value))["c"] for value in range(20)]
    assert all((result == value + 8).all() for value, result in enumerate(results))
    spans = sorted((result.ctypes.data, result.ctypes.data + result.nbytes) for result in results)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


def test_each_launch_that_runs_at_the_same_time_has_an_arena_of_its_own() -> None:
    size = 1 << 16
    with compiled(*additions(20, size), cores=1) as k:
        wrong: list[float] = []

        def launch(value: float) -> None:
            given = {"a": np.full(size, value, np.float32), "b": np.full(size, value, np.float32)}
            for _ in range(20):
                if not (k(given)["c"] == 22 * value).all():
                    wrong.append(value)

        threads = [threading.Thread(target=launch, args=(value,)) for value in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def resident_bytes() -> int:
    """Memory of this process that is in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_a_chain_keeps_two_buffers_and_gives_them_back() -> None:
    size, length = 1 << 20, 24  # 4 MB each
    given = {"a": np.ones(size, np.float32), "b": np.ones(size, np.float32), "c": np.zeros(size, np.float32)}
    with compiled(*additions(length, size), cores=1) as k:
        gc.collect()
        before = resident_bytes()
        for _ in range(3):
            k(given)
        kept = resident_bytes() - before
        assert (given["c"] == length + 2).all()
        assert k.memory.peak == 2 * 4 * size and k.memory.arena <= 1.25 * k.memory.peak
        assert kept < 2 * k.memory.peak < k.memory.without_reuse / 4
    # other threads of a test run may have taken some memory of their own meanwhile
    assert resident_bytes() - before < kept - k.memory.peak / 2, "close() frees the arena"


def test_without_memory_a_launch_is_refused_and_the_next_one_runs() -> None:
    huge = kernel("touch", "in:x:float32[12]", f"out:y:uint8[{2**47}]")
    small = kernel("touch", f"in:x:uint8[{2**47}]", "out:y:float32[12]")
    with compiled(Op(huge, ["a", "t"]), Op(small, ["t", "c"])) as k:
        for _ in range(2):
            with pytest.raises(
                LaunchError, match=r"no memory for the buffers inside: 1 buffer in an arena of 128.0 TB"
            ):
                k({"a": vector()})


def test_debug_replay_compares_inner_names_as_well() -> None:
    with compiled(*OPS, options="debug-replay=1") as k:
        assert (k(inputs())["c"] == 9).all()
        assert list(k(inputs())) == ["c"]


def test_a_launch_with_time_stamps_uses_the_arena() -> None:
    with compiled(*OPS, options="profiling=1") as k:
        made = k(inputs())
        assert list(made) == ["c"] and (made["c"] == 9).all() and len(k.records()) > 4


def test_a_prepared_launch_uses_the_arena(chain: sk.SuperKernel) -> None:
    go = chain.bind(inputs())
    assert (go()["c"] == 9).all() and list(go()) == ["c"]
    t = vector(0)
    go.update("t", t)
    assert (go()["c"] == 9).all() and (t == 3).all()


def test_a_saved_kernel_has_its_outputs_and_its_memory_plan(tmp_path: Path) -> None:
    import json

    with compiled(*OPS, outputs=["u", "c"]) as k:
        k.save(tmp_path)
        saved = k.memory
    with sk.load(tmp_path) as k:
        assert k.memory == saved and k.graph.outputs == ("u", "c")
        made = k(inputs())
        assert sorted(made) == ["c", "u"] and (made["u"] == 5).all()
        with pytest.raises(KeyError, match="outputs="):
            made["t"]
    manifest = json.loads((tmp_path / "superkernel.json").read_text())
    assert manifest["memory"][0] == [[b.name, b.offset, b.nbytes] for b in saved.buffers]


def test_a_plan_with_an_overlap_never_reaches_a_target(chain: sk.SuperKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    from superkernel import plan as planning

    made = planning.make_plan

    def overlapping(*args: object) -> object:
        plan = made(*args)  # type: ignore[arg-type]
        first, *rest = plan.memory.buffers
        moved = tuple(replace(buffer, offset=first.offset) for buffer in rest)
        return replace(plan, memory=replace(plan.memory, buffers=(first, *moved)))

    monkeypatch.setattr(planning, "make_plan", overlapping)
    with pytest.raises(sk.PlanError, match="P21: 't' and 'u' share bytes 0 to 47 of the arena"):
        compiled(*OPS)
