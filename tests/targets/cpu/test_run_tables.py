"""targets.cpu: lines of C++ and tables of one plan give the same bits, on a team and on one core alone."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from measured import sample
from targets.cpu.small import Array, compared, compile_ops, expected, launched, numbers, small
from targets.cpu.test_run_fuzz import BUFFERS, OPTIONS, POOL, Row, launch, ops_of

from superkernel import Op, SuperKernel
from superkernel.model.argument_layout import Role
from superkernel.runtime.built_kernel import BuiltKernel
from superkernel.targets.cpu import emit
from superkernel.targets.cpu.build import INCLUDE
from superkernel.targets.cpu.runtime.launch import load_alone

LINES, TABLES = 10**9, 0
ROW = re.compile(r"\{Do::(\w+), ")


def compile_as(form: int, ops: list[Op], name: str, options: str, cores: int) -> SuperKernel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emit, "TABLES_FROM", form)
        return compile_ops(ops, name, options, cores)


def alone(kernel: SuperKernel) -> SuperKernel | None:
    """The same binary, run by the calling thread; None where ops meet in sync_all."""
    loaded = load_alone(kernel.executable)
    if loaded is None:
        return None
    built = BuiltKernel(kernel.plan.cores, kernel.plan, kernel.executable, loaded)
    return SuperKernel(kernel.graph, kernel.options, kernel.target, built, True, kernel._prepared)


def assert_both_forms_agree(ops: list[Op], options: str, cores: int, arrays: dict[str, Array]) -> str:
    """Lines, tables, team and one core give what numpy gives; the words of the tables."""
    with (
        compile_as(LINES, ops, "both", options, cores) as lines,
        compile_as(TABLES, ops, "both", options, cores) as tables,
    ):
        assert "sk::Row rows[]" in tables.source and "sk::Row rows[]" not in lines.source
        wanted = expected(lines, arrays)
        for kernel in (lines, tables, alone(lines), alone(tables)):
            for _ in range(2 if kernel is not None else 0):
                assert kernel is not None
                memory = launch(kernel, arrays)
                for name in compared(kernel):
                    np.testing.assert_array_equal(memory[name], wanted[name], err_msg=f"{name}\n{kernel.source}")
        return tables.source


def test_every_kind_of_step() -> None:
    """One plan has them all but copies and counters (test_run_copies), compiled tilings, and ranks (test_run_ranks)."""
    ops = [
        Op(small("mix", 4), ["a", "b", "t"], send=["out0"]),
        Op(small("early", 4, early_start=("w",)), ["t", "w", "u"]),
        Op(small("hasty", 4), ["u", "t"]),
        Op(small("total", 3), ["t", "ws0", "c"]),
        Op(small("late", 4), ["c", "d", 10], recv=["in0"]),
        Op(small("chain", 1), ["d", "e"]),
        Op(small("twice", 4, variants={2: "twice", 3: "thrice"}), ["d", "e"], task="dynamic", tiling=lambda _: (3, 3)),
        Op(small("gather", 4), ["e", "ws0", "a"], task="dynamic", tiling=lambda _: (0, 2)),
        Op(small("scale", 8), ["a", "b"]),
    ]
    options = (
        "feed-sync-all=1:profiling=1:prefetch-weights=8M:debug-sync-all=1:debug-dcci-all=1:split-mode=2:"
        "dcci-before-kernel-start=mix:debug-watchdog=200"
    )
    arrays = numbers("a", "b", "c", "d", "e", "t", "u", "w", "ws0")
    source = assert_both_forms_agree(ops, options, 4, arrays)
    elsewhere = {
        "wait_all",
        "wait_inside_all",
        "arguments",
        "replicated",
        "compute_tiling",
        "await_ranks",
        "notify_ranks",
    }
    header = (INCLUDE / "superkernel" / "table.h").read_text()
    words = set(re.findall(r"case Do::(\w+)", header))
    assert set(ROW.findall(source)) == words - elsewhere


@pytest.mark.slow
@pytest.mark.parametrize("seed", sample(range(6), 2))
def test_random_graphs(seed: int) -> None:
    rng = random.Random(seed)
    rows = [
        Row(rng.randrange(len(POOL)), rng.randrange(125), rng.randrange(3), rng.choice((0, 0, 0, 1, 2, 3)))
        for _ in range(rng.randint(6, 14))
    ]
    options = f"{rng.choice(OPTIONS)}:stream-fusion={seed % 2}:feed-sync-all=1:debug-watchdog=200"
    arrays = numbers(*BUFFERS, "ws0", "ws1", seed=seed)
    assert_both_forms_agree(ops_of(rows), options, rng.choice((2, 3, 4)), arrays)


def long_chain(count: int) -> list[Op]:
    args = [("a", "b", "t"), ("t", "b", "a")]
    return [Op(small("mix", 2), list(args[i % 2]), f"op{i}") for i in range(count)]


def test_a_small_plan_is_lines_and_a_large_one_is_tables() -> None:
    with compile_ops(long_chain(20), "short") as short, compile_ops(long_chain(600), "long") as long:
        assert "sk::Row" not in short.source
        assert long.source.count("sk::Row rows[]") == 2  # the lane, and the whole plan on one core
        assert long.source.count("mix_") < 20 + long.source.count("kernel::mix_")  # one function, whatever the ops
        for step in long.plan.steps:
            assert f"] {long.plan.describe(step)}\n" in long.source
        assert len(long.layout.slots) == sum(slot.role is Role.PARAM for slot in long.layout)
        arrays = numbers("a", "b", "t")
        wanted = expected(long, arrays)
        np.testing.assert_array_equal(launched(long, long, arrays)["a"], wanted["a"])
