"""Sub-kernels that take pointers, as a plain Ascend C kernel does: the entry loads them from the slots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.targets.ascend.emulator import emulate
from superkernel.targets.protocol import LaunchInputs

TEXT = """
#include <superkernel/host_kernel.h>
static void add(GM_ADDR x, GM_ADDR y, GM_ADDR z) {
    float left[16], right[16];
    int64_t at = sk::block_idx() * 16;
    (sk::gm<float>(x) + at).copy_in(left, 16);
    (sk::gm<float>(y) + at).copy_in(right, 16);
    for (int i = 0; i < 16; ++i) left[i] += 2 * right[i];
    (sk::gm<float>(z) + at).copy_out(left, 16);
}
extern "C" __global__ __aicore__ void add_100(GM_ADDR x, GM_ADDR y, GM_ADDR z) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    add(x, y, z);
}
extern "C" __aicore__ void add_200(__gm__ float* x, __gm__ float* y, __gm__ float* z) {
    add((GM_ADDR)x, (GM_ADDR)y, (GM_ADDR)z);
}
extern "C" __aicore__ void nothing() {}
"""
PARAMS = ["in:x:float32[128]", "in:y:float32[128]", "out:z:float32[128]"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "adds.cpp").write_text(TEXT)
    return tmp_path / "adds.cpp"


def ops(source: Path) -> list[sk.Op]:
    first, second = (
        sk.SubKernel.from_source(source, name, block_dim=8, params=PARAMS, core="vector")
        for name in ("add_100", "add_200")
    )
    return [sk.Op(first, ["x", "y", "t"]), sk.Op(second, ["t", "y", "z"]), sk.Op(first, ["y", "x", "u"])]


def inputs() -> dict[str, Any]:
    x = np.arange(128, dtype=np.float32)
    return {"x": x, "y": x[::-1].copy(), "t": np.zeros(128, np.float32)}


@pytest.mark.parametrize("options", ["split-mode=1", "split-mode=3", "split-mode=1:early-start=0:preload-code=none"])
def test_they_are_called_with_what_their_slots_hold(source: Path, options: str) -> None:
    given = inputs()
    with sk.compile(ops(source), name="adds", options=options, target="ascend") as k:
        found = k.emulate(given, seed=1)
    assert np.array_equal(found["z"], given["x"] + 4 * given["y"])
    assert np.array_equal(found["u"], given["y"] + 2 * given["x"])


def test_the_entry_declares_and_passes_pointers(source: Path) -> None:
    with sk.compile(ops(source), name="adds", options="split-mode=1", target="ascend") as k:
        assert 'extern "C" __aicore__ void add_100(__gm__ uint8_t*, __gm__ uint8_t*, __gm__ uint8_t*);' in k.source
        assert "    add_200(pointer(4), pointer(5), pointer(6));\n" in k.source
        assert "preload((const void*)add_100, 7);" in k.source


def test_a_kernel_without_parameters_takes_none(source: Path) -> None:
    nothing = sk.SubKernel.from_source(source, "nothing", block_dim=2, params=[], core="vector")
    with sk.compile([sk.Op(nothing, [])], options="split-mode=1", target="ascend") as k:
        assert "    nothing();\n" in k.source
        k.emulate({}, seed=1)


def test_pointers_of_no_op_are_found(source: Path) -> None:
    with sk.compile(ops(source), name="adds", options="split-mode=1", target="ascend") as k:
        emitted, graph = k.executable.emitted, k.plan.graph
    text = emitted.source.replace("add_200(pointer(4), pointer(5)", "add_200(pointer(5), pointer(4)")
    assert text != emitted.source
    with pytest.raises(sk.LaunchError, match="calls add_200 with pointers that are those of no op"):
        emulate(replace(emitted, source=text), graph, inputs(), LaunchInputs({}, {}), seed=1)


def test_the_build_compiles_them_as_functions(source: Path) -> None:
    """__global__ would make each an entry, which cannot be called."""
    with sk.compile(ops(source), name="adds", target="ascend") as k:
        build = k.executable.build
    [compiles] = [line for line in build.lines() if "adds_vector" in line and "-xcce" in line]
    assert "-include superkernel/as_function.h" in compiles
    [header] = [file.path for file in build.headers if file.name == "as_function.h"]
    text = header.read_text()
    assert text.index('#include "kernel_operator.h"') < text.index("#undef __global__\n#define __global__\n")


def test_a_count_that_differs_from_the_parameters_is_refused(source: Path) -> None:
    wrong = sk.SubKernel.from_source(source, "add_100", block_dim=8, params=PARAMS[:2], core="vector")
    with pytest.raises(sk.GraphError, match=r"'add_100'.*3 pointers for 2 parameters"):
        sk.compile([sk.Op(wrong, ["x", "y"])], target="ascend")


@pytest.mark.parametrize("options", ["split-mode=1", "split-mode=3"])
def test_uses_with_several_block_counts_share_one_function(source: Path, options: str) -> None:
    wide, narrow = (
        sk.SubKernel.from_source(source, "add_100", block_dim=blocks, params=PARAMS, core="vector") for blocks in (8, 4)
    )
    given = {name: value for name, value in inputs().items() if name != "t"}
    with sk.compile([sk.Op(wide, ["x", "y", "z"]), sk.Op(narrow, ["y", "x", "u"])], "two", options, "ascend") as k:
        assert k.source.count("void add_100(") == 1 and "kernel_add_100" not in k.source
        found = k.emulate(given, seed=1)
    assert np.array_equal(found["z"], given["x"] + 2 * given["y"])
    assert np.array_equal(found["u"][:64], (given["y"] + 2 * given["x"])[:64])
