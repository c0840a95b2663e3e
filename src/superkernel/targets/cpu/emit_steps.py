"""targets.cpu.emit_steps: one step of a plan -> its lines of C++. One printer per kind of step, no decisions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...model.argument_layout import Role, Slot
from ...model.params import Kind, Param
from ...plan import steps
from ...plan.steps import Cores, Step
from ..native.c_names import c_string

if TYPE_CHECKING:
    from .emit import Emitter


def print_step(e: Emitter, i: int, step: Step) -> Iterator[str]:
    """The lines of step `i` of the plan."""
    match step:
        case steps.Preload():
            yield from _preload(e, step)
        case steps.PrefetchWeights():
            yield from _prefetch(e, step)
        case steps.AwaitEvent():
            yield f"if (!core.await_event({i}, {e.event_slot(step.op, step.event, Role.RECV)})) return;"
        case steps.Notify():
            yield f"core.notify({e.event_slot(step.op, step.event, Role.SEND)});"
        case steps.ResetEvent():
            slot = next(s for s in e.numbers.layout if s.role is Role.RECV and s.source == step.event)
            yield f"core.reset_event({e.slot(slot)});"
        case steps.ComputeTiling():
            yield from _compute_tiling(e, i, step)
        case steps.Request():
            yield f"core.request({e.numbers.tilings[step.op]});"
        case steps.Select():
            yield from _select(e, i, step)
        case steps.Wait():
            yield from _wait(e, i, step)
        case steps.Barrier():
            stamp = e.numbers.barriers[i]
            for index, (first, last) in enumerate(ranges(step.cores)):
                yield f"if (!core.{'wait' if index else 'barrier'}({i}, {stamp}, {first}, {last})) return;"
        case steps.Call():
            yield from _call(e, i, step)
        case steps.Feed():
            yield f"if (!core.feed({i}, core.rendezvous({e.numbers.rendezvous[step.op]}), {len(step.team)})) return;"
        case steps.Signal():
            yield f"core.signal({e.published(step)});"
        case steps.Fence():
            yield "core.fence();"
        case steps.Record():
            yield f"core.record({i});"
        case _:
            raise AssertionError(f"a step that the cpu target does not have: {step}")


def ranges(cores: Cores) -> list[tuple[int, int]]:
    """(0, 1, 2, 5) -> [(0, 3), (5, 6)]."""
    found: list[tuple[int, int]] = []
    for core in cores:
        if found and found[-1][1] == core:
            found[-1] = (found[-1][0], core + 1)
        else:
            found.append((core, core + 1))
    return found


def _rank(cores: Cores) -> str:
    """The place of the running core among `cores`."""
    spans = ranges(cores)
    if len(cores) == 1:
        return "0"
    if len(spans) > 1:
        return f"sk::rank(core.id(), {{{', '.join(map(str, cores))}}})"
    return "core.id()" if cores[0] == 0 else f"core.id() - {cores[0]}"


def _rank_in_copy(step: steps.Call) -> str:
    """The place of the running core among the cores that compute one copy of an op."""
    if step.copies == 1:
        return _rank(step.cores)
    return "0" if step.width == 1 else f"({_rank(step.cores)}) % {step.width}"


def _preload(e: Emitter, step: steps.Preload) -> Iterator[str]:
    for op in step.ops:
        linked = e.linked[e.plan.graph.nodes[op].kernel]
        for _, copies in linked.variants:
            symbol = copies[0] if len(copies) == 1 else f"{copies[0]}_copies[core.id() % {len(copies)}]"
            yield f"core.preload(reinterpret_cast<const void*>({symbol}), {linked.code_bytes});"


def _prefetch(e: Emitter, step: steps.PrefetchWeights) -> Iterator[str]:
    for name in step.names:
        slot = next(s for s in e.slots_of(step.op) if s.source == name and s.role is Role.PARAM)
        size = f"bytes[at::{e.identifiers[slot.name]}]"
        yield f"core.prefetch({e.slot(slot)}, {size}, {_rank(step.cores)}, {len(step.cores)}, {step.budget});"


def _select(e: Emitter, i: int, step: steps.Select) -> Iterator[str]:
    node = e.plan.graph.nodes[step.op]
    keys = ", ".join(str(key) for key, _ in e.linked[node.kernel].variants)
    count = len(e.linked[node.kernel].variants)
    yield f"static const int64_t keys_{step.op}[] = {{{keys}}};"
    yield f"choice_{step.op} = core.select({i}, {e.numbers.tilings[step.op]}, keys_{step.op}, {count}, {node.blocks});"
    yield f"if (!choice_{step.op}.ok) return;"


def _compute_tiling(e: Emitter, i: int, step: steps.ComputeTiling) -> Iterator[str]:
    node = e.plan.graph.nodes[step.op]
    assert node.compiled_tiling is not None
    slots = [slot for slot in e.slots_of(step.op) if slot.role is Role.PARAM]
    yield f"const sk_tiling_argument arguments_{step.op}[] = {{"
    for param, slot in zip(node.kernel.params, slots, strict=True):
        yield f"    {{{_tiling_argument(e, param, slot)}}},"
    yield "    {},"  # an array of C++ is not empty
    yield "};"
    function = e.tilings[node.compiled_tiling]
    arguments = f"{{{len(slots)}, arguments_{step.op}, {node.blocks}}}"
    yield f"if (!core.compute_tiling({i}, {e.numbers.tilings[step.op]}, {function}, {arguments})) return;"


def _tiling_argument(e: Emitter, param: Param, slot: Slot) -> str:
    """Name, address, bytes, scalar. What an op only writes has no address: other ops may be using it."""
    size = f"bytes[at::{e.identifiers[slot.name]}]"
    if param.kind is Kind.SCALAR:
        return f"{c_string(param.name)}, nullptr, 0, {e.slot(slot)}"
    address = f"reinterpret_cast<const void*>({e.address(slot)})" if param.kind.reads else "nullptr"
    return f"{c_string(param.name)}, {address}, {size}, 0"


def _wait(e: Emitter, i: int, step: steps.Wait) -> Iterator[str]:
    function = "wait_inside" if step.inside else "wait"
    for need in step.needs:
        counter = e.numbers.counter_of(need)
        if counter is not None:
            yield f"if (!core.{function}_all({i}, {counter}, {len(need.cores)})) return;"
            continue
        for first, last in ranges(need.cores):
            yield f"if (!core.{function}({i}, {e.numbers.stamps[need.mark]}, {first}, {last})) return;"


def _call(e: Emitter, i: int, step: steps.Call) -> Iterator[str]:
    node = e.plan.graph.nodes[step.op]
    rank, width = _rank_in_copy(step), step.width
    early = e.early_signals.get(step.op)
    if early:
        yield f"core.signal_early({e.published(early)});"
    if step.team:
        rendezvous = f"core.rendezvous({e.numbers.rendezvous[step.op]})"
        fed = "true" if len(step.team) > width or node.dynamic else "false"
        yield f"core.meet_in({rendezvous}, {len(step.team)}, {fed});"
    yield from e.blocks(i, step, rank, width)
    if step.team and node.dynamic:
        yield f"if ({rank} >= choice_{step.op}.blocks && choice_{step.op}.blocks > 0 &&"
        yield f"    !core.feed({i}, {rendezvous}, {len(step.team)})) return;"
    if step.team:
        yield f"core.meeting_over({rank});"
    if early or step.team or step.op in e.waiting_inside:
        yield "if (!core.end_call()) return;"
