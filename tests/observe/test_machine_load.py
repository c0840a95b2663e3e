"""observe.machine_load: how busy other programs kept the machine, and when that is worth a warning."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from superkernel.observe import machine_load
from superkernel.observe.machine_load import LoadMeter, MachineReading, load_between, load_warning
from superkernel.observe.profile import MachineLoad


@pytest.fixture(autouse=True)
def four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_load, "_processors", lambda: {0, 1, 2, 3})


def test_others_are_what_was_busy_and_not_ours() -> None:
    begin, end = MachineReading(10.0, 100.0, 7.0, 1), MachineReading(12.0, 105.0, 9.0, 1)
    assert load_between(begin, end) == MachineLoad(2.0, 4, 1.5)
    assert load_between(begin, MachineReading(12.0, 101.0, 9.0, 1)).others == 0  # clocks of different grain


def test_a_run_too_short_for_the_counters_counts_tasks() -> None:
    begin, end = MachineReading(10.0, 100.0, 7.0, 5), MachineReading(10.01, 100.0, 7.0, 3)
    assert load_between(begin, end).others == 2


@pytest.mark.parametrize(
    ("others", "cores", "warned"),
    [
        (0.0, 4, False),
        (0.3, 4, False),
        (0.5, 4, True),
        (3.0, 1, False),
        (3.5, 1, True),
        (1.9, 2, False),
        (4.0, 0, False),
    ],
)
def test_a_warning_comes_where_the_run_lacked_processors(others: float, cores: int, warned: bool) -> None:
    warning = load_warning(MachineLoad(1.0, 4, others), cores)
    assert bool(warning) == warned
    assert not warned or ("of 4 processors busy" in warning and "idle machine" in warning)


def test_what_is_not_known_is_no_warning() -> None:
    assert load_warning(None, 4) == ""


def test_counters_of_the_system_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Processors that this process may not use do not count; what its descendants use is its own."""
    second = os.sysconf("SC_CLK_TCK")
    stat = "cpu  9 9\ncpu0 100 0 50 9000 7 0 0 50 0 0\ncpu9 99999 0 0 0 0 0 0 0 0 0\nprocs_running 3\n"
    (tmp_path / "stat").write_text(stat)
    for process, name, ticks, children in ((os.getpid(), "a (b) c", "10 5 2 1", "77"), (77, "cc1plus", "30 1 0 0", "")):
        task = tmp_path / str(process) / "task" / str(process)
        task.mkdir(parents=True)
        (tmp_path / str(process) / "stat").write_text(f"{process} ({name}) S 1 1 1 0 -1 4 0 0 0 0 {ticks} 20 0")
        (task / "children").write_text(children)
    monkeypatch.setattr(machine_load, "_PROC", tmp_path)
    reading = machine_load._read()
    assert reading is not None
    assert (reading.busy * second, round(reading.ours * second), reading.runnable) == (200, 18 + 31, 3)
    monkeypatch.setattr(machine_load, "_PROC", tmp_path / "none")
    assert LoadMeter().read() is None
