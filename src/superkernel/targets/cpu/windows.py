"""targets.cpu.windows: windows that a caller passes to a launch -> checked: their round has begun, and is not over."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from ...errors import LaunchError, shown
from ...model.graph import Graph
from ...model.window_layout import ARRIVED, FAILED, RANK_LINE, ROUND, has_arrived


def has_windows(graph: Graph) -> bool:
    """Whether a launch synchronises with other ranks, and is a whole round: launches of parts share one."""
    return not graph.part and any(collective.group.size > 1 for collective in graph.collectives)


def check_windows(graph: Graph, places: Mapping[str, tuple[int, int]], where: str) -> None:
    """`places`: address and bytes by name. In a window without a round, ranks would not wait for each other."""
    for collective in graph.collectives:
        group, name = collective.group, collective.window
        if group.size == 1:
            continue
        address, size = places[name]
        window = f"{where}{shown(name)}, the window of collective {shown(collective.name)}, "
        if size < RANK_LINE * group.size:
            raise LaunchError(
                f"{window}has {size} bytes: the words of the {group.size} ranks of {group} alone take "
                f"{RANK_LINE * group.size}"
            )
        line = address + RANK_LINE * group.rank
        arrived, current = (ctypes.c_uint32.from_address(line + word).value for word in (ARRIVED, ROUND))
        if not current:
            raise LaunchError(
                f"{window}is in no round: all ranks of {group} must share its memory, and each begins a round before "
                "it launches (docs/collectives.md)"
            )
        if arrived == FAILED or has_arrived(arrived, current):
            what = "has failed" if arrived == FAILED else f"has been launched in round {current} already"
            raise LaunchError(
                f"{window}says that rank {group.global_rank} of {group} {what}: begin the next round on every rank "
                "before each launch (docs/collectives.md)"
            )
