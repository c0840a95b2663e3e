"""Every kind of fault, planted in the emitted code of one rank of two, is found; or it changes nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from targets.ascend.emulator.rank_kernels import Chain, Stage
from targets.ascend.faults.plant import Fault, plant
from targets.ascend.faults.run import BATCH, STALL

from superkernel.cache import Cache
from superkernel.errors import BuildError, LaunchError
from superkernel.targets.ascend.core_types import CoreClass
from superkernel.targets.ascend.emulator import launch as emulator_launch
from superkernel.targets.ascend.emulator.modules import HostModule, build_modules
from superkernel.targets.ascend.emulator.rank_launch import RankLaunch, emulate_ranks
from superkernel.targets.ascend.executable import AscendExecutable
from superkernel.targets.collectives import CollectiveKind
from superkernel.targets.protocol import LaunchInputs

pytestmark = pytest.mark.conformance

CHAINS = {
    "even": Chain((Stage(CollectiveKind.ALL_REDUCE), Stage(CollectiveKind.ALL_TO_ALL)), 768, cores=("vector",)),
    "root and splits": Chain(
        (Stage(CollectiveKind.BROADCAST), Stage(CollectiveKind.ALL_TO_ALL, uneven=True)), 768, cores=("vector",)
    ),
}
SEEDS = range(8)
STATEMENTS = ("await", "notify", "reset", "arrive", "wait", "drain", "call")
_REFUSED = re.compile(r"^(\w+)_kernel\.cpp:\d+:\d+: (?:fatal )?error", re.M)
# statement, change, what it is moved behind -> why nothing is wrong then
HARMLESS = {
    ("await", "twice", ""): "the word stays set until its reset",
    ("drain", "twice", ""): "the pipes are empty",
    ("arrive", "behind the next", "preload"): "a request for code orders nothing",
    ("notify", "behind the next", "preload"): "a request for code orders nothing",
    ("wait", "behind the next", "drain"): "both stand before what needs them",
    ("drain", "behind the next", "notify"): "the core has waited for its own arrival, which stood behind its copies",
    ("call", "behind the next", "await"): "no other rank waits for the op in between",
    ("reset", "behind the next", "reset"): "both words are reset at the end",
    ("reset", "behind the next", "drain"): "no transfer has to do with the word",
    ("reset", "at the end", "drain"): "no transfer has to do with the word",
}
# the same, where the comment above the statement says so
HARMLESS_AT = {
    ("arrive", "on PIPE_V", "past the events of"): "the class only learns that the event was seen",
    ("arrive", "on PIPE_MTE2", "past the events of"): "the class only learns that the event was seen",
    ("notify", "at the end", "arrival at c1"): "it is the last collective: the other rank waits a little longer",
}


def built(faults: list[Fault]) -> dict[str, Mapping[CoreClass, HostModule]]:
    """By name; texts that the compiler refuses are left out."""
    try:
        modules = build_modules([fault.emitted for fault in faults], Cache(), False)
    except BuildError as error:
        refused = set(_REFUSED.findall(error.stderr))
        rest = [fault for fault in faults if fault.emitted.name not in refused]
        assert len(rest) < len(faults), error
        return built(rest) if rest else {}
    return {fault.emitted.name: modules for fault in faults}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_faults_of_one_rank(monkeypatch: pytest.MonkeyPatch, chain: Chain) -> None:
    monkeypatch.setattr(emulator_launch, "STALL_LIMIT", STALL)
    kernels = chain.compiled()
    first, second = (kernel.executable for kernel in kernels)
    assert isinstance(first, AscendExecutable) and isinstance(second, AscendExecutable)
    right = build_modules([second.emitted], Cache(), False)
    faults = [fault for fault in plant("ranks", first.emitted) if fault.statement in STATEMENTS]
    unseen = []
    for begin in range(0, len(faults), BATCH):
        batch = faults[begin : begin + BATCH]
        modules = built(batch)
        for fault in batch:
            if fault.emitted.name in modules and not is_found(
                fault, modules[fault.emitted.name], first, second, right, chain
            ):
                unseen.append(fault)
    assert len(faults) > 100
    assert not [str(fault) for fault in unseen if not is_harmless(fault, first.emitted.source.splitlines())]


def is_harmless(fault: Fault, lines: list[str]) -> bool:
    if (fault.statement, fault.change, fault.other) in HARMLESS:
        return True
    comments = [lines[number - 1] for number in fault.lines]
    known = [
        words for statement, change, words in HARMLESS_AT if (statement, change) == (fault.statement, fault.change)
    ]
    return any(words in comment for words in known for comment in comments)


def is_found(
    fault: Fault,
    modules: Mapping[CoreClass, HostModule],
    first: AscendExecutable,
    second: AscendExecutable,
    right: Mapping[CoreClass, HostModule],
    chain: Chain,
) -> bool:
    for seed in SEEDS:
        given = chain.inputs(seed)
        ranks = [
            RankLaunch(fault.emitted, first.plan.graph, modules, given[0], LaunchInputs({}, {})),
            RankLaunch(second.emitted, second.plan.graph, right, given[1], LaunchInputs({}, {})),
        ]
        try:
            emulate_ranks(ranks, Cache(), seed=seed, delays=None, races=True, record=False, launches=2)
        except LaunchError:
            return True
    return False
