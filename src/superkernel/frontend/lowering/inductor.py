"""frontend.inductor: the seam to TorchInductor: an FX graph in, the text of the program it generates out.

Everything that depends on Inductor's insides is here and in the three modules that read its text (record, outline,
flags of the compiler); tests/frontend/test_seam.py says which of its names and signatures that is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..capture.marks import source_line

SUPPORTED = ((2, 11), (2, 12), (2, 13))

_taking = threading.local()
_hook_lock = threading.Lock()


@dataclass(frozen=True)
class Generated:
    """What Inductor made of a graph: a Python module that calls C++ kernels and libraries, and its constants."""

    text: str
    constants: dict[str, Any]
    origins: dict[str, tuple[str, ...]]  # buffer -> the lines of the model that it comes from


class _Taken(BaseException):
    """Thrown through Inductor when the text is there: no Exception, so that nothing on the way handles it."""

    def __init__(self, generated: Generated) -> None:
        self.generated = generated


class NoCompiler(RuntimeError):
    """Inductor found no C++ compiler."""


def version() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def supported() -> bool:
    return version() in SUPPORTED


def lower(module: torch.fx.GraphModule, inputs: Sequence[Any], threads: int) -> Generated | None:
    """Let Inductor optimise and generate code for `module`, which it may change. None: there is nothing to run."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner

    # Its own cache hands out finished programs, in which no text is generated; random numbers come from torch's own
    # generators, whose state every caller shares.
    launch_inputs = {
        "fx_graph_cache": False,
        "fallback_random": True,
        "cpp_wrapper": False,
        "graph_partition": False,
        "freezing": False,
        "max_autotune": False,
        "max_autotune_gemm": False,
        "cpp.threads": threads,
    }
    keep_strides(module)
    try_processor()
    with config.patch(launch_inputs), _taking_text():
        try:
            compile_fx_inner(module, list(inputs), is_inference=True)
        except _Taken as taken:
            return taken.generated
    return None


@cache
def try_processor() -> None:
    """Find out, for Inductor, which instruction sets work here.

    It tries one after the other, each with a compiler and a process that loads what was made, and remembers the
    answers; asked side by side they come in less than half the time.
    """
    from torch._inductor import cpu_vec_isa

    known = cpu_vec_isa.x86_isa_checker()
    there = [isa for isa in cpu_vec_isa.supported_vec_isa_list if all(flag in known for flag in str(isa).split())]
    if there:
        with ThreadPoolExecutor(len(there), "superkernel-processor") as pool:
            list(pool.map(bool, there))


@contextmanager
def _taking_text() -> Iterator[None]:
    _install_hook()
    _taking.now = True
    try:
        yield
    finally:
        _taking.now = False


def _install_hook() -> None:
    """Inductor shows every generated program to this hook before it compiles it. Other threads are let through."""
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    with _hook_lock:
        others = GraphLowering.save_output_code
        if getattr(others, "takes_text", False):
            return

        def take(text: str) -> None:
            if others is not None:
                others(text)
            if getattr(_taking, "now", False):
                raise _Taken(Generated(text, dict(V.graph.constants), _origins(V.graph)))

        take.takes_text = True  # type: ignore[attr-defined]
        GraphLowering.save_output_code = staticmethod(take)
        _keep_small_matmuls()


def _keep_small_matmuls() -> None:
    """Inductor writes a batched matmul of one row or column as products and a sum; a sub-kernel reads weights once."""
    from torch._inductor.lowering import fallback_handler, lowerings

    bmm = torch.ops.aten.bmm.default
    stock, whole = lowerings[bmm], fallback_handler(bmm, add_to_fallback_set=False)

    def lower_bmm(left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
        is_thin = left.get_size()[1] == 1 or right.get_size()[2] == 1
        if (
            getattr(_taking, "now", False)
            and is_thin
            and left.get_dtype() in (torch.float32, torch.bfloat16, torch.float16)
        ):
            return whole(left, right, *args, **kwargs)
        return stock(left, right, *args, **kwargs)

    lowerings[bmm] = lower_bmm


def _origins(graph: Any) -> dict[str, tuple[str, ...]]:
    found = {}
    for buffer in graph.buffers:
        lines = (source_line(node) for node in getattr(buffer, "origins", ()))
        found[buffer.get_name()] = tuple(dict.fromkeys(line for line in lines if line is not None))
    return found


def stock(module: torch.fx.GraphModule, inputs: Sequence[Any], mode: str | None, **facts: Any) -> Any:
    """What Inductor itself would run for the graph: a function of a list of inputs."""
    from torch._inductor import config, list_mode_options
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes

    keep_strides(module)
    with config.patch({"use_joint_graph_passes": True, "fx_graph_cache": True, **list_mode_options(mode or "default")}):
        try:
            return compile_fx_inner(joint_graph_passes(module), list(inputs), **facts)
        except Exception as failure:
            if "InvalidCxxCompiler" in repr(failure):
                raise NoCompiler(str(failure).splitlines()[0]) from failure
            raise


def keep_strides(module: torch.fx.GraphModule) -> None:
    """Every output is laid out as the graph says: somebody else was compiled for that."""
    output = next(node for node in module.graph.nodes if node.op == "output")
    values = list(output.args[0])
    output.meta["user_visible_output_idxs"] = [i for i, value in enumerate(values) if isinstance(value, torch.fx.Node)]


@dataclass(frozen=True)
class CompilerFlags:
    """How Inductor compiles a kernel on this machine, so that ours round as its do."""

    flags: tuple[str, ...]
    libraries: tuple[str, ...]


@cache
def compiler_flags() -> CompilerFlags:
    from torch._inductor.cpp_builder import CppTorchOptions
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    try_processor()
    options = CppTorchOptions(vec_isa=pick_vec_isa(), warning_all=False)
    flags = [f"-{flag}" for flag in options.get_cflags() if flag not in ("shared", "fopenmp", "g1", "pedantic", "Wall")]
    flags += [f"-D{definition.strip()}" for definition in options.get_definitions() if "PRECOMPILE" not in definition]
    flags += [f"-I{folder}" for folder in options.get_include_dirs()]
    flags += [word for text in options.get_passthrough_args() for word in text.split()]
    home = Path(torch.__file__).parent / "lib"
    libraries = tuple(str(home / name) for name in ("libc10.so", "libtorch_cpu.so"))
    return CompilerFlags(tuple(dict.fromkeys(flags)), libraries)
