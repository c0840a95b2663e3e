"""Thirty-one op lists in CANN's form: kernel types, streams, events, tilings, options; as large as a chip."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from targets.ascend.device_lists import DeviceKernel, Entry

from superkernel.targets.ascend.core_types import KernelType

AIV, AIC = KernelType.AIV_ONLY, KernelType.AIC_ONLY
MIX_AIV, MIX_AIC = KernelType.MIX_AIV_1_0, KernelType.MIX_AIC_1_0
MIX_1, MIX_2 = KernelType.MIX_AIC_1_1, KernelType.MIX_AIC_1_2
IN_OUT = ("in:x", "out:y")


@dataclass(frozen=True)
class Kernels:
    """Sub-kernels that fill a chip, or half of it."""

    cubes: int
    vectors: int

    def of(self, name: str, kind: KernelType, params: tuple[str, ...] = IN_OUT, part: float = 1.0) -> DeviceKernel:
        whole = self.vectors if kind in (AIV, MIX_AIV) else self.cubes
        return DeviceKernel(name, kind, max(1, int(whole * part)), params)


@dataclass(frozen=True)
class Scenario:
    entries: tuple[Entry, ...]
    options: str = ""


Maker = Callable[[Kernels], Scenario]
SCENARIOS: dict[str, Maker] = {}


def scenario(maker: Maker) -> Maker:
    SCENARIOS[maker.__name__] = maker
    return maker


def chain(kernels: Kernels, *kinds: KernelType, options: str = "", part: float = 1.0) -> Scenario:
    """Each op reads what the one before wrote."""
    made = [kernels.of(f"k{place}", kind, part=part) for place, kind in enumerate(kinds)]
    entries = [Entry(kernel, (f"b{place}", f"b{place + 1}")) for place, kernel in enumerate(made)]
    return Scenario(tuple(entries), options)


# kernel types


@scenario
def vectors_only(k: Kernels) -> Scenario:
    return chain(k, AIV, AIV, MIX_AIV, AIV)


@scenario
def cubes_only(k: Kernels) -> Scenario:
    return chain(k, AIC, MIX_AIC, AIC)


@scenario
def vector_to_cube(k: Kernels) -> Scenario:
    return chain(k, AIV, AIC, AIV, AIC)


@scenario
def mix_to_vector_and_cube(k: Kernels) -> Scenario:
    return chain(k, MIX_2, AIV, MIX_2, AIC)


@scenario
def vector_and_cube_to_mix(k: Kernels) -> Scenario:
    return chain(k, AIV, MIX_2, AIC, MIX_2)


@scenario
def mix_to_mix(k: Kernels) -> Scenario:
    return chain(k, MIX_2, MIX_2, MIX_2)


@scenario
def one_to_one_alone(k: Kernels) -> Scenario:
    return chain(k, MIX_1, AIC, MIX_1)


@scenario
def one_to_one_in_one_to_two(k: Kernels) -> Scenario:
    return chain(k, MIX_1, MIX_2, AIV, MIX_1)


@scenario
def every_type_on_half_of_the_chip(k: Kernels) -> Scenario:
    return chain(k, *KernelType, *reversed(KernelType), part=0.5)


@scenario
def bare_parameters_with_private_names(k: Kernels) -> Scenario:
    bare = [k.of(f"k{place}", kind, ("x", "y", "z")) for place, kind in enumerate((AIV, MIX_2, AIC, AIV))]
    return Scenario(tuple(Entry(kernel) for kernel in bare))


@scenario
def many_readers_and_overwritten_names(k: Kernels) -> Scenario:
    wide = k.of("wide", MIX_2, ("in:p", "in:q", "inout:r"), 0.75)
    vec, cube = k.of("vec", AIV), k.of("cube", AIC, part=0.5)
    uses = [(vec, "a", "b"), (cube, "a", "c"), (wide, "b", "c", "d"), (vec, "d", "b"), (wide, "b", "a", "c")]
    return Scenario(tuple(Entry(kernel, names) for kernel, *names in uses))  # type: ignore[arg-type]


# streams


@scenario
def two_streams_in_list_order(k: Kernels) -> Scenario:
    vec, cube = k.of("vec", AIV), k.of("cube", AIC)
    return Scenario(
        (Entry(vec, ("a", "b")), Entry(cube, ("c", "d"), 1), Entry(vec, ("b", "e")), Entry(cube, ("e", "d"), 1))
    )


@scenario
def two_lanes(k: Kernels) -> Scenario:
    return replace(two_streams_in_list_order(k), options="stream-fusion=1")


@scenario
def three_streams_with_events(k: Kernels) -> Scenario:
    vec, cube, mix = k.of("vec", AIV), k.of("cube", AIC), k.of("mix", MIX_2, part=0.5)
    return Scenario(
        (
            Entry(vec, ("a", "b"), 0, send=(1,)),
            Entry(cube, ("c", "d"), 1, send=(2,)),
            Entry(cube, ("e", "f"), 1, recv=(1,)),
            Entry(mix, ("g", "h"), 2, recv=(1, 2), send=(3,)),
            Entry(vec, ("b", "i"), 0, recv=(3,)),
        ),
        "stream-fusion=1",
    )


@scenario
def a_receiver_listed_before_its_sender(k: Kernels) -> Scenario:
    vec, cube = k.of("vec", AIV), k.of("cube", AIC)
    return Scenario(
        (
            Entry(cube, ("a", "b"), 1),
            Entry(vec, ("c", "d"), 0, recv=(5,)),
            Entry(cube, ("b", "e"), 1, send=(5,)),
        ),
        "stream-fusion=1",
    )


# events


@scenario
def inner_events_without_data(k: Kernels) -> Scenario:
    vec, cube = k.of("vec", AIV), k.of("cube", AIC)
    return Scenario(
        (Entry(vec, ("a", "b"), send=("go",)), Entry(cube, ("c", "d"), recv=("go",)), Entry(vec, ("e", "f")))
    )


@scenario
def one_event_for_two_receivers(k: Kernels) -> Scenario:
    vec, cube, mix = k.of("vec", AIV), k.of("cube", AIC), k.of("mix", MIX_2)
    return Scenario(
        (Entry(mix, ("a", "b"), send=(1,)), Entry(cube, ("c", "d"), recv=(1,)), Entry(vec, ("e", "f"), recv=(1,)))
    )


@scenario
def notifies_to_the_outside(k: Kernels) -> Scenario:
    made = chain(k, AIV, AIC, MIX_2)
    return replace(made, entries=tuple(replace(e, send=(10 + i,)) for i, e in enumerate(made.entries)))


@scenario
def waits_for_the_outside(k: Kernels) -> Scenario:
    made = chain(k, AIV, AIC, MIX_2, AIV)
    waiting = [replace(e, recv=(10 + i,)) if i else e for i, e in enumerate(made.entries)]
    return replace(made, entries=tuple(waiting))


@scenario
def notify_and_wait_between(k: Kernels) -> Scenario:
    vec, cube = k.of("vec", AIV), k.of("cube", AIC)
    return Scenario(
        (
            Entry(vec, ("a", "b"), send=("first", "second")),
            Entry(cube, ("b", "c"), recv=("third",), send=("fourth",)),
            Entry(vec, ("c", "d"), recv=("fifth", "sixth")),
        )
    )


# tilings


def dynamic(kernel: DeviceKernel, *keys: int) -> DeviceKernel:
    return replace(kernel, keys=keys)


@scenario
def a_dynamic_op_after_its_input(k: Kernels) -> Scenario:
    tiled = dynamic(k.of("tiled", AIV), 1, 7, 1000)
    return Scenario(
        (Entry(k.of("cube", AIC), ("a", "b")), Entry(tiled, ("b", "c")), Entry(k.of("vec", AIV), ("c", "d")))
    )


@scenario
def dynamic_ops_that_depend_on_each_other(k: Kernels) -> Scenario:
    tiled, mixed = dynamic(k.of("tiled", AIV), 1, 2), dynamic(k.of("mixed", MIX_2), 3)
    return Scenario(
        (
            Entry(k.of("vec", AIV), ("a", "b")),
            Entry(tiled, ("b", "c")),
            Entry(mixed, ("c", "d"), recv=("go",)),
            Entry(tiled, ("d", "b"), send=("done",)),
        )
    )


@scenario
def dynamic_ops_in_two_lanes(k: Kernels) -> Scenario:
    tiled, cube = dynamic(k.of("tiled", AIV), 1, 2), dynamic(k.of("cube", AIC), 5, 6)
    return Scenario(
        (Entry(tiled, ("a", "b")), Entry(cube, ("c", "d"), 1), Entry(tiled, ("d", "e")), Entry(cube, ("b", "f"), 1)),
        "stream-fusion=1",
    )


@scenario
def a_dynamic_op_whose_cores_meet(k: Kernels) -> Scenario:
    tiled = replace(dynamic(k.of("tiled", AIV), 1, 2), sync_all=True)
    return Scenario((Entry(k.of("vec", AIV), ("a", "b")), Entry(tiled, ("b", "c"))), "feed-sync-all=1")


# options


@scenario
def barriers_only(k: Kernels) -> Scenario:
    return chain(k, AIV, AIC, MIX_2, MIX_1, AIV, options="early-start=0")


@scenario
def waits_and_arrivals_inside(k: Kernels) -> Scenario:
    kinds = (AIV, AIC, MIX_2, AIV, MIX_1)
    made = [
        replace(k.of(f"k{i}", kind, part=1 if i % 2 else 0.5), waits=i > 0, sets=i != 3) for i, kind in enumerate(kinds)
    ]
    return Scenario(tuple(Entry(kernel, (f"b{i}", f"b{i + 1}")) for i, kernel in enumerate(made)), "early-start=1")


@scenario
def early_start_by_the_entry(k: Kernels) -> Scenario:
    return chain(k, AIV, AIC, MIX_2, AIV, options="early-start=2:split-mode=2:preload-code=max")


@scenario
def idle_cores_join_barriers(k: Kernels) -> Scenario:
    made = chain(k, AIV, MIX_2, AIC, MIX_1, AIV, part=0.5, options="feed-sync-all=1")
    entries = [replace(e, kernel=replace(e.kernel, sync_all=i % 2 == 1 or i == 2)) for i, e in enumerate(made.entries)]
    return replace(made, entries=(*entries, Entry(k.of("all", MIX_2), ("b5", "b6"))))


@scenario
def profiling_and_debug_barriers(k: Kernels) -> Scenario:
    return chain(k, AIV, AIC, MIX_2, options="profiling=1:debug-sync-all=1:debug-dcci-all=1:split-mode=1")


@scenario
def weights_are_prefetched(k: Kernels) -> Scenario:
    weighted = [k.of(f"k{i}", kind, ("in:x", "in:w", "out:y")) for i, kind in enumerate((AIC, AIV, MIX_2))]
    entries = [Entry(kernel, (f"b{i}", f"w{i}", f"b{i + 1}")) for i, kernel in enumerate(weighted)]
    return Scenario(tuple(entries), "prefetch-weights=1:preload-code=none")


@scenario
def caches_are_maintained_and_a_dump_is_kept(k: Kernels) -> Scenario:
    cleans = {"sub_operator_call_dcci_before_kernel_start": True, "sub_operator_call_dcci_after_kernel_end": True}
    prints = {"debugOptions": "printf", "debugBufSize": 1 << 20}
    vec = replace(k.of("vec", AIV), more=cleans)
    cube = replace(k.of("cube", AIC), more=cleans | prints)
    return Scenario((Entry(vec, ("a", "b")), Entry(cube, ("b", "c")), Entry(vec, ("c", "d"))), "preload-code=max")
