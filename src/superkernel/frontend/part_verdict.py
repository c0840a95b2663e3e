"""frontend.part_verdict: what runs a part of a graph, measured once -> kept in this process, and on disk for others."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_map

from ..cache import GATE_SUFFIX, Cache, digest
from ..model.subkernel import SubKernel
from .capture.partition import GraphPart
from .gate_conditions import GateConditions, measuring_policy
from .lowering.lowering_cache import package_versions
from .settings import BackendSettings

INDUCTOR = "inductor"  # the name of its time in reports


class PartChoice(Enum):
    """What runs the ops of a part."""

    SUPER_KERNELS = "super kernels"
    LIBRARY_CALLS = "super kernels, and torch's functions for some ops"
    INDUCTOR = "stock Inductor"


@dataclass(frozen=True)
class LibraryCallTimes:
    """A call for which torch's function is faster than the sub-kernel."""

    call: int  # its index among the calls of the part's program
    kernel_us: float
    library_us: float

    @property
    def reason(self) -> str:
        times = f"{self.library_us:.1f} us, as a sub-kernel {self.kernel_us:.1f} us"
        return f"torch's function is faster: {times} (profit_gate=0 fuses it)"


@dataclass(frozen=True)
class PartVerdict:
    """The choice for a part, with the medians that it rests on."""

    choice: PartChoice
    times_us: Mapping[str, float]
    conditions: GateConditions
    library_calls: tuple[LibraryCallTimes, ...] = ()  # with LIBRARY_CALLS: the ops that are left to torch
    note: str = ""  # why something could not be measured

    @property
    def reason(self) -> str:
        """Why the part is left out; empty: it is not."""
        if self.choice is not PartChoice.INDUCTOR:
            return ""
        super_kernels = min(us for name, us in self.times_us.items() if name != INDUCTOR)
        times = f"{self.times_us[INDUCTOR]:.1f} us, as super kernels {super_kernels:.1f} us"
        return f"left out: stock Inductor is faster: {times} (profit_gate=0 fuses it)"

    def to_text(self) -> str:
        return json.dumps(asdict(self) | {"choice": self.choice.name})

    @classmethod
    def from_text(cls, text: str) -> PartVerdict | None:
        """None: this is no verdict."""
        try:
            fields = json.loads(text)
            return cls(
                PartChoice[fields["choice"]],
                {str(name): float(us) for name, us in fields["times_us"].items()},
                GateConditions.read(fields["conditions"]),
                tuple(LibraryCallTimes(**call) for call in fields["library_calls"]),
                str(fields["note"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


@dataclass
class VerdictTable:
    """The verdicts of this process, by the key of the part. A verdict never changes."""

    _verdicts: dict[str, PartVerdict] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, key: str, store: Cache) -> PartVerdict | None:
        """Of this process, else of the machine."""
        with self._lock:
            if key not in self._verdicts:
                text = store.read_text(key, GATE_SUFFIX)
                verdict = None if text is None else PartVerdict.from_text(text)
                if verdict is None:
                    return None
                self._verdicts[key] = verdict
            return self._verdicts[key]

    def keep(self, key: str, verdict: PartVerdict, store: Cache | None) -> PartVerdict:
        """The verdict of the key from now on: this one, unless there is one. `store` None: for this process only."""
        with self._lock:
            if self._verdicts.setdefault(key, verdict) is verdict and store is not None:
                store.write_text(key, GATE_SUFFIX, verdict.to_text())
            return self._verdicts[key]


VERDICTS = VerdictTable()


def part_key(part: GraphPart, kernels: Iterable[SubKernel], cores: int, settings: BackendSettings) -> str:
    """All that decides what a part computes and how fast; neither its names nor `fuse` nor scope options are in it.

    `kernels` are the sub-kernels of its library calls.
    """
    numbers: dict[Node, int] = {}
    lines = []
    for node in part.module.graph.nodes:
        numbers[node] = len(numbers)
        arguments = torch.fx.map_arg((node.args, node.kwargs), lambda used: f"%{numbers[used]}")
        lines.append(f"{node.op} {node.target if node.op == 'call_function' else ''} {arguments} {_described(node)}")
    binaries = [
        f"{kernel.name} {kernel.block_dim} {kernel.binary.flags} {_file_digest(kernel.binary.path)}"
        for kernel in dict.fromkeys(kernels)
    ]
    threads = f"{cores} {torch.get_num_threads()} {measuring_policy()}"
    machine = f"{settings.target} {settings.model_support.machine_key()} {threads}"
    return digest("part verdict", package_versions(), machine, str(settings.mode), *binaries, *lines)


def _described(node: Node) -> str:
    def layout(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return f"{value.dtype} {tuple(value.shape)} {tuple(value.stride())}"
        return value

    return str(tree_map(layout, node.meta.get("val")))


@cache
def _file_digest(path: Path) -> str:
    try:
        return digest(path.read_bytes())
    except OSError:
        return str(path)
