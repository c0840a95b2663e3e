"""The descriptor of a super kernel: fields in CANN's form, which say what plan and ops say."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from targets.ascend.test_emit_golden import (
    CUBE_OP,
    MIX_OP,
    VECTOR_OP,
    by_name,
    inner_events,
    planned,
    profiling,
)

from superkernel.model.op import Op
from superkernel.targets.ascend.chips import chip_fields, find_chip
from superkernel.targets.ascend.describe_kernel import emit
from superkernel.targets.ascend.descriptor import describe
from superkernel.targets.ascend.facts import facts_of
from superkernel.targets.ascend.plan import AscendPlan

SIDES = {"notify": "send", "wait": "recv"}  # how slots of events are named
NEWER = chip_fields(find_chip("a3")) | {"toolkit": {"descriptor_form": "architecture"}}


def described(plan: AscendPlan) -> dict[str, Any]:
    return describe(plan, emit(plan), None)


def names_at(plan: AscendPlan, slots: list[int]) -> list[str]:
    return [plan.layout.slots[slot].name for slot in slots]


@by_name
def test_it_says_what_plan_and_ops_say(scenario: Callable[[], AscendPlan]) -> None:
    plan = scenario()
    emitted = emit(plan)
    fields = describe(plan, emitted, None)
    assert fields["kernelName"] == f"auto_gen_{plan.graph.name}_kernel" and fields["kernelName"] in emitted.source
    assert fields["sha256"] == hashlib.sha256(emitted.source.encode()).hexdigest()
    assert (fields["chip"], fields["options"]) == (plan.chip.name, str(plan.options))
    assert fields["slots"] == len(plan.layout.slots)
    assert f"{fields['blockDim']} blocks" in str(plan)
    assert list(fields["SuperkernelInfo"]["kernelList"]) == ["aicore"]
    for kernel_fields, node in zip(fields["SuperkernelInfo"]["kernelList"]["aicore"], plan.graph.nodes, strict=True):
        assert kernel_fields["name"] == node.name
        assert kernel_fields["blockDim"] == node.kernel.block_dim
        assert kernel_fields["kernel_type"] == facts_of(node.kernel).type.value
        assert kernel_fields["op_type"] == node.kernel.type_name
        assert kernel_fields["task_type"] == node.op.task.value
        assert kernel_fields["stream_id"] == node.op.stream
        assert kernel_fields["send_event_list"] == list(node.op.send)
        assert kernel_fields["recv_event_list"] == list(node.op.recv)
        assert kernel_fields["debugOptions"] == list(facts_of(node.kernel).debug_options)
        arguments = kernel_fields["arg_list"]
        first = arguments.pop("param_offset")
        slots = [first + i for i in range(arguments.pop("param_count"))]
        assert names_at(plan, slots) == [f"{node.name}_{param.name}" for param in node.kernel.params]
        for side, events in (("notify", node.op.send), ("wait", node.op.recv)):
            names = names_at(plan, arguments.pop(f"{side}_param_offset"))
            assert names == [f"{node.name}_{SIDES[side]}_{event}" for event in events]
        dynamic = ("tiling_key", "block_dim", "lock") if node.op.task.value == "dynamic" else ()
        assert list(arguments) == [f"{name}_offset" for name in dynamic]
        names = [f"{node.name}_{name}" for name in ("tiling_key", "block_count", "lock")]
        assert names_at(plan, list(arguments.values())) == names[: len(dynamic)]


def test_the_fields_that_a_run_time_of_cann_looks_at() -> None:
    fields = described(planned("one", [Op(VECTOR_OP, ["x", "y", "z"])]))
    expected = {
        "binFileName": "one",
        "binFileSuffix": ".o",
        "blockDim": 8,
        "taskRation": "0:1",
        "coreType": "MIX",
        "intercoreSync": 1,
        "magic": "RT_DEV_BINARY_MAGIC_ELF",
        "opParaSize": 8,
        "parameters": [],
        "optionalInputMode": "gen_placeholder",
        "optionalOutputMode": "gen_placeholder",
        "supportSuperKernel": 1,
        "workspace": {"num": 0, "size": []},
    }
    assert {name: fields[name] for name in expected} == expected


def test_slots_of_the_whole_kernel_are_numbers_of_slots() -> None:
    plan = profiling()
    fields = described(plan)
    words = [fields["profiling"][name] for name in ("param_offset", "task_id_offset")]
    assert names_at(plan, words) == ["profiling", "task_id"]


def test_an_inner_event_has_slots_that_no_core_reads() -> None:
    plan = inner_events()
    inner = {slot.index for slot in plan.layout if slot.role.value.startswith("inner")}
    assert inner and not {event.slot for event in emit(plan).events} & inner
    assert all(f"word(slots, {slot})" not in emit(plan).source for slot in inner)


def test_events_by_number_are_numbers() -> None:
    ops = [
        Op(VECTOR_OP, ["x", "y", "t"], send=[7, "done"]),
        Op(VECTOR_OP, ["t", "y", "z"], recv=["go", 7]),
    ]
    first, second = described(planned("events", ops))["SuperkernelInfo"]["kernelList"]["aicore"]
    assert (first["send_event_list"], second["recv_event_list"]) == ([7, "done"], ["go", 7])


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ("split-mode=1:stream-fusion=1", {"dav-c220-cube": ["cube", "both"], "dav-c220-vec": ["vector", "both"]}),
        ("split-mode=1", {"aicore": ["cube", "vector", "both"]}),
    ],
)
def test_the_newer_form_has_a_group_per_lane_and_block_numbers(options: str, groups: dict[str, list[str]]) -> None:
    ops = [
        Op(CUBE_OP, ["a", "b", "c"], "cube"),
        Op(VECTOR_OP, ["d", "e", "f"], "vector", stream=1),
        Op(MIX_OP, ["c", "f", "g"], "both"),
    ]
    fields = described(planned("lanes", ops, options, NEWER))
    listed = fields["SuperkernelInfo"]["kernelList"]
    assert {group: [kernel["name"] for kernel in kernels] for group, kernels in listed.items()} == groups
    assert "blockDim" not in fields and fields["blockNum"] == 4
    assert all("blockNum" in kernel and "blockDim" not in kernel for group in listed.values() for kernel in group)


@by_name
def test_every_field_is_on_the_page(scenario: Callable[[], AscendPlan]) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "ascend.md").read_text()
    assert not [field for field in described(scenario()) if f"`{field}" not in page]
