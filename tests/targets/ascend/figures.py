"""What the Ascend target promises in numbers, measured: python tests/targets/ascend/figures.py [--jobs 2].

emitting 2000 ops             under 10 s, and twice the ops in at most 2 x 1.2 of the time
emulating 8 mixed ops         on 24 + 48 cores, under 2 s
1000 random cases             compiled, emulated and checked, under 5 minutes on two cores
a layer of 60 ops, stand-ins  on 24 + 48 cores, under 1 s per seed; its flag actions at most 0.33 of one full barrier
                              per op; without the promises of its elementwise ops at most half
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as pytest does: modules that tests share

from targets.ascend.conformance.cases import Case, Shape, Use
from targets.ascend.conformance.checks import check, launch, prepare, random_cases
from targets.ascend.device_lists import write_list
from targets.ascend.moe_list import moe_list
from targets.ascend.random_lists import kernel

import superkernel as sk
from superkernel.model.graph import build_graph
from superkernel.model.op import Op
from superkernel.model.options import Options
from superkernel.targets.ascend import TARGET
from superkernel.targets.ascend.core_types import KernelType
from superkernel.targets.ascend.describe_kernel import emit
from superkernel.targets.ascend.plan import AscendPlan
from superkernel.targets.protocol import EmulatedMachine

PARAMS = ("in:x", "in:y", "out:z")
AIV, AIC, MIX = KernelType.AIV_ONLY, KernelType.AIC_ONLY, KernelType.MIX_AIC_1_2
BARRIER = 6  # flag actions of a barrier over both classes
LAYERS = (("early-start=1", True), ("early-start=2", True), ("stream-fusion=1", True), ("early-start=1", False))
CHUNK = 40  # random cases that are compiled together


@dataclass(frozen=True)
class Seconds:
    processor: float
    clock: float


def emitting(count: int) -> Seconds:
    """From ops to text, with the proof of the plan between them."""
    kinds = list(KernelType)
    kernels = [kernel(f"k{i}", kinds[i % 6], 16, *PARAMS) for i in range(24)]
    ops = [Op(kernels[i % 24], [f"b{i}", f"w{i}", f"b{i + 1}"], f"op{i}") for i in range(count)]
    begin, clock = time.thread_time(), time.perf_counter()
    emit(TARGET.planner.plan(build_graph(ops, "big"), Options(), TARGET.planner.core_count()))
    return Seconds(time.thread_time() - begin, time.perf_counter() - clock)


def emulating(seeds: Sequence[int]) -> tuple[float, float]:
    """Seconds to compile an 8-op mixed sample for the host, and the most that one checked launch of it takes."""
    names = ("b0", "b1", "b2", "b3", "b4", "b5", "b0", "b1", "b2")
    kinds = (AIV, AIC, MIX, AIV, KernelType.MIX_AIC_1_1, AIC, AIV, MIX)
    uses = [
        Use(Shape("plain", kind, 48 if kind is AIV else 24, 1, 1, 0), 3 + i, (names[i], names[i + 1]))
        for i, kind in enumerate(kinds)
    ]
    case = Case("figure", tuple(uses), "")
    begin = time.perf_counter()
    [ready] = prepare([(case, *case.emitted())])
    compiled = time.perf_counter() - begin
    assert (ready.emitted.launch.cubes, ready.emitted.launch.vectors) == (24, 48)
    times = []
    for seed in seeds:
        begin = time.perf_counter()
        launch(ready, seed)
        times.append(time.perf_counter() - begin)
        check(ready, seed)
    return compiled, max(times)


def run_cases(first: int, count: int, seeds: int, most_blocks: int = 5) -> int:
    """Random cases, each with some seeds; a property that does not hold is an AssertionError."""
    for number, ready in enumerate(random_cases(range(first, first + count), most_blocks)):
        for seed in range(seeds):  # seed 0 disturbs nothing
            check(ready, (first + number) * seed * 7 + seed)
    return count


def random_sweep(cases: int, jobs: int) -> tuple[int, float]:
    """How many cases passed with two seeds each, and in how many seconds."""
    begin = time.perf_counter()
    firsts = range(200_000, 200_000 + cases, CHUNK)
    with ProcessPoolExecutor(jobs) as pool:
        passed = sum(pool.map(run_cases, firsts, repeat(CHUNK), repeat(2)))
    return passed, time.perf_counter() - begin


def moe_plan(options: str, promised: bool = True) -> AscendPlan:
    """The plan of the layer of moe_list.py, with and without the promises of its elementwise ops."""
    with TemporaryDirectory() as folder:
        ops = TARGET.read_ops(write_list(Path(folder), moe_list(promised), name="layer")).ops
    parsed = Options.parse(options)
    plan = TARGET.planner.plan(build_graph(ops, "layer", parsed.stream_fusion), parsed, 0)
    assert isinstance(plan, AscendPlan)
    return plan


def barrier_share(plan: AscendPlan) -> float:
    """Flag actions against one full barrier per op."""
    return plan.flag_actions / (BARRIER * len(plan.graph.nodes))


def emulating_list(seeds: Sequence[int]) -> tuple[float, EmulatedMachine]:
    """The most seconds that a seed of the sixty ops in CANN's form takes with stand-ins, and what their syncs cost."""
    assert TARGET.emulator is not None
    with TemporaryDirectory() as folder:
        described = TARGET.read_ops(write_list(Path(folder), moe_list(), name="layer"))
        with sk.compile(described.ops, described.name, described.options, "ascend") as kernel:
            kernel.emulate({}, seed=0)  # compiles
            times = []
            for seed in seeds:
                begin = time.perf_counter()
                kernel.emulate({}, seed=seed)
                times.append(time.perf_counter() - begin)
            return max(times), TARGET.emulator.machine(kernel.executable)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="processes for the random cases")
    parser.add_argument("--cases", type=int, default=1000, help="random cases")
    chosen = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    rounds = [(emitting(1000), emitting(2000)) for _ in range(3)]
    small, large = (min(one[which].processor for one in rounds) for which in (0, 1))
    clock = min(large.clock for _, large in rounds)
    print(f"emitting 2000 ops: {clock:.2f} s; {large / small / 2:.2f} x linear from 1000 on, by processor time")
    compiled, most = emulating(range(5))
    print(f"emulating 8 mixed ops on 24 + 48 cores: {most:.2f} s at most with 5 seeds; compiling them {compiled:.2f} s")
    most, machine = emulating_list(range(20))
    share = machine.sync_actions / machine.barrier_actions
    told = f"{machine.sync_actions} flag actions, {share:.2f} of a full barrier per op"
    print(f"a layer of 60 ops in CANN's form, stand-ins, {machine.name}: {most:.2f} s per seed at most; {told}")
    for options, promised in LAYERS:
        plan = moe_plan(options, promised)
        counts = f"{len(plan.pairs)} syncs, {plan.flag_actions} flag actions"
        promises = "" if promised else ", no op promises @block"
        print(f"the same layer, {options}{promises}: {counts}, {barrier_share(plan):.2f} of a full barrier per op")
    passed, seconds = random_sweep(chosen.cases, chosen.jobs)
    print(f"{passed} random cases, two seeds each, {chosen.jobs} processes: {seconds:.0f} s")


if __name__ == "__main__":
    main()
