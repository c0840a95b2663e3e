"""bench.convolution: convolution networks at batch 1 beside their peers."""

from __future__ import annotations

from .convolution_nets import convolution_nets
from .measure import Comparison, Figure, Result
from .peers import CORES, EAGER, INDUCTOR, compare, suite


def run(quick: bool = False, cores: int = CORES) -> Result:
    rounds = 11 if quick else 41
    with suite("convolution", quick, cores) as (result, peers):
        for net in convolution_nets()[: 1 if quick else None]:
            result.figures.append(not_slower(compare(result, net, peers, rounds)))
        result.notes.append("freezing folds batch norms into constant weights; ours may change between calls")
    return result


def not_slower(compared: Comparison) -> Figure:
    """The best of eager torch and Inductor with default settings, which keep weights variable as we do."""
    theirs = min(peer.median for peer in compared.peers if peer.name in (EAGER.name, INDUCTOR.name))
    name = f"{compared.name}: the best of eager and inductor to ours"
    return Figure(name, theirs / compared.ours.median, 0.98, True)
