"""examples/01_pow_isinf.py: runs from anywhere, shows its layout, and says so when a kernel is wrong."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from examples.program import EXAMPLES, load, run

import superkernel as sk

PROGRAM = "01_pow_isinf.py"
STEPS = (
    "topology by strings",
    "compile the sub-kernels",
    "compile the super kernel",
    "memory allocated by name",
    "launch",
    "check against numpy",
    "release",
)


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load(PROGRAM)


def test_it_runs_from_any_folder_and_names_its_steps(tmp_path: Path) -> None:
    done = run(EXAMPLES / PROGRAM, tmp_path)
    assert done.returncode == 0, done.stderr
    assert tuple(re.findall(r"^\d\. (.*)$", done.stdout, re.MULTILINE)) == STEPS
    assert done.stdout.endswith("execute sample success\n")
    assert "layout: 7 slots" in done.stdout and "plan pow_isinf: 2 ops" in done.stdout


def test_the_layout_has_one_slot_per_parameter_in_op_order(example: ModuleType) -> None:
    with sk.compile(example.topology(*example.sub_kernels()), name="pow_isinf") as k:
        layout = k.layout
    assert layout.names == ("pow_in1", "pow_in2", "pow_out1", "pow_ws", "isinf_in1", "isinf_out1", "isinf_ws")
    assert layout["pow_out1"].source == layout["isinf_in1"].source
    assert len({slot.source for slot in layout}) == len(example.MEMORY) == 6
    assert [slot.offset for slot in layout] == list(range(0, 56, 8))


def test_the_check_finds_every_wrong_output(example: ModuleType) -> None:
    memory = example.allocate()
    assert len(example.check(memory)) == 2
    with sk.compile(example.topology(*example.sub_kernels()), name="pow_isinf") as k:
        k(memory)
    assert example.check(memory) == []
    memory["output"][7] ^= True
    assert example.check(memory) == ["output is not numpy.isinf(pow_output)"]


def test_a_wrong_kernel_ends_it_with_status_1_and_the_reason(tmp_path: Path) -> None:
    copy = shutil.copytree(EXAMPLES, tmp_path / "examples")
    source = copy / "kernels" / "pow.cpp"
    source.write_text(source.read_text().replace("in2[i] * std::log2", "2 * std::log2"))
    done = run(copy / PROGRAM, tmp_path)
    assert done.returncode == 1
    assert "execute sample failed: pow_output is not numpy.power(input1, input2)" in done.stderr
    assert "success" not in done.stdout
