"""The corpus in super kernels: every kernel is rewritten and assembled, without spills and without serialised wgmma."""

from __future__ import annotations

import pytest
from targets.cuda.corpus import CUDA_KERNELS, Corpus, names

import superkernel as sk
from superkernel.model.params import Kind
from superkernel.targets.cuda.assemble import find_assemblers
from superkernel.targets.cuda.executable import CudaExecutable
from superkernel.targets.cuda.facts import complete, facts_of
from superkernel.targets.cuda.super_kernel_text import MOST_BODIES

CHIPS = {80: "sm_80", 90: "sm_90a", 120: "sm_120a"}
OTHERS = [pytest.param(architecture, marks=pytest.mark.conformance) for architecture in (80, 120)]


def op_of(kernel: sk.SubKernel, number: int) -> sk.Op:
    """Buffers of its own; what its scalars are does not matter to the binary."""
    arguments = [
        f"{param.name}_{number}" if param.kind is not Kind.SCALAR else 1.0 if "float" in (param.dtype or "") else 1
        for param in kernel.params
    ]
    return sk.Op(kernel, arguments, name=f"{kernel.name}_{number}")


def built(ops: list[sk.Op], architecture: int) -> CudaExecutable:
    with sk.compile(ops, target="cuda", chip=CHIPS[architecture]) as kernel:
        assert isinstance(kernel.executable, CudaExecutable)
        return kernel.executable


@pytest.mark.parametrize("architecture", [90, *OTHERS])
def test_the_corpus_is_assembled(corpus: Corpus, architecture: int) -> None:
    if not find_assemblers():
        pytest.skip("no assembler")
    chosen = [*names(architecture), *(kernel.name for kernel in CUDA_KERNELS if not kernel.refused)]
    ops = [op_of(corpus.sub_kernel(name, architecture), number) for number, name in enumerate(chosen)]
    for some in (ops[:MOST_BODIES], ops[MOST_BODIES:]):
        found = built(some, architecture)
        assert found.resources is not None
        assert found.resources.spilled_bytes == 0 and not found.resources.serialized_wgmma
        assert found.resources.registers <= 120
        alone = {node.name: facts_of(node.kernel).registers or 0 for node in found.plan.graph.nodes}
        print(f"{len(some)} bodies: {found.resources.registers} registers, alone at most {max(alone.values())}")


@pytest.mark.conformance
@pytest.mark.parametrize("architecture", CHIPS)
def test_every_kernel_of_the_corpus_is_assembled_by_itself_with_many_slots(corpus: Corpus, architecture: int) -> None:
    for number, name in enumerate(names(architecture)):
        kernel = corpus.sub_kernel(name, architecture, grid=(2048, 1, 1))
        if complete(kernel).sync_all:  # its blocks meet, so that all of them must be resident
            continue
        found = built([op_of(kernel, number)], architecture)
        assert found.resources is not None and found.resources.spilled_bytes == 0, name
        assert found.slots * found.threads <= 1024
