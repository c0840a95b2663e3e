"""k(...) on target ascend, from end to end: built, loaded, launched through AscendCL; the NPU is the emulator."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from targets.ascend.runtime.emulated_npu import EmulatedNpu
from targets.ascend.sampling import first_of

import superkernel as sk
from superkernel.errors import LaunchError
from superkernel.targets.ascend.runtime.device import DeviceMemory, open_device

KERNELS = Path(__file__).with_name("kernels.cpp")
BLOCKS, SIZE = 4, 64


def turn(core: str = "vector", name: str = "turn", **more: Any) -> sk.SubKernel:
    params = [f"in:x:int32[{SIZE}]", f"out:y:int32[{SIZE}]"]
    return sk.SubKernel.from_source(KERNELS, name, block_dim=BLOCKS, params=params, core=core, **more)


def compiled(ops: Sequence[sk.Op], options: str = "", **more: Any) -> sk.SuperKernel:
    if "split-mode" not in options:
        options += ":split-mode=1"  # fewer commands per build
    return sk.compile(ops, name="launched", options=options, target="ascend", **more)


def chain() -> list[sk.Op]:
    return [sk.Op(turn(), ["a", "b"]), sk.Op(turn("cube"), ["b", "c"]), sk.Op(turn("mix", "mixed"), ["c", "d"])]


def numbers(seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-1000, 1000, SIZE, dtype=np.int32)


def turned(array: np.ndarray[Any, Any], times: int = 1) -> np.ndarray[Any, Any]:
    for _ in range(times):
        array = array.reshape(BLOCKS, -1)[::-1].reshape(-1) + 1
    return array


def test_numpy_in_and_out_equal_to_the_emulator(npu: EmulatedNpu) -> None:
    a = numbers()
    with compiled(chain()) as k:
        emulated = k.emulate({"a": a.copy()}, seed=3)
        for seed in range(2):
            npu.seed = seed
            launched = k({"a": a})
            assert launched.keys() == emulated.keys() == {"d"}
            assert launched["d"].tobytes() == emulated["d"].tobytes()
    assert npu.launches == ["auto_gen_launched_kernel"] * 2


def test_arrays_that_were_passed_are_written_in_place_and_others_left_alone(npu: EmulatedNpu) -> None:
    params = [f"inout:y:int32[{SIZE}]", "scalar:f:int32"]
    scale = sk.SubKernel.from_source(KERNELS, "scale", block_dim=2, params=params)  # the first half of y
    a, y = numbers(), np.empty(SIZE, np.int32)
    given = a.copy()
    with compiled([sk.Op(turn(), ["a", "y"]), sk.Op(scale, ["y", "f"])]) as k:
        assert k({"a": a, "y": y, "f": -3}) == {}
    assert np.array_equal(y, np.concatenate([turned(a)[: SIZE // 2] * -3, turned(a)[SIZE // 2 :]]))
    assert np.array_equal(a, given)


def test_tensors_in_and_out(npu: EmulatedNpu) -> None:
    torch = pytest.importorskip("torch")
    a = torch.from_numpy(numbers())
    with compiled(chain()) as k:
        made = k({"a": a})["d"]
    assert isinstance(made, torch.Tensor)
    assert np.array_equal(made.numpy(), turned(a.numpy(), 3))


def test_tensors_of_the_npu_are_used_where_they_are(npu: EmulatedNpu) -> None:
    torch = pytest.importorskip("torch")

    class OnNpu(torch.Tensor):  # type: ignore[misc, name-defined]
        """As torch_npu's: its memory is the device's."""

        address = 0
        device = SimpleNamespace(type="npu", index=0)

        def data_ptr(self) -> int:
            return self.address

    def on_npu(values: np.ndarray[Any, Any]) -> Any:
        memory = device.allocate(values.nbytes, "")
        device.upload(memory, values.ctypes.data, values.nbytes, "")
        tensor = torch.from_numpy(values).as_subclass(OnNpu)
        tensor.address = memory.address
        held.append(memory)
        return tensor

    held: list[DeviceMemory] = []
    device = open_device(npu.library)
    with device.current(), compiled(chain()) as k:
        a, b, d = on_npu(numbers(1)), on_npu(numbers(2)), on_npu(np.zeros(SIZE, np.int32))
        before = npu.called.count("aclrtMemcpy")
        go = k.bind({"a": a, "d": d})
        go()
        go.update("a", b)
        go()
        assert npu.called.count("aclrtMemcpy") == before + 2  # the parameter blocks
        assert npu.called.count("aclrtSynchronizeDevice") == 2
        made = np.empty(SIZE, np.int32)
        device.download(made.ctypes.data, held[2], made.nbytes, "")
        assert np.array_equal(made, turned(numbers(2), 3))
        a.device = SimpleNamespace(type="npu", index=1)
        with pytest.raises(LaunchError, match=r"'a' is on device .*index=1.*this process launches on NPU 0"):
            k({"a": a})
        a.device = SimpleNamespace(type="cuda", index=0)
        with pytest.raises(LaunchError, match="this kernel takes tensors of cpu and npu"):
            k({"a": a})
        for memory in held:
            device.free(memory)


def test_prepared_and_submitted_launches(npu: EmulatedNpu) -> None:
    first, second, d = numbers(1), numbers(2), np.empty(SIZE, np.int32)
    with compiled(chain()) as k:
        go = k.bind({"a": first, "d": d})
        go()
        assert np.array_equal(d, turned(first, 3))
        go.update("a", second)
        go()
        assert np.array_equal(d, turned(second, 3))
        assert np.array_equal(k.submit({"a": first}).result(600)["d"], turned(first, 3))


def test_a_second_launch_finds_its_memory_and_stream(npu: EmulatedNpu) -> None:
    with compiled(chain()) as k:
        k({"a": numbers(1)})
        counts = [npu.called.count(name) for name in ("aclrtMalloc", "aclrtCreateStream", "aclrtBinaryLoadFromFile")]
        k({"a": numbers(2)})
        assert counts == [npu.called.count(n) for n in ("aclrtMalloc", "aclrtCreateStream", "aclrtBinaryLoadFromFile")]


def test_nothing_is_copied_that_need_not_be(npu: EmulatedNpu) -> None:
    """To the device what was passed and the parameter block, from it what ops write and the caller sees."""
    with compiled(chain()) as k:
        k({"a": numbers()})
        assert npu.called.count("aclrtMemcpy") == 2 + 1


def test_arrays_of_another_size_get_other_memory(npu: EmulatedNpu) -> None:
    """Parameters without a shape take what they are given."""
    plain = sk.SubKernel.from_source(KERNELS, "turn", block_dim=BLOCKS, params=["in:x", "out:y"])
    with compiled([sk.Op(plain, ["a", "b"])]) as k:
        for size in (SIZE, SIZE + 32, SIZE):
            a, b = np.arange(size, dtype=np.int32), np.zeros(size, np.int32)
            k({"a": a, "b": b})
            assert np.array_equal(b[:SIZE], turned(a[:SIZE])) and not b[SIZE:].any()


def test_threads_launch_one_kernel_at_once(npu: EmulatedNpu) -> None:
    made: dict[int, Any] = {}
    with compiled(chain()) as k:
        threads = [threading.Thread(target=lambda i=i: made.update({i: k({"a": numbers(i)})["d"]})) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(np.array_equal(made[i], turned(numbers(i), 3)) for i in range(3))


def test_events_between_host_and_kernel(npu: EmulatedNpu) -> None:
    """The kernel sends `done`, waits for `go`, and resets it."""
    ops = [sk.Op(turn(), ["a", "b"], send=["done"]), sk.Op(turn("cube"), ["b", "c"], recv=["go"])]
    events = {"done": sk.Event("done"), "go": sk.Event("go")}
    with compiled(ops) as k:

        def answer() -> None:
            if events["done"].wait(600):
                events["go"].set()

        for seed in (0, 2):
            npu.seed = seed
            thread = threading.Thread(target=answer)
            thread.start()
            made = k({"a": numbers()}, events=events)["c"]
            thread.join()
            assert np.array_equal(made, turned(numbers(), 2))
            assert events["done"].is_set() and not events["go"].is_set()
            events["done"].clear()


def test_an_event_that_is_set_before_the_launch(npu: EmulatedNpu) -> None:
    go = sk.Event("go")
    go.set()
    with compiled([sk.Op(turn(), ["a", "b"]), sk.Op(turn(), ["b", "c"], recv=["go"])]) as k:
        assert np.array_equal(k({"a": numbers()}, events={"go": go})["c"], turned(numbers(), 2))
    assert not go.is_set()


def test_a_tiling_function_sees_what_the_device_computed(npu: EmulatedNpu) -> None:
    tiled = turn(variants={7: "turn"})
    ops = [sk.Op(turn("cube"), ["a", "b"]), sk.Op(tiled, ["b", "c"], task="dynamic", name="tiled")]
    seen = []

    def tiling(inputs: dict[str, Any]) -> tuple[int, int]:
        seen.append(inputs["b"])
        return 7, BLOCKS

    with compiled(ops) as k:
        assert np.array_equal(k({"a": numbers()}, tiling={"tiled": tiling})["c"], turned(numbers(), 2))
        c = np.full(SIZE, 5, np.int32)
        k({"a": numbers(), "c": c}, tiling={"tiled": lambda inputs: sk.Tiling(7, 0)})
        assert (c == 5).all()
    assert np.array_equal(seen[0], turned(numbers()))


@pytest.mark.parametrize("options", first_of(["early-start=0:split-mode=2", "stream-fusion=1", "debug-sync-all=1"], 1))
def test_options(npu: EmulatedNpu, options: str) -> None:
    with compiled(chain(), options) as k:
        assert np.array_equal(k({"a": numbers()})["d"], turned(numbers(), 3))


def test_weights_go_to_the_cache_when_the_kernel_asks(npu: EmulatedNpu) -> None:
    params = [f"{kind}:{name}:int32[{SIZE}]" for kind, name in (("in", "x"), ("in", "w"), ("out", "z"))]
    add = sk.SubKernel.from_source(KERNELS, "add", block_dim=BLOCKS, params=params)
    w = numbers(9)
    with compiled([sk.Op(turn(), ["a", "b"]), sk.Op(add, ["b", "w", "c"])], "prefetch-weights=8M") as k:
        assert np.array_equal(k({"a": numbers(), "w": w})["c"], turned(numbers()) + w)
    assert "aclrtCmoAsync" in npu.called


def test_idle_cores_join_the_barriers_of_an_op(npu: EmulatedNpu) -> None:
    """With control words in the workspace, which is not cleared by the host."""
    params = [f"in:x:int32[{SIZE}]", f"out:y:int32[{SIZE}]"]
    few = sk.SubKernel.from_source(KERNELS, "summed", block_dim=2, params=params, sync_all=True)
    with compiled([sk.Op(turn(), ["a", "b"]), sk.Op(few, ["b", "c"])], "feed-sync-all=1") as k:
        assert np.array_equal(k({"a": numbers()})["c"][: SIZE // 2], turned(numbers())[: SIZE // 2])


def test_profiling_gives_the_records_of_the_launch(npu: EmulatedNpu) -> None:
    with compiled(chain(), "profiling=1") as k:
        k({"a": numbers()})
        spans = k.records()
    assert {span.op for span in spans if span.what == "op"} == {node.name for node in k.graph.nodes}
    assert {span.what for span in spans} >= {"kernel", "op", "wait"}
    assert all(span.begin_ns <= span.end_ns for span in spans)


def test_the_same_ops_alone_and_compared(npu: EmulatedNpu) -> None:
    with compiled(chain(), "debug-replay=1") as k:
        assert np.array_equal(k.unfused()({"a": numbers()})["d"], turned(numbers(), 3))
        assert npu.launches[-1] != "auto_gen_launched_kernel"
        assert np.array_equal(k({"a": numbers()})["d"], turned(numbers(), 3))


def test_a_saved_kernel_is_launched(npu: EmulatedNpu, tmp_path: Path) -> None:
    with compiled(chain()) as k:
        folder = k.save(tmp_path / "saved")
    with sk.load(folder) as k:
        assert np.array_equal(k({"a": numbers()})["d"], turned(numbers(), 3))
    assert any(str(path).startswith(str(folder)) for path in npu.kernels)


def test_a_profile_has_the_launch(npu: EmulatedNpu, tmp_path: Path) -> None:
    with compiled(chain()) as k, sk.profile(tmp_path / "profile"):
        k({"a": numbers()})
    assert "launched" in (tmp_path / "profile" / "kernel_details.csv").read_text()


def test_the_older_name_of_the_library(npu: EmulatedNpu, toolkit: Path) -> None:
    link = toolkit / "lib64" / "libacl_rt.so"
    link.rename(link.with_name("libascendcl.so"))
    with compiled(chain()) as k:
        assert np.array_equal(k({"a": numbers()})["d"], turned(numbers(), 3))


def test_the_device_is_given_back_with_what_kernels_hold(npu: EmulatedNpu) -> None:
    k = compiled(chain())
    k({"a": numbers()})
    open_device(npu.library).close()
    assert npu.called[-2:] == ["aclrtResetDevice", "aclFinalize"] and not npu.violations
    k.close()
