"""targets.cpu.agent: the control thread of a launch: requests of dynamic ops in, tiling keys and block counts out."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from typing import Any

from ...errors import LaunchError
from ...plan import Plan
from ...subkernel import Kind, Tiling, TilingFunction
from .numbering import Numbering


class Agent(threading.Thread):
    """Runs the tiling functions while the super kernel runs."""

    def __init__(
        self,
        plan: Plan,
        numbers: Numbering,
        host: ctypes.CDLL,
        running: int,
        tilings: Mapping[str, TilingFunction],
        buffers: Mapping[str, Any],
    ) -> None:
        super().__init__(name="superkernel-agent", daemon=True)
        self._ops = {index: plan.graph.nodes[op] for op, index in numbers.tilings.items()}
        self._host, self._running = host, running
        self._tilings, self._buffers = tilings, buffers
        self.error: BaseException | None = None

    def run(self) -> None:
        answered = (ctypes.c_uint8 * len(self._ops))()
        while (index := self._host.sk_agent_next(self._running, answered)) >= 0:
            answered[index] = 1
            node = self._ops[index]
            inputs = {str(n): self._buffers[n] for p, n in node.arguments() if p.kind in (Kind.IN, Kind.INOUT)}
            try:
                tiling = _as_tiling(self._tilings[node.name](inputs), node.name)
            except BaseException as error:  # whatever the user's function raises goes to the launching thread
                self.error = error
                self._host.sk_agent_failed(self._running, index)
                return
            self._host.sk_agent_answer(self._running, index, tiling.key, tiling.blocks)


def _as_tiling(answer: object, op: str) -> Tiling:
    if isinstance(answer, Tiling):
        return answer
    if isinstance(answer, tuple) and len(answer) == 2 and all(hasattr(n, "__index__") for n in answer):
        return Tiling(answer[0].__index__(), answer[1].__index__())
    raise LaunchError(f"the tiling function of op {op!r} returned {answer!r}; return (tiling key, block count)")
