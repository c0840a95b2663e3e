"""What can go wrong with a launch on an NPU, each with the sentence of the user and the text of the run time."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.ascend.runtime.conftest import install
from targets.ascend.runtime.emulated_npu import EmulatedNpu
from targets.ascend.runtime.test_launches import BLOCKS, chain, compiled, numbers, turn, turned

import superkernel as sk
from superkernel.errors import LaunchError
from superkernel.targets.ascend.runtime.acl_functions import AclCode
from superkernel.targets.ascend.runtime.device import open_device

KERNEL = "auto_gen_launched_kernel"


def works_again(k: sk.SuperKernel) -> None:
    assert np.array_equal(k({"a": numbers()})["d"], turned(numbers(), 3))


# the library


def test_without_cann_a_launch_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    with compiled(chain()) as k, pytest.raises(LaunchError, match=r"NPU.*ASCEND_HOME_PATH is not set.*k\.emulate"):
        k({"a": numbers()})


def test_an_installation_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    with (
        compiled(chain()) as k,
        pytest.raises(LaunchError, match=r"neither libacl_rt.so nor libascendcl.so.*k\.emulate"),
    ):
        k({"a": numbers()})


def test_a_library_that_cannot_be_loaded(npu: EmulatedNpu, toolkit: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "text").write_text("no library")
    install(toolkit, tmp_path / "broken", source=tmp_path / "text")
    with compiled(chain()) as k, pytest.raises(LaunchError, match=r"libacl_rt\.so cannot be loaded.*set_env\.sh"):
        k({"a": numbers()})


def test_a_library_that_lacks_functions(npu: EmulatedNpu, toolkit: Path, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old.c").write_text("int aclInit(const char* path) { return path != 0; }\n")
    old = tmp_path / "old.so"
    subprocess.run(["gcc", "-shared", "-fPIC", str(tmp_path / "old.c"), "-o", str(old)], check=True)
    install(toolkit, tmp_path / "old", source=old)
    with compiled(chain()) as k, pytest.raises(LaunchError, match=r"has no .*aclrtLaunchKernelV2.*too old"):
        k({"a": numbers()})


def test_no_object_was_built(npu: EmulatedNpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run time without the compiler: the kernel was saved elsewhere, and build.sh has not been run."""
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libacl_rt.so").symlink_to(npu.library)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    with (
        compiled(chain()) as k,
        pytest.raises(LaunchError, match=r"no object to launch: launched\.o was not built.*build\.sh"),
    ):
        k({"a": numbers()})
    assert npu.called == []


# the device


def test_no_device(npu: EmulatedNpu) -> None:
    with compiled(chain()) as k:
        npu.show(0)
        with pytest.raises(
            LaunchError, match=r"scope 'launched': no NPU is visible.*ASCEND_RT_VISIBLE_DEVICES is not set"
        ):
            k({"a": numbers()})
        assert npu.called[-1] == "aclFinalize"
        npu.show(1)
        works_again(k)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("aclInit", "initialising"),
        ("aclrtGetDeviceCount", "looking for an NPU"),
        ("aclrtSetDevice", "taking NPU 0 of 1"),
        ("aclrtBinaryLoadFromFile", r"loading /.*\.o"),
        ("aclrtBinaryGetFunction", f"looking for {KERNEL} in /"),
        ("aclrtCreateStream", "creating a stream"),
        ("aclrtMalloc", "allocating 256 bytes for buffer 'a'"),
        ("aclrtMemcpy", "copying 'a' to the NPU"),
        ("aclrtGetHardwareSyncAddr", "asking for the sync base"),
        ("aclrtLaunchKernelV2", f"launching {KERNEL} on 4 blocks"),
        ("aclrtSynchronizeStreamWithTimeout", KERNEL),
    ],
)
def test_every_call_that_fails_is_named_with_the_text_of_the_run_time(
    npu: EmulatedNpu, function: str, words: str
) -> None:
    with compiled(chain()) as k:
        npu.fail(function, 507899, f"EE9999: {function} is in a bad mood")
        with pytest.raises(LaunchError, match=rf"super_kernel_scope 'launched': .*{words}") as caught:
            k({"a": numbers()})
        assert f"{function} returned 507899: EE9999: {function} is in a bad mood" in str(caught.value)
        works_again(k)


def test_outputs_that_cannot_be_copied_back(npu: EmulatedNpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has ended; the memory of a launch that failed is not used again."""
    with compiled(chain()) as k:
        works_again(k)
        run, streams = npu._run, npu.called.count("aclrtCreateStream")

        def then_fail(*arguments: Any) -> int:
            outcome = run(*arguments)
            npu.fail("aclrtMemcpy", 507899, "the link is down")
            return outcome

        monkeypatch.setattr(npu, "_run", then_fail)
        npu.__post_init__()
        with pytest.raises(
            LaunchError, match="copying 'd' from the NPU: aclrtMemcpy returned 507899: the link is down"
        ):
            k({"a": numbers()})
        monkeypatch.setattr(npu, "_run", run)
        npu.__post_init__()
        works_again(k)
        assert npu.called.count("aclrtCreateStream") == streams + 1


def test_a_failure_without_a_text(npu: EmulatedNpu) -> None:
    with compiled(chain()) as k:
        npu.fail("aclrtLaunchKernelV2", 507899, "")
        with pytest.raises(LaunchError, match="returned 507899 and gave no text"):
            k({"a": numbers()})


def test_a_library_that_the_process_uses_already(npu: EmulatedNpu) -> None:
    """Initialised by others: it is not finalised by us, and the device that they chose is taken."""
    acl = ctypes.CDLL(str(npu.library))
    assert acl.aclInit(None) == acl.aclrtSetDevice(0) == AclCode.SUCCESS
    with compiled(chain()) as k:
        works_again(k)
        assert "aclrtGetDeviceCount" not in npu.called
    open_device(npu.library).close()
    assert "aclrtResetDevice" not in npu.called and "aclFinalize" not in npu.called
    assert acl.aclrtResetDevice(0) == acl.aclFinalize() == AclCode.SUCCESS


# the kernel


def test_a_kernel_that_fails_gives_the_text_of_the_device(npu: EmulatedNpu) -> None:
    with (
        compiled([sk.Op(turn(name="beyond"), ["a", "b"], name="writes")]) as k,
        pytest.raises(
            LaunchError, match=rf"{KERNEL}: .*returned 507015: .*in op 'writes'.*behind the end of buffer 'b'"
        ),
    ):
        k({"a": numbers()})


def test_a_kernel_that_does_not_end_is_stopped(npu: EmulatedNpu) -> None:
    with compiled(chain(), "debug-watchdog=0.2") as k:
        npu.hangs = True
        with pytest.raises(
            LaunchError, match=rf"{KERNEL} has not ended within 0.2 s.*no event and no tiling is outstanding"
        ):
            k({"a": numbers()})
    npu.hangs = False
    assert "aclrtStreamAbort" in npu.called
    with compiled(chain()) as k:
        works_again(k)


def test_a_kernel_that_does_not_end_can_end_the_process(
    npu: EmulatedNpu, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", leave)
    with compiled(chain(), "debug-watchdog=0.2:debug-watchdog-action=exit") as k:
        npu.hangs = True
        with pytest.raises(SystemExit, match="70"):
            k({"a": numbers()})
    assert f"superkernel: super_kernel_scope 'launched': {KERNEL} has not ended" in capfd.readouterr().err


def test_an_event_that_no_one_sets(npu: EmulatedNpu) -> None:
    ops = [sk.Op(turn(), ["a", "b"]), sk.Op(turn(), ["b", "c"], recv=["go"], name="waits")]
    go = sk.Event("go")
    with compiled(ops, "debug-watchdog=5") as k:
        with pytest.raises(LaunchError, match=r"event go, which op 'waits' waits for, is not set"):
            k({"a": numbers()}, events={"go": go})
        go.set()
        assert np.array_equal(k({"a": numbers()}, events={"go": go})["c"], turned(numbers(), 2))


def test_ctrl_c_stops_a_launch(npu: EmulatedNpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noticed between two slices of the wait."""
    real = ctypes.CDLL(str(npu.library))
    with compiled(chain()) as k:
        works_again(k)
        acl = open_device(npu.library).acl
        waits = acl.code

        def interrupted(function: str, *arguments: Any) -> int:
            if function == "aclrtSynchronizeStreamWithTimeout":
                raise KeyboardInterrupt
            return waits(function, *arguments)

        monkeypatch.setattr(acl, "code", interrupted)
        npu.hangs = True
        with pytest.raises(KeyboardInterrupt):
            k({"a": numbers()})
        monkeypatch.setattr(acl, "code", waits)
        npu.hangs = False
        works_again(k)
    assert real.aclGetRecentErrMsg() == 0


# dynamic ops


def dynamic(options: str = "") -> sk.SuperKernel:
    tiled = turn(variants={7: "turn"})
    return compiled([sk.Op(turn(), ["a", "b"]), sk.Op(tiled, ["b", "c"], task="dynamic", name="tiled")], options)


def test_what_a_tiling_function_raises_arrives(npu: EmulatedNpu) -> None:
    def refuses(inputs: object) -> tuple[int, int]:
        raise ValueError("no tiling today")

    with dynamic() as k:
        with pytest.raises(ValueError, match="no tiling today"):
            k({"a": numbers()}, tiling={"tiled": refuses})
        with pytest.raises(LaunchError, match="scope 'launched': the tiling function of op 'tiled' returned 3"):
            k({"a": numbers()}, tiling={"tiled": lambda inputs: 3})
        with pytest.raises(LaunchError, match="wants 5 blocks; it may have 0 to 4"):
            k({"a": numbers()}, tiling={"tiled": lambda inputs: (7, 5)})
        assert np.array_equal(k({"a": numbers()}, tiling={"tiled": lambda i: (7, BLOCKS)})["c"], turned(numbers(), 2))


def test_an_unknown_tiling_key_is_named(npu: EmulatedNpu) -> None:
    with dynamic() as k, pytest.raises(LaunchError, match=r"trap(.|\n)*unknown tiling key 8; its keys are 7"):
        k({"a": numbers()}, tiling={"tiled": lambda inputs: (8, BLOCKS)})


def test_a_tiling_function_that_does_not_return(npu: EmulatedNpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch is stopped without it; what it holds on to is given back when it returns."""
    monkeypatch.setattr("superkernel.targets.ascend.runtime.launch._PATIENCE_S", 0.05)
    entered, go_on, left = threading.Event(), threading.Event(), threading.Event()

    def waits(inputs: object) -> tuple[int, int]:
        entered.set()
        go_on.wait(600)
        left.set()
        return 7, BLOCKS

    with dynamic("debug-watchdog=5") as k:
        with pytest.raises(LaunchError, match="the tiling function of op 'tiled' has not returned"):
            k({"a": numbers()}, tiling={"tiled": waits})
        assert entered.is_set() and "aclrtFree" not in npu.called
        go_on.set()
        assert left.wait(600)
        for thread in [t for t in threading.enumerate() if t.name == "superkernel-npu-agent"]:
            thread.join(600)


# arguments


@pytest.mark.parametrize(
    ("buffers", "words"),
    [
        ({}, "'a' is read before any op writes it, and was not passed"),
        ({"a": numbers().astype(np.int64)}, "has dtype int64, the ops take int32"),
        ({"a": numbers()[:8]}, r"has shape \[8\]"),
        ({"a": numbers(), "e": numbers()}, "no op uses the name 'e'"),
        ({"a": numbers()[::-1]}, "is not contiguous"),
        ({"a": [1, 2]}, "is a list; pass a numpy array"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_copied(npu: EmulatedNpu, buffers: Any, words: str) -> None:
    with compiled(chain()) as k:
        for launch in (k, k.bind):
            with pytest.raises(LaunchError, match=words):
                launch(buffers)
    assert npu.called == []


def test_a_closed_kernel_and_a_forked_process(npu: EmulatedNpu) -> None:
    k = compiled(chain())
    loaded = k.loaded
    works_again(k)
    child = os.fork()
    if not child:
        try:
            k({"a": numbers()})
        except LaunchError as error:
            os._exit(0 if "forked process" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    k.close()
    with pytest.raises(LaunchError, match="the kernel is closed"):
        loaded.launch_values(*loaded.argument_arrays())
