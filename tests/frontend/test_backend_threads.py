"""The back end asked for by name in several threads at once, and in a graph of compiled autograd."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import superkernel as sk

pytestmark = pytest.mark.slow

SCRIPT = """
import threading
import torch

def model(number):
    return lambda x: (x * number).sin().sum(0)

def compile_and_call(number):
    x = torch.linspace(0, 1, 64).reshape(8, 8)
    barrier.wait()
    function = torch.compile(model(number), backend="superkernel")
    torch.testing.assert_close(function(x), model(number)(x))
    done.append(number)

done, barrier = [], threading.Barrier(4)
threads = [threading.Thread(target=compile_and_call, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert sorted(done) == [0, 1, 2, 3], done
"""


def test_threads_that_ask_for_it_at_once_all_get_it(tmp_path: Path) -> None:
    """In a process that has not asked for it before: the first to ask loads it."""
    (tmp_path / "threads.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(sk.__file__).parents[1])}
    command = [sys.executable, str(tmp_path / "threads.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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
