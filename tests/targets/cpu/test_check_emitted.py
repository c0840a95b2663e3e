"""targets.cpu: emitted code is read back and compared with its plan (P22); every line that is changed is noticed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from targets.cpu import test_emit_golden as golden

from superkernel.errors import BuildError
from superkernel.plan import Plan
from superkernel.targets.cpu import emit
from superkernel.targets.cpu.check_emitted import check_emitted

FORMS = ("lines", "tables")


def check(plan: Plan, source: str) -> None:
    options = plan.options.for_target("cpu")
    linked = {node.kernel: golden._linked(node.kernel, options.split_mode or 1) for node in plan.graph.nodes}
    check_emitted(plan, source, linked, {})


@cache
def emitted(scenario: Callable[[], Plan], form: str) -> tuple[Plan, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emit, "TABLES_FROM", 0 if form == "tables" else 10**9)
        plan = scenario()
        return plan, golden.emitted(plan)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scenario", golden.SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_emitted_code_is_its_plan(scenario: Callable[[], Plan], form: str) -> None:
    plan, source = emitted(scenario, form)
    assert ("sk::Row rows[]" in source) == (form == "tables")
    check(plan, source)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scenario", golden.SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_every_deleted_line_is_noticed(scenario: Callable[[], Plan], form: str) -> None:
    plan, source = emitted(scenario, form)
    lines = source.split("\n")
    for at, line in enumerate(lines):
        if line.strip() and not line.strip().startswith("//"):
            with pytest.raises(BuildError, match=r"line \d+"):
                check(plan, "\n".join(lines[:at] + lines[at + 1 :]))
                print(f"deleted: {line}")
