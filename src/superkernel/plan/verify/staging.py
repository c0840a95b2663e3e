"""plan.verify.staging: a plan in; what is wrong with its staged inputs out: P24."""

from __future__ import annotations

from collections import Counter

from ..plan import Plan
from ..steps import Call, StageWeights
from .agents import Fault


def check_staging(plan: Plan, fault: Fault) -> None:
    """P24: a staged input is constant; each core takes out of its ring what was staged, in that order.

    The ring of a core holds chunks of several ops, one behind the other. If the core took them in another order, or
    some never, it would multiply by the weights of another op, or wait forever.
    """
    staged = [step for step in plan.steps if isinstance(step, StageWeights)]
    if not staged:
        return
    nodes = plan.graph.nodes
    if plan.graph.events or plan.graph.collectives:
        fault("P24", "inputs are staged from the beginning of a launch, in which other agents take part")
    for op, count in Counter(step.op for step in staged).items():
        if count > 1:
            fault("P24", f"op {nodes[op].name!r} is staged {count} times")
    calls = {step.op: (number, step) for number, step in enumerate(plan.steps) if isinstance(step, Call)}
    for number, step in enumerate(plan.steps):
        if isinstance(step, StageWeights):
            _check_step(plan, number, step, calls, fault)
    ops = {step.op for step in staged}
    kernels = {nodes[op].kernel for op in ops}
    for node in nodes:
        if node.kernel in kernels and node.index not in ops:
            fault("P24", f"op {node.name!r} uses the ring itself, in which inputs of other ops are staged")
    order = [step.op for step in staged]
    called = sorted((op for op in order if op in calls), key=lambda op: calls[op][0])
    if order != called:
        fault("P24", "inputs are staged in another order than their ops are called")
    rings = {(s.slots, s.slot_bytes, s.arrivals) for kernel in kernels if (s := kernel.staged_input) is not None}
    if len(rings) > 1:
        fault("P24", f"the staged ops have {len(rings)} different rings")


def _check_step(plan: Plan, number: int, step: StageWeights, calls: dict[int, tuple[int, Call]], fault: Fault) -> None:
    node, what = plan.graph.nodes[step.op], plan.describe(step)
    staged = node.kernel.staged_input
    if staged is None:
        fault("P24", f"{what}: its sub-kernel takes nothing from a ring")
        return
    place = next((place for param, place in node.places() if param.name == staged.param), None)
    if place is None or place.name != step.name:
        fault("P24", f"{what}: the op takes another buffer from the ring")
    if step.name not in plan.graph.buffers or plan.graph.buffers[step.name].written:
        fault("P24", f"{what}: an op of the launch writes it")
    if step.op not in calls or calls[step.op][0] < number:
        fault("P24", f"{what}: no call follows")
    elif (call := calls[step.op][1]).cores != step.cores or call.copies > 1:
        fault("P24", f"{what}: its cores are not those of the call")
