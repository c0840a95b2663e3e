"""targets.cpu.kernels: sub-kernels that we ship for library ops of torch, written for super kernels."""

from __future__ import annotations


def register() -> None:
    """Let them stand for torch's operators in scopes."""
    from ....registry import ship_kernel
    from . import matmul

    for name in ("mm", "addmm", "bmm", "baddbmm"):
        ship_kernel(f"aten::{name}", "cpu", getattr(matmul, name))
