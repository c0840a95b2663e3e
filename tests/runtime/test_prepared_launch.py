"""k.bind: a launch whose arguments are checked once, and exchanged one by one."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runtime.given import ADD, MARK, SCOPE, TOUCH, VECTOR, compiled, kernel, snapshot, vector

import superkernel as sk
from superkernel import LaunchError, Op

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def adding() -> Iterator[sk.SuperKernel]:
    """Counts its launches in ran; a + b = t, t + b = c."""
    with compiled(Op(MARK, ["ran"]), Op(ADD, ["a", "b", "t"]), Op(ADD, ["t", "b", "c"], name="second")) as k:
        yield k


def arrays(**changed: Any) -> dict[str, Any]:
    return {"ran": np.zeros(1, np.int64), "a": vector(), "b": vector(2), **changed}


def tensors() -> dict[str, Any]:
    return {name: torch.from_numpy(value) for name, value in arrays().items()}


def test_every_call_launches_once_with_what_is_in_the_buffers(adding: sk.SuperKernel) -> None:
    given = arrays()
    go = adding.bind(given)
    assert given["ran"][0] == 0  # nothing runs before the first call
    for count in range(1, 5):
        given["a"][:] = count
        outputs = go()
        assert given["ran"][0] == count
        np.testing.assert_array_equal(outputs["c"], vector(count + 4))


def test_outputs_are_allocated_once_and_those_of_a_launch(adding: sk.SuperKernel) -> None:
    go = adding.bind(arrays())
    first = go()
    assert first.keys() == adding(arrays()).keys() == go.outputs.keys()
    assert go()["c"] is first["c"]
    given = arrays(c=vector(0))
    assert "c" not in adding.bind(given)()
    np.testing.assert_array_equal(given["c"], vector(5))


def test_a_changed_dict_changes_nothing(adding: sk.SuperKernel) -> None:
    given = arrays()
    go = adding.bind(given)
    given["a"] = vector(100)
    np.testing.assert_array_equal(go()["c"], vector(5))


@pytest.mark.parametrize("of", (arrays, tensors))
def test_update_exchanges_one_argument(adding: sk.SuperKernel, of: Any) -> None:
    go, others = adding.bind(of()), of()
    go.update("a", others["a"] + 10)
    np.testing.assert_array_equal(np.asarray(go()["c"]), vector(15))
    go.update("b", others["b"] * 0)
    np.testing.assert_array_equal(np.asarray(go()["c"]), vector(11))


def test_an_output_that_the_caller_passes_later_is_his(adding: sk.SuperKernel) -> None:
    go, c = adding.bind(arrays()), vector(0)
    own = go()["c"]
    own[:] = -1
    go.update("c", c)
    assert "c" not in go()
    np.testing.assert_array_equal(c, vector(5))
    np.testing.assert_array_equal(own, vector(-1))


def test_a_buffer_inside_can_be_passed_later(adding: sk.SuperKernel) -> None:
    """Until then it is in the arena of the launch."""
    go, t = adding.bind(arrays()), vector(0)
    np.testing.assert_array_equal(go()["c"], vector(5))
    go.update("t", t)
    np.testing.assert_array_equal(go()["c"], vector(5))
    np.testing.assert_array_equal(t, vector(3))


WRONG = {
    "dtype": (lambda: np.zeros(12, np.float64), "'a' has dtype float64, the ops take float32"),
    "size": (lambda: np.zeros(13, np.float32), "'a' has shape"),
    "contiguity": (lambda: np.zeros(24, np.float32)[::2], "'a' is not contiguous"),
    "type": (lambda: [1.0] * 12, "'a' is a list"),
    "device": (lambda: torch.zeros(12, device="meta"), "'a' is on device meta"),
    "dtype of a tensor": (lambda: torch.zeros(12, dtype=torch.float64), "'a' has dtype float64"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_a_launch_refuses_bind_and_update_refuse(adding: sk.SuperKernel, what: str) -> None:
    make, words = WRONG[what]
    with pytest.raises(LaunchError, match=rf"super_kernel_scope '{SCOPE}': {words}"):
        adding.bind(arrays(a=make()))
    given = arrays()
    go = adding.bind(given)
    before = snapshot(given)
    with pytest.raises(LaunchError, match=rf"super_kernel_scope '{SCOPE}': {words}"):
        go.update("a", make())
    assert snapshot(given) == before
    np.testing.assert_array_equal(go()["c"], vector(5))  # the refused argument changed nothing


def test_names_and_overlaps_are_checked(adding: sk.SuperKernel) -> None:
    with pytest.raises(LaunchError, match="'b' is read before any op writes it, and was not passed"):
        adding.bind({"ran": np.zeros(1, np.int64), "a": vector()})
    with pytest.raises(LaunchError, match=r"no op uses the name 'aa' \(did you mean 'a'\?\)"):
        adding.bind(arrays(aa=vector()))
    room = np.zeros(20, np.float32)
    with pytest.raises(LaunchError, match="'a' and 'c' overlap in memory"):
        adding.bind(arrays(a=room[:12], c=room[8:]))
    go = adding.bind(arrays(a=room[:12]))
    with pytest.raises(LaunchError, match="no op uses the name 'd'"):
        go.update("d", vector())
    with pytest.raises(LaunchError, match="'a' and 'c' overlap in memory"):
        go.update("c", room[8:])
    with pytest.raises(LaunchError, match="overlap in memory"):
        go.update("b", go.outputs["c"])
    go.update("b", room[:12])  # both are only read
    np.testing.assert_array_equal(go()["c"], vector(0))


def test_a_read_only_array_is_not_written(adding: sk.SuperKernel) -> None:
    go, c = adding.bind(arrays()), vector(0)
    c.flags.writeable = False
    with pytest.raises(LaunchError, match="'c' is read-only"):
        go.update("c", c)


def test_buffers_live_as_long_as_the_prepared_launch(adding: sk.SuperKernel) -> None:
    go = adding.bind(arrays(a=vector(7)))
    gc.collect()
    scratch = [vector(99) for _ in range(50)]  # would reuse memory that was freed
    np.testing.assert_array_equal(go()["c"], vector(11))
    a = vector(8)
    alive = weakref.ref(a)
    go.update("a", a)
    del a
    gc.collect()
    assert alive() is not None and scratch
    np.testing.assert_array_equal(go()["c"], vector(12))
    del go
    gc.collect()
    assert alive() is None


def test_a_bound_array_cannot_be_resized(adding: sk.SuperKernel) -> None:
    a = vector(3)
    go = adding.bind(arrays(a=a))
    with pytest.raises(ValueError, match="resize"):
        a.resize(100000, refcheck=False)
    np.testing.assert_array_equal(go()["c"], vector(7))


def test_a_tensor_whose_memory_moved_is_refused(adding: sk.SuperKernel) -> None:
    changes = {
        "resized": lambda t: t.resize_(100000),
        "freed": lambda t: t.untyped_storage().resize_(0),
        "exchanged": lambda t: t.set_(torch.ones(12)),
    }
    for change in changes.values():
        given = tensors()
        given["a"] = torch.ones(12)
        go = adding.bind(given)
        go()
        change(given["a"])
        with pytest.raises(LaunchError, match=r"the memory of 'a' was resized, exchanged or freed since it was bound"):
            go()
        assert int(given["ran"][0]) == 1
        go.update("a", torch.full((12,), 3.0))
        np.testing.assert_array_equal(go()["c"].numpy(), vector(7))


def test_scalars_are_arguments_too() -> None:
    store = kernel("store_float32", "scalar:value:float32", "out:out:int64[1]")
    with compiled(Op(store, ["value", "out"])) as k:
        go = k.bind({"value": 1.5})
        assert go()["out"].view(np.float32)[0] == 1.5
        go.update("value", -2)
        assert go()["out"].view(np.float32)[0] == -2
        with pytest.raises(LaunchError, match="scalar 'value'"):
            go.update("value", "two")
        assert go()["out"].view(np.float32)[0] == -2


def test_events_and_tiling_functions() -> None:
    calls: list[float] = []

    def tiling(inputs: dict[str, Any]) -> tuple[int, int]:
        calls.append(float(inputs["t"][0]))
        return 0, 1 if calls[-1] < 10 else 0

    ops = [Op(ADD, ["a", "b", "t"], send=["begun"]), Op(ADD, ["t", "b", "c"], name="d", task="dynamic", recv=["go"])]
    with compiled(*ops, options="debug-watchdog=200", cores=2) as k:
        own = sk.Event("go")
        given = {"a": vector(), "b": vector(2), "c": vector(0)}
        with pytest.raises(LaunchError, match="op 'd' is dynamic"):
            k.bind(given)
        go = k.bind(given, events={"go": own}, tiling={"d": tiling})
        for count in range(1, 4):
            own.set()
            go()
            assert k.events["begun"].is_set() and not own.is_set() and len(calls) == count
            k.events["begun"].clear()
        np.testing.assert_array_equal(given["c"], vector(5))
        go.update("a", vector(50))
        given["c"][:] = -1
        own.set()
        go()
        np.testing.assert_array_equal(given["c"], vector(-1))  # no blocks
        assert calls == [3, 3, 3, 52]


def test_a_closed_kernel_refuses(tmp_path: Path) -> None:
    with compiled(Op(TOUCH, ["a", "b"])) as k:
        go = k.bind({"a": vector(), "b": vector()})
        go()
        k.save(tmp_path / "saved")
    with pytest.raises(LaunchError, match="the kernel is closed"):
        go()
    with pytest.raises(LaunchError, match="the kernel is closed"):
        k.bind({"a": vector(), "b": vector()})
    with sk.load(tmp_path / "saved") as loaded:
        loaded.bind({"a": vector(), "b": vector()})()


def test_replay_and_time_stamps() -> None:
    with compiled(Op(ADD, ["a", "b", "t"]), Op(ADD, ["t", "b", "c"]), options="debug-replay=1:profiling=1") as k:
        go = k.bind({"a": vector(), "b": vector(2)})
        np.testing.assert_array_equal(go()["c"], vector(5))
        assert k.records()


def test_launches_are_profiled(adding: sk.SuperKernel, tmp_path: Path) -> None:
    go = adding.bind(arrays())
    with sk.profile(tmp_path / "profile"):
        go()
        go()
    details = (tmp_path / "profile" / "kernel_details.csv").read_text()
    assert details.count(f"\n{SCOPE},SuperKernel,") == 2
    np.testing.assert_array_equal(go()["c"], vector(5))


def test_threads_have_prepared_launches_of_their_own(adding: sk.SuperKernel) -> None:
    wrong: list[float] = []

    def launch(number: int) -> None:
        go = adding.bind(arrays(a=vector(number)))
        for _ in range(50):
            if (go()["c"] != number + 4).any():
                wrong.append(number)

    threads = [threading.Thread(target=launch, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_target_without_launches_has_none_to_prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    (tmp_path / "add.cpp").write_text('#include <cstdint>\nextern "C" void add(uint64_t first_slot) {}\n')
    params = [f"in:x:{VECTOR}", f"in:y:{VECTOR}", f"out:z:{VECTOR}"]
    vector_add = sk.SubKernel.from_source(tmp_path / "add.cpp", "add", block_dim=1, params=params, core="vector")
    with compiled(Op(vector_add, ["a", "b", "c"]), target="ascend") as k:
        with pytest.raises(LaunchError, match=f"super_kernel_scope '{SCOPE}'"):
            k.bind({"a": vector(), "b": vector()})
        with pytest.raises(LaunchError, match=f"super_kernel_scope '{SCOPE}'"):
            k.submit({"a": vector(), "b": vector()}).result(600)


@pytest.mark.parametrize("way", ("launch", "bind", "submit"))
def test_events_and_tiling_of_a_wrong_type(adding: sk.SuperKernel, way: str) -> None:
    ways: dict[str, Any] = {
        "launch": adding,
        "bind": adding.bind,
        "submit": lambda *a, **b: adding.submit(*a, **b).result(600),
    }
    with compiled(Op(ADD, ["a", "b", "c"], name="d", task="dynamic")) as dynamic:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"events": 5}, "events is a dict from event ids to Events, not 5"),
            ({"tiling": 5}, "tiling is a dict from ops to functions, not 5"),
            ({"tiling": {"d": 5}}, "no dynamic op is called 'd'"),
        ]
        for arguments, words in wrong:
            with pytest.raises(LaunchError, match=words):
                ways[way](arrays(), **arguments)
        with pytest.raises(LaunchError, match="op 'd': its tiling must be a function, not 5"):
            dynamic({"a": vector(), "b": vector()}, tiling={"d": 5})
