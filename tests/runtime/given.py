"""Sub-kernels for the tests of inputs, and the check that a refused launch ran nothing and changed nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

import superkernel as sk

KERNELS = Path(__file__).parent / "kernels.cpp"
VECTOR = "float32[12]"
SCOPE = "inputs"


def kernel(name: str, *params: str, block_dim: int = 1, **more: Any) -> sk.SubKernel:
    return sk.SubKernel.from_source(KERNELS, name, block_dim=block_dim, params=list(params), **more)


MARK = kernel("mark", "inout:ran:int64[1]")
ADD = kernel("add", f"in:x:{VECTOR}", f"in:y:{VECTOR}", f"out:z:{VECTOR}")
TOUCH = kernel("touch", "in:x", "out:y")


def compiled(*ops: sk.Op, **more: Any) -> sk.SuperKernel:
    return sk.compile(list(ops), name=SCOPE, **more)


def vector(value: float = 1.0) -> np.ndarray:
    return np.full(12, value, np.float32)


def snapshot(values: Mapping[str, Any]) -> dict[str, bytes]:
    """The bytes of everything that has some."""
    found = {}
    for name, value in values.items():
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            found[name] = value.tobytes()
        elif hasattr(value, "untyped_storage") and str(value.layout) == "torch.strided" and value.device.type == "cpu":
            found[name] = bytes(value.untyped_storage().tolist())
    return found


def refused(k: sk.SuperKernel, buffers: dict[Any, Any], *words: str, **more: Any) -> str:
    """The launch is refused in these words; no op ran and no byte changed."""
    before = snapshot(buffers)
    with pytest.raises(sk.LaunchError) as caught:
        k(buffers, **more)
    message = str(caught.value)
    for word in (f"super_kernel_scope {SCOPE!r}", *words):
        assert word in message
    assert snapshot(buffers) == before
    return message


def child(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a process of its own, with this package and the modules of the tests."""
    paths = os.pathsep.join(map(str, (Path(sk.__file__).parents[1], Path(__file__).parents[1])))
    return subprocess.run(
        [sys.executable, "-c", dedent(code)],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
