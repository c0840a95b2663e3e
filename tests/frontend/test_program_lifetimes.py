"""The storages of a program in one arena: by the order of steps, and within a segment by the order of its plan."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from frontend.fused import check
from plan.strategies import kernel

from superkernel.frontend import program_memory
from superkernel.frontend.capture.fusibility import Unfusible
from superkernel.frontend.lowering.program_trace import LibraryCall, Storage, StorageOrigin, TracedTensor
from superkernel.frontend.program_lifetimes import plan_program, separate
from superkernel.frontend.segments import Segment, TorchCall
from superkernel.model.graph import build_graph
from superkernel.model.op import Op
from superkernel.model.options import Options
from superkernel.plan import make_plan
from superkernel.plan.memory import MemoryPlan

SIZE = 4096
STEP = kernel("step", 2, f"in:x:uint8[{SIZE}]", f"out:y:uint8[{SIZE}]")
BLOCKS = kernel("blocks", 2, f"in:x:uint8[{SIZE}]@block", f"out:y:uint8[{SIZE}]@block")


def segment(*names: str, uses: Any = STEP) -> Segment:
    """Each of the names is computed from the one before."""
    ops = [Op(uses, [before, after]) for before, after in pairwise(names)]
    plan = make_plan(build_graph(ops), Options(), 2)
    return Segment(kernel=SimpleNamespace(plan=plan, options=Options()))  # type: ignore[arg-type]


def torch_call(*names: str) -> TorchCall:
    views = [
        TracedTensor(Storage(name, StorageOrigin.ALLOCATED, SIZE), 0, torch.uint8, (SIZE,), (1,)) for name in names
    ]
    call = LibraryCall(torch.ops.aten.relu.default, (views[0],), {"others": views[1:]}, ())
    return TorchCall(call, Unfusible("aten::relu", "a test", ()))


def planned(steps: list[Segment | TorchCall], *names: str) -> MemoryPlan:
    return plan_program(dict.fromkeys(names, SIZE), steps)


def apart(memory: MemoryPlan, first: str, second: str) -> bool:
    return abs(memory.offsets[first] - memory.offsets[second]) >= SIZE


@pytest.mark.parametrize("uses", [STEP, BLOCKS], ids=["in order by syncs", "part by part"])
def test_a_chain_needs_two_places(uses: Any) -> None:
    memory = planned([segment("in", *"abcdef", "out", uses=uses)], *"abcdef")
    assert memory.peak == 2 * SIZE and memory.arena < 2.25 * SIZE < memory.without_reuse
    assert all(apart(memory, *pair) for pair in ("ab", "bc", "cd", "de", "ef"))


def test_storages_live_from_the_first_step_that_uses_them_to_the_last() -> None:
    """`a` is read again by the torch call, `c` by the second segment."""
    steps = [segment("in", "a", "b", "c"), torch_call("a", "d"), segment("c", "e", "f")]
    memory = planned(steps, *"abcdef")
    for pair in ("ab", "ac", "bc", "ad", "cd", "ce", "ef"):
        assert apart(memory, *pair), pair
    assert memory.arena < memory.without_reuse


def test_a_storage_that_no_step_uses_has_no_place() -> None:
    assert set(planned([segment("in", "a", "b")], "a", "unused").offsets) == {"a"}


def test_debugging_that_tells_buffers_apart_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = separate(dict.fromkeys("abc", SIZE))
    assert all(apart(memory, *pair) for pair in ("ab", "ac", "bc"))
    steps = [segment("in", "a", "b", "c")]
    assert not program_memory._tells_buffers_apart(steps)
    steps[0].kernel.options = Options(debug_replay=True)  # type: ignore[union-attr]
    assert program_memory._tells_buffers_apart(steps)


@pytest.mark.conformance
def test_a_model_whose_intermediates_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused and unfused agree in bits, also in later calls; an unfusible op in between keeps what it reads."""
    plans: list[MemoryPlan] = []

    def recorded(*args: Any) -> MemoryPlan:
        plans.append(plan_program(*args))
        return plans[-1]

    monkeypatch.setattr(program_memory, "plan_program", recorded)
    widths = (64, 256, 96, 192, 80, 64)  # Inductor reuses buffers of equal sizes by itself
    weights = [torch.randn(*pair) / 8 for pair in pairwise(widths)]

    def model(x: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.softmax(x @ weight, dim=-1)
        return torch.linalg.inv(x + 10 * torch.eye(64)) @ weights[0]

    check(model, torch.randn(64, 64))
    assert any(memory.arena < memory.without_reuse for memory in plans), [str(memory) for memory in plans]
