"""targets.cpu.runtime.tiling_agent: requests of dynamic ops in, tiling keys and block counts from Python out."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ....model.node import Node
from ....model.params import Kind
from ....model.tiling import TilingFunction, chosen_tiling

PATIENCE_S = 1.0  # how long a stopped launch waits for a tiling function
_ABANDONED = -1


@dataclass
class TilingRequests:
    """What an agent needs to answer the requests of one launch."""

    running: int  # the launch
    nodes: Mapping[int, Node]  # index of a tiling -> its op
    functions: Mapping[str, TilingFunction]  # by op
    buffers: Mapping[str, Any]
    keep: object  # the owner of `running`, which a tiling function may hold on to longer than the launch
    error: BaseException | None = field(default=None)

    def answer(self, index: int, library: ctypes.CDLL) -> None:
        node = self.nodes[index]
        inputs = {str(n): self.buffers[n] for p, n in node.arguments() if p.kind in (Kind.IN, Kind.INOUT)}
        try:
            key, blocks = chosen_tiling(self.functions[node.name](inputs), node.name)
        except BaseException as error:  # whatever the user's function raises goes to the launching thread
            self.error = error
            library.sk_agent_failed(self.running, index)
            return
        library.sk_agent_answer(self.running, index, key, blocks)


class TilingAgent:
    """A thread that runs tiling functions while super kernels run. It serves one launch at a time."""

    def __init__(self, pool: TilingAgentPool) -> None:
        self._pool, self._library = pool, pool.library
        self._agent = self._library.sk_agent_create()
        self._requests: TilingRequests | None = None
        threading.Thread(target=self._run, name="superkernel-agent", daemon=True).start()

    def serve(self, requests: TilingRequests) -> None:
        """From now on, and until `leave`."""
        self._requests = requests
        self._library.sk_agent_attach(self._agent, requests.running)

    def leave(self, stopped: bool) -> bool:
        """After the launch. False: a tiling function still uses it; the agent ends the launch when it returns.

        A launch that was not stopped has all its answers.
        """
        if stopped and not self._library.sk_agent_detach(self._agent, PATIENCE_S):
            return False
        self._requests = None
        self._pool.idle.append(self)
        return True

    def _run(self) -> None:
        while True:
            self._serve_request(self._library.sk_agent_next(self._agent))

    def _serve_request(self, index: int) -> None:
        """A function of its own: an idle agent refers to no launch, so that a kernel can go."""
        requests = self._requests
        assert requests is not None
        if index != _ABANDONED:
            requests.answer(index, self._library)
            return
        self._library.sk_launch_end(requests.running)
        self._requests = None
        self._pool.idle.append(self)


_pools: weakref.WeakSet[TilingAgentPool] = weakref.WeakSet()


class TilingAgentPool:
    """The agents of one host library. A launch takes an idle one, so that a tiling function can launch kernels too."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.idle: list[TilingAgent] = []
        _pools.add(self)

    def take(self) -> TilingAgent:
        try:
            return self.idle.pop()
        except IndexError:
            return TilingAgent(self)


def _forget_agents() -> None:
    """In the child of a fork: their threads are not here."""
    for pool in _pools:
        pool.idle.clear()


os.register_at_fork(after_in_child=_forget_agents)
