"""The launch shape of a sub-kernel: what threads, grid and shared accept, and how block_dim follows from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.model.binary import Form
from superkernel.model.subkernel import refuse_thread_blocks


@pytest.fixture
def ptx(tmp_path: Path) -> Path:
    path = tmp_path / "scale.ptx"
    path.write_text("")
    return path


def from_ptx(path: Path, **shape: Any) -> sk.SubKernel:
    return sk.SubKernel.from_ptx(path, "scale", params=["in:x", "out:y"], **shape)


def test_a_ptx_kernel_has_threads_a_grid_and_shared_memory(ptx: Path) -> None:
    kernel = from_ptx(ptx, threads=(128, 1, 1), grid=(8, 3, 2), shared=4096)
    assert (kernel.threads, kernel.grid, kernel.shared) == ((128, 1, 1), (8, 3, 2), 4096)
    assert (kernel.block_dim, kernel.binary.form) == (48, Form.PTX)


def test_without_a_shape_a_block_is_one_thread_and_the_grid_is_flat(ptx: Path) -> None:
    kernel = sk.SubKernel.from_source(ptx, "scale", block_dim=4, params=["in:x"])
    assert (kernel.threads, kernel.grid, kernel.shared) == ((1, 1, 1), (4, 1, 1), 0)


def test_numpy_integers_and_lists_become_plain_tuples(ptx: Path) -> None:
    kernel = from_ptx(ptx, threads=[np.int64(32), 1, 1], grid=np.array([2, 3, 1]).tolist(), shared=np.uint16(64))
    assert kernel == from_ptx(ptx, threads=(32, 1, 1), grid=(2, 3, 1), shared=64)
    assert [type(number) for number in (*kernel.threads, kernel.shared)] == [int] * 4
    assert type(from_ptx(ptx, block_dim=np.int32(4)).block_dim) is int


@pytest.mark.parametrize("other", [{"threads": (64, 1, 1)}, {"grid": (1, 8, 1)}, {"shared": 16}, {"scratch": 128}])
def test_the_shape_is_part_of_equality_and_hash(ptx: Path, other: dict[str, Any]) -> None:
    shape: dict[str, Any] = {"threads": (128, 1, 1), "grid": (8, 1, 1), "shared": 0}
    kernel, same, different = from_ptx(ptx, **shape), from_ptx(ptx, **shape), from_ptx(ptx, **(shape | other))
    assert kernel == same and hash(kernel) == hash(same)
    assert kernel != different and len({kernel, same, different}) == 2


def test_a_grid_may_have_up_to_two_to_the_31_blocks_less_one(ptx: Path) -> None:
    assert from_ptx(ptx, grid=(2**31 - 1, 1, 1)).block_dim == 2**31 - 1
    assert from_ptx(ptx, block_dim=2**31 - 1).grid == (2**31 - 1, 1, 1)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"grid": (65536, 32768, 1)}, ("grid", "(65536, 32768, 1)", "must not exceed 2147483647")),
        ({"threads": (0, 1, 1), "grid": (1, 1, 1)}, ("threads", "(0, 1, 1)", "(x, y, z) from 1")),
        ({"threads": (32,), "grid": (1, 1, 1)}, ("threads", "(32,)", "three whole numbers")),
        ({"threads": 128, "grid": (1, 1, 1)}, ("threads", "128", "three whole numbers")),
        ({"threads": "128", "grid": (1, 1, 1)}, ("threads", "'128'", "three whole numbers")),
        ({"grid": (1.0, 1, 1)}, ("grid", "(1.0, 1, 1)", "three whole numbers")),
        ({"grid": (True, 1, 1)}, ("grid", "(True, 1, 1)", "three whole numbers")),
        ({"grid": (1, -2, 1)}, ("grid", "(1, -2, 1)", "from 1")),
        ({"grid": (1, 1, 1), "shared": -1}, ("shared", "-1", "bytes from 0")),
        ({"grid": (1, 1, 1), "shared": 1.5}, ("shared", "1.5", "bytes from 0")),
        ({"grid": (1, 1, 1), "shared": True}, ("shared", "True", "bytes from 0")),
        ({"grid": (1, 1, 1), "scratch": -1}, ("scratch", "-1", "bytes from 0")),
        ({"block_dim": 4, "grid": (3, 1, 1)}, ("block_dim is 4", "grid (3, 1, 1) has 3 blocks", "give only grid")),
        ({"block_dim": 2**31}, ("block_dim", str(2**31), "1 to 2147483647")),
        ({}, ("block_dim is None", "grid=(x, y, z)")),
    ],
)
def test_a_wrong_shape_is_refused_with_its_field(ptx: Path, shape: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(sk.GraphError) as refused:
        from_ptx(ptx, **shape)
    assert all(word in str(refused.value) for word in ("sub-kernel 'scale'", *words))


def test_the_shape_is_read_from_json(ptx: Path) -> None:
    entry: dict[str, Any] = {"ptx": ptx.name, "params": ["in:x", "out:y"]}
    shape = {"threads": [128, 1, 1], "grid": [8, 2, 1], "shared": 256, "scratch": 128}
    path = ptx.with_suffix(".json")
    path.write_text(json.dumps(entry | shape))
    assert sk.SubKernel.from_json(path) == from_ptx(ptx, **shape)
    for wrong, message in (
        ({"grid": 8}, r"grid: 8 is not a list"),
        ({"threads": [128, 1.5, 1]}, r"threads\[1\]: 1\.5 is not a whole number"),
        ({"shared": "64"}, r"shared: '64' is not a whole number"),
        ({"grid": [8, 2]}, r"grid is \(8, 2\); it must be three whole numbers"),
        ({"grids": [8, 2, 1]}, r"grids: unknown field \(did you mean 'grid'\?\)"),
        ({"grid": None}, r"the field 'block_dim' is missing"),
    ):
        path.write_text(json.dumps(entry | shape | wrong))
        with pytest.raises(sk.GraphError, match=message):
            sk.SubKernel.from_json(path)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"threads": (32, 1, 1)}, ("threads=(32, 1, 1)", "leave threads out")),
        ({"shared": 64}, ("shared=64", "workspace parameter")),
        ({"grid": (65536, 1, 1)}, ("65536 blocks", "at most 65535", "lower grid")),
    ],
)
@pytest.mark.parametrize("target", ["cpu", "ascend"])
def test_targets_without_thread_blocks_refuse_the_shape(
    tmp_path: Path, target: str, shape: dict[str, Any], words: tuple[str, ...]
) -> None:
    source = tmp_path / "scale.cpp"
    source.write_text('extern "C" void scale(float* x) {}')
    kernel = sk.SubKernel.from_source(source, "scale", params=["inout:x"], **({"grid": (2, 1, 1)} | shape))
    with pytest.raises(sk.UnsupportedError) as refused:
        sk.compile([sk.Op(kernel, ["x"])], target=target)
    assert all(word in str(refused.value) for word in ("'scale'", target, *words))


def test_a_grid_of_more_than_one_dimension_is_its_blocks_in_a_row(tmp_path: Path) -> None:
    source = tmp_path / "scale.cpp"
    source.write_text('extern "C" void scale(float* x) {}')
    refuse_thread_blocks(sk.SubKernel.from_source(source, "scale", params=["inout:x"], grid=(2, 3, 1)), "cpu")


def test_a_saved_kernel_keeps_its_grid(tmp_path: Path) -> None:
    source = tmp_path / "scale.cpp"
    source.write_text('extern "C" void scale(float* x) {}')
    kernel = sk.SubKernel.from_source(source, "scale", params=["inout:x"], grid=(1, 2, 1))
    with sk.compile([sk.Op(kernel, ["x"])]) as compiled:
        compiled.save(tmp_path / "saved")
    with sk.load(tmp_path / "saved") as loaded:
        saved = loaded.graph.nodes[0].kernel
        assert (saved.threads, saved.grid, saved.shared, saved.block_dim) == ((1, 1, 1), (1, 2, 1), 0, 2)
