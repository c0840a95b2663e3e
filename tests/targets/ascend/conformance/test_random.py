"""Random super kernels under random interleavings: values, P1 to P7, P10, P13 and P14 of the emitted code."""

from __future__ import annotations

from itertools import product

import pytest
from targets.ascend.conformance import cases
from targets.ascend.conformance.cases import Case, Shape, Use
from targets.ascend.conformance.checks import check, prepare
from targets.ascend.figures import CHUNK, run_cases
from targets.ascend.sampling import first_of

from superkernel.targets.ascend import TARGET
from superkernel.targets.ascend.core_types import KernelType

pytestmark = pytest.mark.slow

SAMPLE, SEEDS = 16, 2  # of the first cases, in every run
FIRST, MANY_CASES = 320, 1000


def test_random_cases() -> None:
    run_cases(0, SAMPLE, SEEDS)


def test_cases_as_large_as_the_chip() -> None:
    run_cases(50_000, 2, 2, most_blocks=24)


OTHER_FLAGS = {
    **{"name": "odd", "cube_cores": 7, "vector_cores": 14, "cache_line": 64, "flag_limit": 3},
    **{"cube_flag": 1, "vector_flag": 2, "vectors_to_cube_flag": 3, "cube_to_vectors_flag": 0},
}
OTHER_MACROS = {"cube_macro": "ON_A_CUBE", "vector_macro": "ON_A_VECTOR"}


def test_cases_on_a_chip_with_other_flags_that_hold_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "TARGET", TARGET.for_chip({**TARGET.chip_fields(), **OTHER_FLAGS}))
    run_cases(7_000, 6, 2)


@pytest.mark.conformance
def test_many_cases_on_a_chip_with_other_flags_and_macros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "TARGET", TARGET.for_chip({**TARGET.chip_fields(), **OTHER_FLAGS, **OTHER_MACROS}))
    run_cases(7_000, CHUNK, 3)


@pytest.mark.conformance
def test_many_cases_as_large_as_the_chip() -> None:
    run_cases(50_000, 6, 3, most_blocks=24)


@pytest.mark.parametrize(("options", "limit"), first_of(product(("stream-fusion=1", "early-start=1"), (3, 15)), 1))
def test_debug_barriers_while_many_signals_are_under_way(
    monkeypatch: pytest.MonkeyPatch, options: str, limit: int
) -> None:
    """Both classes run ahead of each other, as far as the flags hold."""
    monkeypatch.setattr(cases, "TARGET", TARGET.for_chip({**TARGET.chip_fields(), "flag_limit": limit}))

    def use(kind: KernelType, source: str, target: str) -> Use:
        return Use(Shape("plain", kind, 2, 1, 1, 0), 5, (source, target))

    aic, aiv = KernelType.AIC_ONLY, KernelType.AIV_ONLY
    uses = [use(kind, "x", f"{kind.name}{i}") for i in range(18) for kind in (aic, aiv)]
    uses += [use(aiv, f"{aic.name}{i}", f"v{i}") for i in range(18)] + [
        use(aic, f"{aiv.name}{i}", f"c{i}") for i in range(18)
    ]
    case = Case("barriers", tuple(uses), f"{options}:debug-sync-all=1:split-mode=1:preload-code=none")
    [ready] = prepare([(case, *case.emitted())])
    for seed in range(4):
        check(ready, seed)


@pytest.mark.conformance
@pytest.mark.parametrize("first", range(0, FIRST, CHUNK))
def test_the_first_random_cases(first: int) -> None:
    run_cases(first, CHUNK, SEEDS)


@pytest.mark.conformance
@pytest.mark.parametrize("first", range(100_000, 100_000 + MANY_CASES, 2 * CHUNK))
def test_many_random_cases(first: int) -> None:
    run_cases(first, 2 * CHUNK, 4)
