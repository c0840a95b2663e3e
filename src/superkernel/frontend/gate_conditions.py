"""frontend.gate_conditions: when the profit gate measured, and how busy the machine was -> fields of a cache entry."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from ..configuration import config

BUSY_LOAD = 1.5  # runnable processes per processor; a model that computes on every processor has 1


@dataclass(frozen=True)
class GateConditions:
    """The circumstances of a measurement."""

    date: str  # of this machine's clock, as 2026-11-16 10:52
    load: float | None  # runnable processes per processor during the last minute; None: the system does not say

    @classmethod
    def now(cls) -> GateConditions:
        return cls(datetime.now().strftime("%Y-%m-%d %H:%M"), _load_per_processor())

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> GateConditions:
        """From the fields of a cache entry; ValueError, TypeError or KeyError: it has other fields."""
        load = fields["load"]
        return cls(str(fields["date"]), None if load is None else float(load))

    @property
    def busy(self) -> bool:
        """Other programs may have slowed the measured launches down, each by another factor."""
        return self.load is not None and self.load > BUSY_LOAD

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"measured {self.date}" + ("" if self.load is None else f" at load {self.load:.1f} per processor")


def _load_per_processor() -> float | None:
    try:
        return round(os.getloadavg()[0] / (os.cpu_count() or 1), 2)
    except OSError:
        return None


def measuring_policy() -> str:
    """The part of a gate's key that says how its launches got their threads."""
    return config.team or "auto"
