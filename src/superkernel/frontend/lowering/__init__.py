"""frontend.lowering: a part of a graph in; compiled sub-kernels out. Only this package knows a kind of kernel text."""

from __future__ import annotations

from importlib import import_module

from .protocol import Lowering

# kernel language of a target -> module with a LOWERING
_MODULES = {"cpp": "superkernel.frontend.lowering.cpp", "op_list": "superkernel.frontend.lowering.op_list"}


def find_lowering(kernel_language: str) -> Lowering:
    """The lowering to the kernel texts that a target compiles."""
    lowering: Lowering = import_module(_MODULES[kernel_language]).LOWERING
    return lowering
