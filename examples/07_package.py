"""07 package: a control policy becomes a package, which is opened without torch and called in microseconds.

    1. export      the model, with its recurrent state, into the folder policy.sk
    2. load        sk.load_model: no torch, no compiler
    3. run         20 steps with numpy arrays; the state belongs to the package's context
    4. check       actions as of the model in torch, and the same bits after reset

`--output policy.sk` keeps the package: the programs of `examples/c/` open it from C and C++.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import superkernel as sk

SENSORS, STATE, ACTIONS = 48, 128, 12
STEPS = 20


class Policy(nn.Module):
    """A GRU cell and four linear layers. What it remembers is a buffer that every call changes."""

    memory: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(SENSORS, STATE)
        self.layers = nn.ModuleList(nn.Linear(wide, narrow) for wide, narrow in ((STATE, 128), (128, 64), (64, 64)))
        self.action = nn.Linear(64, ACTIONS)
        self.register_buffer("memory", torch.zeros(1, STATE))

    def forward(self, observation: Tensor) -> Tensor:
        self.memory.copy_(self.cell(observation, self.memory))
        x = self.memory
        for layer in self.layers:
            x = F.elu(layer(x))
        return torch.tanh(self.action(x))


Actions = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def check(found: list[Actions], again: list[Actions], expected: list[Actions]) -> list[str]:
    """What is wrong with the actions; nothing, if all is well."""
    wrong = []
    if not all(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(found, expected, strict=True)):
        wrong.append("actions differ from those of the model in torch")
    if not all(np.array_equal(a, b) for a, b in zip(found, again, strict=True)):
        wrong.append("actions after reset have other bits")
    if np.array_equal(found[0], found[-1]):
        wrong.append("the state does not change")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="where the package stays; by default it is removed")
    asked = parser.parse_args()
    torch.manual_seed(0)
    model = Policy().eval()
    observations = [torch.randn(1, SENSORS) for _ in range(STEPS)]
    arrays = [observation.numpy() for observation in observations]
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = sk.export(model, (observations[0],), asked.output or Path(folder, "policy.sk"))
        files = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
        print(f"1. exported: {', '.join(files)}")
        with sk.load_model(path) as policy:
            print(f"2. loaded: {policy.forward}, states {', '.join(policy.states)}")
            found = [policy(array) for array in arrays]
            policy.reset()
            again = [policy(array) for array in arrays]
            begin = time.perf_counter()
            for _ in range(1000):
                policy(arrays[0])
            print(f"3. ran {STEPS} steps; a call takes {(time.perf_counter() - begin) * 1e3:.1f} us")
        expected = [model(observation).numpy() for observation in observations]
    if wrong := check(found, again, expected):
        print(f"execute sample failed: {'; '.join(wrong)}", file=sys.stderr)
        return 1
    print("4. checked")
    print("execute sample success")
    return 0


if __name__ == "__main__":
    sys.exit(main())
