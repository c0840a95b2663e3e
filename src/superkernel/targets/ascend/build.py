"""targets.ascend.build: an emitted super kernel -> the commands that make its object, run where they can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BUILD_SCRIPT = "build.sh"


@dataclass(frozen=True)
class BuildPlan:
    commands: tuple[tuple[str, ...], ...] = ()

    def lines(self) -> Sequence[str]:
        return ()

    def script(self) -> str:
        return ""


@dataclass(frozen=True)
class Built:
    binary: Path | None
    status: str
