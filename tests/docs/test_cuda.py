"""docs/cuda.md: its programs run, here on the emulator, and refusals are those that the page lists."""

from __future__ import annotations

from typing import Any

import pytest
from docs.pages import blocks, read_page

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

import superkernel as sk  # noqa: E402

pytestmark = pytest.mark.slow
PAGE = read_page("cuda.md")


@triton.jit
def rms_norm(x, weight, y, epsilon, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, SIZE)
    value = tl.load(x + at)
    mean = tl.sum(value * value, axis=0) / SIZE
    tl.store(y + at, value * tl.rsqrt(mean + epsilon) * tl.load(weight + at))


@triton.jit
def add(x, y, z, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, SIZE)
    tl.store(z + at, tl.load(x + at) + tl.load(y + at))


@triton.jit
def asserting(x, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.device_assert(tl.load(x + tl.arange(0, SIZE)) > 0, "x is positive")


def code(number: int) -> str:
    return blocks(PAGE, "python")[number][1]


def test_the_first_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    x, weight, h, y = torch.randn(2048), torch.rand(2048), torch.zeros(2048), torch.zeros(2048)
    names: dict[str, Any] = {"x": x, "weight": weight, "h": h, "y": y, "rms_norm": rms_norm, "add": add}
    exec(code(0).replace("k(ops.buffers)", "k.emulate(ops.buffers)"), names)
    torch.testing.assert_close(y, x + x * (x.square().mean() + 1e-6).rsqrt() * weight)
    printed = capsys.readouterr().out
    assert "128 threads" in printed and "plan block: 2 ops" in printed


def test_collectives_of_emulated_gpus_are_right() -> None:
    exec(code(1), {})


def test_the_ops_of_the_streaming_gemv_are_a_graph() -> None:
    names: dict[str, Any] = {}
    exec(code(2), names)
    with sk.compile(names["ops"], name="products", target="cuda") as k:
        assert "waits inside" in str(k.graph) and "after it has read w" in str(k.graph)


def test_a_kernel_with_a_call_is_refused_with_its_line() -> None:
    with sk.capture(target="sm_90a") as ops:
        asserting[(1,)](torch.ones(64), SIZE=64, debug=True)
    with pytest.raises(sk.UnsupportedError, match=r"\.ptx:\d+.*__assertfail"):
        sk.compile(ops, target="cuda")
