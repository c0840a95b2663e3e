"""bench.package_costs: what a package costs beside its work: a call from Python, opening it, memory."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from ...frontend.export.export import export
from ...package.model import load_model
from .call_rate import RunFromC
from .measure import Figure, burst
from .workloads import Workload

ROUNDS, CALLS = 41, 500
WIDTH = 5000  # 100 MB of float32 weights
# In a process of its own, without torch. Memory that is not a file's: the mapped weights and the code are files.
_SCRIPT = """
import json, sys, time
import numpy as np
from superkernel.package.model import load_model

def private_bytes():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

x = np.zeros((1, int(sys.argv[2])), np.float32)
load_model(sys.argv[1]).close()  # the library is loaded, and the weights are in the page cache
before = private_bytes()
begin = time.perf_counter()
model = load_model(sys.argv[1])
opened = time.perf_counter() - begin
model(x)
print(json.dumps({"seconds": opened, "bytes": private_bytes() - before, "torch": "torch" in sys.modules}))
"""


def cost_of_python(folder: Path, workload: Workload) -> Figure:
    """The time of a call with numpy arrays, less that of the same call from C, round by round, on one thread."""
    model = load_model(folder, threads=1)
    arrays = [value.numpy() for value in workload.inputs]
    direct = RunFromC(model, arrays)
    differences = [burst(lambda: model(*arrays), CALLS) - direct.back_to_back(CALLS) for _ in range(ROUNDS)]
    model.close()
    name = f"a call from Python on top of the run from C, {len(arrays)} inputs"
    return Figure(name, statistics.median(differences), 3.0, False, "us")


def costs_of_loading(folder: Path) -> list[Figure]:
    """Opening a package with 100 MB of weights, and the memory that it takes beside them."""
    path = folder / "large.sk"
    export(nn.Linear(WIDTH, WIDTH, bias=False).eval(), (torch.randn(1, WIDTH),), path)
    command = [sys.executable, "-c", _SCRIPT, str(path), str(WIDTH)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert not found["torch"]
    return [
        Figure("opening a package of 100 MB", 1e3 * found["seconds"], 50, False, "ms"),
        Figure("its memory beside the mapped weights", found["bytes"] / 1e6, 20, False, "MB"),
    ]
