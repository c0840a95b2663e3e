"""Every kernel of the corpus is read, printed and read again; its facts are those of its source, or it is refused."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from targets.cuda.corpus import (
    ARCHITECTURES,
    BY_NAME,
    CUDA_KERNELS,
    INDUCTOR_KERNELS,
    Corpus,
    CudaKernel,
    TritonKernel,
    names,
    why_no_nvcc,
)

from superkernel import SubKernel
from superkernel.errors import UnsupportedError
from superkernel.model.params import Kind, Param
from superkernel.targets.cuda.basic_blocks import control_flow
from superkernel.targets.cuda.facts import Atomics, complete, facts_of
from superkernel.targets.cuda.provenance import find_accesses
from superkernel.targets.cuda.ptx import walk_statements
from superkernel.targets.cuda.reader import read_ptx, read_ptx_file
from superkernel.targets.cuda.spin_loops import Spin

TAKEN = names(90)
REFUSED = names(90, refused=True)
CUDA_TAKEN = [kernel.name for kernel in CUDA_KERNELS if not kernel.refused]
CUDA_REFUSED = [kernel.name for kernel in CUDA_KERNELS if kernel.refused]
OTHER_ARCHITECTURES = [architecture for architecture in ARCHITECTURES if architecture != 90]
FLOAT_ATOMICS = ("split_k", "sum_atomic", "stream_k", "bfloat_add")
INTEGER_ATOMICS = ("histogram", "grid_barrier", "look_back_scan", "cooperative_sum", "split_scan", "split_scan_64")
SPINS = {
    "grid_barrier": Spin.ALL_BLOCKS,
    "stream_k": Spin.ALL_BLOCKS,
    "cooperative_sum": Spin.ALL_BLOCKS,
    "look_back_scan": Spin.LOWER_BLOCKS,
    "split_scan": Spin.LOWER_BLOCKS,
    "split_scan_64": Spin.LOWER_BLOCKS,
}


def test_the_corpus_has_what_it_promises() -> None:
    assert len(TAKEN) >= 20
    kernels = [kernel for kernel in BY_NAME.values() if isinstance(kernel, TritonKernel)]
    assert {kernel.warps for kernel in kernels} == {1, 2, 4, 8}
    assert {sum(extent > 1 for extent in kernel.grid) for kernel in kernels} == {0, 1, 2, 3}


def check_facts(corpus: Corpus, name: str, architecture: int) -> None:
    kernel = complete(corpus.sub_kernel(name, architecture))
    facts, described = facts_of(kernel), BY_NAME[name]
    threads = described.threads if isinstance(described, CudaKernel) else (32 * described.warps, 1, 1)
    assert kernel.threads == facts.threads == threads
    wanted = Atomics.FLOAT if name in FLOAT_ATOMICS else Atomics.INTEGER if name in INTEGER_ATOMICS else Atomics.NONE
    assert facts.atomics is wanted
    assert facts.spin is SPINS.get(name, Spin.NONE) and kernel.sync_all is (facts.spin is Spin.ALL_BLOCKS)
    assert kernel.waits_inside is (name == "waits_inside")
    assert facts.dimensions >= max((axis + 1 for axis in range(3) if described.grid[axis] > 1), default=1)
    assert not facts.remarks, facts.remarks


def check_kinds(corpus: Corpus, name: str, architecture: int) -> None:
    """Without what the user says, the parameters that are written are found."""
    kernel = corpus.sub_kernel(name, architecture)
    module = read_ptx_file(kernel.binary.path)
    entry = module.entry(kernel.name)
    assert entry is not None
    params = [Param.parse(text) for text in BY_NAME[name].params]
    scalars = [index for index, param in enumerate(params) if param.kind is Kind.SCALAR]
    accesses = find_accesses(module, entry, control_flow(entry, module.origin), scalars)
    assert not accesses.unknown, [access.line for access in accesses.unknown]
    written = {params[index].name for index in accesses.written if index < len(params)}
    assert written == {param.name for param in params if param.kind.writes}


def check_round_trip(corpus: Corpus, name: str, architecture: int) -> None:
    module = read_ptx_file(corpus.sub_kernel(name, architecture).binary.path)
    again = read_ptx(str(module))
    assert str(again) == str(module)
    for entry, same in zip(module.entries, again.entries, strict=True):
        printed = [str(statement) for statement in walk_statements(entry.statements)]
        assert printed == [str(statement) for statement in walk_statements(same.statements)]


@pytest.mark.parametrize("name", TAKEN)
def test_kernels_of_triton(corpus: Corpus, name: str) -> None:
    check_facts(corpus, name, 90)
    check_kinds(corpus, name, 90)
    check_round_trip(corpus, name, 90)


@pytest.mark.parametrize("architecture", OTHER_ARCHITECTURES)
@pytest.mark.parametrize("name", ["rms_norm", "matmul", "top_k"])
def test_some_kernels_of_triton_for_other_architectures(corpus: Corpus, name: str, architecture: int) -> None:
    check_facts(corpus, name, architecture)
    check_kinds(corpus, name, architecture)
    check_round_trip(corpus, name, architecture)


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("name", "architecture"), [(name, other) for other in OTHER_ARCHITECTURES for name in names(other)]
)
def test_all_kernels_of_triton_for_other_architectures(corpus: Corpus, name: str, architecture: int) -> None:
    check_facts(corpus, name, architecture)
    check_kinds(corpus, name, architecture)
    check_round_trip(corpus, name, architecture)


@pytest.mark.conformance
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", [kernel.name for kernel in INDUCTOR_KERNELS])
def test_kernels_that_wait_for_other_blocks_as_inductors_do(corpus: Corpus, name: str, architecture: int) -> None:
    pytest.importorskip("torch")
    check_facts(corpus, name, architecture)
    check_kinds(corpus, name, architecture)


@pytest.mark.parametrize("name", CUDA_TAKEN)
def test_kernels_of_nvcc(corpus: Corpus, name: str) -> None:
    check_facts(corpus, name, 90)
    check_kinds(corpus, name, 90)
    check_round_trip(corpus, name, 90)


def test_what_nvrtc_writes_is_read_and_refused_alike() -> None:
    path = Path(__file__).with_name("cuda_kernels_nvrtc_sm120a.ptx")  # of the kernels that need no headers
    module = read_ptx_file(path)
    assert (module.version, module.target, len(module.entries)) == ((9, 4), "sm_120a", 14)
    assert str(read_ptx(str(module))) == str(module)
    for entry in module.entries:
        described = BY_NAME[entry.name]
        assert isinstance(described, CudaKernel)
        shape = {"threads": described.threads, "grid": described.grid, "shared": described.shared}
        kernel = SubKernel.from_ptx(path, entry.name, params=described.params, **shape)
        if described.refused:
            with pytest.raises(UnsupportedError, match=re.escape(described.refused)):
                complete(kernel, module)
        else:
            assert not facts_of(complete(kernel, module)).remarks


def test_tensor_memory_is_refused(corpus: Corpus) -> None:
    with pytest.raises(UnsupportedError, match=r"_sm100.ptx:\d+: tcgen05.alloc\S+; tensor memory belongs to a whole"):
        complete(corpus.sub_kernel("matmul_8_warps", 100))


@pytest.mark.conformance
def test_half_a_megabyte_is_read_in_about_a_second() -> None:
    text = Path(__file__).with_name("cuda_kernels_sm90.ptx").read_text()
    head, kernels = text.split(".visible .entry saxpy", maxsplit=1)
    kernel = f".visible .entry saxpy{kernels.split('.visible .entry', maxsplit=1)[0]}"
    count = 500_000 // len(kernel)
    text = head + "".join(kernel.replace("saxpy", f"saxpy_{number}") for number in range(count))
    begin = time.process_time()
    module = read_ptx(text)
    assert len(module.entries) == count and time.process_time() - begin < 2


@pytest.mark.parametrize("name", REFUSED + CUDA_REFUSED)
def test_what_cannot_be_part_of_a_super_kernel_is_refused_with_its_line(corpus: Corpus, name: str) -> None:
    kernel = corpus.sub_kernel(name)
    with pytest.raises(UnsupportedError) as refused:
        complete(kernel)
    message = str(refused.value)
    assert BY_NAME[name].refused in message and message.startswith(f"sub-kernel {kernel.name!r}: {kernel.binary.path}:")


@pytest.mark.skipif(bool(why_no_nvcc()), reason=why_no_nvcc())
@pytest.mark.conformance
@pytest.mark.parametrize("architecture", OTHER_ARCHITECTURES)
def test_what_nvcc_writes_for_other_architectures(corpus: Corpus, architecture: int) -> None:
    module = read_ptx_file(corpus.compile_cuda(architecture))
    assert {entry.name for entry in module.entries} >= set(CUDA_TAKEN)
    assert str(read_ptx(str(module))) == str(module)


def test_the_wait_of_a_gemv_sinks_behind_its_weights(corpus: Corpus) -> None:
    """Rows of weights are asked for before the vector is needed; RMSNorm and add ask for nothing before."""
    gemv = facts_of(complete(corpus.sub_kernel("gemv_one_step")))
    point = gemv.sunk_wait(("x",))
    assert point.reads_before == (0,) and point.bytes_before * gemv.thread_count == 8192
    for name, produced in (("rms_norm", ("x",)), ("add", ("x",)), ("silu_mul", ("gate",)), ("softmax", ("x",))):
        assert facts_of(complete(corpus.sub_kernel(name))).sunk_wait(produced).bytes_before == 0


def test_a_wait_of_triton_comes_after_the_weights(corpus: Corpus) -> None:
    kernel = complete(corpus.sub_kernel("waits_inside"))
    assert kernel.early_start == ("w",) and facts_of(kernel).wait_point is not None
