"""The seam to Inductor: the names, signatures and texts that superkernel.frontend rests on. Loud when torch changes."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import inspect
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import Scheduler

from superkernel.frontend.lowering import cpp_compiler, inductor
from superkernel.frontend.lowering.cpp import DIALECT, inductor_config
from superkernel.frontend.lowering.cpp_outline import outline
from superkernel.frontend.lowering.program_trace import KernelCall, LibraryCall, StorageOrigin
from superkernel.frontend.lowering.trace_program import trace_program
from superkernel.frontend.torch_versions import unsupported_version

THREADS = 2


def traced(function, *inputs):
    """What AOTAutograd would hand over: an aten graph with example values."""
    from torch._functorch.aot_autograd import aot_module_simplified
    from torch._inductor.decomposition import select_decomp_table

    seen = SimpleNamespace()

    def take(module, examples):
        seen.module, seen.inputs = module, examples
        return module.forward

    class Model(torch.nn.Module):
        def forward(self, *args):
            return (function(*args),)

    exported = torch.export.export(Model(), inputs).module()
    with torch.no_grad():
        aot_module_simplified(
            exported, inputs, fw_compiler=take, inference_compiler=take, decompositions=select_decomp_table()
        )
    return seen.module, seen.inputs


@pytest.fixture(scope="module")
def generated():
    """A full reduction, a softmax and a matmul, for two threads."""

    def function(x, w):
        return torch.softmax(x @ w, dim=-1) * (x * x).sum()

    module, inputs = traced(function, torch.randn(64, 512), torch.randn(512, 512))
    return inductor.generate_program(module, inputs, inductor_config(THREADS)), inputs


def test_this_torch_is_one_we_know() -> None:
    assert unsupported_version(torch.__version__) is None


def test_torch_says_where_the_function_is_that_finds_the_memory_of_a_tensor() -> None:
    address = torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr
    function = ctypes.PYFUNCTYPE(ctypes.c_size_t, ctypes.py_object)(address)
    x = torch.randn(4, 4)
    assert function(x) == x.data_ptr() and function(x[2:]) == x.data_ptr() + 32
    assert function(torch.nn.Parameter(x)) == x.data_ptr()


def test_the_entry_points_take_what_we_pass() -> None:
    assert {"inner_compile", "config_patches"} <= set(inspect.signature(compile_fx).parameters)
    assert list(inspect.signature(compile_fx_inner).parameters)[:2] == ["gm", "example_inputs"]
    assert list(inspect.signature(Scheduler.fusable_weak_dep).parameters) == ["self", "weak_dep", "node1", "node2"]


@pytest.mark.parametrize(
    "key",
    [
        "fx_graph_cache", "fallback_random", "cpp_wrapper", "graph_partition", "freezing", "max_autotune",
        "max_autotune_gemm", "cpp.threads", "use_joint_graph_passes",
    ],
)  # fmt: skip
def test_the_settings_exist(key: str) -> None:
    value: object = config
    for name in key.split("."):
        value = getattr(value, name)


def test_aotautograd_has_a_cache_that_can_be_turned_off() -> None:
    with torch._functorch.config.patch(enable_autograd_cache=False):
        assert torch._functorch.config.enable_autograd_cache is False


def test_programs_are_shown_to_a_hook_before_they_are_compiled() -> None:
    assert hasattr(GraphLowering, "save_output_code")


def test_modes_can_be_turned_into_settings() -> None:
    from torch._inductor import list_mode_options

    assert "max_autotune" in list_mode_options("max-autotune")


def test_the_compiler_flags_are_complete() -> None:
    flags = cpp_compiler.compiler_flags()
    assert any(flag.startswith("-I") and flag.endswith("torch/include") for flag in flags.flags)
    assert any(flag.startswith("-std=c++") for flag in flags.flags)
    assert not {"-shared", "-fopenmp"} & set(flags.flags)
    assert {Path(library).name for library in flags.libraries} == {"libc10.so", "libtorch_cpu.so"}


def test_the_program_is_text_and_nothing_was_compiled(generated) -> None:
    program, _ = generated
    ast.parse(program.text)
    assert "async_compile.cpp_pybinding([" in program.text
    assert "def call(" in program.text
    assert "extern_kernels.mm(" in program.text


def test_kernels_are_called_kernel_and_share_work_by_openmp(generated) -> None:
    program, inputs = generated
    kernels = trace_program(program, inputs, DIALECT).kernels
    assert kernels
    for text in kernels.values():
        assert 'extern "C"' in text.source and "kernel(" in text.source
        assert f"#pragma omp parallel num_threads({THREADS})" in text.source
        assert "int tid = omp_get_thread_num();" in text.source


def test_the_calls_of_the_program_can_be_recorded(generated) -> None:
    program, inputs = generated
    trace = trace_program(program, inputs, DIALECT)
    assert any(isinstance(call, KernelCall) for call in trace.calls)
    assert [call.op for call in trace.calls if isinstance(call, LibraryCall)] == [torch.ops.aten.mm.out]
    assert [storage.name for storage in trace.storages if storage.origin is StorageOrigin.INPUT] == ["arg0_1", "arg1_1"]


def test_every_call_knows_the_lines_it_comes_from(generated) -> None:
    program, inputs = generated
    lines = {line for call in trace_program(program, inputs, DIALECT).calls for line in call.origins}
    assert lines and all("test_inductor.py:" in line for line in lines)


def test_a_full_reduction_becomes_a_loop_and_the_joining_of_its_results(generated) -> None:
    program, inputs = generated
    outlined = [outline(text.source, THREADS) for text in trace_program(program, inputs, DIALECT).kernels.values()]
    assert [THREADS, 1] in [[part.blocks for part in one.parts if part.workspace] for one in outlined]


def test_aotautograd_says_what_its_wrappers_would_do() -> None:
    from torch._functorch._aot_autograd.schemas import OutputType, ViewAndMutationMeta

    told = {*ViewAndMutationMeta.__dataclass_fields__, *inspect.getsource(ViewAndMutationMeta).split()}
    text = " ".join(told)
    for name in ("input_info", "output_info", "num_intermediate_bases", "tokens", "num_graphsafe_rng_states",
                 "subclass_inp_meta", "subclass_fw_graph_out_meta", "mutated_inp_runtime_indices",
                 "is_rng_op_functionalized", "mutated_graph_handled_indices_seen_by_autograd"):  # fmt: skip
        assert name in text, name
    assert OutputType.non_alias.name == "non_alias"


def test_instruction_sets_are_tried_side_by_side_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpu_vec_isa

    together = threading.Barrier(2, timeout=300)

    class Set:
        def __init__(self, name: str) -> None:
            self.name = name

        def __str__(self) -> str:
            return self.name

        def __bool__(self) -> bool:
            together.wait()
            return True

    monkeypatch.setattr(cpu_vec_isa, "x86_isa_checker", lambda: ["wide", "narrow", "more"])
    monkeypatch.setattr(cpu_vec_isa, "supported_vec_isa_list", [Set("wide more"), Set("narrow"), Set("absent")])
    cpp_compiler.probe_instruction_sets.cache_clear()
    cpp_compiler.probe_instruction_sets()
    assert not together.broken
    cpp_compiler.probe_instruction_sets()  # asks nobody: one alone would wait until the barrier breaks
    cpp_compiler.probe_instruction_sets.cache_clear()


def test_inductor_remembers_which_instruction_sets_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config, cpu_vec_isa

    class InThisThread(contextlib.nullcontext[None]):
        """A pool whose work sees the configuration of this thread."""

        def __init__(self, *args: object) -> None:
            super().__init__()

        def __enter__(self) -> Any:
            return self

        map = staticmethod(map)

    monkeypatch.setattr(cpp_compiler, "ThreadPoolExecutor", InThisThread)
    with config.patch({"cpp.vec_isa_ok": None}):  # tests/conftest.py answers for other tests
        cpp_compiler.probe_instruction_sets.cache_clear()
        cpp_compiler.probe_instruction_sets()
        monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", lambda *args: pytest.fail("tried again"))
        cpu_vec_isa.valid_vec_isa_list.cache_clear()
        assert cpu_vec_isa.pick_vec_isa() in cpu_vec_isa.supported_vec_isa_list


@pytest.mark.parametrize("view", [False, True])
def test_images_of_one_channel_give_channels_that_are_neighbours(view: bool) -> None:
    def function(x, filters):
        return torch.nn.functional.conv2d(x[1:, 1:] if view else x.sin(), filters, padding=1).relu()

    sizes = (2, 2, 9, 9) if view else (1, 1, 9, 9)
    module, inputs = traced(function, torch.randn(sizes), torch.randn(8, 1, 3, 3))
    program = trace_program(inductor.generate_program(module, inputs, inductor_config(THREADS)), inputs, DIALECT)
    (call,) = (call for call in program.calls if isinstance(call, LibraryCall))
    (result,) = call.results
    assert result is not None and result.strides[1] == 1
    assert call.args[0].offset == (3 * 81 * 4 if view else 0)


def test_filters_stay_where_they_are_and_scales_of_a_batch_norm_are_stored() -> None:
    channels, functional = 24, torch.nn.functional

    def function(x, filters, mean, variance):
        return functional.batch_norm(functional.conv2d(x.sin(), filters, padding=1), mean, variance).relu()

    vectors = torch.randn(channels), torch.rand(channels)
    module, inputs = traced(function, torch.randn(1, 8, 9, 9), torch.randn(channels, 8, 3, 3), *vectors)
    trace = trace_program(inductor.generate_program(module, inputs, inductor_config(THREADS)), inputs, DIALECT)
    (call,) = (call for call in trace.calls if isinstance(call, LibraryCall))
    image, filters, *_ = call.args
    assert image.strides[1] == 1, "channels are neighbours in memory"
    assert filters.storage.origin is StorageOrigin.INPUT, "no copy in another layout"
    allocated = [storage.nbytes for storage in trace.storages if storage.origin is StorageOrigin.ALLOCATED]
    assert 4 * channels in allocated, "one over the root of the variance, once per channel"


@pytest.mark.conformance
def test_pooling_is_decomposed_in_a_process_that_has_imported_no_lowering() -> None:
    script = """
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from superkernel.frontend.lowering.inductor import inductor_decompositions
pool = lambda x: torch.nn.functional.max_pool2d(x, 2)
print(len(make_fx(pool, inductor_decompositions(()))(torch.randn(1, 2, 4, 4)).graph.nodes))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
