"""Each property that a plan alone can show: a plan that breaks it is refused under that property's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from targets.ascend.random_lists import kernel

from superkernel.model.graph import build_graph
from superkernel.model.op import Op
from superkernel.model.options import Options
from superkernel.plan.steps import (
    AwaitEvent,
    Call,
    Notify,
    Preload,
    Record,
    Request,
    ResetEvent,
    Select,
    Step,
)
from superkernel.targets.ascend.calling_convention import SyncProtocol
from superkernel.targets.ascend.chips import find_chip
from superkernel.targets.ascend.core_types import CUBE, VECTOR, KernelType
from superkernel.targets.ascend.launch_shape import LaunchShape
from superkernel.targets.ascend.plan import AscendPlan, make_ascend_plan
from superkernel.targets.ascend.steps import Arrive, DebugBarrier, Drain, Meet, ResetLock, WholeBarrier
from superkernel.targets.ascend.validate import validate

AIV, AIC, MIX = KernelType.AIV_ONLY, KernelType.AIC_ONLY, KernelType.MIX_AIC_1_2
CHIP = find_chip("a3")
OPTIONS = "profiling=1:feed-sync-all=1:debug-sync-all=1"


def plan(options: str = OPTIONS) -> AscendPlan:
    """A little of everything: both classes, events in and out, a tiling, barriers inside, time stamps."""
    vec, cube = kernel("vec", AIV, 8, "in:x", "out:y"), kernel("cube", AIC, 4, "in:x", "out:y")
    meets = kernel("meets", AIV, 3, "in:x", "out:y", sync_all=True)
    tiled = kernel("tiled", AIV, 8, "in:x", "out:y", variants={1: "few", 7: "many"})
    ops = [
        Op(vec, ["a", "b"], "first", send=["told"]),
        Op(cube, ["b", "c"], "second", recv=["go"]),
        Op(vec, ["c", "d"], "third"),
        Op(meets, ["d", "e"], "fourth"),
        Op(tiled, ["e", "f"], "fifth", task="dynamic"),
        Op(cube, ["f", "g"], "sixth"),
    ]
    parsed = Options.parse(options)
    return make_ascend_plan(build_graph(ops, "whole"), parsed, CHIP)


Change = Callable[[AscendPlan], AscendPlan]


def op_of(of: AscendPlan, step: Any) -> str | None:
    index = step.ops[0] if isinstance(step, Preload) else step.op
    return None if index is None else of.op_names[index]


def place(of: AscendPlan, kind: type[Step], op: str | None = None, nth: int = 0) -> int:
    found = [n for n, step in enumerate(of.steps) if isinstance(step, kind)]
    return [n for n in found if op is None or op_of(of, of.steps[n]) == op][nth]


def without(kind: type[Step], op: str | None = None, nth: int = 0) -> Change:
    def change(of: AscendPlan) -> AscendPlan:
        at = place(of, kind, op, nth)
        return replace(of, steps=of.steps[:at] + of.steps[at + 1 :])

    return change


def twice(kind: type[Step], op: str | None = None) -> Change:
    def change(of: AscendPlan) -> AscendPlan:
        at = place(of, kind, op)
        return replace(of, steps=of.steps[: at + 1] + of.steps[at:])

    return change


def moved(kind: type[Step], op: str, to: type[Step], to_op: str, behind: int) -> Change:
    """A step taken out and put in front of another one, or behind it."""

    def change(of: AscendPlan) -> AscendPlan:
        step = of.steps[place(of, kind, op)]
        rest = without(kind, op)(of)
        at = place(rest, to, to_op) + behind
        return replace(rest, steps=(*rest.steps[:at], step, *rest.steps[at:]))

    return change


def altered(kind: type[Step], op: str | None = None, **fields: Any) -> Change:
    def change(of: AscendPlan) -> AscendPlan:
        at = place(of, kind, op)
        return replace(of, steps=(*of.steps[:at], replace(of.steps[at], **fields), *of.steps[at + 1 :]))

    return change


def without_sync(of: AscendPlan) -> AscendPlan:
    """The arrival and the waits in front of an op: no flag is left over."""
    gone = {n for n, step in enumerate(of.steps) if isinstance(step, Meet) and of.op_names[step.op] == "third"}
    gone.add(place(of, Arrive, "second", -1))
    return replace(of, steps=tuple(step for n, step in enumerate(of.steps) if n not in gone))


def miscounted(of: AscendPlan) -> AscendPlan:
    """A debug barrier that does not see what is under way."""
    vec = kernel("vec", AIV, 8, "in:x", "out:y")
    ops = [Op(vec, ["a", "b"]), Op(vec, ["c", "d"]), Op(vec, ["b", "e"])]
    plan = make_ascend_plan(build_graph(ops, "ahead"), of.options, CHIP)
    at = place(plan, DebugBarrier, nth=1)
    step = plan.steps[at]
    assert isinstance(step, DebugBarrier) and step.pending_arrivals == ((VECTOR, 1),)
    step = replace(step, pending_arrivals=((VECTOR, 0),))
    return replace(plan, steps=(*plan.steps[:at], step, *plan.steps[at + 1 :]))


def drained_before_its_barrier(of: AscendPlan) -> AscendPlan:
    """The pipes of an op drained right behind it, though its barrier waits for its stores anyway."""
    at = place(of, Call, "second")
    return replace(of, steps=(*of.steps[: at + 1], Drain((CUBE,)), *of.steps[at + 1 :]))


def never_waited_for(of: AscendPlan) -> AscendPlan:
    """An object that CANN built arrives in any case; the wait for that is left out."""
    flagged = kernel("flagged", AIV, 8, "in:x", "out:y", signals_inside=True, protocol=SyncProtocol.CANN)
    plan = make_ascend_plan(build_graph([Op(flagged, ["a", "b"], "only")], "alone"), of.options, CHIP)
    assert validate(plan).ok
    return without(Meet, "only")(plan)


def shifted_slots(of: AscendPlan) -> AscendPlan:
    return replace(of, slots=replace(of.slots, first=tuple(slot + 1 for slot in of.slots.first)))


QUIET = "feed-sync-all=1"
FAULTS: list[tuple[str, str, Change]] = [
    ("P1", QUIET, without(Call, "third")),
    ("P1", QUIET, twice(Call, "third")),
    ("P1", QUIET, altered(Call, "third", cores=(CUBE,))),
    ("P2", QUIET, without_sync),
    ("P2", QUIET, moved(Call, "third", Call, "second", 0)),
    ("P2", QUIET, without(Drain)),
    ("P2", QUIET, without(Drain, nth=-1)),
    ("P2", f"{QUIET}:early-start=0", without(WholeBarrier, "third")),
    ("P2", f"{QUIET}:early-start=0", altered(WholeBarrier, "third", cores=(CUBE,))),
    ("P18", f"{QUIET}:early-start=0", drained_before_its_barrier),
    ("P3", QUIET, moved(Call, "third", Call, "first", 0)),
    ("P4", QUIET, without(Arrive)),
    ("P4", QUIET, without(Meet)),
    ("P4", QUIET, never_waited_for),
    ("P5", QUIET, lambda of: replace(of, chip=replace(of.chip, flag_limit=0))),
    ("P5", QUIET, moved(Arrive, "fourth", Call, "fourth", 0)),
    ("P6", QUIET, without(AwaitEvent)),
    ("P6", QUIET, moved(Notify, "first", Call, "first", 0)),
    ("P6", QUIET, moved(AwaitEvent, "second", Call, "second", 1)),
    ("P7", QUIET, twice(Notify)),
    ("P7", QUIET, without(Notify)),
    ("P7", QUIET, without(ResetEvent)),
    ("P8", QUIET, shifted_slots),
    ("P9", QUIET, lambda of: replace(of, launch=LaunchShape(of.launch.type, of.launch.blocks + 1))),
    ("P9", QUIET, lambda of: replace(of, launch=LaunchShape(of.launch.type, of.launch.blocks - 1))),
    ("P10", QUIET, moved(Preload, "fourth", Call, "fourth", 1)),
    ("P10", QUIET, moved(Preload, "fourth", Call, "third", 1)),
    ("P10", QUIET, without(Preload, "fourth")),
    ("P10", QUIET, without(Preload, "fifth")),
    ("P12", OPTIONS, miscounted),
    ("P13", "profiling=1:feed-sync-all=1", without(Record, "third")),
    ("P13", "profiling=1:feed-sync-all=1", altered(Record, "third", begin=False)),
    ("P14", QUIET, altered(Call, "fourth", fed=())),
    ("P14", QUIET, altered(Call, "third", fed=(VECTOR,))),
    ("P16", QUIET, without(ResetLock)),
    ("P16", QUIET, twice(Request)),
    ("P16", QUIET, moved(Select, "fifth", Call, "fifth", 1)),
    ("P16", QUIET, moved(ResetLock, "fifth", Select, "fifth", 0)),
]


@pytest.mark.parametrize("options", sorted({options for _, options, _ in FAULTS}))
def test_the_whole_plan_is_valid(options: str) -> None:
    report = validate(plan(options))
    assert report.ok, str(report)


@pytest.mark.parametrize(("which", "options", "change"), FAULTS, ids=[f"{n}-{f[0]}" for n, f in enumerate(FAULTS)])
def test_a_broken_plan_is_refused_by_name(which: str, options: str, change: Change) -> None:
    report = validate(change(plan(options)))
    assert which in {finding.property for finding in report.errors}, str(report)
