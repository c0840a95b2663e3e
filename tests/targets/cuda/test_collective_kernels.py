"""The collectives that the cuda target ships, between emulated GPUs: the bits of a serial reference on every rank."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from targets.cuda.emulator.rank_kernels import SMALL

import superkernel as sk
from superkernel.errors import GraphError, LaunchError
from superkernel.model.ranks import RankGroup
from superkernel.targets.collectives import CollectiveKind
from superkernel.targets.cuda.assemble import assemble, find_assemblers
from superkernel.targets.cuda.kernels.collectives import ELEMENTS, REDUCTIONS, Collective, ptx_text

Array = np.ndarray[Any, Any]
JOIN = {
    "sum": np.add, "avg": np.add, "max": np.maximum, "min": np.minimum, "product": np.multiply,
}  # fmt: skip


def of_rank(rank: int, ranks: int, kind: str, count: int, **more: Any) -> Collective:
    return Collective(kind, count, RankGroup("world", tuple(range(ranks)), rank), **more)


def emulated(
    ranks: int, kind: str, inputs: list[Array], seed: int = 1, launches: int = 2, **more: Any
) -> list[dict[str, Array]]:
    kernels = []
    for rank in range(ranks):
        ops = of_rank(rank, ranks, kind, len(inputs[0]), **more).ops("x", "y", "w")
        kernels.append(sk.compile(ops, f"rank{rank}", target="cuda", chip=SMALL))
    try:
        return sk.emulate_ranks(kernels, [{"x": x} for x in inputs], seed=seed, launches=launches)
    finally:
        for kernel in kernels:
            kernel.close()


def values(rank: int, count: int, dtype: str) -> Array:
    random = np.random.default_rng(rank)
    if dtype.startswith("int"):
        return random.integers(-9, 9, count).astype(dtype)
    floats = random.standard_normal(count).astype(np.float32)
    return as_bfloat16(floats) if dtype == "bfloat16" else floats.astype(dtype)


def as_bfloat16(floats: Array) -> Array:
    """Their bits, rounded to the nearest, ties to even."""
    bits = floats.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def as_floats(array: Array, dtype: str) -> Array:
    """What 16-bit floats are reduced in."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if dtype == "float16" else array


def reduced(inputs: list[Array], reduction: str, dtype: str) -> Array:
    first, *others = (as_floats(array, dtype) for array in inputs)
    for array in others:
        first = JOIN[reduction](first, array)
    first = first / np.float32(len(inputs)) if reduction == "avg" else first
    return as_bfloat16(first) if dtype == "bfloat16" else first.astype(dtype)


@pytest.mark.parametrize(("dtype", "reduction"), list(product(ELEMENTS, REDUCTIONS)))
def test_sums_of_every_dtype_are_those_of_a_serial_reference(dtype: str, reduction: str) -> None:
    inputs = [values(rank, 300, dtype) for rank in range(3)]
    if reduction == "avg" and dtype.startswith("int"):
        with pytest.raises(GraphError, match=f"{dtype} has no avg"):
            of_rank(0, 3, "all_reduce", 300, dtype=dtype, reduction=reduction)
        return
    found = emulated(3, "all_reduce", inputs, dtype=dtype, reduction=reduction)
    for outputs in found:
        assert np.array_equal(outputs["y"].view(np.uint8), reduced(inputs, reduction, dtype).view(np.uint8))
    scattered = emulated(3, "reduce_scatter", inputs, dtype=dtype, reduction=reduction)
    joined = np.concatenate([outputs["y"] for outputs in scattered])
    assert np.array_equal(joined.view(np.uint8), found[0]["y"].view(np.uint8))


@pytest.mark.parametrize("dtype", ELEMENTS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_what_only_moves_has_the_same_bits(dtype: str, ranks: int) -> None:
    inputs = [values(rank, 4 * ranks * 17, dtype) for rank in range(ranks)]
    gathered = emulated(ranks, "all_gather", inputs, dtype=dtype)
    exchanged = emulated(ranks, "all_to_all", inputs, dtype=dtype)
    sent = emulated(ranks, "broadcast", inputs, dtype=dtype, root=ranks - 1)
    for rank in range(ranks):
        assert np.array_equal(gathered[rank]["y"], np.concatenate(inputs))
        assert np.array_equal(exchanged[rank]["y"], np.concatenate([np.split(x, ranks)[rank] for x in inputs]))
        assert np.array_equal(sent[rank]["y"], inputs[-1])


def test_not_a_number_is_kept_by_maxima() -> None:
    inputs = [np.array([1, np.nan, 3, 4], np.float32), np.array([np.nan, 2, 1, 5], np.float32)]
    for outputs in emulated(2, "all_reduce", inputs, reduction="max"):
        assert np.array_equal(outputs["y"], np.array([np.nan, np.nan, 3, 5], np.float32), equal_nan=True)


@pytest.mark.parametrize("seed", range(4))
def test_a_chain_of_collectives_is_right_in_every_order(seed: int) -> None:
    """Blocks take several elements in turns; two windows, several launches, one GPU may be a launch ahead."""
    count, kernels = 1500, []
    for rank in range(2):
        first = of_rank(rank, 2, "reduce_scatter", count, blocks=2)
        second = of_rank(rank, 2, "all_gather", first.result_count, blocks=3)
        ops = [*first.ops("x", "part", "scatter"), *second.ops("part", "y", "gather")]
        kernels.append(sk.compile(ops, f"rank{rank}", target="cuda", chip=SMALL))
    inputs = [values(rank, count, "float32") for rank in range(2)]
    for outputs in sk.emulate_ranks(kernels, [{"x": x} for x in inputs], seed=seed, launches=3):
        assert np.array_equal(outputs["y"], inputs[0] + inputs[1])


def test_ranks_with_different_terms_are_refused() -> None:
    kernels = [
        sk.compile(of_rank(rank, 2, "all_reduce", 64, reduction=reduction).ops("x", "y", "w"), f"rank{rank}",
                   target="cuda", chip=SMALL)
        for rank, reduction in enumerate(("sum", "max"))
    ]  # fmt: skip
    with pytest.raises(LaunchError, match="all_reduce sum of float32"):
        sk.emulate_ranks(kernels, [{"x": np.zeros(64, np.float32)}] * 2, seed=0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "all_reduse"}, "did you mean 'all_reduce'"),
        ({"dtype": "float64"}, "it can be float32"),
        ({"reduction": "mean"}, "it can be sum"),
        ({"count": 0}, "from 1 to"),
        ({"root": 2}, "from 0 to 1"),
        ({"kind": "reduce_scatter", "count": 7}, "do not divide into 2"),
        ({"group": RankGroup("world", (0,), 0)}, "two or more ranks"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], message: str) -> None:
    right: dict[str, Any] = {"kind": "all_reduce", "count": 8, "group": RankGroup("world", (0, 1), 0)}
    with pytest.raises(GraphError, match=message):
        Collective(**(right | fields))
    with pytest.raises(GraphError, match="different buffers"):
        Collective(**right).ops("x", "x", "w")


def test_the_assembler_takes_every_kernel() -> None:
    if not find_assemblers():
        pytest.skip("there is no assembler of PTX")
    scalars = ("rank", "ranks", "slots", "stride", "count", "part", "sender", "first")
    texts = {
        ptx_text(symbol, dtype, reduction, scalars)
        for symbol, dtype, reduction in product(("publish", "gather", "reduce"), ELEMENTS, REDUCTIONS)
        if reduction != "avg" or not dtype.startswith("int")
    }
    for text in texts:
        assert assemble(text, (8, 0), "sm_90a").resources.spilled_bytes == 0


def test_every_kind_is_shipped() -> None:
    for kind in CollectiveKind:
        assert len(of_rank(0, 2, kind, 8).ops("x", "y", "w")) == 2
