"""How sub-kernels and buffers come in: sources, objects, archives; arrays and tensors; events and tilings."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from targets.ascend.emulator.hand import KERNELS, numbers, turned

import superkernel as sk
from superkernel.errors import LaunchError
from superkernel.targets import find_target
from superkernel.targets.ascend.emulator import Outside
from superkernel.targets.ascend.emulator.library import INCLUDE
from superkernel.targets.ascend.emulator.trace import TracePoint

PARAMS = ["in:x:int32[128]", "out:y:int32[128]"]


def kernel(name: str = "bulk", core: str = "vector", **more: object) -> sk.SubKernel:
    chosen = {"block_dim": 4, "params": PARAMS, "sync_all": False, "early_start": False} | more
    return sk.SubKernel.from_source(KERNELS, name, core=core, **chosen)


def host_object(folder: Path, name: str, macro: str) -> Path:
    made = folder / f"{name}.o"
    includes = [f"-I{INCLUDE}", f"-I{INCLUDE.parents[1] / 'include'}"]
    flags = ["-std=c++17", "-O1", "-fPIC", "-DSK_EMULATED", f"-D{macro}", *includes]
    subprocess.run(["g++", *flags, "-c", str(KERNELS), "-o", str(made)], check=True)
    return made


def test_an_object_is_linked_as_it_is(tmp_path: Path) -> None:
    made = host_object(tmp_path, "kernels", "__DAV_C220_VEC__")
    bulk = sk.SubKernel.from_object(
        made, "bulk", block_dim=4, params=PARAMS, core="vector", sync_all=False, early_start=False
    )
    a = numbers(4)
    with sk.compile([sk.Op(bulk, ["a", "b"]), sk.Op(bulk, ["b", "c"])], target="ascend") as k:
        assert np.array_equal(k.emulate({"a": a}, seed=3)["c"], turned(turned(a)))


def test_members_of_an_archive_with_metadata(tmp_path: Path) -> None:
    parts = [host_object(tmp_path, "cube", "__DAV_C220_CUBE__"), host_object(tmp_path, "vec", "__DAV_C220_VEC__")]
    subprocess.run(["ar", "rc", str(tmp_path / "mixed.a"), *map(str, parts)], check=True)
    fields = {
        "kernelName": "mixed",
        "blockDim": 4,
        "sub_operator_kernel_type": "KERNEL_TYPE_MIX_AIC_1_2",
        "sub_operator_kernel_name": {
            "dav-c220-cube": {"func_name": "vectors", "obj_files": "cube.o"},
            "dav-c220-vec": {"func_name": "vectors", "obj_files": "vec.o"},
        },
        "sub_operator_params": PARAMS,
        "sub_operator_early_start_set_flag": False,
        "sub_operator_early_start_wait_flag": False,
    }
    (tmp_path / "mixed.json").write_text(json.dumps(fields))
    entry = {"json_path": "mixed.json", "bin_path": "mixed.a", "stream_id": 0, "task_type": "normal"}
    entry |= {"send_event_list": [], "recv_event_list": []}
    ops = [entry | {"name": "one", "args": ["a", "b"]}, entry | {"name": "two", "args": ["b", "c"]}]
    (tmp_path / "ops.json").write_text(json.dumps(ops))
    found = find_target("ascend").read_ops(tmp_path / "ops.json")
    a = numbers(4)
    with sk.compile(found.ops, target="ascend") as k:
        assert np.array_equal(k.emulate({"a": a}, seed=5)["c"], turned(turned(a)))


def test_tensors_come_back_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    a = torch.arange(128, dtype=torch.int32)
    with sk.compile([sk.Op(kernel(), ["a", "b"])], target="ascend") as k:
        made = k.emulate({"a": a})
    assert torch.equal(made["b"], torch.from_numpy(turned(a.numpy())))


@pytest.mark.parametrize("bad", [-1, 1.5, True, "7", None, 2**64])
def test_a_seed_that_is_none_is_refused(bad: object) -> None:
    with sk.compile([sk.Op(kernel(), ["a", "b"])], target="ascend") as k, pytest.raises(LaunchError, match="seed is"):
        k.emulate({"a": numbers(4)}, seed=bad)


def test_bad_buffers_are_refused_before_anything_runs() -> None:
    with sk.compile([sk.Op(kernel(), ["a", "b"])], target="ascend") as k:
        for buffers, problem in (
            ({}, "'a' is read before any op writes it"),
            ({"a": numbers(3)}, "elements"),
            ({"a": numbers(4).astype(np.int64)}, "dtype"),
            ({"a": numbers(4), "d": numbers(4)}, "no op uses the name 'd'"),
        ):
            with pytest.raises(LaunchError, match=problem):
                k.emulate(buffers)


def test_events_of_the_host_are_followed_while_the_launch_runs() -> None:
    ops = [
        sk.Op(kernel(), ["a", "b"], send=["done"]),
        sk.Op(kernel(core="cube"), ["b", "c"], recv=["go"]),
    ]
    a = numbers(4)
    with sk.compile(ops, target="ascend") as k:
        events = {"done": sk.Event("done"), "go": sk.Event("go")}

        def answer() -> None:
            assert events["done"].wait(600)
            events["go"].set()

        thread = threading.Thread(target=answer)
        thread.start()
        made = k.emulate({"a": a}, seed=2, events=events)
        thread.join()
        assert np.array_equal(made["c"], turned(turned(a)))
        assert not events["go"].is_set()  # reset by the kernel, as on the chip
        assert events["done"].is_set()


def test_an_event_nobody_sets_is_a_deadlock_that_names_it() -> None:
    ops = [sk.Op(kernel(), ["a", "b"]), sk.Op(kernel(), ["b", "c"], recv=["go"])]
    with sk.compile(ops, target="ascend", options="debug-watchdog=1") as k:
        with pytest.raises(LaunchError, match=r"deadlock.*\n(.*\n)*.*poll event go and see 0"):
            k.emulate({"a": numbers(4)})
        with pytest.raises(LaunchError, match="no op uses the external event went"):
            k.emulate({"a": numbers(4)}, outside=[Outside("went")])


def test_what_a_tiling_function_raises_arrives() -> None:
    tiled = kernel(variants={1: "bulk"})
    ops = [sk.Op(kernel(core="cube"), ["a", "b"]), sk.Op(tiled, ["b", "c"], task="dynamic", name="tiled")]

    def refuses(inputs: object) -> tuple[int, int]:
        raise ValueError("no tiling today")

    a = numbers(4)
    with sk.compile(ops, target="ascend") as k:
        with pytest.raises(ValueError, match="no tiling today"):
            k.emulate({"a": a}, tiling={"tiled": refuses})
        with pytest.raises(LaunchError, match="'tiled' is dynamic"):
            k.emulate({"a": a})
        seen = []
        made = k.emulate({"a": a}, tiling={"tiled": lambda inputs: (seen.append(inputs["b"].copy()), (1, 4))[1]})
        assert np.array_equal(seen[0], turned(a))
        assert np.array_equal(made["c"], turned(turned(a)))


def test_records_of_the_last_emulated_launch() -> None:
    ops = [sk.Op(kernel(), ["a", "b"], name="first"), sk.Op(kernel(core="cube"), ["b", "c"], name="second")]
    for options in ("", "profiling=1"):
        with sk.compile(ops, target="ascend", options=options) as k:
            k.emulate({"a": numbers(4)})
            spans = k.records()
            assert {span.op for span in spans if span.what == "op"} == {"first", "second"}
            assert {span.what for span in spans} >= {"kernel", "op", "wait"}
            assert all(span.begin_ns <= span.end_ns for span in spans)
            first_end = max(span.end_ns for span in spans if span.what == "op" and span.op == "first")
            assert all(s.begin_ns >= first_end for s in spans if s.what == "op" and s.op == "second")
            assert any(step.what is TracePoint.OP_BEGIN for step in k.emulated.steps)
