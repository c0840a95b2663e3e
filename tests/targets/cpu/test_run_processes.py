"""targets.cpu: other processes: a fork before the first launch, spawn and subprocess work; load needs no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from targets.cpu.small import ROOT, assert_same, child, compile_ops, expected, launched, numbers, small

import superkernel as sk
from superkernel import LaunchError, Op, SuperKernel

pytestmark = pytest.mark.slow

OPS = [Op(small("mix"), ["a", "b", "t"]), Op(small("total"), ["t", "ws", "u"]), Op(small("early"), ["u", "a", "v"])]


def test_a_fork_works_until_the_parent_has_launched_and_is_refused_then() -> None:
    """Fused or not. Where the child may launch, it does so although the OpenMP threads of the parent are missing."""
    code = """
import os
import numpy as np
from targets.cpu.small import compile_ops, expected, launched, numbers
from targets.cpu.test_run_processes import OPS
import ctypes
from superkernel import LaunchError
from superkernel.targets.cpu.runtime.openmp import openmp
k = compile_ops(OPS, "forked")
alone = k.unfused()
body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: None)
openmp().library.GOMP_parallel(body, None, 2, 0)  # as an operator of torch does
for launched_before in (False, True):
    child = os.fork()
    if child == 0:
        refused = right = 0
        for launch in (k, alone):
            arrays = numbers("a", "b")
            try:
                right += bool(np.array_equal(launched(launch, k, arrays)["v"], expected(k, arrays)["v"]))
            except LaunchError as error:
                refused += "super_kernel_scope" in str(error) and "forked" in str(error) and "spawn" in str(error)
        os._exit(10 * right + refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (2 if launched_before else 20)
    k(numbers("a", "b"))  # the parent goes on as before
print("done")
"""
    assert "done" in child(code).stdout


def test_processes_of_multiprocessing_fork_are_refused_and_spawn_works(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """
import multiprocessing, sys
import numpy as np
from targets.cpu.small import compile_ops, expected, launched, numbers
from targets.cpu.test_run_processes import OPS
from superkernel import LaunchError

def launch(seed):
    k = compile_ops(OPS, "spawned")
    arrays = numbers("a", "b", seed=seed)
    try:
        return bool(np.array_equal(launched(k, k, arrays)["v"], expected(k, arrays)["v"]))
    except LaunchError as error:
        return str(error)

if __name__ == "__main__":
    assert launch(0) is True
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(launch, range(4)) == [True] * 4
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert "spawn" in pool.map(launch, [0])[0]
    print("done")
"""
    )
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert "done" in done.stdout, done.stderr


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with compile_ops(OPS, "saved", "profiling=1") as k:
        return k.save(tmp_path_factory.mktemp("saved") / "kernel")


def test_a_saved_kernel_runs_in_a_fresh_process_without_a_compiler(saved: Path, tmp_path: Path) -> None:
    code = """
import shutil, sys
import numpy as np
import superkernel as sk
from targets.cpu.small import expected, launched, numbers
assert not any(shutil.which(tool) for tool in ("g++", "c++", "clang++", "ld", "objcopy"))
with sk.load(sys.argv[1]) as k:
    for seed in range(5):
        arrays = numbers("a", "b", seed=seed)
        assert np.array_equal(launched(k, k, arrays)["v"], expected(k, arrays)["v"])
    assert {span.op for span in k.records()} >= {"mix", "total", "early"}
    assert "total" in k.source and "mix" in str(k.plan)
print("done")
"""
    (tmp_path / "cache").mkdir(mode=0o700)
    found = child(code, args=[str(saved)], env={"PATH": "/nonexistent", "SUPERKERNEL_CACHE": str(tmp_path / "cache")})
    assert "done" in found.stdout


def test_a_saved_kernel_and_a_compiled_one_live_in_one_process(saved: Path) -> None:
    with sk.load(saved) as loaded, compile_ops(OPS, "saved") as fresh:
        arrays = numbers("a", "b")
        for kernel in (loaded, fresh, loaded):
            np.testing.assert_array_equal(launched(kernel, kernel, arrays)["v"], expected(kernel, arrays)["v"])


def test_a_kernel_saved_over_a_loaded_one_leaves_that_alone(tmp_path: Path) -> None:
    with compile_ops(OPS, "overwritten") as k:
        k.save(tmp_path)
    first = sk.load(tmp_path)
    other = compile_ops([Op(small("scale"), ["a", "t"])], "overwritten")
    other.save(tmp_path)
    arrays = numbers("a", "b")
    np.testing.assert_array_equal(launched(first, first, arrays)["v"], expected(first, arrays)["v"])
    first.close()
    with sk.load(tmp_path) as second:
        np.testing.assert_array_equal(launched(second, second, arrays)["t"], 5 * arrays["a"] + 1)
    other.close()


def test_both_artefacts_of_one_folder_can_be_loaded_at_once(tmp_path: Path) -> None:
    """The second load must not be given the first one's code because the path is the same."""
    with compile_ops([Op(small("scale"), ["a", "t"])], "replaced") as k:
        k.save(tmp_path)
    first = sk.load(tmp_path)
    with compile_ops([Op(small("hasty"), ["a", "t"])], "replaced") as k:
        k.save(tmp_path)
    second = sk.load(tmp_path)
    arrays = numbers("a")
    np.testing.assert_array_equal(launched(first, first, arrays)["t"], 5 * arrays["a"] + 1)
    np.testing.assert_array_equal(launched(second, second, arrays)["t"], 13 * np.roll(arrays["a"], -1))
    first.close()
    second.close()


def test_a_loaded_kernel_keeps_its_number_of_cores(saved: Path) -> None:
    with sk.load(saved) as k:
        assert k.plan.cores == 2


def test_a_loaded_kernel_has_nothing_to_run_alone(saved: Path) -> None:
    with sk.load(saved) as k, pytest.raises(LaunchError, match="no separate sub-kernels"):
        k.unfused()


def two_of_a_kind() -> tuple[SuperKernel, SuperKernel]:
    mix = small("mix")
    return (
        compile_ops([Op(mix, ["a", "b", "t"]), Op(mix, ["t", "a", "u"])], "kind"),
        compile_ops([Op(mix, ["a", "b", "t"]), Op(mix, ["b", "t", "u"])], "kind"),
    )


def test_two_super_kernels_with_one_name_and_one_sub_kernel_live_in_one_process() -> None:
    one, two = two_of_a_kind()
    with one, two:
        for _ in range(3):
            assert_same(one, numbers("a", "b"))
            assert_same(two, numbers("a", "b"))
