"""targets.native.build_context: what every compiler call of one build shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ...cache import Cache
from .toolchain import Toolchain, find_toolchain


@dataclass
class BuildContext:
    cache: Cache
    include_dirs: tuple[Path, ...] = ()  # folders of the target's own headers
    progress: Callable[[str], None] | None = None
    commands: list[str] = field(default_factory=list)  # that were run so far

    @property
    def toolchain(self) -> Toolchain:
        return find_toolchain()
