"""targets.native.build_context: what every compiler call of one build shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...cache import Cache
from .architectures import architecture_of, toolchain_for
from .march import NATIVE, march_flags
from .toolchain import Toolchain


@dataclass
class BuildContext:
    cache: Cache
    include_dirs: tuple[Path, ...] = ()  # folders of the target's own headers
    progress: Callable[[str], None] | None = None
    commands: list[str] = field(default_factory=list)  # that were run so far
    march: str = NATIVE  # the processor that kernels and entries are compiled for

    @property
    def toolchain(self) -> Toolchain:
        return toolchain_for(self.march)

    @property
    def architecture(self) -> str:
        return architecture_of(self.march)

    @property
    def march_flags(self) -> tuple[str, ...]:
        return march_flags(self.march)

    def for_this_machine(self) -> BuildContext:
        return replace(self, march=NATIVE)
