"""Small kernels to be launched and looked at."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import superkernel as sk

SIZE = 1024
SOURCE = """
#include <superkernel/kernel.h>
#include <time.h>
extern "C" void add(const float* x, const float* y, float* z) {
    for (int i = sk::block_idx(); i < 1024; i += sk::block_num()) z[i] = x[i] + y[i];
}
extern "C" void rest(const float* x, float* z) {
    const timespec nap{0, 2000000};
    nanosleep(&nap, nullptr);
    for (int i = sk::block_idx(); i < 1024; i += sk::block_num()) z[i] = x[i];
}
extern "C" void refuse(const float* x, float* z) { sk::fail("not today"); }
"""
TYPED = f"float32[{SIZE}]"


def kernel(folder: Path, name: str, blocks: int = 2, op_type: str | None = None) -> sk.SubKernel:
    path = folder / "kernels.cpp"
    path.write_text(SOURCE)
    params = (
        [f"in:x:{TYPED}", f"in:y:{TYPED}", f"out:z:{TYPED}"] if name == "add" else [f"in:x:{TYPED}", f"out:z:{TYPED}"]
    )
    return sk.SubKernel.from_source(path, name, block_dim=blocks, params=params, op_type=op_type)


def twice(folder: Path, name: str = "twice", options: str = "", cores: int = 2) -> sk.SuperKernel:
    """Two adds, of which the second needs the first."""
    add = kernel(folder, "add", op_type="Addition")
    ops = [sk.Op(add, ["a", "b", "t"], name="first"), sk.Op(add, ["t", "b", "c"], name="second")]
    return sk.compile(ops, name, options, cores=cores)


def buffers() -> dict[str, np.ndarray]:
    return {"a": np.full(SIZE, 1, np.float32), "b": np.full(SIZE, 2, np.float32), "c": np.empty(SIZE, np.float32)}
