"""Faults that the tool plants in the golden scenarios: a sample in every run, all of them in `make conformance`."""

from __future__ import annotations

import pytest
from targets.ascend import test_emit_golden as golden
from targets.ascend.faults.plant import STATEMENTS, lines_of
from targets.ascend.faults.run import By
from targets.ascend.planted_faults import Scenario, planted, sample, survey, table, without_fault

from superkernel.targets.ascend.describe_kernel import emit

SAMPLED = (golden.mix_to_mix, golden.notify_and_wait_between, golden.dynamic, golden.feed_sync_all_mix)
PER_SCENARIO, SEED = 6, 16

by_name = pytest.mark.parametrize("scenario", golden.SCENARIOS, ids=lambda scenario: scenario.__name__)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SAMPLED, ids=lambda scenario: scenario.__name__)
def test_a_sample_of_faults_is_found(scenario: Scenario) -> None:
    [(_, faults)] = sample([scenario], PER_SCENARIO, SEED)
    verdicts = survey(scenario, faults)
    assert [str(verdict.finding.fault) for verdict in verdicts if verdict.open] == []
    assert any(verdict.finding.by is By.EMULATOR for verdict in verdicts)


def test_every_kind_of_statement_stands_somewhere() -> None:
    found = {line.statement for scenario in golden.SCENARIOS for line in lines_of(emit(scenario()).source)}
    assert found >= set(STATEMENTS)


@pytest.mark.conformance
def test_every_kind_of_statement_is_changed_somewhere() -> None:
    faults = [fault for scenario in golden.SCENARIOS for fault in planted(scenario)]
    assert len(faults) > 1000
    assert {fault.statement for fault in faults} >= set(STATEMENTS)


@pytest.mark.conformance
@by_name
def test_every_fault_is_found_or_changes_nothing(scenario: Scenario, capsys: pytest.CaptureFixture[str]) -> None:
    assert without_fault(scenario) == ""
    verdicts = survey(scenario, planted(scenario))
    with capsys.disabled():
        print(f"\n{scenario.__name__}\n{table(verdicts)}")
    assert [str(verdict.finding.fault) for verdict in verdicts if verdict.open] == []
