"""targets.cpu: a kernel waits inside only where it does so on every path; a broken promise fails the launch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from targets.cpu.small import KERNELS, N, compile_ops, numbers

from superkernel import GraphError, LaunchError, Op, SubKernel, SuperKernel
from superkernel.cache import Cache
from superkernel.plan.steps import Wait
from superkernel.targets.cpu.build import INCLUDE
from superkernel.targets.native.elf import host_architecture
from superkernel.targets.native.objects import compile_source
from superkernel.targets.native.toolchain import find_toolchain

pytestmark = pytest.mark.slow

SOURCE = KERNELS / "promises.cpp"
PARAMS = (f"in:x:int64[{N}]", f"out:z:int64[{N}]", "scalar:choice")
LATE = 40_000
reads_machine_code = pytest.mark.skipif("X86_64" not in host_architecture(), reason="machine code of x86-64 only")


@pytest.fixture(scope="module")
def one_section() -> Path:
    """An object whose functions share a section, as a compiler writes it unless asked otherwise."""
    flags = ("-O2", "-fno-function-sections")
    return compile_source(SOURCE, flags, find_toolchain(), Cache(), (INCLUDE,))


def kernel(name: str, blocks: int = 2, **description: Any) -> SubKernel:
    return SubKernel.from_source(SOURCE, name, block_dim=blocks, params=PARAMS, **description)


def behind_a_late_op(second: SubKernel, choice: int, options: str = "", cores: int = 2, **op: Any) -> SuperKernel:
    late = kernel("late", second.block_dim)
    ops = [Op(late, ["a", "t", LATE]), Op(second, ["t", "z", choice], name="second", **op)]
    return compile_ops(ops, "promises", options, cores)


def behind_a_late_reader(dynamic: SubKernel) -> SuperKernel:
    """All inputs of a dynamic op are there when its tiling is; what it writes may still be read."""
    late = kernel("late", dynamic.block_dim)
    ops = [
        Op(late, ["a", "t", 0]),
        Op(late, ["z", "u", LATE]),
        Op(dynamic, ["t", "z", 0], name="second", task="dynamic"),
    ]
    return compile_ops(ops, "promises")


def assert_reader_first(k: SuperKernel, key: int, launches: int = 10) -> None:
    for _ in range(launches):
        arrays = numbers("a", "z")
        results = k(arrays, tiling={"second": lambda inputs: (key, 2)})
        np.testing.assert_array_equal(results["u"], numbers("a", "z")["z"] + 4)
        np.testing.assert_array_equal(arrays["z"], (arrays["a"] + 4)[::-1] + 1)


def waits_inside(k: SuperKernel) -> bool:
    return any(step.inside for step in k.plan.steps if isinstance(step, Wait))


def assert_not_stale(k: SuperKernel, launches: int = 20, **inputs: Any) -> None:
    arrays = numbers("a")
    for _ in range(launches):
        np.testing.assert_array_equal(k(arrays, **inputs)["z"], (arrays["a"] + 4)[::-1] + 1)


def test_another_function_of_the_object_that_waits_does_not_matter(one_section: Path) -> None:
    plain = SubKernel.from_object(one_section, "plain", block_dim=2, params=PARAMS)
    with behind_a_late_op(plain, 0) as k:
        assert not waits_inside(k)
        assert_not_stale(k)


@pytest.mark.parametrize("key", (1, 2))
def test_variants_of_which_one_waits(key: int) -> None:
    """The plan gives the op no wait inside: which variant runs is known only then."""
    with behind_a_late_reader(kernel("always", variants={1: "always", 2: "plain"})) as k:
        assert not waits_inside(k)
        assert_reader_first(k, key)


@reads_machine_code
def test_variants_that_all_wait() -> None:
    with behind_a_late_reader(kernel("always", variants={1: "always", 2: "through_function"})) as k:
        assert waits_inside(k)
        assert_reader_first(k, 2)


@pytest.mark.parametrize("choice", (0, 1))
def test_a_wait_on_some_paths_only(choice: int) -> None:
    with behind_a_late_op(kernel("only_if"), choice) as k:
        assert not waits_inside(k)
        assert_not_stale(k)


@reads_machine_code
@pytest.mark.parametrize("name", ("always", "in_both", "through_both"))
def test_a_wait_on_every_path_is_found(name: str) -> None:
    with behind_a_late_op(kernel(name), 1) as k:
        assert waits_inside(k)
        assert_not_stale(k)


@pytest.mark.parametrize(("early_start", "blocks"), [(True, 6), ([], 2)])
def test_a_broken_promise_fails_the_launch(early_start: bool | Sequence[str], blocks: int) -> None:
    with behind_a_late_op(kernel("only_if", blocks, early_start=early_start), 0) as k:
        assert waits_inside(k)
        for _ in range(3):
            with pytest.raises(LaunchError, match=r"super_kernel_scope 'promises': op 'second' did not call wait_prev"):
                k(numbers("a"))


def test_a_kept_promise() -> None:
    with behind_a_late_op(kernel("only_if", early_start=True), 1) as k:
        assert waits_inside(k)
        assert_not_stale(k)


def test_nothing_is_left_to_wait_for_behind_a_parameter_that_is_read_before() -> None:
    with behind_a_late_op(kernel("only_if", early_start=["x"]), 0) as k:
        assert not waits_inside(k)
        assert_not_stale(k, launches=3)


@pytest.mark.parametrize("name", ("plain", "not_in_block_1", "signals_at_once"))
def test_every_way_to_break_the_promise(name: str) -> None:
    """Never; in the first of a core's blocks, although later ones wait; with a signal instead of the return."""
    with behind_a_late_op(kernel(name, 6, early_start=True), 0) as k:
        for _ in range(3):
            with pytest.raises(LaunchError, match="op 'second' did not call wait_previous"):
                k(numbers("a"))


def test_a_promise_per_variant() -> None:
    declared = kernel("always", variants={1: "only_if", 2: "only_if"}, early_start={1: True, 2: False})
    with behind_a_late_reader(declared) as k:
        assert not waits_inside(k)
    declared = kernel("always", variants={1: "only_if", 2: "through_pointer"}, early_start={1: True, 2: []})
    with behind_a_late_reader(declared) as k:
        assert waits_inside(k)
        assert_reader_first(k, 2)
        with pytest.raises(LaunchError, match="op 'second' did not call wait_previous"):
            k(numbers("a", "z"), tiling={"second": lambda inputs: (1, 2)})
        k(numbers("a", "z"), tiling={"second": lambda inputs: (1, 0)})  # no block, nothing to wait for


def test_a_promise_of_a_variant_that_does_not_exist() -> None:
    with pytest.raises(GraphError, match="early_start of tiling key 3: the keys are 1, 2"):
        kernel("always", variants={1: "only_if", 2: "only_if"}, early_start={3: True})
    with pytest.raises(GraphError, match="early_start of tiling key 3: the kernel has no variants"):
        kernel("always", early_start={3: True})


@pytest.mark.parametrize(("options", "cores"), [("early-start=0", 2), ("early-start=2", 2), ("", 1)])
def test_nothing_is_promised_where_nothing_is_left_to_the_kernel(options: str, cores: int) -> None:
    with behind_a_late_op(kernel("only_if", early_start=True), 0, options, cores) as k:
        assert not waits_inside(k)
        assert_not_stale(k, launches=5)


def test_the_unfused_run_waits_for_nothing() -> None:
    with behind_a_late_op(kernel("only_if", early_start=True), 0) as k:
        arrays = {**numbers("a"), "z": np.zeros(N, np.int64)}
        k.unfused()(arrays)
        np.testing.assert_array_equal(arrays["z"], (arrays["a"] + 4)[::-1] + 1)


def test_false_never_waits_inside() -> None:
    with behind_a_late_op(kernel("always", early_start=False), 0) as k:
        assert not waits_inside(k)
        assert_not_stale(k, launches=5)
