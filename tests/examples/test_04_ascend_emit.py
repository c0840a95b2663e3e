"""examples/04_ascend_emit.py: emits, shows, emulates and checks; draws the lanes; says so when a kernel is wrong."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from examples.program import EXAMPLES, load, run

import superkernel as sk

PROGRAM = "04_ascend_emit.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load(PROGRAM)


def test_it_shows_the_code_and_succeeds(tmp_path: Path) -> None:
    done = run(EXAMPLES / PROGRAM, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("execute sample success\n")
    assert done.stdout.count("right every time") == 3
    assert "void auto_gen_add_skp_kernel()" in done.stdout
    [picture] = (tmp_path / "prof_result").iterdir()
    text = picture.read_text()
    assert all(name in text for name in ("add_100", "add_200", "add_300", "add_400"))


def test_the_four_adds_have_the_shape_of_add_skp(example: ModuleType) -> None:
    """Each add is called after a preload of the next one and a sync with the one before."""
    with sk.compile(example.four_adds(), name="add_skp", options="split-mode=1", target="ascend") as k:
        emitted = k.executable.emitted
        entry = k.source[k.source.index("auto_gen_add_skp_kernel() {") :]
    assert (emitted.launch.type.macro, emitted.launch.blocks) == ("KERNEL_TYPE_MIX_AIV_1_0", 40)
    calls = [entry.index(f" add_{n}00(") for n in (1, 2, 3, 4)]
    assert calls == sorted(calls)
    for before, after in itertools.pairwise(calls):
        assert entry[before:after].count("wait_flag_dev(") == 1
        assert entry[before:after].count("ffts_cross_core_sync(") == 1
    for number, call in zip((2, 3, 4), calls, strict=False):
        assert entry.index(f"preload((const void*)add_{number}00") < call


def test_the_lanes_run_side_by_side(example: ModuleType) -> None:
    x = np.ones(example.ELEMENTS, np.float32)
    with sk.compile(example.two_streams(), name="lanes", options="stream-fusion=1", target="ascend") as k:
        k.emulate({"x": x, "y": x})
        ops = {span.op: span for span in k.records() if span.what == "op"}
    assert ops["add_100"].begin_ns < ops["add_200"].end_ns
    assert ops["add_200"].begin_ns < ops["add_100"].end_ns


def test_the_check_finds_every_wrong_output(example: ModuleType) -> None:
    x = np.full(example.ELEMENTS, 2, np.float32)
    outputs = ["pow_output", "output"]
    with sk.compile(example.pow_isinf(), name="pow_isinf", target="ascend", outputs=outputs) as k:
        made = k.emulate({"input1": x, "input2": x})
    assert example.check(made, x, x) == []
    made["output"][7] ^= True
    assert example.check(made, x, x) == ["output is not what numpy computes"]


def test_a_wrong_kernel_ends_it_with_status_1_and_the_reason(tmp_path: Path) -> None:
    copy = shutil.copytree(EXAMPLES, tmp_path / "examples")
    source = copy / "kernels" / "ascend_samples.cpp"
    source.write_text(source.read_text().replace("left[i] += right[i]", "left[i] -= right[i]"))
    done = run(copy / PROGRAM, tmp_path)
    assert done.returncode == 1
    assert "execute sample failed: add_skp, seed 0: a_out is not what numpy computes" in done.stderr
    assert "success" not in done.stdout
