"""frontend.measured_calls: the compiled graphs of a model -> called again, on copies, until the gate has decided.

The model itself, which may count, print or grow a cache, is not called again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from .profit_gate import TURNS
from .scope_report import SegmentReport

_MOST_CALLS = 4 * (TURNS + 1)  # the gate has at most three alternatives, and one of them may still be built at first
MOST_SECONDS = 2.0  # of all calls together
_MOST_BYTES = 1 << 30  # of copies


@dataclass
class MeasuredCalls:
    """The first call of every compiled graph, kept so that it can be made again."""

    _calls: list[tuple[Callable[..., Any], list[Any]]] = field(default_factory=list)
    _bytes: int = 0

    def keep_first_call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The compiled graph; its first call leaves copies of its inputs here."""
        called = False

        def call(*args: Any) -> Any:
            nonlocal called
            if not called:
                called = True
                self._keep(function, args)
            return function(*args)

        return call

    def _keep(self, function: Callable[..., Any], args: Sequence[Any]) -> None:
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return  # a training graph: its calls allocate what the backward graph reads
        copied = sum(tensor.nbytes for tensor in tensors if not isinstance(tensor, torch.nn.Parameter))
        if self._bytes + copied > _MOST_BYTES:
            return
        self._bytes += copied
        self._calls.append((function, _copies(args)))

    def decide(self, segments: Iterable[SegmentReport]) -> None:
        """Calls the graphs in turns until the gate of every segment has decided, or time is up."""
        gates = [segment.gate for segment in segments if segment.gate is not None and not segment.left_out]
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return  # the other ranks may call less often
        for gate in gates:
            gate.finish_build()
        begin = perf_counter()
        for _ in range(_MOST_CALLS):
            if all(gate.chosen is not None for gate in gates) or perf_counter() - begin > MOST_SECONDS:
                return
            for function, inputs in self._calls:
                function(*_copies(inputs))


def _copies(args: Sequence[Any]) -> list[Any]:
    """Weights are shared; what a graph may write is copied."""
    return [
        value.detach().clone()
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
        else value
        for value in args
    ]
