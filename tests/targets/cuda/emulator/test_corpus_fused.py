"""Triton and nvcc kernels in super kernels, on the emulator: the bits that each kernel has alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from targets.cuda import corpus as kernels
from targets.cuda.corpus import Corpus
from targets.cuda.emulator.test_kernels_alone import arguments

import superkernel as sk
from superkernel.model.params import Kind
from superkernel.targets.cuda.emulator.unfused import emulate_unfused
from superkernel.targets.cuda.facts import Atomics, complete, facts_of

Arrays = dict[str, np.ndarray[Any, Any]]
CHIP = {"name": "small", "architecture": "sm_80", "sms": 3}
ONCE = (
    "look_back_scan",
    "grid_barrier",
    "split_scan",
    "split_scan_64",
    "stream_k",
)  # their words must be reset by hand
MIXED = ("rms_norm", "matmul", "softmax", "layer_norm", "histogram", "transpose", "rotary", "attention_decode")
NVCC = tuple(kernel.name for kernel in kernels.CUDA_KERNELS if not kernel.refused)


def op_of(kernel: sk.SubKernel, name: str, number: int, buffers: Arrays) -> sk.Op:
    """The kernel with buffers of its own for what it writes; equal names of the corpus are not shared."""
    given, names = arguments(kernel, name), []
    for param in kernel.params:
        value = given[param.name]
        if param.kind is Kind.SCALAR:
            names.append(value.item() if isinstance(value, np.generic) else value)
            continue
        buffer = f"{name}_{number}_{param.name}"
        buffers[buffer] = value.copy()
        names.append(buffer)
    return sk.Op(kernel, names, name=f"{name}_{number}")


def check(ops: list[sk.Op], buffers: Arrays, seeds: range, chip: dict[str, Any], again: bool = True) -> None:
    """Every seed gives the bits of the ops alone; sums of floats by atomics are close to them."""
    with sk.compile(ops, name="corpus", target="cuda", chip=chip) as kernel:
        alone = {name: array.copy() for name, array in buffers.items()}
        emulate_unfused(kernel.plan, alone)
        inexact = {
            str(name)
            for node in kernel.plan.graph.nodes
            if facts_of(node.kernel).atomics is Atomics.FLOAT
            for param, name in node.arguments()
            if param.kind.writes
        }
        for seed in seeds:
            live = {name: array.copy() for name, array in buffers.items()}
            kernel.emulate(live, seed=seed, launches=1 + seed % 2 if again else 1)
            for name, array in live.items():
                if name in inexact:
                    assert np.allclose(array, alone[name], rtol=1e-3, atol=1e-3) or array.dtype == np.uint16
                else:
                    assert array.tobytes() == alone[name].tobytes(), f"seed {seed}: {name}"


def test_a_graph_of_many_triton_kernels_has_the_bits_of_its_ops_alone(corpus: Corpus) -> None:
    buffers: Arrays = {}
    ops = [op_of(corpus.sub_kernel(name, 80), name, number, buffers) for number, name in enumerate(MIXED)]
    norm, softmax = ops[0], ops[2]
    assert norm.kernel.params[2].shape == (2, 2048) and softmax.kernel.params[0].shape == (4, 1000)
    ops.append(sk.Op(norm.kernel, [norm.args[2], *norm.args[1:2], "again", *norm.args[3:]], name="norm_again"))
    buffers["again"] = np.zeros((2, 2048), np.float32)
    check(ops, buffers, range(8), CHIP)


@pytest.mark.conformance
@pytest.mark.parametrize("name", [*kernels.names(80), *NVCC])
def test_every_kernel_twice_in_a_super_kernel_has_the_bits_that_it_has_alone(name: str, corpus: Corpus) -> None:
    architecture = 90 if name in NVCC else 80
    kernel = corpus.sub_kernel(name, architecture)
    facts = facts_of(complete(kernel))
    assert facts.symbol
    buffers: Arrays = {}
    ops = [op_of(kernel, name, number, buffers) for number in range(2)]
    chip = CHIP | {"architecture": "sm_90a" if architecture == 90 else "sm_80"}
    check(ops, buffers, range(10), chip, name not in ONCE)
