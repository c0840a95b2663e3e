"""The text of subkernel.h that runs on the chip, on emulated cores: early start and barriers of sub-kernels."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from targets.ascend.emulator.hand import numbers, turned
from targets.ascend.sampling import first_of, sampled

import superkernel as sk
from superkernel.errors import LaunchError
from superkernel.targets.ascend.emulator import modules
from superkernel.targets.ascend.emulator.trace import TracePoint

SOURCE = Path(__file__).with_name("subkernels.cpp")
HEADER = Path(modules.__file__).parents[1] / "include" / "superkernel" / "subkernel.h"
CORES = ("cube", "vector", "mix")
SEEDS = range(4)


def kernel(name: str, core: str, blocks: int = 4, source: Path = SOURCE, **more: object) -> sk.SubKernel:
    size = 32 * blocks
    params = [f"in:x:int32[{size}]", f"out:y:int32[{size}]"]
    if name.startswith("meets"):
        params.append(f"workspace:w:int32[{size}]")
    return sk.SubKernel.from_source(source, name, block_dim=blocks, params=params, core=core, **more)


def early(core: str, source: Path = SOURCE) -> sk.SubKernel:
    return kernel("early", core, source=source)


def chain(first: sk.SubKernel, second: sk.SubKernel) -> list[sk.Op]:
    return [sk.Op(first, ["a", "b"]), sk.Op(second, ["b", "c"]), sk.Op(first, ["c", "d"])]


@pytest.mark.parametrize(
    ("first", "second"), sampled(product(CORES, CORES), [("cube", "vector"), ("vector", "mix"), ("mix", "mix")])
)
def test_early_start_by_the_row_of_each_pair(first: str, second: str) -> None:
    a = numbers(4)
    with sk.compile(chain(early(first), early(second)), "early", "early-start=1", "ascend") as k:
        assert "sk_call_context(4, " in k.source
        for seed in SEEDS:
            assert np.array_equal(k.emulate({"a": a}, seed=seed)["d"], turned(turned(turned(a))))
        points = {step.what for step in k.emulated.steps}
        assert {TracePoint.OP_WAITED, TracePoint.OP_SET} <= points


@pytest.mark.parametrize("core", sampled(CORES, ["vector"]))
def test_idle_cores_join_the_barriers_that_are_published(core: str) -> None:
    a, wide = numbers(3), numbers(6)
    meeting = kernel("meets_mixed" if core == "mix" else "meets", core, 3, sync_all=True)
    ops = [sk.Op(kernel("early", core, 6), ["p", "q"]), sk.Op(meeting, ["a", "b", "w"], name="meets")]
    with sk.compile(ops, "fed", "feed-sync-all=1", "ascend") as k:
        for seed in SEEDS:
            assert np.array_equal(k.emulate({"a": a, "p": wide}, seed=seed)["b"], turned(turned(a)))
        ends = [s for s in k.emulated.steps if s.what is TracePoint.OP_END and s.op == "meets"]
        assert {step.value for step in ends} == {2}


def test_idle_vectors_of_a_mixed_op_join_barriers_of_both_kinds() -> None:
    a, wide = numbers(3), numbers(6)
    meeting = kernel("meets_both_kinds", "mix", 3, sync_all=True)
    ops = [sk.Op(kernel("early", "mix", 6), ["p", "q"]), sk.Op(meeting, ["a", "b", "w"], name="meets")]
    with sk.compile(ops, "fed", "feed-sync-all=1", "ascend") as k:
        for seed in SEEDS:
            assert np.array_equal(k.emulate({"a": a, "p": wide}, seed=seed)["b"], turned(turned(a)))


@pytest.mark.parametrize(
    ("old", "new"),
    first_of(
        [
            ("sk_follow_row(sk_pair_row[SK_OWN(sk_early_start) & 15]);", ";"),
            ("{0, 4, 4, 0, 3, 1, 3, 0,", "{0, 4, 4, 0, 3, 4, 3, 0,"),
            ("{0, 4, 4, 0, 3, 1, 3, 0,", "{0, 4, 4, 0, 3, 0, 3, 0,"),
            ("if (SK_OWN(sk_early_start) & 16)", "if (SK_OWN(sk_early_start) & 32)"),
            ("#define SK_CLASS_FLAG SK_VECTOR_FLAG", "#define SK_CLASS_FLAG SK_CUBE_FLAG"),
            ("#define SK_STORE_PIPE PIPE_MTE3", "#define SK_STORE_PIPE PIPE_V"),
        ],
        2,
    ),
)
def test_a_fault_in_its_text_is_found(old: str, new: str, tmp_path: Path) -> None:
    """Between two ops on vector cores."""
    text = HEADER.read_text()
    assert old in text
    source = tmp_path / "faulty.cpp"
    source.write_text(SOURCE.read_text().replace("#include <superkernel/subkernel.h>", text.replace(old, new, 1)))
    first = early("vector", source)
    marked = sk.SubKernel.from_source(
        source, "early", block_dim=4, params=list(map(str, first.params)), core="vector", early_start=True
    )
    with sk.compile(chain(marked, marked), "faulty", "early-start=1", "ascend") as k, pytest.raises(LaunchError):
        for seed in SEEDS:
            k.emulate({"a": numbers(4)}, seed=seed)
