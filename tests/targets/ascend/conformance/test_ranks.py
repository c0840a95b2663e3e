"""Random chains of collectives on two to four emulated chips: values, races, words and flags, launch after launch."""

from __future__ import annotations

import random

import numpy as np
import pytest
from targets.ascend.emulator.rank_kernels import Chain, Stage

import superkernel as sk
from superkernel.targets.collectives import CollectiveKind

pytestmark = pytest.mark.conformance

KINDS = (
    CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL,
    CollectiveKind.BROADCAST,
)  # fmt: skip
OPTIONS = (
    "", "early-start=0", "early-start=2", "stream-fusion=1", "debug-sync-all=1", "profiling=1:split-mode=1",
    "preload-code=max", "debug-dcci-all=1", "prefetch-weights=1:early-start=1", "feed-sync-all=1",
)  # fmt: skip
CHAINS, SEEDS = 40, 12


def chain_of(number: int) -> Chain:
    choice = random.Random(number)
    ranks = choice.choice((2, 2, 3, 4))
    stages, count = [], 12 * choice.choice((1, 4, 24))
    size = count
    for _ in range(choice.randrange(1, 5)):
        kind = choice.choice(KINDS)
        if size % ranks or (kind is CollectiveKind.ALL_GATHER and size > 2000):
            kind = CollectiveKind.ALL_REDUCE
        reduction, root = choice.choice(("sum", "max", "min", "product")), choice.randrange(ranks)
        stages.append(Stage(kind, reduction, root, kind is CollectiveKind.ALL_TO_ALL and choice.random() < 0.5))
        size = stages[-1].size(size, ranks)
    dtype = choice.choice(("int32", "int64"))  # float values would depend on rounding between stages only; these wrap
    cores = choice.choice((("vector",), ("vector", "cube"), ("cube",)))
    return Chain(tuple(stages), count, ranks, dtype, choice.choice(OPTIONS), cores)


@pytest.mark.parametrize("number", range(CHAINS))
def test_random_chains(number: int) -> None:
    chain = chain_of(number)
    kernels = chain.compiled()
    for seed in range(SEEDS):
        inputs = chain.inputs(seed)
        with np.errstate(over="ignore"):
            expected = chain.expected(inputs)
        outputs = sk.emulate_ranks(kernels, inputs, seed=seed, launches=1 + seed % 4)
        for output, wanted in zip(outputs, expected, strict=True):
            assert np.array_equal(output[chain.last], wanted), f"{chain}, seed {seed}"
    for kernel in kernels:
        kernel.close()
