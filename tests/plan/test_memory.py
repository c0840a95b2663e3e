"""P21: buffers that share memory are never live at the same time, under the order that the plan's syncs enforce."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace
from functools import cache

import pytest
from plan.oracle import Order, order_of
from plan.strategies import kernel

from superkernel.model.graph import Graph, build_graph
from superkernel.model.op import Op, Place
from superkernel.model.options import EarlyStart, Options
from superkernel.plan import Plan, make_plan, simulate, validate
from superkernel.plan.memory import ALIGNMENT, MemoryPlan, PlacedBuffer

MB = 2**20
SEEDS = range(14)


def chain(ops: int, blocks: int, block: str = "", elements: int = 2 * MB) -> Graph:
    step = kernel("step", blocks, f"in:x:float32[{elements}]{block}", f"out:y:float32[{elements}]{block}")
    return build_graph([Op(step, [f"t{i}", f"t{i + 1}"]) for i in range(ops)])


def random_graph(seed: int, most_ops: int = 24) -> tuple[Graph, int, Options]:
    """Ops with one to three inputs among the latest buffers; sizes, blocks, @block and early start at random."""
    rng = random.Random(seed)
    cores, ops, sizes = rng.choice((1, 2, 3, 4)), list[Op](), {"input": 3072}
    for i in range(rng.randint(3, most_ops)):
        blocks, block = rng.choice((1, cores, cores, 2 * cores)), rng.choice(("", "@block"))
        inputs = list(dict.fromkeys(rng.choices(list(sizes)[-6:], k=rng.randint(1, 3))))
        size = rng.choice((768, 3072, 4608, 12288, 65536 * 3, 24 * rng.randint(1, 9999)))
        sizes[f"t{i}"] = size
        params = [f"in:i{k}:uint8[{sizes[name]}]{block}" for k, name in enumerate(inputs)]
        params += [f"out:o:uint8[{size}]{block}", "workspace:w:uint8[1536]"]
        waits = rng.random() < 0.4
        early = ("i0",) if waits and rng.random() < 0.5 else None
        flags = {"waits_inside": waits, "signals_inside": rng.random() < 0.4, "early_start": early}
        op_kernel = kernel(f"k{i}", blocks, *params, **flags)
        ops.append(Op(op_kernel, [*inputs, f"t{i}", f"w{i}"]))
    early_start = rng.choice((EarlyStart.FULL, EarlyStart.FULL, EarlyStart.OFF))
    return build_graph(ops), cores, Options(early_start=early_start)


@cache
def random_plan(seed: int) -> Plan:
    graph, cores, options = random_graph(seed)
    return make_plan(graph, options, cores)


def live_together(plan: Plan, order: Order, first: PlacedBuffer, second: PlacedBuffer) -> bool:
    """By brute force: whether two accesses to a byte of both are not ordered, whichever comes first."""
    return not any(_before(plan, order, *pair) for pair in ((first, second), (second, first)))


def _before(plan: Plan, order: Order, first: PlacedBuffer, second: PlacedBuffer) -> bool:
    for op, core, begin, end, _ in _accesses(plan, first):
        for later, later_core, later_begin, later_end, early in _accesses(plan, second):
            if begin < later_end and later_begin < end:
                entered = (order.starts if early else order.bodies)[later, later_core]
                if op == later or not order.is_after(entered, order.ends[op, core]):
                    return False
    return True


def _accesses(plan: Plan, buffer: PlacedBuffer) -> list[tuple[int, int, int, int, bool]]:
    """(op, core, first byte, end, before its wait point) of every block of every op."""
    found = []
    for node in plan.graph.nodes:
        for param, name in node.arguments():
            if name != buffer.name:
                continue
            part = buffer.nbytes // node.blocks
            cores = plan.placements[node.index]
            for block in range(node.blocks):
                begin, size = (block * part, part) if param.block else (0, buffer.nbytes)
                core = cores[block % len(cores)]
                early = param.name in node.kernel.read_before_wait
                found.append((node.index, core, buffer.offset + begin, buffer.offset + begin + size, early))
    return found


def overlap(first: PlacedBuffer, second: PlacedBuffer) -> bool:
    return first.offset < second.offset + second.nbytes and second.offset < first.offset + first.nbytes


def heaviest_antichain(plan: Plan) -> int:
    """The optimum's lower bound: most bytes of buffers that are pairwise live together (Dilworth, by maximum flow)."""
    buffers, order = plan.memory.buffers, order_of(plan)
    at_zero = [replace(buffer, offset=0) for buffer in buffers]  # an equal offset allows most
    count = len(buffers)
    source, sink = 2 * count, 2 * count + 1
    room: list[dict[int, int]] = [{} for _ in range(2 * count + 2)]
    for i in range(count):
        room[source][i] = room[count + i][sink] = buffers[i].nbytes
        for j in range(count):
            if i != j and _before(plan, order, at_zero[i], at_zero[j]):
                room[i][count + j] = 1 << 60
    flow = 0
    while True:
        came: dict[int, int] = {source: source}
        queue = deque([source])
        while queue and sink not in came:
            here = queue.popleft()
            for there, left in room[here].items():
                if left and there not in came:
                    came[there] = here
                    queue.append(there)
        if sink not in came:
            return sum(buffer.nbytes for buffer in buffers) - flow
        path, at = list[tuple[int, int]](), sink
        while at != source:
            path.append((came[at], at))
            at = came[at]
        width = min(room[a][b] for a, b in path)
        for a, b in path:
            room[a][b] -= width
            room[b][a] = room[b].get(a, 0) + width
        flow += width


@pytest.mark.parametrize(("blocks", "block", "cores"), [(1, "", 1), (2, "", 2), (2, "@block", 2), (4, "@block", 2)])
def test_a_chain_needs_two_buffers(blocks: int, block: str, cores: int) -> None:
    plan = make_plan(chain(100, blocks, block), Options(), cores)
    memory = plan.memory
    assert len(memory.buffers) == 99 and memory.without_reuse == 99 * 8 * MB
    assert len(set(memory.offsets.values())) == 2
    assert memory.peak == 16 * MB and memory.arena <= 16 * MB + 4096
    assert plan.blocking_steps == (99 if cores > 1 and not block else 0), "reuse adds no sync"
    assert validate(plan, plan.layout).ok


def test_a_plan_prints_its_memory() -> None:
    plan = make_plan(chain(100, 2, "@block"), Options(), 2)
    line = "memory: 99 buffers in an arena of 16.0 MB, peak 16.0 MB, 792.0 MB without reuse"
    assert line in str(plan) and str(plan.memory) in line
    nothing_inside = make_plan(chain(1, 1), Options(), 1)
    assert "memory:" not in str(nothing_inside) and str(nothing_inside.memory) == "no buffers are allocated inside"


def test_places_are_aligned_and_two_buffers_of_one_op_differ_in_their_page_offset() -> None:
    plan = make_plan(chain(10, 1, elements=1024), Options(), 1)
    first, second = sorted(set(plan.memory.offsets.values()))
    assert first % ALIGNMENT == second % ALIGNMENT == 0
    assert 256 <= (second - first) % 4096 <= 4096 - 256


def test_lifetimes_follow_the_syncs_and_not_the_list() -> None:
    """Two chains side by side on two cores: one after the other in the list, at the same time in a launch."""
    one = kernel("one", 1, "in:x:float32[4096]", "out:y:float32[4096]")
    ops = [Op(one, [f"{name}{i}", f"{name}{i + 1}"], stream=lane) for lane, name in enumerate("ab") for i in range(4)]
    graph = build_graph(ops, stream_fusion=True)
    apart = make_plan(graph, Options(stream_fusion=True), 2)
    assert len(apart.lane_cores) == 2
    a, b = ({apart.memory.offsets[f"{name}{i}"] for i in (1, 2, 3)} for name in "ab")
    assert len(a) == len(b) == 2 and not a & b
    alone = make_plan(graph, Options(stream_fusion=True), 1)
    assert alone.memory.arena < apart.memory.arena
    assert validate(apart, apart.layout).ok
    assert not validate(replace(apart, memory=alone.memory)).ok


@pytest.mark.parametrize("seed", SEEDS)
def test_no_two_live_buffers_share_a_byte(seed: int) -> None:
    plan = random_plan(seed)
    assert validate(plan, plan.layout).ok
    assert simulate(plan, seed).ok
    order, buffers = order_of(plan), plan.memory.buffers
    for i, first in enumerate(buffers):
        for second in buffers[:i]:
            assert not overlap(first, second) or not live_together(plan, order, first, second), (first, second)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_arena_is_at_most_a_quarter_larger_than_the_optimum(seed: int) -> None:
    plan = random_plan(seed)
    best = heaviest_antichain(plan)
    rounding = ALIGNMENT * len(plan.memory.buffers)
    assert plan.memory.peak <= plan.memory.arena
    assert plan.memory.arena <= 1.25 * (best + rounding)


def test_a_planted_overlap_is_refused_exactly_if_both_are_live() -> None:
    refused = seen = 0
    for seed in SEEDS:
        plan, rng = random_plan(seed), random.Random(seed)
        order = order_of(plan)
        for _ in range(8):
            moved, onto = rng.sample(range(len(plan.memory.buffers)), 2)
            buffers = list(plan.memory.buffers)
            offset = buffers[onto].offset + rng.choice((0, 0, ALIGNMENT))
            buffers[moved] = replace(buffers[moved], offset=offset)
            arena = max(plan.memory.arena, offset + buffers[moved].nbytes)
            broken = replace(plan, memory=replace(plan.memory, buffers=tuple(buffers), arena=arena))
            wrong = any(
                overlap(buffers[moved], other) and live_together(plan, order, buffers[moved], other)
                for other in buffers
                if other.name != buffers[moved].name
            )
            found = validate(broken).errors
            assert {error.property for error in found} == ({"P21"} if wrong else set()), (seed, moved, onto, found)
            refused += wrong
            seen += wrong and any(not simulate(broken, s, launches=1).ok for s in range(2))
    assert refused > 20
    assert seen > refused // 3  # a simulation sees overlaps whose values are read afterwards


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (MemoryPlan((PlacedBuffer("t4", 0, 4096),), 4096), "'t4' is returned by a launch"),
        (MemoryPlan((PlacedBuffer("t0", 0, 4096),), 4096), "'t0' is passed to a launch"),
        (MemoryPlan((PlacedBuffer("t1", 64, 4096),), 4096), "outside of it"),
        (MemoryPlan((PlacedBuffer("t1", 8, 4096),), 8192), "not at a multiple of 64"),
        (MemoryPlan((PlacedBuffer("t1", 0, 64),), 4096), "'t1' has 4096 bytes, but 64"),
        (MemoryPlan((PlacedBuffer("t1", 0, 4096), PlacedBuffer("t1", 4096, 4096)), 8192), "2 places"),
        (MemoryPlan((PlacedBuffer("nothing", 0, 64),), 64), "no op touches it"),
        (MemoryPlan((PlacedBuffer("t1", 0, 4096), PlacedBuffer("t2", 64, 4096)), 8192), "'t1' and 't2' share bytes 64"),
    ],
)
def test_a_wrong_memory_plan_is_refused(memory: MemoryPlan, words: str) -> None:
    plan = make_plan(chain(4, 1, elements=1024), Options(), 1)
    errors = validate(replace(plan, memory=memory)).errors
    assert [error.property for error in errors] == ["P21"] and words in errors[0].message


def test_what_tiling_functions_see_has_memory_of_its_own() -> None:
    plain = kernel("plain", 1, "in:x:float32[64]", "out:y:float32[64]")
    ops = [Op(plain, ["a", "b"]), Op(plain, ["b", "c"], task="dynamic"), Op(plain, ["c", "d"])]
    plan = make_plan(build_graph(ops), Options(), 1)
    assert set(plan.memory.offsets) == {"c"}
    shown = MemoryPlan((PlacedBuffer("b", 0, 256),), 256)
    assert [error.property for error in validate(replace(plan, memory=shown)).errors] == ["P21"]


def test_a_part_of_a_buffer_keeps_all_of_it_alive() -> None:
    """Op 2 reads `a` from an offset on: its @block promise says nothing of the whole buffer."""
    half = kernel("half", 2, "in:x:float32[512]@block", "out:y:float32[512]@block")
    whole = kernel("whole", 2, "in:x:float32[1024]@block", "out:y:float32[1024]@block")
    ops = [Op(whole, ["i", "a"]), Op(half, [Place("a", 2048), "b"]), Op(whole, ["j", "c"]), Op(whole, ["c", "d"])]
    plan = make_plan(build_graph([*ops, Op(half, ["b", "e"])]), Options(), 2)
    assert validate(plan, plan.layout).ok and plan.blocking_steps
    order = order_of(plan)
    placed = {buffer.name: buffer for buffer in plan.memory.buffers}
    assert not overlap(placed["a"], placed["c"]) or not live_together(plan, order, placed["a"], placed["c"])


def test_the_same_graph_gets_the_same_memory_whatever_its_names() -> None:
    graph = random_graph(3)[0]
    renamed = build_graph([Op(node.kernel, [f"z{len(str(arg))}{arg}" for arg in node.op.args]) for node in graph.nodes])
    plans = [make_plan(g, Options(), 2) for g in (graph, renamed, graph)]
    first, second, again = ([buffer.offset for buffer in plan.memory.buffers] for plan in plans)
    assert first == second == again
