"""The back end asked for by name in several threads at once, and in a graph of compiled autograd."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch._dynamo.backends import registry

pytestmark = pytest.mark.slow

THREADS = 3


def test_threads_that_ask_for_it_at_once_all_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that has not asked for it before: the first thread to ask registers it."""
    monkeypatch.delitem(registry._COMPILER_FNS, "superkernel", raising=False)
    x, results, barrier = torch.linspace(0, 1, 64).reshape(8, 8), {}, threading.Barrier(THREADS)

    def compile_and_call(number: int) -> None:
        barrier.wait()
        results[number] = torch.compile(lambda x: (x * number).sin().sum(0), backend="superkernel")(x)

    threads = [threading.Thread(target=compile_and_call, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(THREADS):
        torch.testing.assert_close(results[number], (x * number).sin().sum(0))


def test_gradients_of_compiled_autograd_are_those_of_eager() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    x = torch.randn(4, 8)
    model(x).sum().backward()
    wanted = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    function = torch.compile(model, backend="superkernel")
    with torch._dynamo.compiled_autograd._enable(lambda graph: torch.compile(graph, backend="superkernel")):
        function(x).sum().backward()
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], wanted)
