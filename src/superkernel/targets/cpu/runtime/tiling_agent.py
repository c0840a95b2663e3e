"""targets.cpu.runtime.tiling_agent: requests of dynamic ops in, tiling keys and block counts out."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from typing import Any

from ....errors import LaunchError
from ....model.params import Kind
from ....model.tiling import Tiling, TilingFunction
from ....plan import Plan
from ..numbering import Numbering

PATIENCE_S = 1.0  # how long a stopped launch waits for a tiling function
_INT64 = range(-(2**63), 2**63)


class TilingAgent(threading.Thread):
    """Runs the tiling functions while the super kernel runs."""

    def __init__(
        self,
        plan: Plan,
        numbers: Numbering,
        host: ctypes.CDLL,
        running: int,
        tilings: Mapping[str, TilingFunction],
        buffers: Mapping[str, Any],
        keep: object,
    ) -> None:
        super().__init__(name="superkernel-agent", daemon=True)
        self._ops = {index: plan.graph.nodes[op] for op, index in numbers.tilings.items()}
        self._host, self._running = host, running
        self._tilings, self._buffers = tilings, buffers
        self._keep = keep  # the owner of `running`, which this thread may outlive the launch with
        self._lock = threading.Lock()
        self._done = self._abandoned = False
        self.error: BaseException | None = None

    def run(self) -> None:
        self._answer_requests()
        with self._lock:
            self._done = True
            if self._abandoned:
                self._host.sk_launch_end(self._running)

    def finished(self) -> bool:
        """After the launch: has the thread ended? If not, a tiling function holds it, and it gives the state back."""
        if self.ident is None:
            return True
        self._host.sk_agent_over(self._running)
        self.join(PATIENCE_S)
        with self._lock:
            self._abandoned = not self._done
            return self._done

    def _answer_requests(self) -> None:
        answered = (ctypes.c_uint8 * len(self._ops))()  # one with a C function never requests
        while (index := self._host.sk_agent_next(self._running, answered)) >= 0:
            answered[index] = 1
            node = self._ops[index]
            inputs = {str(n): self._buffers[n] for p, n in node.arguments() if p.kind in (Kind.IN, Kind.INOUT)}
            try:
                key, blocks = _key_and_blocks(self._tilings[node.name](inputs), node.name)
            except BaseException as error:  # whatever the user's function raises goes to the launching thread
                self.error = error
                self._host.sk_agent_failed(self._running, index)
                return
            self._host.sk_agent_answer(self._running, index, key, blocks)


def _key_and_blocks(answer: object, op: str) -> tuple[int, int]:
    pair = (answer.key, answer.blocks) if isinstance(answer, Tiling) else answer
    if isinstance(pair, tuple) and len(pair) == 2 and all(hasattr(n, "__index__") for n in pair):
        key, blocks = (n.__index__() for n in pair)
        if key in _INT64 and blocks in _INT64:
            return key, blocks
    raise LaunchError(f"the tiling function of op {op!r} returned {answer!r}; return (tiling key, block count)")
