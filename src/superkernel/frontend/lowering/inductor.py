"""frontend.lowering.inductor: the interface to TorchInductor: an fx graph in, the text of the generated program out.

What depends on Inductor's internals is here and in the modules that read its text (trace_program, cpp_*);
tests/frontend/lowering/test_inductor.py checks the names and signatures they rely on.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch._dynamo.utils import detect_fake_mode
from torch.fx import GraphModule

from ..capture.decompositions import DECOMPOSITIONS
from ..capture.source_lines import source_line
from ..capture.written_arguments import written_values

# Inductor turns a matmul of one row into products and a sum; a sub-kernel reads weights once
MATMULS = ("aten::mm", "aten::bmm", "aten::addmm")

_intercepting = threading.local()
_hook_lock = threading.Lock()


@dataclass(frozen=True)
class GeneratedProgram:
    """What Inductor generated for a graph: a Python module that calls kernels and libraries, and its constants."""

    text: str
    constants: dict[str, Any]
    origins: dict[str, tuple[str, ...]]  # buffer -> the lines of the model that it comes from


class _Intercepted(BaseException):
    """Thrown through Inductor when the text exists: no Exception, so that no handler on the way catches it."""

    def __init__(self, generated: GeneratedProgram) -> None:
        self.generated = generated


class NoCompiler(RuntimeError):
    """Inductor found no C++ compiler."""


def generate_program(module: GraphModule, inputs: Sequence[Any], config: Mapping[str, Any]) -> GeneratedProgram | None:
    """Let Inductor optimise and generate code for `module`, which it may change. None: there is nothing to run."""
    from torch._inductor import config as inductor_config
    from torch._inductor.compile_fx import compile_fx_inner

    # On a hit of Inductor's cache no text is generated; random numbers come from torch's own generators, whose state
    # every caller shares.
    patches = {"fx_graph_cache": False, "fallback_random": True, "graph_partition": False, "freezing": False}
    patches |= {"max_autotune": False, "max_autotune_gemm": False, **config}
    keep_strides(module)
    with inductor_config.patch(patches):
        _install_hook()
        _intercepting.active = True
        try:
            compile_fx_inner(module, list(inputs), is_inference=True)
        except _Intercepted as intercepted:
            return intercepted.generated
        finally:
            _intercepting.active = False
    return None


def _is_intercepting() -> bool:
    return getattr(_intercepting, "active", False)


def _install_hook() -> None:
    """Inductor passes every generated program to this hook before it compiles it. Other threads are not affected."""
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    with _hook_lock:
        previous = GraphLowering.save_output_code
        if getattr(previous, "intercepts_text", False):
            return

        def intercept(text: str) -> None:
            if previous is not None:
                previous(text)
            if _is_intercepting():
                raise _Intercepted(GeneratedProgram(text, dict(V.graph.constants), _origins(V.graph)))

        intercept.intercepts_text = True  # type: ignore[attr-defined]
        GraphLowering.save_output_code = staticmethod(intercept)
        _keep_small_matmuls()
        _keep_filters()
        _store_channel_scales()
        _see_reads_of_written_inputs()
        _read_before_writes()


def _keep_small_matmuls() -> None:
    """Inductor writes a batched matmul of one row or column as products and a sum; a sub-kernel reads weights once."""
    from torch._inductor.lowering import fallback_handler, lowerings

    bmm = torch.ops.aten.bmm.default
    stock, library_call = lowerings[bmm], fallback_handler(bmm, add_to_fallback_set=False)
    dtypes = (torch.float32, torch.bfloat16, torch.float16)

    def lower_bmm(left: Any, right: Any, *args: Any, **kwargs: Any) -> Any:
        is_thin = left.get_size()[1] == 1 or right.get_size()[2] == 1
        if _is_intercepting() and is_thin and left.get_dtype() in dtypes:
            return library_call(left, right, *args, **kwargs)
        return stock(left, right, *args, **kwargs)

    lowerings[bmm] = lower_bmm


def _keep_filters() -> None:
    """Inductor copies the filters of a convolution to another layout in every call; sub-kernels take them as they are.

    Images are laid out with channels last, as Inductor does.
    """
    from torch._inductor import ir
    from torch._inductor.lowering import fallback_handler, lowerings

    convolution = torch.ops.aten.convolution.default
    stock, library_call = lowerings[convolution], fallback_handler(convolution, add_to_fallback_set=False)
    layouts = {4: ir.ExternKernel.require_channels_last, 5: ir.ExternKernel.require_channels_last_3d}

    def lower_convolution(image: Any, filters: Any, *args: Any, **kwargs: Any) -> Any:
        rank = len(filters.get_size())
        if not _is_intercepting() or len(image.get_size()) != rank:
            return stock(image, filters, *args, **kwargs)
        image.realize()
        filters.realize()
        if rank in layouts:
            image = _with_last_channels(layouts[rank](image))
        return library_call(image, filters, *args, **kwargs)

    lowerings[convolution] = lower_convolution


def _with_last_channels(image: Any) -> Any:
    """A single channel fits both layouts; its stride says which of them the result gets."""
    from torch._inductor.lowering import as_strided

    size, stride = image.get_size(), image.get_stride()
    if size[1] != 1 or stride[1] == 1:
        return image
    return as_strided(image, size, [stride[0], 1, *stride[2:]], image.get_layout().offset)


def _store_channel_scales() -> None:
    """Inductor computes the root and the quotient of a batch norm again for every pixel; stored, they cost nothing."""
    from torch._inductor.lowering import lowerings
    from torch._inductor.virtualized import V

    def storing(stock: Any) -> Any:
        def lower(*args: Any, **kwargs: Any) -> Any:
            result = stock(*args, **kwargs)
            if _is_intercepting() and _is_repeated(V.graph.current_node):
                result.realize()
            return result

        return lower

    for operator in (torch.ops.aten.reciprocal.default, torch.ops.aten.rsqrt.default):
        lowerings[operator] = storing(lowerings[operator])


def _see_reads_of_written_inputs() -> None:
    """A write in place is joined with a loop that reads the same elements only.

    Of a buffer that is written for the second time Inductor misses the reads: it knows it by another name then.
    """
    from torch._inductor.dependencies import MemoryDep
    from torch._inductor.scheduler import Scheduler

    stock = Scheduler.fusable_weak_dep

    def fusable(self: Any, weak_dep: Any, node1: Any, node2: Any) -> bool:
        if not stock(self, weak_dep, node1, node2):
            return False
        if not _is_intercepting():
            return True
        names = self.mutation_real_name
        written = [write for write in node2.read_writes.writes if write.name == weak_dep.mutating_buf]
        real_name = names[weak_dep.mutating_buf]
        reads = [read for read in node1.read_writes.reads if names.get(read.name, read.name) == real_name]
        return all(
            isinstance(read, MemoryDep) and (read.index, read.size) == (write.index, write.size)
            for read in reads
            for write in written
        )

    Scheduler.fusable_weak_dep = fusable


def _read_before_writes() -> None:
    """What is computed from an argument that an operator writes is in memory before.

    Inductor puts the operator into its list first, and then what it finds that still has to read the old value.
    """
    from torch._inductor.ir import FallbackKernel, TensorBox
    from torch._inductor.virtualized import V

    stock = FallbackKernel.create.__func__

    def create(cls: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_intercepting() and isinstance(kernel, torch._ops.OpOverload):
            for tensor in written_values(kernel, args, kwargs):
                if isinstance(tensor, TensorBox):
                    tensor.realize()
                    V.graph.mark_buffer_mutated(tensor.get_name())
        return stock(cls, kernel, *args, **kwargs)

    FallbackKernel.create = classmethod(create)


def _is_repeated(node: Any) -> bool:
    """Whether a vector is computed from one alone and read by something of at least eight times its size."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() != 1:
        return False
    readers, seen = list(node.users), set()
    while readers:
        reader = readers.pop()
        result = reader.meta.get("val")
        if reader in seen or not isinstance(result, torch.Tensor):
            continue
        seen.add(reader)
        if result.numel() >= 8 * value.numel():
            return True
        readers += reader.users if result.numel() == value.numel() else ()
    return False


def _origins(graph: Any) -> dict[str, tuple[str, ...]]:
    found = {}
    for buffer in graph.buffers:
        lines = (source_line(node) for node in getattr(buffer, "origins", ()))
        found[buffer.get_name()] = tuple(dict.fromkeys(line for line in lines if line is not None))
    return found


def inductor_decompositions(kept: Collection[str]) -> dict[Any, Any]:
    """Inductor's and ours, without those of the `kept` operators."""
    from torch._inductor.decomposition import select_decomp_table

    known = {**select_decomp_table(), **DECOMPOSITIONS}
    table = {op: function for op, function in known.items() if op.name().partition(".")[0] not in kept}
    aten = torch.ops.aten
    for pooling in (aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default):
        if pooling in table:
            table[pooling] = partial(_call_with_lowerings, table[pooling])
    return table


def _call_with_lowerings(decomposition: Any, *args: Any, **kwargs: Any) -> Any:
    """Inductor's decompositions of pooling use its lowerings, and expect that they have been imported."""
    import_module("torch._inductor.lowering")
    return decomposition(*args, **kwargs)


def compile_stock(module: GraphModule, inputs: Sequence[Any], mode: str | None, **facts: Any) -> Any:
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
                what = "Inductor has no C++ compiler either, ops run one by one"
                raise NoCompiler(f"{what}: {str(failure).splitlines()[0]}") from failure
            raise


@contextmanager
def compile_context(inputs: Sequence[Any]) -> Iterator[None]:
    """What a compilation by Inductor needs when no graph is being traced; the fake inputs know their mode."""
    from torch._inductor.virtualized import V

    fake_mode = detect_fake_mode(inputs)
    tracing = torch._guards.TracingContext(fake_mode)
    with torch.inference_mode(False), torch.no_grad(), V.set_fake_mode(fake_mode), torch._guards.tracing(tracing):
        yield


def copied_module(module: GraphModule) -> GraphModule:
    """A copy of the graph, for passes that change it."""
    copied = torch.fx.Graph()
    copied.output(copied.graph_copy(module.graph, {}))
    return GraphModule(module, copied)


def keep_strides(module: GraphModule) -> None:
    """Every output keeps the strides that the graph states: the parts that read it were compiled for them."""
    output = next(node for node in module.graph.nodes if node.op == "output")
    values = list(output.args[0])
    output.meta["user_visible_output_idxs"] = [i for i, value in enumerate(values) if isinstance(value, torch.fx.Node)]
