"""What the emulator refuses whatever the values: emitted text with one thing wrong, and what is said of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest
from targets.ascend import test_emit_golden as golden

from superkernel.cache import Cache
from superkernel.errors import LaunchError
from superkernel.targets.ascend.core_types import CoreClass
from superkernel.targets.ascend.describe_kernel import emit
from superkernel.targets.ascend.emulator.modules import HostModule, build_modules
from superkernel.targets.ascend.emulator.stand_in_launch import StandInEmulator
from superkernel.targets.ascend.kernel_description import EmittedKernel
from superkernel.targets.ascend.plan import AscendPlan
from superkernel.targets.protocol import LaunchInputs

Edit = Callable[[str], str]


def swap(old: str, new: str) -> Edit:
    """Every line of the entry that matches, with something else in it."""

    def edit(text: str) -> str:
        head, entry, body = text.partition("// the entry")
        changed = re.sub(old, new, body, flags=re.MULTILINE)
        assert changed != body, f"nothing matches {old}"
        return head + entry + changed

    return edit


def move(statement: str, before: str) -> Edit:
    """The first line that contains `statement`, in front of the first that contains `before`."""

    def edit(text: str) -> str:
        head, entry, body = text.partition("// the entry")
        lines = body.splitlines()
        taken = lines.pop(next(i for i, line in enumerate(lines) if statement in line))
        lines.insert(next(i for i, line in enumerate(lines) if before in line), taken)
        return head + entry + "\n".join(lines)

    return edit


@dataclass(frozen=True)
class Wrong:
    name: str
    scenario: Callable[[], AscendPlan]
    edit: Edit
    says: str


EVENTS, DYNAMIC, PROFILED = golden.notify_and_wait_between, golden.dynamic, golden.profiling
WRONG = (
    Wrong("launch_type", EVENTS, swap("MIX_AIC_1_2", "MIX_AIC_1_1"), "but the launch is KERNEL_TYPE_MIX_AIC_1_2"),
    Wrong("sync_base", EVENTS, swap(r"slots \+ 0", "slots + 1"), "with an address in buffer 'x'; slot 0 holds"),
    Wrong("returns_early", EVENTS, swap(r"( +)call_mixed", r"\1return; call_mixed"), "op 'i' did not run on 12 of the"),
    Wrong("one_block_less", golden.feed_sync_all, swap("vector < 5", "vector < 4"), "block"),
    Wrong(
        "notify_before_its_op", EVENTS, move(", 1);", " vec("), "stores 1 to event half, and nothing orders it after"
    ),
    Wrong(
        "notify_before_its_sync",
        EVENTS,
        move("sk_publish", "wait_flag_dev(vector_flag)"),
        "on their way|nothing orders it after op 'p' on",
    ),
    Wrong(
        "notify_before_its_drain", golden.last_op_sends, swap(r" +pipe_barrier.*\n", ""), "still on their way|drained"
    ),
    Wrong("wait_behind_its_op", EVENTS, move("sk_await", "// reset event"), "after a core that saw event go set"),
    Wrong("others_not_held_back", EVENTS, move("call_mixed", "past the events"), "after a core that saw event go set"),
    Wrong("another_leader", EVENTS, swap("vector == 0", "vector == 1"), "belongs to block 0 of the class of its op"),
    Wrong(
        "reset_left_out", EVENTS, swap(r".*, 0\);\n", ""), "event go is 1 at the end, a second launch would go wrong"
    ),
    Wrong("reset_first", EVENTS, move(", 0);", "call_mixed"), "before it has run the ops that it holds back"),
    Wrong("lock_left_set", DYNAMIC, swap(r".*word\(slots, 12\), 0\);\n", ""), "the lock of op 'c' is 1 at the end"),
    Wrong("request_too_early", DYNAMIC, move("wait_flag_dev", "// call b"), "the control agent of op 'c' reads"),
    Wrong("answer_read_too_early", DYNAMIC, move("key_2 = (", "sk_await"), "tiling key of op 'c'"),
    Wrong("task_of_another_slot", PROFILED, swap(r"(task = sk_load\(slots \+) \d+", r"\1 1"), "wrote mark 0 of task"),
    Wrong("pipe", EVENTS, swap("PIPE_MTE3", "PIPE_S"), "never in PIPE_S or PIPE_ALL"),
    Wrong("preload_lines", EVENTS, swap(r"vec, 2\)", "vec, 8)"), "a vector core takes 1 to 7"),
    Wrong(
        "dcci_of_nothing",
        golden.cache_maintenance,
        swap("ENTIRE_DATA_CACHE", "SINGLE_CACHE_LINE"),
        "no buffer is there",
    ),
    Wrong("dcci_elsewhere", golden.cache_maintenance, swap("CACHELINE_OUT", "CACHELINE_UB"), "use CACHELINE_OUT"),
)


@cache
def built(
    scenario: Callable[[], AscendPlan],
) -> tuple[AscendPlan, dict[str, EmittedKernel], dict[CoreClass, HostModule]]:
    """All texts of a scenario, compiled together under names of their own."""
    plan = scenario()
    emitted = emit(plan)
    kernels = {"right": emitted}
    for wrong in WRONG:
        if wrong.scenario is scenario:
            entry = f"{emitted.entry}_{wrong.name}"
            text = wrong.edit(emitted.source).replace(emitted.entry, entry)
            kernels[wrong.name] = replace(emitted, name=f"{emitted.name}_{wrong.name}", entry=entry, source=text)
    return plan, kernels, build_modules(list(kernels.values()), Cache(), True)


def launch(scenario: Callable[[], AscendPlan], name: str, seed: int, words_apart: int | None = None) -> None:
    plan, kernels, modules = built(scenario)
    settings = kernels[name], plan.graph, modules, Cache(), seed, None, (), True, True, words_apart
    StandInEmulator(*settings, options=plan.options).run({}, LaunchInputs({}, {}))


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_each_is_refused_with_every_seed(wrong: Wrong) -> None:
    for seed in range(3):
        launch(wrong.scenario, "right", seed)
        with pytest.raises(LaunchError, match=wrong.says):
            launch(wrong.scenario, wrong.name, seed)


@pytest.mark.parametrize("scenario", [EVENTS, DYNAMIC], ids=lambda scenario: scenario.__name__)
def test_words_of_neighbours_in_one_cache_line_are_refused(scenario: Callable[[], AscendPlan]) -> None:
    with pytest.raises(LaunchError, match="writes back a cache line that also holds"):
        launch(scenario, "right", 0, words_apart=8)
