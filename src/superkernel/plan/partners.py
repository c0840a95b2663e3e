"""plan.partners: two placements and block counts in; which producer cores each consumer core needs out.

Block b of an op runs on cores[b % len(cores)]. With equal block counts consumer block i needs producer block i; with P
and C blocks over equal elements it needs the producer blocks floor(i P / C) to ceil((i + 1) P / C) - 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from .steps import Cores

MOST_GROUPS = 64  # beyond this, consumers wait for all producers: one counter costs less than many flags
MOST_BLOCKS = 1 << 16


@dataclass(frozen=True)
class PartnerGroup:
    """Consumer cores whose blocks need what the same cores have stored."""

    consumers: Cores
    producers: Cores  # empty: each consumer core needs only what it has stored itself


def partner_groups(producers: Cores, consumers: Cores, blocks: tuple[int, int]) -> tuple[PartnerGroup, ...]:
    """The exact groups, or one group that needs all producers where there would be too many groups."""
    everything = (PartnerGroup(consumers, producers),)
    if blocks[0] == blocks[1]:
        if producers == consumers:
            return (PartnerGroup(consumers, ()),)
        count = min(blocks[0], lcm(len(producers), len(consumers)))
        if count > MOST_BLOCKS:
            return everything
        pairs = [(b, range(b, b + 1)) for b in range(count)]
    else:
        if sum(blocks) > MOST_BLOCKS:
            return everything
        pairs = [(i, _needed_blocks(i, *blocks)) for i in range(blocks[1])]
    needed: dict[int, set[int]] = {core: set() for core in consumers}
    for consumer_block, producer_blocks in pairs:
        found = needed[consumers[consumer_block % len(consumers)]]
        if len(found) < len(producers):
            found.update(producers[b % len(producers)] for b in producer_blocks)
    groups: dict[Cores, list[int]] = {}
    for core, cores in needed.items():
        groups.setdefault(tuple(sorted(cores)) if cores != {core} else (), []).append(core)
    if len(groups) > MOST_GROUPS:
        return everything
    return tuple(PartnerGroup(tuple(cores), partners) for partners, cores in groups.items())


def _needed_blocks(i: int, producer_blocks: int, consumer_blocks: int) -> range:
    return range(i * producer_blocks // consumer_blocks, -(-(i + 1) * producer_blocks // consumer_blocks))
