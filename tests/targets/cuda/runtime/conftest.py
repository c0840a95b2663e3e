"""A fake driver for every test of the run time; misuse of the driver fails the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from targets.cuda.runtime.fake_driver import FakeDriver

from superkernel.targets.cuda.runtime import device as device_module
from superkernel.targets.cuda.runtime import device_kernel, event_words, modules, watchdog
from superkernel.targets.cuda.runtime import driver as driver_module


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    made = FakeDriver()
    with_fake(monkeypatch, made)
    yield made
    made.finish()
    device_kernel.WATCHDOG.stop()  # its thread would look at states of this fake while another test runs
    assert made.violations == ""
    assert not made.errors, made.errors


def with_fake(monkeypatch: pytest.MonkeyPatch, fake: FakeDriver) -> None:
    monkeypatch.setattr(driver_module, "LIBRARY", fake.path)
    driver_module.load_driver.cache_clear()
    device_module._opened.cache_clear()
    monkeypatch.setattr(modules, "_modules", {})
    monkeypatch.setattr(event_words, "_pages", {})
    monkeypatch.setattr(device_kernel, "WATCHDOG", watchdog.Watchdog())
    monkeypatch.setattr(watchdog, "_LEAST_PERIOD_S", 0.002)
