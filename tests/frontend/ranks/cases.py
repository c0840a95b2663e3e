"""Functions with collectives and their inputs by rank; each runs fused, with fuse=off, serially and with gloo."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from frontend.fused import assert_close, bytes_of
from frontend.ranks import reference_collectives
from torch.utils._pytree import tree_leaves

from superkernel.frontend.report import CompileReport, collecting
from superkernel.plan.steps import AwaitRanks, Call, NotifyRanks

Function = Callable[..., Any]
_groups: dict[str, Any] = {}


def group(name: str) -> Any:
    """A process group of this job: "world", or ranks such as "0,2"; every rank makes all groups in one order."""
    if name == "world":
        return dist.group.WORLD
    return _groups[name]


def make_groups(rank: int, names: list[str]) -> None:
    for name in names:
        _groups[name] = dist.new_group([int(place) for place in name.split(",")])


@dataclass(frozen=True)
class Case:
    """`make(api)` is the function, with collectives of torch or of the reference; `inputs(rank)` its arguments."""

    make: Callable[[ModuleType], Function]
    inputs: Callable[[int], tuple[Any, ...]]
    gloo: bool = True  # gloo has these operations for these dtypes
    alike: bool = True  # all ranks return the same


@dataclass
class Outcome:
    """What a rank tells of a case."""

    digest: str  # of the outputs
    segments: list[dict[str, int]] = field(default_factory=list)  # of the fused run
    torch_calls: list[str] = field(default_factory=list)


CASES: dict[str, Case] = {}


def case(
    inputs: Callable[[int], tuple[Any, ...]], gloo: bool = True, alike: bool = True
) -> Callable[[Callable[[ModuleType], Function]], Any]:
    """Registers a function that makes the function of a case, under its name."""

    def register(make: Callable[[ModuleType], Function]) -> Callable[[ModuleType], Function]:
        CASES[make.__name__] = Case(make, inputs, gloo, alike)
        return make

    return register


def compiled(function: Function, **options: Any) -> Function:
    return torch.compile(function, backend="superkernel", dynamic=False, options=options)


def run_case(rank: int, name: str, options: Mapping[str, Any] | None = None) -> Outcome:
    """Fused equals fuse=off and the serial reference in bits, call after call, and gloo nearly."""
    chosen = CASES[name]
    torch._dynamo.reset()
    function, serial = chosen.make(functional), chosen.make(reference_collectives)
    inputs = chosen.inputs(rank)
    expected_inputs = copy.deepcopy(inputs)
    expected = serial(*expected_inputs)
    own = copy.deepcopy(inputs)
    fused = compiled(function, **(options or {}))
    with collecting() as report:
        found = fused(*own)
    _assert_equal("fused", found, expected)
    _assert_equal("inputs", own, expected_inputs)
    for _ in range(3):  # the slots of both parities, and used ones
        _assert_equal("again", fused(*copy.deepcopy(inputs)), expected)
    torch._dynamo.reset()
    _assert_equal("off", compiled(function, **(options or {}), fuse="off")(*copy.deepcopy(inputs)), expected)
    if chosen.gloo:
        assert_close(found, function(*copy.deepcopy(inputs)), 2e-2 if _has_short_floats(found) else 1e-5)
    return Outcome(digest_of(found), segments_of(report), torch_calls_of(report))


def digest_of(values: Any) -> str:
    return hashlib.sha256(b"".join(map(bytes_of, tree_leaves(values)))).hexdigest()


def torch_calls_of(report: CompileReport) -> list[str]:
    """What torch runs between super kernels, and why."""
    return [f"{each.op}: {each.reason}" for scope in report.scopes for each in scope.unfusible]


def _assert_equal(what: str, found: Any, expected: Any) -> None:
    for place, (mine, other) in enumerate(zip(tree_leaves(found), tree_leaves(expected), strict=True)):
        shapes = (mine.dtype, mine.shape), (other.dtype, other.shape)
        assert shapes[0] == shapes[1], f"{what}: output {place} is {shapes[0]}, and serially {shapes[1]}"
        assert bytes_of(mine) == bytes_of(other), f"{what}: output {place}, {mine.dtype}: {mine} and serially {other}"


def _has_short_floats(values: Any) -> bool:
    return any(value.dtype in (torch.bfloat16, torch.float16) for value in tree_leaves(values))


def segments_of(report: CompileReport) -> list[dict[str, int]]:
    """What the tests ask of every super kernel."""
    return [
        {
            "ops": len(segment.ops),
            "collectives": len(segment.collectives),
            "awaits": sum(isinstance(step, AwaitRanks) for step in segment.kernel.plan.steps),
            "notifies": sum(isinstance(step, NotifyRanks) for step in segment.kernel.plan.steps),
        }
        for scope in report.scopes
        for segment in scope.segments
    ]


def random(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(17 * rank + len(shape))
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 100, shape, generator=generator).to(dtype)


DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8, torch.bool)


def _each_dtype(rank: int) -> tuple[torch.Tensor, ...]:
    return tuple(random(rank, 7, 5, dtype=dtype) for dtype in DTYPES)


@case(_each_dtype, gloo=False)
def sums_of_every_dtype(api: ModuleType) -> Function:
    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [
            api.all_reduce(tensor | tensor if tensor.dtype is torch.bool else tensor + tensor, "sum", group("world"))
            for tensor in tensors
        ]

    return function


@case(lambda rank: (random(rank, 33, dtype=torch.float32), random(rank, 33, dtype=torch.bfloat16)), gloo=False)
def every_reduction(api: ModuleType) -> Function:
    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [
            api.all_reduce(tensor * 2, reduction, group("world")) + 1
            for tensor in tensors
            for reduction in ("sum", "avg", "max", "min", "product")
        ]

    return function


@case(_each_dtype, gloo=False)
def moves_of_every_dtype(api: ModuleType) -> Function:
    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        results = []
        for tensor in tensors:
            gathered = api.all_gather_single(tensor, 0, group("world"))
            sent = api.all_to_all_single(gathered.flip(0), None, None, group("world"))
            results += [gathered.flip(0), api.all_gather_single(sent, 0, group("world"))]
            results.append(api.broadcast(tensor.flip(0), 1, group("world")))
        bools = api.all_gather_single(tensors[-1], 0, group("world")).repeat(2, 1)
        halves = [api.reduce_scatter_single(bools, reduction, 0, group("world")) for reduction in ("sum", "product")]
        return [*results, *(api.all_gather_single(half, 0, group("world")) for half in halves)]

    return function


@case(lambda rank: (random(rank, 4, 6), random(rank, 4, 6, dtype=torch.bfloat16)))
def gathers(api: ModuleType) -> Function:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        world = group("world")
        return [api.all_gather_single(z * 2, dim, world) + 1 for z in (x, y) for dim in (0, 1)]

    return function


@case(lambda rank: (random(rank, 12, 24),), alike=False)
def scatters(api: ModuleType) -> Function:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        world = group("world")
        return [
            api.reduce_scatter_single(x * 2, reduction, dim, world) + 1 for reduction, dim in (("sum", 0), ("max", 1))
        ]

    return function


def _splits(rank: int, size: int) -> tuple[list[int], list[int]]:
    """Rank r sends r + d + 1 rows to rank d, and nothing to itself."""
    sent = [0 if rank == other else rank + other + 1 for other in range(size)]
    return sent, sent


@case(lambda rank: (random(rank, 12, 3), random(rank, sum(_splits(rank, dist.get_world_size())[0]), 3)), alike=False)
def exchanges(api: ModuleType) -> Function:
    sent, received = _splits(dist.get_rank(), dist.get_world_size())

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        world = group("world")
        even = api.all_to_all_single(x * 2, None, None, world) + 1
        return [even, api.all_to_all_single(y * 2, received, sent, world) + 1]

    return function


@case(lambda rank: (random(rank, 6, 4), random(rank, 12, 2)), alike=False)
def coalesced(api: ModuleType) -> Function:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        world = group("world")
        return [
            *api.all_reduce_coalesced([x * 2, y * 2], "sum", world),
            *api.all_gather_single_coalesced([x * 3, y * 3], world),
            *api.reduce_scatter_single_coalesced([x * 5, y * 5], "sum", [0, 0], world),
        ]

    return function


@case(lambda rank: (random(rank, 40), random(rank, 64)), alike=False)
def ops_between_start_and_wait(api: ModuleType) -> Function:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        world = group("world")
        first = api.all_reduce(x * 2, "sum", world)
        second = api.all_gather_single(y + 1, 0, world)
        between = (y * 4).abs().amax(0, keepdim=True)
        third = api.all_reduce(y * 2, "max", world)
        return [third, between, second * 2, first + between, x.abs()]

    return function


@case(lambda rank: (random(rank, 40_000), random(rank, 40_000, dtype=torch.bfloat16)))
def large(api: ModuleType) -> Function:
    """Large enough for two windows in float32."""

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [api.all_reduce(x * 2, "sum", group("world")) + 1, api.all_reduce(y * 2, "sum", group("world"))]

    return function


@case(lambda rank: (random(rank, 40_000), random(rank, 40_000)), alike=False)
def other_ops_on_one_rank(api: ModuleType) -> Function:
    """The first rank needs a result before it starts the next collective, the others later, in the reverse order."""
    is_first = dist.get_rank() == 0

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        first = api.all_reduce(x, "sum", group("world"))
        more = [first.abs()] if is_first else []
        second = api.all_reduce(y + more[0] if is_first else y, "sum", group("world"))
        return [second * 2, first * 2, *more]

    return function


@case(lambda rank: (random(rank, 6, 4).t(), random(rank, 40, 1000).t()), gloo=False)
def permuted(api: ModuleType) -> Function:
    """Inductor keeps the order of the dimensions in memory."""

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        world = group("world")
        sums = [api.all_reduce(tensor, "sum", world) for tensor in (x, y)]
        return [*sums, api.broadcast(x, 1, world) + 1]

    return function


@case(lambda rank: (random(rank, 0, 3), random(rank, 1)))
def empty_and_single(api: ModuleType) -> Function:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        world = group("world")
        return [
            api.all_reduce(x * 2, "sum", world),
            api.all_gather_single(x, 0, world),
            api.all_reduce(y * 2, "sum", world),
        ]

    return function


@case(lambda rank: (random(rank, 8, 4),), alike=False)
def several_groups(api: ModuleType) -> Function:
    """All ranks, this rank alone, and a group whose order of ranks is not that of the job."""
    alone = str(dist.get_rank())

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        mine = api.all_reduce(x * 2, "sum", group(alone))
        gathered = api.all_gather_single(mine + 1, 0, group(alone))
        scattered = api.reduce_scatter_single(gathered * 2, "sum", 0, group(alone))
        sent = api.all_to_all_single(x * 3, None, None, group(alone))
        world = api.all_reduce(scattered * 2, "sum", group("world"))
        pair = api.all_gather_single(world * 2, 0, group("0,1")) if dist.get_rank() < 2 else world
        return [mine, gathered + 1, sent, world, pair + 1]

    return function


@case(lambda rank: (random(rank, 12, 4),), alike=False)
def groups_of_one_behind_each_other(api: ModuleType) -> Function:
    """Nothing of this rank stands between the collectives; only the last result is used."""
    alone = str(dist.get_rank())

    def function(x: torch.Tensor) -> torch.Tensor:
        sent = api.all_to_all_single(x, None, None, group("world"))
        again = api.all_to_all_single(sent[1:], None, None, group(alone))
        return api.all_gather_single(again, 0, group(alone)) * 2

    return function


@case(lambda rank: (random(rank, 16, 8), random(rank, 8)), alike=False)
def reduction_then_norm(api: ModuleType) -> Function:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        summed = api.all_reduce(x * 2, "sum", group("world"))
        largest = summed.abs().amax(-1, keepdim=True)
        return summed * weight + largest

    return function


@case(lambda rank: (random(rank, 16), random(rank, 16)))
def updated_inputs(api: ModuleType) -> Function:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = api.all_reduce(x, "sum", group("world"))
        x.add_(1)
        y.copy_(total)
        return total * 2

    return function


@case(lambda rank: (random(rank, 16),), alike=False)
def unused_result(api: ModuleType) -> Function:
    def function(x: torch.Tensor) -> torch.Tensor:
        api.all_reduce(x * 2, "sum", group("world"))
        return x + 1

    return function


def overlapped(rank: int, is_used_together: bool) -> dict[str, Any]:
    """What two cores do between the start of a collective and the wait for it."""
    torch._dynamo.reset()

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        summed = functional.all_reduce(x @ x, "sum", group("world"))
        meanwhile = y @ y
        used = summed * 2
        return meanwhile, used.sum() + meanwhile if is_used_together else used

    inputs = random(rank, 96, 96), random(rank + 7, 96, 96)
    with collecting() as report:
        found = compiled(function, cores=2)(*inputs)
    assert_close(found, function(*inputs), 1e-4)
    ((segment,),) = (scope.segments for scope in report.scopes)
    plan = segment.kernel.plan
    names = [node.name for node in plan.graph.nodes]
    kinds = {NotifyRanks: "notify", AwaitRanks: "await", Call: "call"}
    order = [(kinds[type(step)], names[step.op], step.cores) for step in plan.steps if type(step) in kinds]
    return {"order": order, "blocks": {node.name: node.blocks for node in plan.graph.nodes}}
